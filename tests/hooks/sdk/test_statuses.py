"""The result of an exception: status, text, log line; and that no foreign text is stored."""

import logging
from collections.abc import Awaitable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from runtimeproxy.wire import grpc
from runtimeproxy_hooks.sdk import ContainerContext, Hook, Malformed, NotSayable, Rejected
from runtimeproxy_hooks.sdk.hook import call_hooks
from runtimeproxy_hooks.sdk.statuses import MAX_TEXT, status
from tests.hooks.sdk.child import SECRET
from tests.hooks.sdk.processes import CREATE, request

Log = pytest.LogCaptureFixture


class Raising(Hook):
    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def pre_create_container(self, container: ContainerContext) -> None:
        raise self.error


class Deleting(Hook):
    def pre_create_container(self, container: ContainerContext) -> None:
        del container.env["A"]  # the SDK raises


def unused(waiting: Awaitable[None]) -> None:
    raise AssertionError("nothing here is async")


def status_of(*hooks: Hook) -> tuple[int, str]:
    """Return the status of what the hooks raise."""
    try:
        call_hooks(hooks, CREATE, request(), unused)
    except BaseException as error:
        return status(error, "server", CREATE, request())
    raise AssertionError("nothing was raised")


def internal(name: str, hook: str = "raising") -> tuple[int, str]:
    return grpc.INTERNAL, f"{hook} at PreCreateContainer raised {name}; its log says where"


MALFORMED = Malformed("annotation A", "must be JSON")
INVALID = (grpc.INVALID_ARGUMENT, "annotation A: must be JSON")
STATUSES = [
    (Rejected("no"), (grpc.PERMISSION_DENIED, "no"), "INFO", " rejected ns/pod/main"),
    (MALFORMED, INVALID, "WARNING", ": cannot read annotation A of ns/pod/main: must be JSON"),
    (NotSayable("0 is no value"), internal("NotSayable"), "ERROR", ": at {}: 0 is no value"),
    (KeyError(SECRET), internal("KeyError"), "ERROR", ": KeyError at {} for ns/pod/main"),
    (SystemExit(SECRET), internal("SystemExit"), "ERROR", ": SystemExit at {} for ns/pod/main"),
    (CancelledError(), internal("CancelledError"), "WARNING", ": cut off, for the caller waits no longer: ns/pod/main"),
]


@pytest.mark.parametrize(("error", "expected", "level", "line"), STATUSES)
def test_error_has_its_status_and_line(caplog: Log, error: BaseException, expected: Any, level: str, line: str) -> None:
    caplog.set_level(logging.INFO)
    assert status_of(Hook(), Raising(error)) == expected
    [record] = caplog.records
    place = f"{__file__}:{Raising.pre_create_container.__code__.co_firstlineno + 1}"
    assert record.levelname == level
    assert record.getMessage() == f"raising at PreCreateContainer{line.format(place)}"


def test_place_is_in_the_hooks_module_and_its_log_has_no_text(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    for hook in (Deleting(), Raising(KeyError(SECRET))):
        status_of(hook)
        assert f" at {__file__}:{type(hook).pre_create_container.__code__.co_firstlineno + 1}" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "DEBUG"]
    assert "raise self.error" in caplog.messages[2]
    with pytest.raises(OverflowError) as raised:
        raise OverflowError(SECRET)
    assert status(raised.value, "server", CREATE, request()) == internal("OverflowError", "server")
    assert f"server at PreCreateContainer: OverflowError at {__file__}:" in caplog.text
    assert SECRET not in caplog.text


TEXTS = [("x" * MAX_TEXT, "x" * MAX_TEXT), ("x" * (MAX_TEXT + 1), "x" * (MAX_TEXT - 1) + "…"), ("a\udc80b", "a?b")]


@pytest.mark.parametrize(("text", "sent"), TEXTS)
def test_text_that_cannot_be_sent_is_cut_or_replaced(text: str, sent: str) -> None:
    assert status_of(Raising(Rejected(text)))[1] == sent
