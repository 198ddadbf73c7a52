"""The result of an exception: status, text, log line; and that no foreign text is kept."""

import asyncio
import logging
from collections.abc import Awaitable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from runtimeproxy.model.fields import HookRequest, PodInfo
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.wire import grpc
from runtimeproxy_hooks.sdk import ContainerContext, Hook, Malformed, NotSayable, Rejected
from runtimeproxy_hooks.sdk.hook import ask
from runtimeproxy_hooks.sdk.statuses import MAX_TEXT, status
from tests.hooks.sdk.callers import CREATE, request
from tests.hooks.sdk.child import SECRET

Log = pytest.LogCaptureFixture


class Raising(Hook):
    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def pre_create_container(self, container: ContainerContext) -> None:
        raise self.error


class Dream(Raising):
    async def pre_create_container(self, container: ContainerContext) -> None:  # type: ignore[override]
        raise self.error


class Deleting(Hook):
    def pre_create_container(self, container: ContainerContext) -> None:
        del container.env["A"]  # the SDK raises


class Innocent(Hook):
    def pre_create_container(self, container: ContainerContext) -> None: ...


def answered(*hooks: Hook) -> tuple[int, str]:
    """Return the status of what the hooks raise."""
    try:
        ask(hooks, CREATE, request(), lambda waiting: asyncio.run(finish(waiting)))
    except BaseException as error:
        return status(error, "server", CREATE, request())
    raise AssertionError("nothing was raised")


async def finish(waiting: Awaitable[None]) -> None:
    await waiting


def internal(name: str) -> tuple[int, str]:
    return grpc.INTERNAL, f"raising at PreCreateContainer raised {name}; its log says where"


MALFORMED = Malformed("annotation A", "must be JSON")
INVALID = (grpc.INVALID_ARGUMENT, "annotation A: must be JSON")
KINDS = [
    (Rejected("no"), (grpc.PERMISSION_DENIED, "no"), "INFO", " rejected ns/pod/main"),
    (type("Busy", (Rejected,), {})("busy"), (grpc.PERMISSION_DENIED, "busy"), "INFO", " rejected ns/pod/main"),
    (MALFORMED, INVALID, "WARNING", ": cannot read annotation A of ns/pod/main: must be JSON"),
    (NotSayable("0 is no value"), internal("NotSayable"), "ERROR", ": at {}: 0 is no value"),
    (KeyError(SECRET), internal("KeyError"), "ERROR", ": KeyError at {} for ns/pod/main"),
    (SystemExit(SECRET), internal("SystemExit"), "ERROR", ": SystemExit at {} for ns/pod/main"),
    (CancelledError(), internal("CancelledError"), "WARNING", ": cut off, for the caller waits no longer: ns/pod/main"),
]


@pytest.mark.parametrize(("error", "expected", "level", "line"), KINDS, ids=[type(row[0]).__name__ for row in KINDS])
def test_error_has_its_status_and_line(caplog: Log, error: BaseException, expected: Any, level: str, line: str) -> None:
    caplog.set_level(logging.INFO)
    assert answered(Innocent(), Raising(error)) == expected
    [record] = caplog.records
    place = f"{__file__}:{Raising.pre_create_container.__code__.co_firstlineno + 1}"
    assert record.levelname == level
    assert record.getMessage() == f"raising at PreCreateContainer{line.format(place)}"


@pytest.mark.parametrize("hook", [Dream(KeyError(SECRET)), Deleting()])
def test_place_is_the_hooks_own_also_where_async_or_the_sdk_raises(caplog: Log, hook: Hook) -> None:
    answered(hook)
    assert f" at {__file__}:{type(hook).pre_create_container.__code__.co_firstlineno + 1}" in caplog.text


def test_traceback_at_debug_level_has_places_and_no_text(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    answered(Raising(KeyError(SECRET)))
    assert [record.levelname for record in caplog.records] == ["ERROR", "DEBUG"]
    assert "raise self.error" in caplog.messages[1]
    assert SECRET not in caplog.text


def test_error_that_no_hook_raised_is_the_servers(caplog: Log) -> None:
    try:
        raise OverflowError(SECRET)
    except OverflowError as error:
        said = status(error, "server", BY_NAME["PreRunPodSandbox"], HookRequest(PodInfo(name="p", namespace="n")))
    assert said == (grpc.INTERNAL, "server at PreRunPodSandbox raised OverflowError; its log says where")
    assert f"server at PreRunPodSandbox: OverflowError at {__file__}:" in caplog.text
    assert caplog.text.endswith("for n/p\n")


CUT = [("x" * MAX_TEXT, "x" * MAX_TEXT), ("x" * (MAX_TEXT + 1), "x" * (MAX_TEXT - 1) + "…"), ("a\udc80b", "a?b")]


@pytest.mark.parametrize(("text", "said"), CUT)
def test_text_that_cannot_be_sent_is_made_so(text: str, said: str) -> None:
    assert answered(Raising(Rejected(text)))[1] == said
