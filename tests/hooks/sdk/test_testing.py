"""The tester without sockets: what hooks see of a call, and that what comes back is what the proxy would make of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hookpoints import HookPoint, Stage, SubjectKind
from runtimeproxy.merge import difference, judged, limited
from runtimeproxy.model import NUMBER_FIELDS, ContainerInfo, HookRequest, PodInfo, Resources
from runtimeproxy_hooks.sdk import testing
from runtimeproxy_hooks.sdk.context import ContainerContext, PodContext
from runtimeproxy_hooks.sdk.errors import NotSayable, Rejected
from runtimeproxy_hooks.sdk.hook import METHODS, Hook, ask
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, Difference, HookTester
from tests.amounts import examples

POD_METHODS = [name for name, point in METHODS.items() if point.subject is SubjectKind.POD]
CONTAINER_METHODS = [name for name in METHODS if name not in POD_METHODS]


class Everywhere(Hook):
    """Does the same at every hook point, and keeps what it was given."""

    def __init__(self, edit: Callable[[Any], object] = lambda context: None) -> None:
        self.edit = edit
        self.given: list[Any] = []

    def _at(self, context: PodContext | ContainerContext) -> None:
        self.given.append(context)
        self.edit(context)

    pre_run_pod_sandbox = post_stop_pod_sandbox = pre_create_container = pre_start_container = _at
    post_start_container = pre_update_container_resources = post_stop_container = _at


def call(method: str, edit: Callable[[Any], object] = lambda context: None, **facts: Any) -> tuple[Any, Difference]:
    """Return the context that a hook was given, and the difference."""
    hook = Everywhere(edit)
    changed = getattr(HookTester(hook), method)(**facts)
    [context] = hook.given
    assert context.hook_point == METHODS[method].name
    return context, changed


# -- what hooks see --------------------------------------------------------------------------------------------------

POD_FACTS: dict[str, Any] = {
    **{"labels": {"l": "1"}, "annotations": {"a": "2"}, "pod": "web", "namespace": "shop", "uid": "u-1"},
    "cgroup_parent": "/x",
}
SENT = {"cpu_quota": -1, "cpuset_cpus": "0", "unified": {"a": "b"}, "hugepage_limits": {"2MB": 5}}


def of_pod(pod: Any) -> tuple[Any, ...]:
    """Return what is seen of a pod, also of a container's."""
    return pod.name, pod.namespace, pod.uid, pod.attempt, dict(pod.labels), dict(pod.annotations), pod.resources.sent


@pytest.mark.parametrize("method", POD_METHODS)
def test_hook_sees_the_facts_of_a_pod(method: str) -> None:
    more = {"attempt": 3, "runtime_handler": "kata", "resources": {"cpu_shares": 2}, "overhead": {"cpu_quota": -1}}
    pod, changed = call(method, **POD_FACTS, **more)
    assert of_pod(pod) == ("web", "shop", "u-1", 3, {"l": "1"}, {"a": "2"}, Resources(cpu_shares=2))
    assert (pod.cgroup_parent, pod.runtime_handler, pod.overhead.sent) == ("/x", "kata", Resources(cpu_quota=-1))
    assert not changed


@pytest.mark.parametrize("method", CONTAINER_METHODS)
def test_hook_sees_the_facts_of_a_container(method: str) -> None:
    of_the_pod = {**POD_FACTS, "pod_attempt": 3, "pod_resources": {"cpu_shares": 2}}
    own = {"container": "main", "container_id": "c1", "attempt": 4, "container_annotations": {"c": "3"}}
    container, changed = call(method, **of_the_pod, **own, env={"E": "4"}, resources=SENT)
    assert of_pod(container.pod) == ("web", "shop", "u-1", 3, {"l": "1"}, {"a": "2"}, Resources(cpu_shares=2))
    assert (container.name, container.id, container.attempt, container.cgroup_parent) == ("main", "c1", 4, "/x")
    assert (dict(container.annotations), dict(container.env)) == ({"c": "3"}, {"E": "4"})
    assert container.resources.sent == Resources(**SENT)
    assert not changed


@pytest.mark.parametrize("method", POD_METHODS)
def test_facts_of_a_pod_are_made_up(method: str) -> None:
    pod, _ = call(method, uid="u-1", resources=None)
    assert of_pod(pod) == ("pod", "default", "u-1", 0, {}, {}, None)
    assert (pod.cgroup_parent, pod.runtime_handler, pod.overhead.sent) == ("/kubepods/podu-1", "", None)


@pytest.mark.parametrize("method", CONTAINER_METHODS)
def test_facts_of_a_container_are_made_up(method: str) -> None:
    container, _ = call(method)
    assert of_pod(container.pod) == ("pod", "default", UID, 0, {}, {}, None)
    assert (container.name, container.attempt, dict(container.env), dict(container.annotations)) == ("main", 0, {}, {})
    assert container.id == ("" if method == "pre_create_container" else CONTAINER_ID)
    assert (container.cgroup_parent, container.resources.sent) == (f"/kubepods/pod{UID}", None)


def test_hook_sees_what_travels_only() -> None:
    container, _ = call("pre_create_container", env={"A": "\udcff", "B": "1"}, resources={})
    assert dict(container.env) == {"B": "1"}
    assert container.resources.sent == Resources()


# -- what comes back -------------------------------------------------------------------------------------------------


class Name(str):
    __slots__ = ()


def edit_everything(container: ContainerContext) -> None:
    container.env["NEW"] = Name("1")
    container.annotations["new"] = "2"
    container.cgroup_parent = "/y"
    container.resources.cpu_shares = 2
    container.resources.cpu_quota = 50_000
    container.resources.cpuset_cpus = ""
    container.resources.unified["new"] = "3"


def test_difference_of_a_container_is_what_was_changed() -> None:
    sent = {"cpu_quota": 50_000, "cpuset_cpus": "0-3", "unified": {"old": "1"}}
    _, changed = call("pre_create_container", edit_everything, env={"OLD": "1"}, resources=sent)
    assert changed == Difference(
        env={"NEW": "1"},
        annotations={"new": "2"},
        resources={"cpu_shares": 2, "cpuset_cpus": "", "unified": {"new": "3"}},
        cgroup_parent="/y",
    )
    assert type(changed.env["NEW"]) is str, "it has travelled"


def test_difference_of_a_pod_is_what_was_changed() -> None:
    def edit(pod: PodContext) -> None:
        pod.labels.update(old="1", new="2")
        pod.annotations["new"] = "3"

    _, changed = call("pre_run_pod_sandbox", edit, labels={"old": "1"})
    assert changed == Difference(labels={"new": "2"}, annotations={"new": "3"})


@pytest.mark.parametrize("method", [name for name, point in METHODS.items() if point.stage is Stage.POST])
def test_nothing_comes_back_from_a_post_point(method: str) -> None:
    facts = {"labels": {"a": "1"}, "annotations": {"b": "2"}, "resources": {"cpu_shares": 3, "cpuset_cpus": "0"}}
    assert call(method, **facts)[1] == Difference()


CHANGES = {"env": {"A": ""}, "labels": {"a": "1"}, "annotations": {"a": "1"}, "resources": {"cpuset_cpus": ""}}


@pytest.mark.parametrize(("field", "value"), [*CHANGES.items(), ("cgroup_parent", "/x")])
def test_difference_is_true_if_anything_is_changed(field: str, value: Any) -> None:
    assert Difference(**{field: value})
    assert not Difference()


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


def test_each_call_stands_for_itself() -> None:
    tester = HookTester(Everywhere(lambda container: container.env.update(A=container.env.get("A", "") + "x")))
    assert tester.pre_create_container().env == {"A": "x"}
    assert tester.pre_create_container(env={"A": "y"}).env == {"A": "yx"}


def test_several_hooks_are_asked_in_order() -> None:
    def add(letter: str) -> Everywhere:
        return Everywhere(lambda container: container.env.update(A=container.env.get("A", "") + letter))

    assert HookTester(add("1"), Hook(), add("2")).pre_create_container().env == {"A": "12"}


KEYS = st.sampled_from(["", "a", "b", "A=B", "c\0"])
TEXTS = st.text(max_size=3) | st.sampled_from(["0-3", "1", "3-1", "/a", "/a/..", "\udcff"])
ENTRIES = st.dictionaries(KEYS, TEXTS, max_size=3)
NUMBERS = st.sampled_from([0, 0, 0, -1, -2, 1, 5, 1000, 2**63 - 1])
RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NUMBER_FIELDS, NUMBERS),
        "cpuset_cpus": st.sampled_from(["", "0-3", "odd"]),
        "cpuset_mems": st.sampled_from(["", "0"]),
        "hugepage_limits": st.dictionaries(st.sampled_from(["2MB", "1GB"]), st.integers(0, 2)),
        "unified": ENTRIES,
    },
)
FACTS = {"labels": ENTRIES, "annotations": ENTRIES, "resources": RESOURCES}
FACTS["cgroup_parent"] = st.sampled_from(["", "/a", "/b", "odd"])
MORE = {"pod_resources": RESOURCES, "container_annotations": ENTRIES, "env": ENTRIES}
CALLS = st.tuples(st.sampled_from(POD_METHODS), st.fixed_dictionaries({}, optional=FACTS)) | st.tuples(
    st.sampled_from(CONTAINER_METHODS), st.fixed_dictionaries({}, optional=FACTS | MORE)
)
EDITS = st.lists(
    st.tuples(st.sampled_from(["labels", "annotations", "env", "unified"]), KEYS, TEXTS)
    | st.tuples(st.just("hugepage_limits"), st.sampled_from(["2MB", "4MB"]), st.integers(-1, 2))
    | st.tuples(st.just("resources"), st.sampled_from(NUMBER_FIELDS), NUMBERS)
    | st.tuples(st.just("resources"), st.sampled_from(["cpuset_cpus", "cpuset_mems"]), TEXTS | st.just(""))
    | st.tuples(st.just("cgroup_parent"), st.just(""), TEXTS),
    max_size=6,
)


def make(context: Any, where: str, key: str, value: Any) -> None:
    """Make an edit if it can be said."""
    try:
        if where == "resources":
            setattr(context.resources, key, value)
        elif where == "cgroup_parent":
            context.cgroup_parent = value
        else:
            getattr(context.resources if where in ("unified", "hugepage_limits") else context, where)[key] = value
    except (NotSayable, AttributeError):  # a pod has no env, a container no labels
        pass


def sent_by_the_proxy(point: HookPoint, facts: dict[str, Any]) -> HookRequest:
    """Return what the tester sends, built in another way."""
    resources, of_pod = (Resources(**facts[name]) if name in facts else None for name in ("resources", "pod_resources"))
    texts = {name: facts[name] for name in ("labels", "annotations") if name in facts}
    parent = facts.get("cgroup_parent", f"/kubepods/pod{UID}")
    pod = PodInfo(name="pod", namespace="default", uid=UID, cgroup_parent=parent, **texts)
    if point.subject is SubjectKind.POD:
        return HookRequest(replace(pod, resources=resources))
    annotations, envs = facts.get("container_annotations", {}), facts.get("env", {})
    container = ContainerInfo(name="main", annotations=annotations, envs=envs, resources=resources)
    return HookRequest(replace(pod, resources=of_pod), container)


@settings(max_examples=examples(300))
@given(CALLS, EDITS)
def test_difference_is_what_the_proxy_makes_of_the_answer(
    asked: tuple[str, dict[str, Any]], edits: list[tuple[str, str, Any]]
) -> None:
    (method, facts), point = asked, METHODS[asked[0]]
    hook = Everywhere(lambda context: [make(context, *edit) for edit in edits])
    changed: Difference = getattr(HookTester(hook), method)(**facts)
    request = testing.codec.decode_request(point, testing.codec.encode(point, sent_by_the_proxy(point, facts)))
    change = difference(request, ask([hook], point, request, lambda _: None))
    assert judged(change, request)[1] == ()  # neither what can be said nor what was sent is ever refused
    assert change == replace(limited(point, change), confirmed=change.confirmed)
    assert (changed.env, changed.labels, changed.annotations) == (change.envs, change.labels, change.annotations)
    assert (changed.resources, changed.cgroup_parent) == (change.resources, change.cgroup_parent)
    assert bool(changed) is bool(change)


# -- async methods, and errors ---------------------------------------------------------------------------------------


class Slow(Hook):
    """Waits for something, then sets a variable."""

    def __init__(self, wait: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)) -> None:
        self.wait = wait

    async def pre_create_container(self, container: ContainerContext) -> None:
        await self.wait()
        container.env["WAITED"] = "1"


def test_async_method_is_run_to_its_end() -> None:
    assert HookTester(Slow()).pre_create_container().env == {"WAITED": "1"}


async def test_async_method_is_run_in_an_async_test_too() -> None:
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


# -- mistakes of a test ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [Everywhere, None, "x", [Hook()]])
def test_only_hooks_can_be_tested(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"HookTester\(MyHook\(\)\)"):
        HookTester(Hook(), thing)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "pre_create_container"])
def test_point_without_a_method_is_an_error(method: str) -> None:
    with pytest.raises(LookupError, match=f"^no hook here has the method {method}; they have pre_create_container$"):
        getattr(HookTester(Hook(), Slow()), method)()
    with pytest.raises(LookupError, match=r"they have none at all$"):
        getattr(HookTester(Hook()), method)()


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("pre_create_container", "resources"),
        ("pre_create_container", "pod_resources"),
        ("pre_run_pod_sandbox", "overhead"),
    ],
)
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
def test_resources_that_do_not_exist_are_an_error(
    method: str, name: str, fields: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error) as raised:
        call(method, **{name: fields})
    assert str(raised.value).startswith(f"{name}: {why}")


@pytest.mark.parametrize(
    ("method", "name", "why"),
    [
        ("pre_create_container", "label", "at PreCreateContainer, did you mean labels?"),
        ("pre_create_container", "runtime_handler", "at PreCreateContainer"),
        ("post_stop_container", "overhead", "at PostStopContainer"),
        ("pre_run_pod_sandbox", "env", "at PreRunPodSandbox; there are labels, annotations, pod, "),
    ],
)
def test_fact_that_is_not_sent_at_a_point_is_an_error(method: str, name: str, why: str) -> None:
    with pytest.raises(TypeError) as raised:
        call(method, **{name: {}})
    assert str(raised.value).startswith(f"{name} is nothing that is sent {why}")
