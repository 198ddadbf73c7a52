"""The steps of conversations: what one side does; keyword arguments are the expected effects (``peer.Step``)."""

from collections.abc import Callable
from typing import Any

from runtimeproxy.docker.exchange import DockerHeld
from tests.docker.peer import Play, Step


def client(*pieces: bytes, **came: Any) -> Step:
    return Step(lambda play: play.client.sends(*pieces), **came)


def daemon(*pieces: bytes, **came: Any) -> Step:
    return Step(lambda play: play.daemon.sends(*pieces), **came)


def passes(*pieces: bytes) -> Step:
    """Return a step in which the client sends bytes that pass to the daemon at once and unchanged."""
    return client(*pieces, to_daemon=b"".join(pieces))


def returns(*pieces: bytes) -> Step:
    """Return a step in which the daemon sends bytes that pass to the client at once and unchanged."""
    return daemon(*pieces, to_client=b"".join(pieces))


def release(**came: Any) -> Step:
    """Return a step that releases the newest call unchanged."""
    return Step(lambda play: play.call.send_request(None), **came)


def refuse(**came: Any) -> Step:
    """Return a step that refuses the newest call."""
    return Step(lambda play: play.call.send_refusal(500, "no"), **came)


def answered(**came: Any) -> Step:
    """Return a step that sends the answer to the newest call on, as when its Post hooks are done."""
    return Step(lambda play: play.call.answer(), **came)


def ends(side: str, **came: Any) -> Step:
    return Step(Play.client_ends if side == "client" else Play.daemon_ends, **came)


def leaves(**came: Any) -> Step:
    return Step(lambda play: play.reader.stop(), **came)


def at_once(act: Callable[[DockerHeld], object], sends: Step, **came: Any) -> Step:
    """Return a step that does ``sends``; each held call is from then on given to ``act`` within its event."""

    def do(play: Play) -> None:
        play.at_once = act
        sends.act(play)

    return Step(do, **came)
