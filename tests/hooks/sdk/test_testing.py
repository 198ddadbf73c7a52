"""The tester without sockets: what hooks see of a call, and that the result is what the proxy would make of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runtimeproxy.model.fields import Resources
from runtimeproxy.model.hookpoints import SubjectKind
from runtimeproxy_hooks.sdk import pytest_plugin, testing
from runtimeproxy_hooks.sdk.context import ContainerContext, PodContext
from runtimeproxy_hooks.sdk.errors import NotSayable, Rejected
from runtimeproxy_hooks.sdk.hook import METHODS, Hook
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, Difference, HookTester

POD_METHODS = [name for name, point in METHODS.items() if point.subject is SubjectKind.POD]
CONTAINER_METHODS = [name for name in METHODS if name not in POD_METHODS]


class Everywhere(Hook):
    """Does the same at every hook point."""

    def __init__(self, edit: Callable[[Any], object]) -> None:
        self.edit = edit

    def _at(self, context: PodContext | ContainerContext) -> None:
        self.edit(context)

    pre_run_pod_sandbox = post_stop_pod_sandbox = pre_create_container = pre_start_container = _at
    post_start_container = pre_update_container_resources = post_stop_container = _at


def called(method: str, **facts: Any) -> Any:
    """Return the context that a hook was called with, and which changed nothing."""
    given: list[Any] = []
    assert not getattr(HookTester(Everywhere(given.append)), method)(**facts)
    assert given[0].hook_point == METHODS[method].name
    return given[0]


def edit_everything(container: ContainerContext) -> None:
    container.env["NEW"] = type("Name", (str,), {})("1")
    container.annotations["new"] = "2"
    container.cgroup_parent = "/y"
    container.resources.cpu_shares = 2
    container.resources.cpu_quota = 50_000
    container.resources.cpuset_cpus = ""
    container.resources.unified["new"] = "3"


def test_difference_is_what_was_changed() -> None:
    sent = {"cpu_quota": 50_000, "cpuset_cpus": "0-3", "unified": {"old": "1"}}
    changed = HookTester(Everywhere(edit_everything)).pre_create_container(env={"OLD": "1"}, resources=sent)
    resources = {"cpu_shares": 2, "cpuset_cpus": "", "unified": {"new": "3"}}
    assert changed == Difference({"NEW": "1"}, {}, {"new": "2"}, resources, "/y")
    assert type(changed.env["NEW"]) is str, "it has travelled"


SHOWN = [
    *("env:", '  A: "1"', '  B: "é\\""'),
    *("resources:", "  cpu_quota: -1", '  cpuset_cpus: ""', "  unified:", '    memory.high: "max"'),
    'cgroup_parent: "/x"',
]


def test_text_of_a_difference_is_like_yaml() -> None:
    resources = {"cpu_quota": -1, "cpuset_cpus": "", "unified": {"memory.high": "max"}}
    changed = Difference(env={"A": "1", "B": 'é"'}, resources=resources, cgroup_parent="/x")
    assert str(changed).splitlines() == SHOWN
    assert str(Difference()) == "nothing is changed"


POD_FACTS: dict[str, Any] = {
    **{"pod": "web", "namespace": "shop", "uid": "u-1", "labels": {"l": "1"}, "annotations": {"a": "2", "b": "\udcff"}},
    **{"cgroup_parent": "/x", "pod_attempt": 3, "pod_resources": {"cpu_shares": 2}},
}
POD_SEEN = ("web", "shop", "u-1", 3, {"l": "1"}, {"a": "2"}, Resources(cpu_shares=2))
OWN_FACTS = {"container": "side", "container_id": "c1", "attempt": 4, "container_annotations": {"c": "3"}}
SENT = {"cpu_quota": -1, "cpuset_cpus": "0", "unified": {"a": "b"}, "hugepage_limits": {"2MB": 5}}


def of_pod(pod: Any) -> tuple[Any, ...]:
    """Return what a hook sees of a pod, also of a container's."""
    return pod.name, pod.namespace, pod.uid, pod.attempt, dict(pod.labels), dict(pod.annotations), pod.resources.sent


@pytest.mark.parametrize("method", POD_METHODS)
def test_hook_sees_the_facts_of_a_pod_or_what_is_made_up(method: str) -> None:
    facts = {name.removeprefix("pod_"): value for name, value in POD_FACTS.items()}
    pod = called(method, **facts, runtime_handler="kata", overhead={"cpu_quota": -1})
    assert of_pod(pod) == POD_SEEN
    assert (pod.cgroup_parent, pod.runtime_handler, pod.overhead.sent) == ("/x", "kata", Resources(cpu_quota=-1))
    pod = called(method, resources=None)
    assert of_pod(pod) == ("pod", "default", UID, 0, {}, {}, None)
    assert (pod.cgroup_parent, pod.runtime_handler, pod.overhead.sent) == (f"/kubepods/pod{UID}", "", None)


@pytest.mark.parametrize("method", CONTAINER_METHODS)
def test_hook_sees_the_facts_of_a_container_or_what_is_made_up(method: str) -> None:
    container = called(method, **POD_FACTS, **OWN_FACTS, env={"E": "4"}, resources=SENT)
    assert (of_pod(container.pod), container.resources.sent) == (POD_SEEN, Resources(**SENT))
    assert (container.name, container.id, container.attempt, container.cgroup_parent) == ("side", "c1", 4, "/x")
    assert (dict(container.annotations), dict(container.env)) == ({"c": "3"}, {"E": "4"})
    container = called(method, uid="u-2")
    assert (of_pod(container.pod), container.resources.sent) == (("pod", "default", "u-2", 0, {}, {}, None), None)
    made_up = "" if method == "pre_create_container" else CONTAINER_ID
    assert (container.name, container.id, container.attempt) == ("main", made_up, 0)
    assert (container.cgroup_parent, dict(container.env), dict(container.annotations)) == ("/kubepods/podu-2", {}, {})


hook_tester = pytest_plugin.hook_tester


def test_fixture_is_the_tester(hook_tester: type[HookTester]) -> None:
    assert hook_tester is HookTester


class Slow(Hook):
    """Waits for something, then sets a variable."""

    def __init__(self, wait: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)) -> None:
        self.wait = wait

    async def pre_create_container(self, container: ContainerContext) -> None:
        await self.wait()
        container.env["WAITED"] = "1"


async def test_async_method_is_run_to_its_end_in_an_async_test_too() -> None:
    assert HookTester(Slow()).pre_create_container().env == {"WAITED": "1"}


def test_async_method_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"did not end within 0\.01 s"):
        HookTester(Slow(asyncio.Event().wait)).pre_create_container()


@pytest.mark.parametrize("error", [Rejected("no"), ValueError("bad"), TimeoutError("its own"), NotSayable("not this")])
@pytest.mark.parametrize("kind", [Slow, Everywhere])
def test_hooks_error_is_raised(error: Exception, kind: Callable[[Any], Hook]) -> None:
    def fail(*_: object) -> Any:
        raise error

    with pytest.raises(type(error), match=f"^{error}$"):
        HookTester(kind(fail)).pre_create_container()


@pytest.mark.parametrize("thing", [Everywhere, None, "x", [Hook()]])
def test_only_hooks_can_be_tested(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"HookTester\(MyHook\(\)\)"):
        HookTester(Hook(), thing)


def test_point_without_a_method_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"^no hook here has the method post_stop_container; they have pre_create"):
        HookTester(Hook(), Slow()).post_stop_container()
    with pytest.raises(LookupError, match=r"they have none at all$"):
        HookTester(Hook()).pre_create_container()


CREATE, RUN_POD, STOP = "pre_create_container", "pre_run_pod_sandbox", "post_stop_container"
UNSENT = [
    (CREATE, "label", {}, "label is nothing that is sent at PreCreateContainer, did you mean labels?"),
    (CREATE, "runtime_handler", {}, "runtime_handler is nothing that is sent at PreCreateContainer"),
    (STOP, "overhead", {}, "overhead is nothing that is sent at PostStopContainer"),
    (RUN_POD, "env", {}, "env is nothing that is sent at PreRunPodSandbox; there are labels, annotations, pod, "),
]
FIELDS = [
    ({"cpu_share": 2}, "there is no field cpu_share, did you mean cpu_shares?"),
    ({"zzz": 2}, "there is no field zzz; there are cpu_period, cpu_quota, "),
    ({"cpu_shares": None}, "cpu_shares is of type int; leave it out for 'not set'"),
    ({"cpuset_cpus": 2}, "cpuset_cpus is of type str"),
]
MESSAGES = [(CREATE, "resources"), (CREATE, "pod_resources"), (RUN_POD, "overhead")]
NO_FACTS = UNSENT + [(at, name, given, f"{name}: {words}") for at, name in MESSAGES for given, words in FIELDS]


@pytest.mark.parametrize(("method", "name", "value", "words"), NO_FACTS)
def test_fact_that_cannot_be_sent_is_an_error(method: str, name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError if "no field" in words else TypeError) as raised:
        getattr(HookTester(Everywhere(lambda context: None)), method)(**{name: value})
    assert str(raised.value).startswith(words)
