"""Edits of contexts, maps and resources; the answer; and the tester, whose result is the proxy's change."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from runtimeproxy.model import fields
from runtimeproxy.model.fields import Adjustment, ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, HookPoint, Operation, Part, Stage, SubjectKind
from runtimeproxy.model.merge import applicable, difference, echo, validated
from runtimeproxy_hooks.sdk import testing
from runtimeproxy_hooks.sdk.context import ContainerContext, PodContext
from runtimeproxy_hooks.sdk.edits import EditableResources, Entries, Environment
from runtimeproxy_hooks.sdk.errors import NotSayable, Rejected
from runtimeproxy_hooks.sdk.hook import METHODS, Hook
from runtimeproxy_hooks.sdk.pytest_plugin import hook_tester as hook_tester  # the fixture
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, Difference, HookTester
from tests.merge_cases import BAD, SENT, TIDY

CANARY = "canary-value"
RUN_POD, CREATE = BY_NAME["PreRunPodSandbox"], BY_NAME["PreCreateContainer"]
ENTRIES = {"labels": {"app": "web"}, "annotations": {"note": CANARY}}
MESSAGES = {"overhead": Resources(cpu_shares=7), "resources": Resources(cpu_shares=512)}
POD = PodInfo(name="web", namespace="shop", cgroup_parent="/kubepods/podu-1", **ENTRIES, **MESSAGES)
OF_CONTAINER: Any = {"annotations": {"hash": "1"}, "resources": Resources(cpu_quota=50_000), "envs": {"A": CANARY}}
CONTAINER = ContainerInfo(name="main", **OF_CONTAINER)


def request_at(hook_point: HookPoint) -> HookRequest:
    return HookRequest(POD, CONTAINER if hook_point.subject is SubjectKind.CONTAINER else None)


KINDS: Mapping[SubjectKind, Any] = {SubjectKind.POD: PodContext, SubjectKind.CONTAINER: ContainerContext}


def context_at(hook_point: HookPoint) -> Any:
    return KINDS[hook_point.subject](hook_point, request_at(hook_point))


def unedited(hook_point: HookPoint) -> HookAnswer:
    return replace(echo(request_at(hook_point)), resources=None)


def test_repr_has_no_value_of_map() -> None:
    for hook_point in HOOK_POINTS:
        context = context_at(hook_point)
        assert repr(context).startswith(f"<{hook_point.name} of ")
        assert "shop/web" in repr(context)
        pod = context.pod if isinstance(context, ContainerContext) else context
        everything = [context, pod, pod.labels, pod.annotations, context.annotations, getattr(context, "env", None)]
        assert CANARY not in f"{everything} {everything!s}"
    sent = Resources(cpu_shares=2, cpuset_cpus="0-3", unified={"a": CANARY})
    assert repr(EditableResources(sent)) == "<resources: cpu_shares=2, cpuset_cpus=0-3>"


NEW_PARENT = Adjustment(cgroup_parent="/new")
EDITS: Mapping[Part, tuple[str, Callable[[Any], None], Adjustment]] = {
    Part.LABELS: ("labels", lambda c: c.labels.update(new="1"), Adjustment(labels={"new": "1"})),
    Part.ANNOTATIONS: ("annotations", lambda c: c.annotations.update(new="1"), Adjustment(annotations={"new": "1"})),
    Part.ENVS: ("env", lambda c: c.env.update(NEW="1"), Adjustment(envs={"NEW": "1"})),
    Part.CGROUP_PARENT: ("cgroup_parent", lambda c: setattr(c, "cgroup_parent", "/new"), NEW_PARENT),
    Part.RESOURCES: ("cpu_shares", lambda c: c.resources.set("cpu_shares", 2), Adjustment(resources={"cpu_shares": 2})),
}
WITHOUT = {SubjectKind.CONTAINER: Part.LABELS, SubjectKind.POD: Part.ENVS}
PARTS = [(hook_point, part) for hook_point in HOOK_POINTS for part in EDITS if part is not WITHOUT[hook_point.subject]]


@pytest.mark.parametrize(("hook_point", "part"), PARTS, ids=lambda value: str(getattr(value, "name", value)))
def test_part_is_editable_only_where_edit_has_effect(hook_point: HookPoint, part: Part) -> None:
    name, edit, change = EDITS[part]
    context = context_at(hook_point)
    parts = ", ".join(sorted(applied.value for applied in hook_point.applies))
    why = "can be changed any more" if hook_point.stage is Stage.POST else f"can change {parts} only"
    if part is Part.ANNOTATIONS and hook_point.operation is Operation.UPDATE_CONTAINER_RESOURCES:
        why = "no runtime uses annotations: set them at PreCreateContainer"
    elif part in hook_point.applies:
        edit(context)
        answered = difference(request_at(hook_point), context.answer())
        assert replace(applicable(hook_point, answered), confirmed=answered.confirmed) == answered
        assert replace(answered, confirmed=frozenset()) == change
        assert validated(answered, request_at(hook_point))[1] == ()
        return
    with pytest.raises(NotSayable, match=rf"^{name}: .*{hook_point.name} .*{why}$"):
        edit(context)
    assert context.answer() == unedited(hook_point)


AT_CREATE = "no runtime changes it once the container exists: set it at PreCreateContainer"
CLEAR = "no runtime clears it once the container exists: clear it at PreCreateContainer, or name all the CPUs"
REFUSED = {"StartContainer": (AT_CREATE, CLEAR, CLEAR), "UpdateContainerResources": (AT_CREATE, "", "")}


@pytest.mark.parametrize("operation", ["RunPodSandbox", "CreateContainer", *REFUSED])
def test_existing_container_accepts_fewer_edits(operation: str) -> None:
    hook_point = BY_NAME[f"Pre{operation}"]
    sent = Resources(cpu_quota=50_000, cpuset_cpus="0-3", cpuset_mems="0", oom_score_adj=-998)
    request = HookRequest(replace(POD, resources=sent), replace(CONTAINER, resources=sent))
    edits = {"oom_score_adj": 5, "cpuset_cpus": "", "cpuset_mems": ""}
    for (name, value), why in zip(edits.items(), REFUSED.get(operation, ("", "", "")), strict=True):
        context = KINDS[hook_point.subject](hook_point, request)
        with pytest.raises(NotSayable, match=f"^{name}: {why}$") if why else nullcontext():
            context.resources.set(name, value)
        assert difference(request, context.answer()).resources == ({} if why else {name: value})


def test_pod_of_container_overhead_and_messages_are_read_only() -> None:
    container = context_at(CREATE)
    pod = container.pod
    of_labels, of_annotations = (lambda: pod.labels.update(a="1")), (lambda: pod.annotations.update(a="1"))
    for edit in (of_labels, of_annotations, pod.labels.popitem, lambda: pod.resources.set("cpu_shares", 2)):
        with pytest.raises(NotSayable, match="cannot change its pod"):
            edit()
    with pytest.raises(AttributeError):
        pod.name = "renamed"
    assert container.answer() == unedited(CREATE)
    with pytest.raises(NotSayable, match="overhead can only be read"):
        context_at(RUN_POD).overhead.cpu_shares = 2
    for hook_point in (RUN_POD, CREATE):
        context = context_at(hook_point)
        for name in ("name", "labels", "resources", "cgroupparent"):
            with pytest.raises(NotSayable, match=rf"^{name} cannot be assigned; cgroup_parent can, and maps entry by"):
                setattr(context, name, {})
        with pytest.raises(NotSayable, match=r"^cpu_share: no such field; there are .*cpu_shares"):
            context.resources.set("cpu_share", 2)
        with pytest.raises(NotSayable, match=r"^cpu_share cannot be assigned; .*cpu_shares"):
            context.resources.cpu_share = 2
        assert context.answer() == unedited(hook_point)


NO_PATH, SLICE = r"must be (an absolute path|a text in UTF-8)", "/kubepods.slice/pod1.slice"


def test_bad_cgroup_parent_is_refused_unless_it_was_sent() -> None:
    bad = [("/pod", path, NO_PATH) for path in ("", None, "kubepods", "/kubepods/../x")]
    for sent, path, why in [*bad, (SLICE, "/pod1", r"must be a \.slice where one was sent")]:
        pod = PodContext(RUN_POD, HookRequest(replace(POD, cgroup_parent=sent)))
        with pytest.raises(NotSayable, match=f"^cgroup_parent: {why}"):
            pod.cgroup_parent = path
        assert pod.cgroup_parent == sent
    pod = PodContext(RUN_POD, HookRequest(replace(POD, cgroup_parent="kubepods")))
    pod.cgroup_parent = "/new"
    pod.cgroup_parent = "kubepods"
    assert pod.answer().cgroup_parent == "kubepods"


def edit(resources: EditableResources, *edits: tuple[str, Any]) -> None:
    """Edit resources; the value for a map is the entries to set."""
    for name, value in edits:
        if name in fields.MAP_FIELDS:
            getattr(resources, name).update(value)
        else:
            resources.set(name, value)


@pytest.mark.parametrize(("field", "answer"), BAD, ids=[f"{n}-{field}" for n, (field, _) in enumerate(BAD)])
def test_answer_that_proxy_refuses_cannot_be_edited(field: str, answer: HookAnswer) -> None:
    pod, container = PodContext(RUN_POD, HookRequest(PodInfo())), ContainerContext(CREATE, HookRequest(PodInfo()))
    part, _, name = field.partition(".")
    edits: dict[str, Callable[[Any], None]] = {
        **{"labels": pod.labels.update, "annotations": container.annotations.update, "envs": container.env.update},
        "cgroup_parent": lambda path: setattr(container, "cgroup_parent", path),
        "resources": lambda resources: edit(container.resources, (name, getattr(resources, name))),
    }
    with pytest.raises(NotSayable, match=rf"^{(name or part).replace('envs', 'env')}: "):
        edits[part](getattr(answer, part))


# Maps and resources.
CPUSETS = sorted(fields.TEXT_FIELDS)


def edited(sent: Resources | None, *edits: tuple[str, Any], **more: Any) -> EditableResources:
    resources = EditableResources(sent, **more)
    edit(resources, *edits)
    return resources


def test_map_contains_sent_and_set_entries_and_loses_none() -> None:
    labels = Entries({"a": "1", "b": "2"}, str, "labels")
    labels.update(b="3", c="")
    assert (dict(labels), len(labels), labels.set_entries) == ({"a": "1", "b": "3", "c": ""}, 3, {"b": "3", "c": ""})
    assert labels.get("d") is labels.pop("d", None) is None
    for delete in (lambda: labels.pop("a"), labels.clear, labels.popitem):
        with pytest.raises(NotSayable, match="labels: a hook server can set a key, but not delete one"):
            delete()
    assert len(labels) == 3
    env = Environment({"A=B": "x\0", "": "y"}, str, "env")  # odd entries may be repeated as sent
    env.update(dict(env))
    assert env.set_entries == {"A=B": "x\0", "": "y"}


NO_TEXT, NO_NUMBER = "the value of a must be a text in UTF-8", "the value of 2MB must be a whole number from 0"
NO_KEY = "a key must not be empty and must not contain"
NOT_SET, NO_LIST = "must be a whole number, .*0 and None mean 'not set'", "must be empty or a list of n and n-m"
TEXTS, NUMBERS, VARIABLES = Entries({}, str, "map"), Entries({}, int, "map"), Environment({}, str, "map")
INVALID = [  # in addition to tests/merge_cases.py
    *((TEXTS, key, "x", "a key must be a text") for key in ("\ud800", 3)),
    *((TEXTS, "a", value, NO_TEXT) for value in (None, b"x", f"{CANARY}\udcff")),
    *((NUMBERS, "2MB", value, NO_NUMBER) for value in ("3", 1.5, 2**64)),
    *((VARIABLES, key, "x", NO_KEY) for key in (f"A={CANARY}", f"{CANARY}\0")),
    *((VARIABLES, "A", f"{CANARY}\0", "a value must not contain NUL"), (VARIABLES, "a", 3, NO_TEXT)),
    *((TEXTS, "", "x", "a key must not be empty"), (VARIABLES, 3, "x", "a key must be a text")),
    *((None, "cpu_quota", value, NOT_SET) for value in (0, None, True, "1000", 1000.0, 2**63, CANARY)),
    *((None, "cpuset_cpus", value, "must be a text") for value in (None, 3, b"0")),
    *((None, name, CANARY, NO_LIST) for name in CPUSETS),
    *((None, name, odd, NO_LIST) for name, odd, normal in TIDY if not normal),
]


@pytest.mark.parametrize(("editable", "name", "value", "why"), INVALID)
def test_invalid_value_is_refused_and_not_shown(editable: Any, name: Any, value: Any, why: str) -> None:
    resources = EditableResources(SENT)
    with pytest.raises(NotSayable, match=rf"^{name if editable is None else 'map'}: {why}") as raised:
        resources.set(name, value) if editable is None else editable.update({name: value})
    assert CANARY not in str(raised.value)  # it may come from an annotation
    assert resources.answer is None
    assert not editable


@pytest.mark.parametrize("name", CPUSETS)
def test_cpuset_is_cleared_if_number_was_sent_and_normalised(name: str) -> None:
    for number in fields.NUMBER_FIELDS:
        sent = Resources(**{name: "0-3", number: -1})
        resources = edited(sent, (name, ""))
        assert getattr(resources, name) is None
        assert resources.answer == replace(sent, **{name: ""})
    with pytest.raises(NotSayable, match=rf"^{name}: cannot be cleared where the request has no number"):
        edited(Resources(**{name: "0-3"}), ("cpu_quota", -1), (name, ""))  # a number set by the hook does not help
    assert edited(None, (name, "5"), (name, "")).answer is None
    assert edited(Resources(cpu_shares=2), (name, ""), update=True, alone=True).answer is None
    assert edited(None, (name, " 0-3,,8")).answer == Resources(**{name: "0-3,8"})
    for field, odd in (("cpu_quota", 5), ("cpu_shares", -3), (name, "0-3,"), (name, "3-1")):  # as sent
        assert edited(Resources(**{field: odd}), (field, odd)).answer == Resources(**{field: odd})


NEW: dict[str, Any] = {"cpu_quota": -1, "cpuset_mems": "0", "unified": {"a": "1"}}
BEFORE, NEW_ENTRIES = {"memory.high": "max"}, {"hugepage_limits": {"2MB": 0}}
BACK = ("unified", BEFORE)
CHANGES: list[tuple[Resources | None, list[tuple[str, Any]], dict[str, Any]]] = [
    (None, [*NEW.items()], NEW),
    (SENT, [("cpu_quota", SENT.cpu_quota), ("cpuset_cpus", SENT.cpuset_cpus), BACK], {}),
    (SENT, [("cpu_quota", -1), ("cpu_quota", 50_000), ("unified", {"memory.high": "1"}), BACK], {}),
    (SENT, [("unified", {**BEFORE, "b": ""}), *NEW_ENTRIES.items()], {"unified": {"b": ""}, **NEW_ENTRIES}),
]


@pytest.mark.parametrize("more", [{}, {"update": True}, {"update": True, "alone": True}], ids=str)
@pytest.mark.parametrize(("sent", "edits", "changed"), CHANGES)
def test_answer_contains_only_set_changes(sent: Any, edits: Any, changed: dict[str, Any], more: Any) -> None:
    request = HookRequest(PodInfo(), ContainerInfo(resources=sent))
    change = difference(request, HookAnswer(resources=edited(sent, *edits, **more).answer))
    assert validated(change, request)[1] == ()
    assert change.resources == changed


SET = {"cpu_quota": -1, "cpu_shares": SENT.cpu_shares, "cpuset_cpus": "7"}
SET |= {"unified": {"io.max": "x"}, "hugepage_limits": {"2MB": 1}}
MAPS: Any = {"unified": {"memory.high": "max", "io.max": "x"}, "hugepage_limits": {"2MB": 1, "1GB": 2**30}}
FULL_ECHO, UPDATE = replace(SENT, cpu_quota=-1, cpuset_cpus="7", **MAPS), {"update": True}
ANSWERS: list[tuple[Any, Any, Resources]] = [
    *(({}, SET, FULL_ECHO), ({**UPDATE, "alone": True}, SET, FULL_ECHO), (UPDATE, SET, Resources(**SET))),
    (UPDATE, {"cpuset_cpus": ""}, replace(SENT, cpuset_cpus="")),
]


@pytest.mark.parametrize(("more", "edits", "answer"), ANSWERS)
def test_answer_is_echo_except_in_update_of_kubelet(more: Any, edits: dict[str, Any], answer: Resources) -> None:
    resources = edited(SENT, *edits.items(), **more)
    assert (resources.answer, resources.sent) == (answer, SENT)
    assert resources.value == (FULL_ECHO if edits is SET else answer)
    assert EditableResources(SENT).value is SENT


# The tester.
class Everywhere(Hook):
    def __init__(self, edit: Callable[[Any], object]) -> None:
        self.edit = edit

    def _at(self, context: PodContext | ContainerContext) -> None:
        self.edit(context)

    pre_run_pod_sandbox = post_stop_pod_sandbox = pre_create_container = pre_start_container = _at
    post_start_container = pre_update_container_resources = post_stop_container = _at


def test_difference_has_only_changes_in_yaml_form(hook_tester: type[HookTester]) -> None:
    def edit_everything(container: ContainerContext) -> None:
        container.env["NEW"] = type("Name", (str,), {})("1")
        container.annotations["new"] = "2"
        container.cgroup_parent = "/y"
        edit(container.resources, *resources.items(), ("cpu_quota", 50_000))

    resources = {"cpu_shares": 2, "cpuset_cpus": "", "unified": {"new": "3"}}
    sent = {"cpu_quota": 50_000, "cpuset_cpus": "0-3", "unified": {"old": "1"}}
    changed = hook_tester(Everywhere(edit_everything)).pre_create_container(env={"OLD": "1"}, resources=sent)
    assert changed == Difference({"NEW": "1"}, {}, {"new": "2"}, resources, "/y")
    assert type(changed.env["NEW"]) is str, "it was not transmitted"
    lines = '  A: "é\\""|resources:|  cpu_shares: 2|  unified:|    new: "3"|cgroup_parent: "/y"'
    text = str(Difference(env={"A": 'é"'}, resources={"cpu_shares": 2, "unified": {"new": "3"}}, cgroup_parent="/y"))
    assert text.splitlines() == ["env:", *lines.split("|")]
    assert str(Difference()) == "nothing is changed"


RESOURCES = {"cpu_quota": -1, "cpuset_cpus": "0", "unified": {"a": "b"}, "hugepage_limits": {"2MB": 5}}
OF_BOTH: dict[str, Any] = {"pod": "web", "namespace": "shop", "uid": "u-1", "labels": {"l": "1"}, "cgroup_parent": "/x"}
OF_BOTH |= {"annotations": {"a": "2", "b": "\udcff"}, "pod_attempt": 3, "pod_resources": {"cpu_shares": 2}}
TO_POD = {name.removeprefix("pod_"): value for name, value in OF_BOTH.items()}
TO_POD |= {"runtime_handler": "kata", "overhead": {"cpu_quota": -1}}
TO_CONTAINER = {**OF_BOTH, "container": "side", "container_id": "c1", "attempt": 4, "env": {"E": "4"}}
TO_CONTAINER |= {"container_annotations": {"c": "3"}, "resources": RESOURCES}
values_of_pod = attrgetter("name", "namespace", "uid", "attempt", "labels", "annotations", "resources.sent")
values_of_container = attrgetter("name", "id", "attempt", "resources.sent", "annotations", "env")


@pytest.mark.parametrize("method", METHODS)
def test_hook_gets_sent_or_default_values(method: str) -> None:
    seen: list[Any] = []
    call = getattr(HookTester(Everywhere(seen.append)), method)
    is_pod = METHODS[method].subject is SubjectKind.POD
    assert not call(**TO_POD if is_pod else TO_CONTAINER)
    assert not call()
    given, default = seen
    pod_given, pod_default = (given, default) if is_pod else (given.pod, default.pod)
    assert values_of_pod(pod_given) == ("web", "shop", "u-1", 3, {"l": "1"}, {"a": "2"}, Resources(cpu_shares=2))
    assert values_of_pod(pod_default) == ("pod", "default", UID, 0, {}, {}, None)
    assert (given.cgroup_parent, default.cgroup_parent) == ("/x", f"/kubepods/pod{UID}")
    if is_pod:
        assert (given.runtime_handler, given.overhead.sent) == ("kata", Resources(cpu_quota=-1))
        assert (default.runtime_handler, default.overhead.sent) == ("", None)
    else:
        container_id = "" if method == "pre_create_container" else CONTAINER_ID
        assert values_of_container(given) == ("side", "c1", 4, Resources(**RESOURCES), {"c": "3"}, {"E": "4"})
        assert values_of_container(default) == ("main", container_id, 0, None, {}, {})


class Slow(Hook):
    def __init__(self, wait: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)) -> None:
        self.wait = wait

    async def pre_create_container(self, container: ContainerContext) -> None:
        await self.wait()
        container.env["WAITED"] = "1"


async def test_async_method_is_awaited_and_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise error

    assert HookTester(Slow()).pre_create_container().env == {"WAITED": "1"}
    kinds: list[Callable[[Any], Hook]] = [Slow, Everywhere]
    for kind in kinds:
        for error in (Rejected("no"), TimeoutError("its own")):
            with pytest.raises(type(error), match=f"^{error}$"):
                HookTester(kind(fail)).pre_create_container()
    monkeypatch.setattr(testing, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"did not end within 0\.01 s"):
        HookTester(Slow(asyncio.Event().wait)).pre_create_container()


CREATED, RUN = "pre_create_container", "pre_run_pod_sandbox"
BAD_CALLS: list[tuple[str, str, Any, str]] = [
    (CREATED, "label", {}, "label is nothing that is sent at PreCreateContainer, did you mean labels?"),
    (RUN, "env", {}, "env is nothing that is sent at PreRunPodSandbox; there are labels, annotations, pod, "),
    (CREATED, "resources", {"cpu_share": 2}, "resources: there is no field cpu_share, did you mean cpu_shares?"),
    (CREATED, "pod_resources", {"zzz": 2}, "pod_resources: there is no field zzz; there are cpu_period, "),
    (RUN, "overhead", {"cpu_shares": None}, "overhead: cpu_shares is of type int; leave it out for 'not set'"),
]


def test_wrong_use_of_tester_is_error() -> None:
    for method, name, value, words in BAD_CALLS:
        with pytest.raises(ValueError if "no field" in words else TypeError, match=f"^{re.escape(words)}"):
            getattr(HookTester(Everywhere(lambda context: None)), method)(**{name: value})
    for wrong in (Everywhere, None):
        with pytest.raises(TypeError, match=r"HookTester\(MyHook\(\)\)"):
            HookTester(Hook(), wrong)
    with pytest.raises(LookupError, match=r"^no hook here has the method post_stop_container; they have pre_create"):
        HookTester(Hook(), Slow()).post_stop_container()
    with pytest.raises(LookupError, match=r"they have none at all$"):
        HookTester(Hook()).pre_create_container()
