"""The tester without sockets: what hooks see of a call, and that what comes back is what the proxy would make of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runtimeproxy.model import Resources
from runtimeproxy_hooks.sdk import testing
from runtimeproxy_hooks.sdk.context import ContainerContext, PodContext
from runtimeproxy_hooks.sdk.errors import NotSayable, Rejected
from runtimeproxy_hooks.sdk.hook import METHODS, Hook
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, Difference, HookTester
from tests.hooks.sdk.everywhere import CONTAINER_METHODS, POD_METHODS, Everywhere, call

# -- what hooks see --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_each_method_asks_at_its_point(method: str) -> None:
    context, changed = call(method)
    assert context.hook_point == METHODS[method].name
    assert not changed


@pytest.mark.parametrize("method", POD_METHODS)
def test_the_facts_of_a_pod(method: str) -> None:
    pod, _ = call(
        method,
        labels={"l": "1"},
        annotations={"a": "2"},
        pod="web",
        namespace="shop",
        uid="u-1",
        attempt=3,
        cgroup_parent="/x",
        runtime_handler="kata",
        resources={"cpu_shares": 2},
        overhead={"cpu_quota": -1},
    )
    assert (dict(pod.labels), dict(pod.annotations)) == ({"l": "1"}, {"a": "2"})
    assert (pod.name, pod.namespace, pod.uid, pod.attempt) == ("web", "shop", "u-1", 3)
    assert (pod.cgroup_parent, pod.runtime_handler) == ("/x", "kata")
    assert (pod.resources.sent, pod.overhead.sent) == (Resources(cpu_shares=2), Resources(cpu_quota=-1))


@pytest.mark.parametrize("method", CONTAINER_METHODS)
def test_the_facts_of_a_container(method: str) -> None:
    container, _ = call(
        method,
        labels={"l": "1"},
        annotations={"a": "2"},
        pod="web",
        namespace="shop",
        uid="u-1",
        pod_attempt=3,
        cgroup_parent="/x",
        pod_resources={"cpu_shares": 2},
        container="main",
        container_id="c1",
        attempt=4,
        container_annotations={"c": "3"},
        env={"E": "4"},
        resources={"cpu_quota": -1, "cpuset_cpus": "0", "unified": {"a": "b"}, "hugepage_limits": {"2MB": 5}},
    )
    pod = container.pod
    assert (dict(pod.labels), dict(pod.annotations)) == ({"l": "1"}, {"a": "2"})
    assert (pod.name, pod.namespace, pod.uid, pod.attempt) == ("web", "shop", "u-1", 3)
    assert pod.resources.sent == Resources(cpu_shares=2)
    assert (container.name, container.id, container.attempt, container.cgroup_parent) == ("main", "c1", 4, "/x")
    assert (dict(container.annotations), dict(container.env)) == ({"c": "3"}, {"E": "4"})
    assert container.resources.sent == Resources(
        cpu_quota=-1, cpuset_cpus="0", unified={"a": "b"}, hugepage_limits={"2MB": 5}
    )


@pytest.mark.parametrize("method", CONTAINER_METHODS)
def test_the_made_up_facts_of_a_container(method: str) -> None:
    container, _ = call(method)
    assert (container.name, container.attempt, dict(container.env), dict(container.annotations)) == ("main", 0, {}, {})
    assert container.id == ("" if method == "pre_create_container" else CONTAINER_ID)
    assert (container.pod.name, container.pod.namespace, container.pod.uid) == ("pod", "default", UID)
    assert container.cgroup_parent == f"/kubepods/pod{UID}"
    assert (container.resources.sent, container.pod.resources.sent) == (None, None)


@pytest.mark.parametrize("method", POD_METHODS)
def test_the_made_up_facts_of_a_pod(method: str) -> None:
    pod, _ = call(method, uid="u-1", resources=None)
    assert (pod.name, pod.namespace, pod.attempt, pod.cgroup_parent) == ("pod", "default", 0, "/kubepods/podu-1")
    assert (dict(pod.labels), dict(pod.annotations), pod.runtime_handler) == ({}, {}, "")
    assert (pod.resources.sent, pod.overhead.sent) == (None, None)


def test_hooks_see_what_travels_only() -> None:
    container, _ = call("pre_create_container", env={"A": "\udcff", "B": "1"}, resources={})
    assert dict(container.env) == {"B": "1"}
    assert container.resources.sent == Resources()


# -- what comes back -------------------------------------------------------------------------------------------------


def edit_everything(container: ContainerContext) -> None:
    container.env["NEW"] = "1"
    container.annotations["new"] = "2"
    container.cgroup_parent = "/y"
    container.resources.cpu_shares = 2
    container.resources.cpu_quota = 50_000
    container.resources.cpuset_cpus = ""
    container.resources.unified["new"] = "3"


def test_the_difference_of_a_container() -> None:
    sent = {"cpu_quota": 50_000, "cpuset_cpus": "0-3", "unified": {"old": "1"}}
    _, changed = call("pre_create_container", edit_everything, env={"OLD": "1"}, resources=sent)
    assert changed == Difference(
        env={"NEW": "1"},
        annotations={"new": "2"},
        resources={"cpu_shares": 2, "cpuset_cpus": "", "unified": {"new": "3"}},
        cgroup_parent="/y",
    )
    assert changed


def test_what_comes_back_has_travelled() -> None:
    class Name(str):
        __slots__ = ()

    _, changed = call("pre_create_container", lambda container: container.env.update(A=Name("web")))
    assert changed.env == {"A": "web"}
    assert type(changed.env["A"]) is str


def test_the_difference_of_a_pod() -> None:
    def edit(pod: PodContext) -> None:
        pod.labels.update(old="1", new="2")
        pod.annotations["new"] = "3"

    _, changed = call("pre_run_pod_sandbox", edit, labels={"old": "1"})
    assert changed == Difference(labels={"new": "2"}, annotations={"new": "3"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env", {"A": ""}),
        ("labels", {"a": "1"}),
        ("annotations", {"a": "1"}),
        ("resources", {"cpuset_cpus": ""}),
        ("cgroup_parent", "/x"),
    ],
)
def test_a_difference_is_true_if_anything_is_changed(field: str, value: Any) -> None:
    assert Difference(**{field: value})
    assert not Difference()


def test_the_text_of_a_difference() -> None:
    changed = Difference(
        env={"A": "1", "B": 'é"'},
        resources={"cpu_quota": -1, "cpuset_cpus": "", "unified": {"memory.high": "max"}},
        cgroup_parent="/x",
    )
    assert str(changed).splitlines() == [
        "env:",
        '  A: "1"',
        '  B: "é\\""',
        "resources:",
        "  cpu_quota: -1",
        '  cpuset_cpus: ""',
        "  unified:",
        '    memory.high: "max"',
        'cgroup_parent: "/x"',
    ]
    assert str(Difference()) == "nothing is changed"


def test_each_call_stands_for_itself() -> None:
    tester = HookTester(Everywhere(lambda container: container.env.update(A=container.env.get("A", "") + "x")))
    assert tester.pre_create_container().env == {"A": "x"}
    assert tester.pre_create_container(env={"A": "y"}).env == {"A": "yx"}
    assert tester.pre_create_container().env == {"A": "x"}


def test_several_hooks_are_asked_in_order() -> None:
    def add(letter: str) -> Everywhere:
        return Everywhere(lambda container: container.env.update(A=container.env.get("A", "") + letter))

    assert HookTester(add("1"), Hook(), add("2")).pre_create_container().env == {"A": "12"}


# -- async methods ---------------------------------------------------------------------------------------------------


class Slow(Hook):
    """Waits for something, then sets a variable."""

    def __init__(self, wait: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)) -> None:
        self.wait = wait

    async def pre_create_container(self, container: ContainerContext) -> None:
        await self.wait()
        container.env["WAITED"] = "1"


def test_an_async_method() -> None:
    assert HookTester(Slow()).pre_create_container().env == {"WAITED": "1"}


async def test_an_async_method_in_an_async_test() -> None:
    assert HookTester(Slow()).pre_create_container().env == {"WAITED": "1"}


def test_an_async_method_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"did not end within 0\.01 s"):
        HookTester(Slow(asyncio.Event().wait)).pre_create_container()


@pytest.mark.parametrize("error", [Rejected("no"), ValueError("bad"), TimeoutError("its own")])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_hook_raises_is_raised(error: Exception, asynchronous: bool) -> None:
    def fail(*_: object) -> Any:
        raise error

    hook = Slow(fail) if asynchronous else Everywhere(fail)
    with pytest.raises(type(error), match=f"^{error}$"):
        HookTester(hook).pre_create_container()


def test_an_edit_that_cannot_be_said_is_raised() -> None:
    with pytest.raises(NotSayable, match="comes after the runtime's answer"):
        call("post_start_container", lambda container: container.env.update(A="1"))


# -- mistakes of a test ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [Everywhere, None, "x", [Hook()]])
def test_only_hooks_can_be_tested(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"HookTester\(MyHook\(\)\)"):
        HookTester(Hook(), thing)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "pre_create_container"])
def test_a_point_without_a_method(method: str) -> None:
    with pytest.raises(LookupError, match=f"^no hook here has the method {method}; they have pre_create_container$"):
        getattr(HookTester(Hook(), Slow()), method)()


@pytest.mark.parametrize("hooks", [(), (Hook(),)])
def test_hooks_without_any_method(hooks: tuple[Hook, ...]) -> None:
    with pytest.raises(LookupError, match=r"they have none at all$"):
        HookTester(*hooks).pre_create_container()


@pytest.mark.parametrize("name", ["resources", "pod_resources"])
@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"cpu_share": 2}, ValueError, "there is no field cpu_share, did you mean cpu_shares?"),
        ({"cpuset.cpus": "0"}, ValueError, "there is no field cpuset.cpus, did you mean cpuset_cpus?"),
        ({"zzz": 2}, ValueError, "there is no field zzz; there are cpu_period, cpu_quota, "),
        ({"cpu_shares": "2"}, TypeError, "cpu_shares is of type int"),
        ({"cpu_shares": None}, TypeError, "cpu_shares is of type int; leave it out for 'not set'"),
        ({"cpuset_cpus": 2}, TypeError, "cpuset_cpus is of type str"),
        ({"unified": "x"}, TypeError, "unified is of type dict"),
    ],
)
def test_resources_that_do_not_exist(name: str, fields: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error) as raised:
        call("pre_create_container", **{name: fields})
    assert str(raised.value).startswith(f"{name}: {why}")


def test_the_overhead_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"^overhead: there is no field cpu"):
        call("pre_run_pod_sandbox", overhead={"cpu": 2})


@pytest.mark.parametrize(
    ("method", "name", "why"),
    [
        ("pre_create_container", "label", "at PreCreateContainer, did you mean labels?"),
        ("pre_create_container", "runtime_handler", "at PreCreateContainer"),
        ("post_stop_container", "overhead", "at PostStopContainer"),
        ("pre_run_pod_sandbox", "env", "at PreRunPodSandbox; there are labels, annotations, pod, "),
    ],
)
def test_a_fact_that_is_not_sent_at_a_point(method: str, name: str, why: str) -> None:
    with pytest.raises(TypeError) as raised:
        call(method, **{name: {}})
    assert str(raised.value).startswith(f"{name} is nothing that is sent {why}")
