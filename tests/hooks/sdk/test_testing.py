"""The tester without sockets: what hooks see of a call, and that what comes back is what the proxy makes of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hookapi import codec
from runtimeproxy.hookpoints import HookPoint, SubjectKind
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
    """Does the same at every hook point."""

    def __init__(self, edit: Callable[[Any], object]) -> None:
        self.edit = edit

    def _at(self, context: PodContext | ContainerContext) -> None:
        self.edit(context)

    pre_run_pod_sandbox = post_stop_pod_sandbox = pre_create_container = pre_start_container = _at
    post_start_container = pre_update_container_resources = post_stop_container = _at


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


def test_hooks_are_asked_in_order_and_each_call_stands_for_itself() -> None:
    def add(letter: str) -> Everywhere:
        return Everywhere(lambda container: container.env.update(A=container.env.get("A", "") + letter))

    tester = HookTester(add("1"), Hook(), add("2"))
    assert tester.pre_create_container().env == {"A": "12"}
    assert tester.pre_create_container(env={"A": "0"}).env == {"A": "012"}


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
FACTS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("pod", "namespace", "uid"), st.sampled_from(["web", ""])),
    **{"labels": ENTRIES, "annotations": ENTRIES, "resources": RESOURCES | st.none(), "attempt": st.integers(0, 2)},
    "cgroup_parent": st.sampled_from(["", "/a", "/b", "odd"]),
}
OF_PODS = {"runtime_handler": st.just("kata"), "overhead": RESOURCES}
OF_CONTAINERS = {
    **{"container": st.just("side"), "container_id": st.just("c1"), "container_annotations": ENTRIES, "env": ENTRIES},
    **{"pod_resources": RESOURCES, "pod_attempt": st.integers(0, 2)},
}


def calls(methods: list[str], facts: dict[str, Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.sampled_from(methods), st.fixed_dictionaries({}, optional=FACTS | facts))


CALLS = calls(POD_METHODS, OF_PODS) | calls(CONTAINER_METHODS, OF_CONTAINERS)
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


POD_FIELDS = {name: name for name in ("namespace", "uid", "labels", "annotations", "cgroup_parent")} | {"name": "pod"}
OWN_FIELDS = {"attempt": "attempt", "resources": "resources"}
CONTAINER_FIELDS = {"name": "container", "id": "container_id", "annotations": "container_annotations", "envs": "env"}


def sent_by_the_proxy(point: HookPoint, said: dict[str, Any]) -> HookRequest:
    """Return what the tester sends, built in another way: field by field the fact that it has."""
    facts = {"pod": "pod", "namespace": "default", "uid": UID, "container": "main", "container_id": CONTAINER_ID}
    facts |= ({"container_id": ""} if point.name == "PreCreateContainer" else {}) | said
    facts = {"cgroup_parent": f"/kubepods/pod{facts['uid']}"} | facts

    def message(kind: Any, named: dict[str, str]) -> Any:
        values = {field: facts[name] for field, name in named.items() if facts.get(name) is not None}
        messages = {name: Resources(**values[name]) for name in ("resources", "overhead") if name in values}
        return kind(**values | messages)

    if point.subject is SubjectKind.POD:
        more = {"runtime_handler": "runtime_handler", "overhead": "overhead"}
        return HookRequest(message(PodInfo, POD_FIELDS | OWN_FIELDS | more))
    pod = message(PodInfo, POD_FIELDS | {"attempt": "pod_attempt", "resources": "pod_resources"})
    return HookRequest(pod, message(ContainerInfo, CONTAINER_FIELDS | OWN_FIELDS))


def seen(context: Any) -> dict[str, Any]:
    """Return all that a hook sees."""
    names = ("hook_point", "name", "namespace", "uid", "id", "attempt", "runtime_handler", "cgroup_parent")
    maps = {name: dict(getattr(context, name, {})) for name in ("labels", "annotations", "env")}
    values = {name: getattr(context, name, None) for name in names}
    messages = {name: getattr(context, name).sent for name in ("resources", "overhead") if hasattr(context, name)}
    return values | maps | messages | ({"pod": seen(context.pod)} if hasattr(context, "pod") else {})


@settings(max_examples=examples(300))
@given(CALLS, EDITS)
def test_difference_is_what_the_proxy_makes_of_the_answer(
    asked: tuple[str, dict[str, Any]], edits: list[tuple[str, str, Any]]
) -> None:
    (method, said), point = asked, METHODS[asked[0]]
    request = codec.decode_request(point, codec.encode(point, sent_by_the_proxy(point, said)))
    told: list[dict[str, Any]] = []
    hook = Everywhere(lambda context: (told.append(seen(context)), [make(context, *edit) for edit in edits]))
    changed: Difference = getattr(HookTester(hook), method)(**said)
    change = difference(request, ask([hook], point, request, lambda _: None))
    assert told[0] == told[1]
    assert judged(change, request)[1] == ()  # neither what can be said nor what was sent is ever refused
    assert change == replace(limited(point, change), confirmed=change.confirmed)
    assert (changed.env, changed.labels, changed.annotations) == (change.envs, change.labels, change.annotations)
    assert (changed.resources, changed.cgroup_parent) == (change.resources, change.cgroup_parent)
    assert bool(changed) is bool(change)


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
    with pytest.raises(
        LookupError, match=r"^no hook here has the method post_stop_container; they have pre_create_con"
    ):
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
    ({"cpuset.cpus": "0"}, "there is no field cpuset.cpus, did you mean cpuset_cpus?"),
    ({"zzz": 2}, "there is no field zzz; there are cpu_period, cpu_quota, "),
    ({"cpu_shares": "2"}, "cpu_shares is of type int"),
    ({"cpu_shares": None}, "cpu_shares is of type int; leave it out for 'not set'"),
    ({"cpuset_cpus": 2}, "cpuset_cpus is of type str"),
    ({"unified": "x"}, "unified is of type dict"),
]
MESSAGES = [(CREATE, "resources"), (CREATE, "pod_resources"), (RUN_POD, "overhead")]
NO_FACTS = UNSENT + [(at, name, given, f"{name}: {words}") for at, name in MESSAGES for given, words in FIELDS]


@pytest.mark.parametrize(("method", "name", "value", "words"), NO_FACTS)
def test_fact_that_cannot_be_sent_is_an_error(method: str, name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError if "no field" in words else TypeError) as raised:
        getattr(HookTester(Everywhere(lambda context: None)), method)(**{name: value})
    assert str(raised.value).startswith(words)
