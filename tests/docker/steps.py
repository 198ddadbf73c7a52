"""The steps of conversations: what one side does; keywords say what comes of it (``peer.Step``)."""

from collections.abc import Callable
from typing import Any

from runtimeproxy.docker.exchange import HeldExchange
from tests.docker.peer import Play, Step


def client(*pieces: bytes, **came: Any) -> Step:
    return Step(lambda play: play.client.sends(*pieces), **came)


def daemon(*pieces: bytes, **came: Any) -> Step:
    return Step(lambda play: play.daemon.sends(*pieces), **came)


def passes(*pieces: bytes) -> Step:
    """Have the client send what goes on to the daemon at once, as it came."""
    return client(*pieces, to_daemon=b"".join(pieces))


def returns(*pieces: bytes) -> Step:
    """Have the daemon send what goes on to the client at once, as it came."""
    return daemon(*pieces, to_client=b"".join(pieces))


def release(**came: Any) -> Step:
    """Release the newest call as it came."""
    return Step(lambda play: play.call.release(None), **came)


def refuse(**came: Any) -> Step:
    """Refuse the newest call."""
    return Step(lambda play: play.call.refuse(500, "no"), **came)


def answered(**came: Any) -> Step:
    """Let the answer to the newest call go: its Post hooks are done."""
    return Step(lambda play: play.call.answer(), **came)


def ends(side: str, **came: Any) -> Step:
    return Step(Play.client_ends if side == "client" else Play.daemon_ends, **came)


def leaves(**came: Any) -> Step:
    return Step(lambda play: play.reader.client_gone(), **came)


def at_once(act: Callable[[HeldExchange], object], sends: Step, **came: Any) -> Step:
    """Do something with each call from now on within the turn in which it is told, then have somebody send."""

    def do(play: Play) -> None:
        play.at_once = act
        sends.act(play)

    return Step(do, **came)
