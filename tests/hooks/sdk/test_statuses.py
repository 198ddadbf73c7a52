"""What an exception becomes: status, text, log line; and that no foreign text is kept."""

import asyncio
import logging
from collections.abc import Awaitable
from concurrent.futures import CancelledError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.hookpoints import BY_NAME
from runtimeproxy.model import HookRequest, PodInfo
from runtimeproxy.wire import grpc
from runtimeproxy_hooks.sdk import ContainerContext, Hook, Malformed, NotSayable, Rejected
from runtimeproxy_hooks.sdk.hook import ask
from runtimeproxy_hooks.sdk.statuses import MAX_TEXT, status
from tests.hooks.sdk.callers import CREATE, request
from tests.hooks.sdk.child import SECRET

INTERNAL = grpc.INTERNAL


class Raising(Hook):
    """Raises what it is given."""

    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def pre_create_container(self, container: ContainerContext) -> None:
        raise self.error


class Innocent(Hook):
    """Comes first and is not to blame."""

    def pre_create_container(self, container: ContainerContext) -> None:
        pass


class Foreign(Hook):
    """Has a method that this module does not hold, so that no line of its own is on the way."""

    pre_create_container = staticmethod(int)  # type: ignore[assignment]


def wait(awaitable: Awaitable[None]) -> None:
    raise AssertionError("no method of these is async")


def raised(*hooks: Hook) -> BaseException:
    try:
        ask(hooks, CREATE, request(), wait)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("error", "code", "text", "level", "line"),
    [
        (Rejected("no"), grpc.PERMISSION_DENIED, "no", "INFO", "rejected ns/pod/main"),
        (
            Malformed("annotation A", "must be JSON"),
            grpc.INVALID_ARGUMENT,
            "annotation A: must be JSON",
            "WARNING",
            ": cannot read annotation A of ns/pod/main: must be JSON",
        ),
        (NotSayable("0 is no value"), INTERNAL, "NotSayable", "ERROR", ": at {}: 0 is no value"),
        (KeyError(SECRET), INTERNAL, "KeyError", "ERROR", ": KeyError at {} for ns/pod/main"),
        (SystemExit(SECRET), INTERNAL, "SystemExit", "ERROR", ": SystemExit at {} for ns/pod/main"),
        (
            CancelledError(),
            INTERNAL,
            "CancelledError",
            "WARNING",
            ": cut off, for the caller waits no longer: ns/pod/main",
        ),
    ],
)
def test_each_kind_has_its_status_and_its_line(
    caplog: pytest.LogCaptureFixture, error: BaseException, code: int, text: str, level: str, line: str
) -> None:
    caplog.set_level(logging.INFO)
    said = status(raised(Innocent(), Raising(error)), "server", CREATE, request())
    expected = f"raising at PreCreateContainer raised {text}; its log says where" if code is INTERNAL else text
    assert said == (code, expected)
    [record] = caplog.records
    place = f"{__file__}:{Raising.pre_create_container.__code__.co_firstlineno + 1}"
    assert record.levelname == level
    separator = "" if line.startswith(":") else " "
    assert record.getMessage() == f"raising at PreCreateContainer{separator}{line.format(place)}"


def test_a_subclass_is_answered_like_its_class() -> None:
    class Busy(Rejected):
        pass

    assert status(raised(Raising(Busy("busy"))), "server", CREATE, request()) == (grpc.PERMISSION_DENIED, "busy")


def test_the_traceback_at_debug_level_has_places_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    status(raised(Raising(KeyError(SECRET))), "server", CREATE, request())
    error, debug = caplog.records
    assert (error.levelname, debug.levelname) == ("ERROR", "DEBUG")
    assert "raise self.error" in debug.getMessage()
    assert SECRET not in caplog.text


def test_the_place_is_the_innermost_one_where_no_line_is_the_hooks_own(caplog: pytest.LogCaptureFixture) -> None:
    status(raised(Foreign()), "server", CREATE, request())
    assert f"foreign at PreCreateContainer: TypeError at {ask.__code__.co_filename}:" in caplog.text


def test_what_no_hook_raised_is_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise OverflowError(SECRET)
    except OverflowError as error:
        said = status(error, "server", BY_NAME["PreRunPodSandbox"], HookRequest(PodInfo(name="p", namespace="n")))
    assert said == (INTERNAL, "server at PreRunPodSandbox raised OverflowError; its log says where")
    assert f"server at PreRunPodSandbox: OverflowError at {__file__}:" in caplog.text
    assert caplog.text.endswith("for n/p\n")


def test_an_async_method_is_named_too(caplog: pytest.LogCaptureFixture) -> None:
    class Dream(Hook):
        async def pre_create_container(self, container: ContainerContext) -> None:
            raise KeyError(SECRET)

    def run(awaitable: Awaitable[None]) -> None:
        async def finish() -> None:
            await awaitable

        asyncio.run(finish())

    try:
        ask([Dream()], CREATE, request(), run)
    except KeyError as error:
        said = status(error, "server", CREATE, request())
    assert said == (INTERNAL, "dream at PreCreateContainer raised KeyError; its log says where")
    assert f"KeyError at {__file__}:" in caplog.text


@given(st.text(max_size=MAX_TEXT))
def test_a_text_is_sent_as_it_is(text: str) -> None:
    said = status(raised(Raising(Rejected(text))), "server", CREATE, request())
    assert said == (grpc.PERMISSION_DENIED, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x" * MAX_TEXT, "x" * MAX_TEXT),
        ("x" * (MAX_TEXT + 1), "x" * (MAX_TEXT - 1) + "…"),
        ("a\udc80b", "a?b"),
        ("", ""),
    ],
)
def test_a_text_that_cannot_be_sent_is_made_so(text: str, said: str) -> None:
    assert status(raised(Raising(Rejected(text))), "server", CREATE, request())[1] == said
