"""The health service: what it says before and after the end has begun (test_grpc_clients has its way over the wire)."""

from typing import cast

import pytest

from runtimeproxy.wire import grpc
from runtimeproxy_hooks.sdk.connection import Call
from runtimeproxy_hooks.sdk.health import Health

SERVING, NOT_SERVING, SERVICE_UNKNOWN = (bytes((8, status)) for status in (1, 2, 3))
Said = bytes | tuple[int, str]


class Asked:
    """A call that notes what it is told; ``gone`` if its caller has left before it began."""

    def __init__(self, service: str, gone: bool = False) -> None:
        self.message = bytes((10, len(service))) + service.encode()
        self.said: list[Said] = []
        self.gone = gone

    def on_cut(self, cut_off: object) -> bool:
        return not self.gone

    def tell(self, message: bytes) -> None:
        self.said.append(message)

    answer = tell

    def end(self, code: int, text: str) -> None:
        self.said.append((code, text))


def ask(health: Health, method: str, service: str, gone: bool = False) -> Asked:
    asked = Asked(service, gone)
    health.methods[f"/grpc.health.v1.Health/{method}"](cast(Call, asked))
    return asked


@pytest.fixture
def health() -> Health:
    return Health(("", "known"))


LEFT = (grpc.UNAVAILABLE, "the server ends")


def test_check(health: Health) -> None:
    assert [ask(health, "Check", name).said for name in ("", "known")] == [[SERVING], [SERVING]]
    assert ask(health, "Check", "other").said == [(grpc.NOT_FOUND, "no such service is known here")]
    health.leave()
    assert ask(health, "Check", "known").said == [NOT_SERVING]


def test_who_watches_is_told_once_and_let_go(health: Health) -> None:
    known, other, gone = (ask(health, "Watch", name, name == "") for name in ("known", "other", ""))
    for _ in range(2):
        health.leave()
        assert known.said == [SERVING, NOT_SERVING, LEFT]
        assert other.said == [SERVICE_UNKNOWN, LEFT]
        assert gone.said == [SERVING]


def test_who_begins_to_watch_at_the_end_is_let_go_at_once(health: Health) -> None:
    health.leave()
    assert ask(health, "Watch", "known").said == [NOT_SERVING, LEFT]
    assert ask(health, "Watch", "other").said == [SERVICE_UNKNOWN, LEFT]


@pytest.mark.parametrize("at", ["told", "taken", "leaving"])
def test_who_watches_while_the_end_begins_is_told_of_it_once(health: Health, at: str) -> None:
    """The end comes in another thread, between any two steps of this one; there may be two who tell of it."""

    class Interrupted(Asked):
        def tell(self, message: bytes) -> None:
            super().tell(message)
            if (message, at) in ((SERVING, "told"), (NOT_SERVING, "leaving")) and self.said.count(message) == 1:
                health.leave()

        def on_cut(self, cut_off: object) -> bool:
            if at == "taken":
                health.leave()
            return super().on_cut(cut_off)

    asked = Interrupted("known")
    health.methods["/grpc.health.v1.Health/Watch"](cast(Call, asked))
    health.leave()
    assert asked.said == [SERVING, NOT_SERVING, LEFT]


def test_the_last_of_several_names_counts_and_other_fields_do_not(health: Health) -> None:
    asked = Asked("other")
    asked.message += b"\x12\x01x" + b"\x0a\x05known"
    health.methods["/grpc.health.v1.Health/Check"](cast(Call, asked))
    assert asked.said == [SERVING]
