"""What a hook's method can edit at each hook point, and the answer; what it sees is tested in test_testing.py."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.model.fields import (
    MAP_FIELDS,
    RESOURCE_FIELDS,
    Adjustment,
    ContainerInfo,
    HookAnswer,
    HookRequest,
    PodInfo,
    Resources,
)
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, HookPoint, Operation, Part, Stage, SubjectKind
from runtimeproxy.model.merge import applicable, difference, echo, validated
from runtimeproxy_hooks.sdk.context import ContainerContext, PodContext
from runtimeproxy_hooks.sdk.errors import NotSayable
from tests.merge_cases import BAD, GOOD

RUN_POD, CREATE = BY_NAME["PreRunPodSandbox"], BY_NAME["PreCreateContainer"]
POINTS = pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: str(point.name))
CANARY = "canary-value"

ENTRIES = {"labels": {"app": "web"}, "annotations": {"note": CANARY}}
MESSAGES = {"overhead": Resources(cpu_shares=7), "resources": Resources(cpu_shares=512)}
POD = PodInfo(name="web", namespace="shop", cgroup_parent="/kubepods/podu-1", **ENTRIES, **MESSAGES)
SENT = Resources(cpu_quota=50_000, cpuset_cpus="0-3")
CONTAINER = ContainerInfo(name="main", annotations={"hash": "1"}, resources=SENT, envs={"A": CANARY})


def request_at(point: HookPoint) -> HookRequest:
    return HookRequest(POD, CONTAINER if point.subject is SubjectKind.CONTAINER else None)


KINDS: Mapping[SubjectKind, Any] = {SubjectKind.POD: PodContext, SubjectKind.CONTAINER: ContainerContext}


def context_at(point: HookPoint) -> Any:
    return KINDS[point.subject](point, request_at(point))


def unedited(point: HookPoint) -> HookAnswer:
    return replace(echo(request_at(point)), resources=None)


def change_at(point: HookPoint, context: Any) -> Adjustment:
    """Return the proxy's change for the answer; all of it must have an effect."""
    change = difference(request_at(point), context.answer())
    assert validated(change, request_at(point))[1] == ()
    assert replace(applicable(point, change), confirmed=change.confirmed) == change
    return replace(change, confirmed=frozenset())


@POINTS
def test_repr_of_a_context_has_no_value(point: HookPoint) -> None:
    context = context_at(point)
    assert repr(context).startswith(f"<{point.name} of ")
    assert "shop/web" in repr(context)
    pod = context.pod if isinstance(context, ContainerContext) else context
    everything = [context, pod, pod.labels, pod.annotations, context.annotations, getattr(context, "env", None)]
    assert CANARY not in f"{everything} {everything!s}"


Edit = Callable[[Any], None]
NEW_PARENT = Adjustment(cgroup_parent="/new")
EDITS: Mapping[Part, tuple[str, Edit, Adjustment]] = {
    Part.LABELS: ("labels", lambda c: c.labels.update(new="1"), Adjustment(labels={"new": "1"})),
    Part.ANNOTATIONS: ("annotations", lambda c: c.annotations.update(new="1"), Adjustment(annotations={"new": "1"})),
    Part.ENVS: ("env", lambda c: c.env.update(NEW="1"), Adjustment(envs={"NEW": "1"})),
    Part.CGROUP_PARENT: ("cgroup_parent", lambda c: setattr(c, "cgroup_parent", "/new"), NEW_PARENT),
    Part.RESOURCES: ("cpu_shares", lambda c: c.resources.set("cpu_shares", 2), Adjustment(resources={"cpu_shares": 2})),
}
SUBJECTS_WITHOUT = {Part.LABELS: SubjectKind.CONTAINER, Part.ENVS: SubjectKind.POD}
PARTS = [(point, part) for point in HOOK_POINTS for part in EDITS if SUBJECTS_WITHOUT.get(part) is not point.subject]


@pytest.mark.parametrize(("point", "part"), PARTS, ids=lambda value: str(getattr(value, "name", value)))
def test_part_can_be_edited_only_if_that_has_an_effect(point: HookPoint, part: Part) -> None:
    name, edit, change = EDITS[part]
    context = context_at(point)
    parts = ", ".join(sorted(each.value for each in point.applies))
    why = "can be changed any more" if point.stage is Stage.POST else f"can change {parts} only"
    if part is Part.ANNOTATIONS and point.operation is Operation.UPDATE_CONTAINER_RESOURCES:
        why = "no runtime uses annotations: set them at PreCreateContainer"
    elif part in point.applies:
        edit(context)
        assert change_at(point, context) == change
        return
    with pytest.raises(NotSayable, match=rf"^{name}: .*{point.name} .*{why}$"):
        edit(context)
    assert context.answer() == unedited(point)


SET = "no runtime changes it once the container exists: set it at PreCreateContainer"
CLEAR = "no runtime clears it once the container exists: clear it at PreCreateContainer, or name all the CPUs"
OOM, CPUS, MEMS = ("oom_score_adj", 5), ("cpuset_cpus", ""), ("cpuset_mems", "")
EXISTING = [
    *(("RunPodSandbox", *edit, "") for edit in (OOM, CPUS, MEMS)),
    *(("CreateContainer", *edit, "") for edit in (OOM, CPUS, MEMS)),
    *(("StartContainer", *edit, why) for edit, why in ((OOM, SET), (CPUS, CLEAR), (MEMS, CLEAR))),
    *(("UpdateContainerResources", *edit, why) for edit, why in ((OOM, SET), (CPUS, ""), (MEMS, ""))),
]


@pytest.mark.parametrize(("operation", "name", "value", "why"), EXISTING)
def test_existing_container_accepts_fewer_edits(operation: str, name: str, value: Any, why: str) -> None:
    point = BY_NAME[f"Pre{operation}"]
    sent = Resources(cpu_quota=50_000, cpuset_cpus="0-3", cpuset_mems="0", oom_score_adj=-998)
    request = HookRequest(replace(POD, resources=sent), replace(CONTAINER, resources=sent))
    context = KINDS[point.subject](point, request)
    if why:
        with pytest.raises(NotSayable, match=f"^{name}: {why}$"):
            context.resources.set(name, value)
    else:
        context.resources.set(name, value)
    assert difference(request, context.answer()).resources == ({} if why else {name: value})


@pytest.mark.parametrize("point", [point for point in HOOK_POINTS if point.subject is SubjectKind.CONTAINER])
def test_pod_of_a_container_and_overhead_are_read_only(point: HookPoint) -> None:
    container = context_at(point)
    pod = container.pod
    of_labels, of_annotations = (lambda: pod.labels.update(a="1")), (lambda: pod.annotations.update(a="1"))
    for edit in (of_labels, of_annotations, pod.labels.popitem, lambda: pod.resources.set("cpu_shares", 2)):
        with pytest.raises(NotSayable, match="cannot change its pod"):
            edit()
    with pytest.raises(AttributeError):
        pod.name = "renamed"
    assert container.answer() == unedited(point)
    with pytest.raises(NotSayable, match="overhead can only be read"):
        context_at(RUN_POD).overhead.cpu_shares = 2


@POINTS
@pytest.mark.parametrize("name", ["name", "labels", "resources", "cgroupparent"])
def test_attributes_cannot_be_assigned(point: HookPoint, name: str) -> None:
    context = context_at(point)
    with pytest.raises(NotSayable, match=rf"^{name} cannot be assigned; cgroup_parent can, and maps entry by entry"):
        setattr(context, name, {})
    assert context.answer() == unedited(point)


SLICE, SLICES_ONLY = "/kubepods.slice/pod1.slice", r"must be a \.slice where one was sent"
NO_PATH = r"must be (an absolute path|a text in UTF-8)"


@pytest.mark.parametrize(
    ("sent", "path", "why"),
    [
        *(("/kubepods/podu-1", path, NO_PATH) for path in ("", None, "kubepods", "/kubepods/../x")),
        (SLICE, "/pod1", SLICES_ONLY),
    ],
)
def test_bad_cgroup_parent_is_refused_unless_it_was_sent(sent: str, path: Any, why: str) -> None:
    pod = PodContext(RUN_POD, HookRequest(replace(POD, cgroup_parent=sent)))
    with pytest.raises(NotSayable, match=f"^cgroup_parent: {why}"):
        pod.cgroup_parent = path
    assert pod.cgroup_parent == sent
    if path:
        pod = PodContext(RUN_POD, HookRequest(replace(POD, cgroup_parent=path)))
        pod.cgroup_parent = "/new"
        pod.cgroup_parent = path
        assert pod.answer().cgroup_parent == path


def repeated(answer: HookAnswer) -> HookAnswer:
    """Return the answer of contexts without sent values to which the edits of an answer are applied."""
    pod, container = PodContext(RUN_POD, HookRequest(PodInfo())), ContainerContext(CREATE, HookRequest(PodInfo()))
    pod.labels.update(answer.labels)
    container.annotations.update(answer.annotations)
    container.env.update(answer.envs)
    if answer.cgroup_parent:
        container.cgroup_parent = answer.cgroup_parent
    for name in RESOURCE_FIELDS if answer.resources else ():
        value = getattr(answer.resources, name)
        if name in MAP_FIELDS:
            getattr(container.resources, name).update(value)
        elif value:
            container.resources.set(name, value)
    return replace(container.answer(), labels=pod.answer().labels)


@pytest.mark.parametrize("answer", GOOD, ids=range(len(GOOD)))
def test_answer_that_the_proxy_accepts_can_be_edited(answer: HookAnswer) -> None:
    result = repeated(answer)
    assert (result.resources or Resources()) == (answer.resources or Resources())
    assert replace(result, resources=None) == replace(answer, resources=None)


@pytest.mark.parametrize(("field", "answer"), BAD, ids=[f"{n}-{field}" for n, (field, _) in enumerate(BAD)])
def test_answer_that_the_proxy_refuses_cannot_be_edited(field: str, answer: HookAnswer) -> None:
    name = field.removeprefix("resources.").replace("envs", "env")
    with pytest.raises(NotSayable, match=rf"^{name}: "):
        repeated(answer)
