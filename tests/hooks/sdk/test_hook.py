"""The base class of a hook: which methods are registered, which names are mistakes, and how several hooks are asked."""

from collections.abc import AsyncIterator, Awaitable, Iterator
from functools import lru_cache, partial, partialmethod, wraps
from typing import Any

import pytest

from runtimeproxy.model.fields import ContainerInfo, HookRequest, PodInfo
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy_hooks.sdk.context import ContainerContext
from runtimeproxy_hooks.sdk.errors import Malformed, Rejected, reject
from runtimeproxy_hooks.sdk.hook import METHODS, Hook, ask

CREATE, START = BY_NAME["PreCreateContainer"], BY_NAME["PreStartContainer"]
REQUEST = HookRequest(PodInfo(), ContainerInfo(envs={"A": "sent"}))


class Create(Hook):
    def pre_create_container(self, container: ContainerContext) -> None: ...


class Start(Hook):
    def pre_start_container(self, container: ContainerContext) -> None: ...


def made(*parents: type, **members: Any) -> Any:
    """Return a new class of hooks."""
    return type("Made", parents or (Hook,), members)


def names(hook: Hook) -> list[str]:
    return [point.name for point in hook.points]


def unused(waiting: Awaitable[None]) -> None:
    raise AssertionError("nothing here is async")


NAMES = (
    *("pre_run_pod_sandbox", "pre_create_container", "pre_start_container", "post_start_container"),
    *("pre_update_container_resources", "post_stop_container", "post_stop_pod_sandbox"),
)


def test_methods_are_named_like_the_hook_points() -> None:
    assert dict(METHODS) == dict(zip(NAMES, HOOK_POINTS, strict=True))


MISSPELT = {
    **dict.fromkeys(("pre_create_containers", "pre_creat_container", "precreate_container"), "pre_create_container"),
    **{"PreCreateContainer": "pre_create_container", "preStartContainer": "pre_start_container"},
    **{"post_stop_sandbox": "post_stop_pod_sandbox", "PostStopPodSandboxHook": "post_stop_pod_sandbox"},
    **{"pre_start_container_hook": "pre_start_container", "pre_remove_run_pod_sandbox": "pre_run_pod_sandbox"},
    **{"pre_update_container_resource": "pre_update_container_resources", "pre_x": ""},
}


@pytest.mark.parametrize("kind", [lambda method: method, staticmethod, classmethod], ids=["plain", "static", "class"])
@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
def test_misspelt_method_is_a_mistake_when_the_class_is_made(name: str, meant: str, kind: Any) -> None:
    hint = rf", did you mean {meant}\?" if meant else ":"
    words = rf"^Made\.{name} is not a hook point{hint} There are pre_run_.*post_stop_pod_sandbox\. Give a method"
    with pytest.raises(TypeError, match=words):
        made(**{name: kind(lambda *_: None)})


OTHERS = ("prepare", "present", "postpone", "_pre_create", "_pre_create_container", "create_container", "prefix_of")


@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_and_values_are_no_mistake(name: str) -> None:
    assert made(**{name: lambda self: None}, post_url="/x")().points == ()


def sync_generator(self: Hook, container: ContainerContext) -> Iterator[None]:
    yield


async def async_generator(self: Hook, container: ContainerContext) -> AsyncIterator[None]:
    yield


NO_METHOD = r"must be a method, plain or async, and no generator$"
ONE_PARAMETER = r"must have one parameter: def pre_start_container\(self, container\)$"
UNFIT = [
    *((value, NO_METHOD) for value in ("x", {}, property(lambda self: None), sync_generator, async_generator)),
    *((value, ONE_PARAMETER) for value in (lambda self: None, lambda self, container, more: None, lambda: None)),
    *((value, ONE_PARAMETER) for value in (lambda self, *, container: None, staticmethod(lambda: None))),
    *((value, ONE_PARAMETER) for value in (staticmethod(lambda self, container: None), classmethod(lambda cls: None))),
]


@pytest.mark.parametrize(("value", "words"), UNFIT)
def test_hook_points_name_is_for_methods_with_one_parameter_only(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=rf"^Made\.pre_start_container {words}"):
        made(pre_start_container=value)


def wrapped(method: Any, *more: Any) -> Any:
    """Return a function that passes additional arguments to a method."""

    @wraps(method)
    def wrapper(self: Hook, container: ContainerContext) -> Any:
        return method(self, container, *more)

    return wrapper


CALLABLE = [
    *(lambda self, container: None, lambda self, container, more=3: None, lambda self, *all, **more: None, repr, bool),
    *(staticmethod(lambda container: None), classmethod(lambda cls, container: None)),
    *(
        partialmethod(lambda self, container, more: None, more=3),
        staticmethod(partial(lambda container, more: None, more=3)),
    ),
    # the callable itself counts, not what it wraps
    *(wrapped(lambda self, container: None), wrapped(lambda self, container, more: None, "more")),
    *(lru_cache(lambda self, container: None), partialmethod(lambda self, more, container: None, "more")),
]


@pytest.mark.parametrize("value", CALLABLE)
def test_whatever_can_be_called_with_a_context_is_a_method(value: Any) -> None:
    ask([made(pre_start_container=value)()], START, REQUEST, unused)


def test_methods_are_inherited_also_from_a_parent_that_is_no_hook() -> None:
    mixin = type("Mixin", (), {"pre_run_pod_sandbox": lambda self, pod: None})
    both = made(mixin, Create, post_stop_container=lambda self, container: None)
    assert names(both()) == ["PreRunPodSandbox", "PreCreateContainer", "PostStopContainer"]
    assert names(made(Create, Start, pre_create_container=None)()) == ["PreStartContainer"]  # None leaves a point out


def test_misspelt_method_of_a_parent_that_is_no_hook_is_a_mistake() -> None:
    with pytest.raises(TypeError, match=r"^Made\.pre_run_pod is not a hook point"):
        made(type("Mixin", (), {"pre_run_pod": lambda self, pod: None}), Hook)


def test_arguments_of_the_class_statement_reach_other_parents() -> None:
    class Tagged:
        def __init_subclass__(cls, tag: str, **more: Any) -> None:
            super().__init_subclass__(**more)
            cls.tag = tag

    class Mixed(Hook, Tagged, tag="x"): ...

    assert Mixed.tag == "x"


def test_no_other_hook_is_asked_after_one_that_raised() -> None:
    refusing = made(pre_create_container=lambda self, container: reject("not today"))()
    after = made(pre_create_container=lambda self, container: pytest.fail("it was asked"))()
    with pytest.raises(Rejected, match=r"^not today$"):
        ask([refusing, after], CREATE, REQUEST, unused)


def test_malformed_names_what_and_the_rule() -> None:
    error = Malformed("annotation a.b/c", "must be JSON")
    assert (str(error), error.what, error.why) == ("annotation a.b/c: must be JSON", "annotation a.b/c", "must be JSON")
    assert isinstance(error, ValueError)
