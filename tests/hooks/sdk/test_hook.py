"""The base class of a hook: which methods are registered, which names are mistakes, and how several hooks are asked."""

import abc
import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from functools import lru_cache, partial, partialmethod, update_wrapper, wraps
from typing import Any

import pytest

from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.model import ContainerInfo, HookRequest, PodInfo, Resources
from runtimeproxy_hooks.sdk.context import ContainerContext, PodContext
from runtimeproxy_hooks.sdk.errors import Malformed, NotSayable, Rejected, reject
from runtimeproxy_hooks.sdk.hook import METHODS, Hook, ask, hook_name, method_name, points_of

CREATE, START, RUN_POD = BY_NAME["PreCreateContainer"], BY_NAME["PreStartContainer"], BY_NAME["PreRunPodSandbox"]
REQUEST = HookRequest(PodInfo(name="web", labels={"app": "web"}), ContainerInfo(name="main", envs={"A": "sent"}))


class Create(Hook):
    def pre_create_container(self, container: ContainerContext) -> None:
        container.env["SEEN"] = container.env.get("SEEN", "") + type(self).__name__


class Start(Hook):
    async def pre_start_container(self, container: ContainerContext) -> None:
        await asyncio.sleep(0)
        container.resources.cpu_shares = 2


def names(hook: Hook) -> list[str]:
    return [point.name for point in hook.points]


def unused(waiting: Awaitable[None]) -> None:
    raise AssertionError("nothing here is async")


# -- names -----------------------------------------------------------------------------------------------------------


def test_methods_are_named_like_the_hook_points() -> None:
    assert {name: point.name for name, point in METHODS.items()} == {
        "pre_run_pod_sandbox": "PreRunPodSandbox",
        "pre_create_container": "PreCreateContainer",
        "pre_start_container": "PreStartContainer",
        "post_start_container": "PostStartContainer",
        "pre_update_container_resources": "PreUpdateContainerResources",
        "post_stop_container": "PostStopContainer",
        "post_stop_pod_sandbox": "PostStopPodSandbox",
    }
    assert [method_name(point) for point in HOOK_POINTS] == list(METHODS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pre_create_containers", "pre_create_container"),
        ("pre_creat_container", "pre_create_container"),
        ("post_stop_sandbox", "post_stop_pod_sandbox"),
        ("pre_update_container_resource", "pre_update_container_resources"),
        ("precreate_container", "pre_create_container"),
        ("PreCreateContainer", "pre_create_container"),
        ("preStartContainer", "pre_start_container"),
        ("PostStopPodSandboxHook", "post_stop_pod_sandbox"),
        ("pre_start_container_hook", "pre_start_container"),
        ("pre_remove_run_pod_sandbox", "pre_run_pod_sandbox"),
    ],
)
def test_a_misspelt_method_is_a_mistake_when_the_class_is_made(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"^Wrong\.{name} is no hook point, did you mean {meant}\? There are pre_run"):
        type("Wrong", (Hook,), {name: lambda self, context: None})


def test_a_name_that_is_near_to_none_is_a_mistake_too() -> None:
    with pytest.raises(
        TypeError, match=r"^Wrong\.pre_x is no hook point: There are .*post_stop_pod_sandbox\. Give a method"
    ):
        type("Wrong", (Hook,), {"pre_x": lambda self, context: None})


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_misspelt_method_of_any_kind_is_a_mistake(kind: Any) -> None:
    with pytest.raises(TypeError, match="did you mean pre_create_container"):
        type("Wrong", (Hook,), {"pre_create_containers": kind(lambda *_: None)})


@pytest.mark.parametrize(
    "name", ["prepare", "present", "postpone", "_pre_create", "_pre_create_container", "create_container", "prefix_of"]
)
def test_other_methods_are_no_mistake(name: str) -> None:
    made = type("Right", (Hook,), {name: lambda self, context: None})
    assert made().points == ()


def test_values_that_are_no_methods_may_begin_as_they_like() -> None:
    made = type("Right", (Hook,), {"post_url": "/x", "pre_shared": None})
    assert made().points == ()


def sync_generator(self: Hook, container: ContainerContext) -> Iterator[None]:
    yield


async def async_generator(self: Hook, container: ContainerContext) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("value", ["x", {}, property(lambda self: None), sync_generator, async_generator])
def test_what_is_no_method_cannot_have_a_hook_points_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^Wrong\.pre_start_container must be a method, plain or async"):
        type("Wrong", (Hook,), {"pre_start_container": value})


@pytest.mark.parametrize(
    "value",
    [
        lambda self: None,
        lambda self, container, more: None,
        lambda self, *, container: None,
        lambda: None,
        staticmethod(lambda: None),
        staticmethod(lambda self, container: None),
        classmethod(lambda cls: None),
    ],
)
def test_a_method_without_one_parameter_is_a_mistake_when_the_class_is_made(value: Any) -> None:
    words = r"^Wrong\.pre_start_container must have one parameter: def pre_start_container\(self, container\)$"
    with pytest.raises(TypeError, match=words):
        type("Wrong", (Hook,), {"pre_start_container": value})


class Given:
    """A decorator that is a class of its own."""

    def __init__(self, method: Any) -> None:
        update_wrapper(self, method)

    def __get__(self, hook: Hook | None, owner: object = None) -> Any:
        return self if hook is None else partial(self, hook)

    def __call__(self, hook: Hook, container: ContainerContext) -> None: ...


def with_more(method: Any) -> Any:
    """Return what gives a method one argument more than it has."""

    @wraps(method)
    def wrapper(self: Hook, container: ContainerContext) -> Any:
        return method(self, container, "more")

    return wrapper


@pytest.mark.parametrize(
    "value",
    [
        with_more(lambda self, container, more: None),
        Given(lambda self: None),
        lru_cache(lambda self, container: None),
        partialmethod(lambda self, more, container: None, "more"),
    ],
)
def test_what_is_called_counts_and_not_what_it_wraps(value: Any) -> None:
    assert type("Right", (Hook,), {"pre_start_container": value})


def wrapped(method: Any) -> Any:
    @wraps(method)
    def wrapper(*arguments: Any) -> Any:
        return method(*arguments)

    return wrapper


@pytest.mark.parametrize(
    "value",
    [
        lambda self, container: None,
        lambda self, container, more=3: None,
        lambda self, *all, **more: None,
        wrapped(lambda self, container: None),
        staticmethod(lambda container: None),
        classmethod(lambda cls, container: None),
        partialmethod(lambda self, container, more: None, more=3),
        partial(lambda container, more: None, more=3),
        repr,
        bool,
    ],
)
def test_whatever_can_be_called_with_a_context_is_a_method(value: Any) -> None:
    made = type("Right", (Hook,), {"pre_start_container": value})()
    ask([made], START, REQUEST, unused)


# -- inheritance -----------------------------------------------------------------------------------------------------


def test_methods_are_inherited() -> None:
    class Both(Create):
        def post_stop_container(self, container: ContainerContext) -> None: ...

    assert names(Both()) == ["PreCreateContainer", "PostStopContainer"]
    assert names(Create()) == ["PreCreateContainer"]


def test_a_method_comes_from_a_parent_that_is_no_hook() -> None:
    class Mixin:
        def pre_run_pod_sandbox(self, pod: PodContext) -> None: ...

    class Mixed(Mixin, Create): ...

    assert names(Mixed()) == ["PreRunPodSandbox", "PreCreateContainer"]


def test_a_misspelt_method_of_a_parent_that_is_no_hook_is_a_mistake() -> None:
    class Mixin:
        def pre_run_pod(self, pod: PodContext) -> None: ...

    with pytest.raises(TypeError, match=r"^Mixed\.pre_run_pod is no hook point"):
        type("Mixed", (Mixin, Hook), {})


def test_none_leaves_out_a_point_of_the_parent() -> None:
    class Without(Create, Start):
        pre_create_container = None  # type: ignore[assignment]

    assert names(Without()) == ["PreStartContainer"]


def test_an_abstract_hook_can_have_concrete_children() -> None:
    class Base(Hook, abc.ABC):
        @abc.abstractmethod
        def cpus(self) -> str: ...

        def pre_create_container(self, container: ContainerContext) -> None:
            container.resources.cpuset_cpus = self.cpus()

    class Concrete(Base):
        def cpus(self) -> str:
            return "3"

    answer = ask([Concrete()], CREATE, REQUEST, unused)
    assert answer.resources == Resources(cpuset_cpus="3")


def test_arguments_of_the_class_statement_reach_other_parents() -> None:
    class Tagged:
        tag = ""

        def __init_subclass__(cls, tag: str, **more: Any) -> None:
            super().__init_subclass__(**more)
            cls.tag = tag

    class Mixed(Hook, Tagged, tag="x"): ...

    assert Mixed.tag == "x"


# -- what a hook says of itself --------------------------------------------------------------------------------------


def test_a_hook_is_called_by_its_name_or_its_class() -> None:
    named = Create()
    named.name = "other"
    assert [hook_name(Create()), hook_name(named)] == ["create", "other"]


def test_points_of_several_hooks_are_in_the_tables_order_and_there_once() -> None:
    hooks = [Start(), Create(), Create()]
    assert [point.name for point in points_of(hooks)] == ["PreCreateContainer", "PreStartContainer"]
    assert points_of([]) == points_of([Hook()]) == ()


def test_a_hook_has_no_flags_by_default() -> None:
    parser = argparse.ArgumentParser()
    Hook().add_arguments(parser)
    arguments = parser.parse_args([])
    Hook().configure(arguments)
    assert vars(arguments) == {}


# -- asking ----------------------------------------------------------------------------------------------------------


def test_each_hook_sees_what_the_ones_before_it_edited() -> None:
    class Last(Create): ...

    answer = ask([Create(), Start(), Last()], CREATE, REQUEST, unused)
    assert answer.envs == {"A": "sent", "SEEN": "CreateLast"}
    answer = ask([Last(), Create()], CREATE, REQUEST, unused)
    assert answer.envs == {"A": "sent", "SEEN": "LastCreate"}
    assert REQUEST.container is not None
    assert REQUEST.container.envs == {"A": "sent"}


def test_an_async_method_is_run_to_its_end() -> None:
    def run(waiting: Awaitable[None]) -> None:
        async def whole() -> None:
            await waiting

        asyncio.run(whole())

    answer = ask([Create(), Start()], START, REQUEST, run)
    assert answer.resources == Resources(cpu_shares=2)
    assert "SEEN" not in answer.envs


def test_what_a_method_returns_is_ignored() -> None:
    class Returning(Hook):
        def pre_create_container(self, container: ContainerContext) -> dict[str, str]:
            return {"A": "returned"}

    assert ask([Returning()], CREATE, REQUEST, unused).envs == {"A": "sent"}


def test_after_a_hook_that_raised_no_other_is_asked() -> None:
    asked = []

    class Refusing(Hook):
        def pre_create_container(self, container: ContainerContext) -> None:
            reject("not today")

    class After(Hook):
        def pre_create_container(self, container: ContainerContext) -> None:
            asked.append(container.name)

    with pytest.raises(Rejected, match=r"^not today$"):
        ask([Refusing(), After()], CREATE, REQUEST, unused)
    assert asked == []
    ask([After()], CREATE, REQUEST, unused)
    assert asked == ["main"]


def test_a_pods_point_has_a_pods_context() -> None:
    class Pods(Hook):
        def pre_run_pod_sandbox(self, pod: PodContext) -> None:
            pod.labels["seen"] = pod.labels["app"]

    assert ask([Pods()], RUN_POD, REQUEST, unused).labels == {"app": "web", "seen": "web"}


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("post_")])
def test_an_edit_at_a_post_point_is_refused(name: str) -> None:
    def method(self: Hook, context: PodContext | ContainerContext) -> None:
        context.resources.cpu_shares = 2

    hook = type("Late", (Hook,), {name: method})()
    with pytest.raises(NotSayable, match="comes after the runtime's answer"):
        ask([hook], METHODS[name], REQUEST, unused)


def test_what_cannot_be_read_is_named_with_the_rule() -> None:
    error = Malformed("annotation a.b/c", "must be JSON")
    assert (str(error), error.what, error.why) == ("annotation a.b/c: must be JSON", "annotation a.b/c", "must be JSON")
    assert isinstance(error, ValueError)
