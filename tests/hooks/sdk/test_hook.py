"""Classes of hooks: which methods are hook points, which names are mistakes; and the result of an exception."""

import logging
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import CancelledError
from functools import lru_cache, partialmethod, wraps
from typing import Any

import pytest

from runtimeproxy.model.fields import ContainerInfo, HookRequest, PodInfo
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.wire import grpc
from runtimeproxy_hooks.sdk import ContainerContext, Hook, Malformed, NotSayable, Rejected
from runtimeproxy_hooks.sdk.hook import call_hooks
from runtimeproxy_hooks.sdk.statuses import MAX_TEXT, status
from tests.hooks.sdk.processes import CREATE, SECRET, request

Log = pytest.LogCaptureFixture
START = BY_NAME["PreStartContainer"]
REQUEST = HookRequest(PodInfo(), ContainerInfo())


def new_class(*parents: type, **members: Any) -> Any:
    return type("New", parents or (Hook,), members)


def names(hook: Hook) -> list[str]:
    return [hook_point.name for hook_point in hook.points]


def unused(waiting: Awaitable[None]) -> None:
    raise AssertionError("nothing here is async")


MISSPELT = {
    **dict.fromkeys(("pre_creat_container", "PreCreateContainer"), "pre_create_container"),
    **{"PostStopPodSandboxHook": "post_stop_pod_sandbox", "pre_remove_run_pod_sandbox": "pre_run_pod_sandbox"},
    "pre_x": "",
}


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
def test_misspelt_method_is_error_of_class(name: str, meant: str) -> None:
    hint = rf", did you mean {meant}\?" if meant else ":"
    words = rf"^New\.{name} is not a hook point{hint} There are pre_run_.*post_stop_pod_sandbox\. Give a method"
    for kind in (lambda method: method, staticmethod):
        with pytest.raises(TypeError, match=words):
            new_class(**{name: kind(lambda *_: None)})


async def generator(self: Hook, container: ContainerContext) -> AsyncIterator[None]:
    yield


NO_METHOD = r"must be a method, plain or async, and no generator$"
ONE_PARAMETER = r"must have one parameter: def pre_start_container\(self, container\)$"
WRONG_PARAMETERS = (
    *(lambda self: None, lambda self, container, more: None, lambda self, *, container: None),
    staticmethod(lambda self, container: None),
)
UNFIT = [
    *((value, NO_METHOD) for value in ("x", property(lambda self: None), generator)),
    *((value, ONE_PARAMETER) for value in WRONG_PARAMETERS),
]


@pytest.mark.parametrize(("value", "words"), UNFIT)
def test_hook_point_must_be_method_with_one_parameter(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=rf"^New\.pre_start_container {words}"):
        new_class(pre_start_container=value)


@wraps(lambda self, container, more: None)
def wrapper(self: Hook, container: ContainerContext) -> None: ...


CALLABLE = [
    *(lambda self, container, more=3: None, lambda self, *all, **more: None, repr, bool),
    *(staticmethod(bool), staticmethod(lambda container: None), classmethod(lambda cls, container: None)),
    *(partialmethod(lambda self, more, container: None, "more"), lru_cache(lambda self, container: None)),
    wrapper,  # the signature of the callable itself, not of the wrapped one
]


@pytest.mark.parametrize("value", CALLABLE)
def test_any_callable_with_one_parameter_is_accepted(value: Any) -> None:
    call_hooks([new_class(pre_start_container=value)()], START, REQUEST, unused)


def test_methods_of_all_parents_are_hook_points() -> None:
    mixin = type("Mixin", (), {"pre_run_pod_sandbox": lambda self, pod: None})
    parent = new_class(pre_create_container=lambda self, container: None, pre_start_container=repr)
    assert names(new_class(mixin, parent)()) == ["PreRunPodSandbox", "PreCreateContainer", "PreStartContainer"]
    assert names(new_class(parent, pre_create_container=None)()) == ["PreStartContainer"]  # None removes a hook point
    assert new_class(prepare=repr, postpone=repr, _pre_create_container=repr, post_url="/x")().points == ()
    with pytest.raises(TypeError, match=r"^New\.pre_run_pod is not a hook point"):
        new_class(type("Mixin", (), {"pre_run_pod": lambda self, pod: None}), Hook)


class Raising(Hook):
    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def pre_create_container(self, container: ContainerContext) -> None:
        raise self.error


class Deleting(Hook):
    def pre_create_container(self, container: ContainerContext) -> None:
        del container.env["A"]  # the SDK raises


def status_of(*hooks: Hook) -> tuple[int, str]:
    """Return the status of the hooks' exceptions."""
    try:
        call_hooks(hooks, CREATE, request(), unused)
    except BaseException as error:
        return status(error, "server", CREATE, request())
    raise AssertionError("nothing was raised")


def internal(name: str, hook: str = "raising") -> tuple[int, str]:
    return grpc.INTERNAL, f"{hook} at PreCreateContainer raised {name}; its log shows where"


MALFORMED = Malformed("annotation A", "must be JSON")
INVALID = (grpc.INVALID_ARGUMENT, "annotation A: must be JSON")
TEXTS = [("x" * MAX_TEXT, "x" * MAX_TEXT), ("x" * (MAX_TEXT + 1), "x" * (MAX_TEXT - 1) + "…"), ("a\udc80b", "a?b")]
STATUSES = [
    *((Rejected(text), (grpc.PERMISSION_DENIED, sent), "INFO", " rejected ns/pod/main") for text, sent in TEXTS),
    (MALFORMED, INVALID, "WARNING", ": cannot read annotation A of ns/pod/main: must be JSON"),
    (NotSayable("0 is no value"), internal("NotSayable"), "ERROR", ": at {}: 0 is no value"),
    (KeyError(SECRET), internal("KeyError"), "ERROR", ": KeyError at {} for ns/pod/main"),
    (SystemExit(SECRET), internal("SystemExit"), "ERROR", ": SystemExit at {} for ns/pod/main"),
    (
        CancelledError(),
        internal("CancelledError"),
        "WARNING",
        ": canceled, because the caller no longer waits: ns/pod/main",
    ),
]


@pytest.mark.parametrize(("error", "expected", "level", "line"), STATUSES)
def test_error_has_its_status_and_line(caplog: Log, error: BaseException, expected: Any, level: str, line: str) -> None:
    caplog.set_level(logging.INFO)
    after = new_class(pre_create_container=lambda self, container: pytest.fail("it was called"))()
    assert status_of(Hook(), Raising(error), after) == expected
    [record] = caplog.records
    place = f"{__file__}:{Raising.pre_create_container.__code__.co_firstlineno + 1}"
    assert record.levelname == level
    assert record.getMessage() == f"raising at PreCreateContainer{line.format(place)}"


def test_place_is_in_hook_module_and_log_has_no_text(caplog: Log) -> None:
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
