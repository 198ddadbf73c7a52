"""What the tester says is what the proxy would make of the answer, for any request and any edits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hookapi import codec
from runtimeproxy.hookpoints import HookPoint, Operation, Part, Stage, SubjectKind
from runtimeproxy.merge import difference, judged, limited
from runtimeproxy.model import NUMBER_FIELDS, ContainerInfo, HookRequest, PodInfo, Resources
from runtimeproxy_hooks.sdk.context import ContainerContext
from runtimeproxy_hooks.sdk.errors import NotSayable, Rejected, reject
from runtimeproxy_hooks.sdk.hook import METHODS, Hook, ask
from runtimeproxy_hooks.sdk.testing import UID, Difference, HookTester
from tests.amounts import examples
from tests.hooks.sdk.everywhere import CONTAINER_METHODS, POD_METHODS, Context, Everywhere, call

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
PARENTS = st.sampled_from(["", "/a", "/b", "odd"])
POD_FACTS = st.fixed_dictionaries(
    {}, optional={"labels": ENTRIES, "annotations": ENTRIES, "cgroup_parent": PARENTS, "resources": RESOURCES}
)
CONTAINER_FACTS = st.fixed_dictionaries(
    {},
    optional={
        "labels": ENTRIES,
        "annotations": ENTRIES,
        "cgroup_parent": PARENTS,
        "resources": RESOURCES,
        "pod_resources": RESOURCES,
        "container_annotations": ENTRIES,
        "env": ENTRIES,
    },
)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["labels", "annotations", "env"]), KEYS, TEXTS),
        st.tuples(st.just("unified"), KEYS, TEXTS),
        st.tuples(st.just("hugepage_limits"), st.sampled_from(["2MB", "4MB"]), st.integers(-1, 2)),
        st.tuples(st.just("number"), st.sampled_from(NUMBER_FIELDS), NUMBERS),
        st.tuples(st.just("text"), st.sampled_from(["cpuset_cpus", "cpuset_mems"]), TEXTS | st.just("")),
        st.tuples(st.just("cgroup_parent"), st.just(""), TEXTS),
    ),
    max_size=6,
)
CALLS = st.one_of(
    st.tuples(st.sampled_from(POD_METHODS), POD_FACTS), st.tuples(st.sampled_from(CONTAINER_METHODS), CONTAINER_FACTS)
)


class Editing(Everywhere):
    """Makes the edits that can be said, and counts them."""

    def __init__(self, edits: list[tuple[str, str, Any]]) -> None:
        super().__init__(lambda context: [self.make(context, *edit) for edit in edits])
        self.said = 0

    def make(self, context: Any, where: str, key: str, value: Any) -> None:
        try:
            if where in ("number", "text"):
                setattr(context.resources, key, value)
            elif where == "cgroup_parent":
                context.cgroup_parent = value
            else:
                getattr(context.resources if where in ("unified", "hugepage_limits") else context, where)[key] = value
        except (NotSayable, AttributeError):  # a pod has no env, a container no labels
            return
        self.said += 1


def sent_by_the_proxy(point: HookPoint, facts: Mapping[str, Any]) -> HookRequest:
    """Return what the tester sends, built in another way."""

    def resources(name: str) -> Resources | None:
        return Resources(**facts[name]) if name in facts else None

    pod = PodInfo(
        name="pod",
        namespace="default",
        uid=UID,
        labels=facts.get("labels", {}),
        annotations=facts.get("annotations", {}),
        cgroup_parent=facts.get("cgroup_parent", f"/kubepods/pod{UID}"),
    )
    if point.subject is SubjectKind.POD:
        return HookRequest(replace(pod, resources=resources("resources")))
    container = ContainerInfo(
        name="main",
        annotations=facts.get("container_annotations", {}),
        envs=facts.get("env", {}),
        resources=resources("resources"),
    )
    return HookRequest(replace(pod, resources=resources("pod_resources")), container)


@settings(max_examples=examples(300))
@given(CALLS, EDITS)
def test_a_difference_is_what_the_proxy_makes_of_the_answer(
    asked: tuple[str, dict[str, Any]], edits: list[tuple[str, str, Any]]
) -> None:
    (method, facts), point = asked, METHODS[asked[0]]
    hook = Editing(edits)
    changed: Difference = getattr(HookTester(hook), method)(**facts)

    request = sent_by_the_proxy(point, facts)
    answer = ask([Editing(edits)], point, codec.decode_request(point, codec.encode(point, request)), lambda _: None)
    change = difference(request, codec.decode(point, codec.encode_answer(point, answer)))
    assert (
        judged(change, request)[1] == ()
    )  # what can be said is never refused, and what was sent is never refused either
    assert change == replace(limited(point, change), confirmed=change.confirmed)
    assert (changed.env, changed.labels, changed.annotations) == (change.envs, change.labels, change.annotations)
    assert (changed.resources, changed.cgroup_parent) == (change.resources, change.cgroup_parent)
    assert bool(changed) is bool(change)
    assert hook.said or not changed


@settings(max_examples=examples(50))
@given(st.sampled_from([name for name, point in METHODS.items() if Part.RESOURCES in point.applies]), RESOURCES)
def test_a_cpuset_is_cleared_or_it_is_said_that_it_cannot_be(method: str, resources: dict[str, Any]) -> None:
    def clear(context: Context) -> None:
        context.resources.cpuset_cpus = ""

    had = bool(resources.get("cpuset_cpus"))
    starts = METHODS[method].operation is Operation.START_CONTAINER
    if had and (starts or not any(resources.get(name) for name in NUMBER_FIELDS)):
        with pytest.raises(NotSayable, match=r"cannot be cleared|no runtime clears it"):
            call(method, clear, resources=resources)
    else:
        assert call(method, clear, resources=resources)[1].resources == ({"cpuset_cpus": ""} if had else {})


@pytest.mark.parametrize("method", [name for name, point in METHODS.items() if point.stage is Stage.POST])
def test_nothing_comes_back_from_a_post_point(method: str) -> None:
    _, changed = call(
        method, labels={"a": "1"}, annotations={"b": "2"}, resources={"cpu_shares": 3, "cpuset_cpus": "0"}
    )
    assert changed == Difference()


def test_a_refusal_in_the_ten_lines_way() -> None:
    class NoSecrets(Hook):
        def pre_create_container(self, container: ContainerContext) -> None:
            if "SECRET" in container.env:
                reject("SECRET must not be in the environment")
            container.env["CHECKED"] = "1"

    tester = HookTester(NoSecrets())
    assert tester.pre_create_container(env={"A": "1"}).env == {"CHECKED": "1"}
    with pytest.raises(Rejected, match="SECRET must not be"):
        tester.pre_create_container(env={"SECRET": "1"})
