"""Whatever bytes a hook server answers, what is bad of it costs itself: all else is applied (fault matrix H5).

The way is that of a real answer: the codec, the judgement, the merge, under policy Ignore.
"""

from typing import Any, NamedTuple

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy import model
from runtimeproxy.dispatcher import Dispatcher
from runtimeproxy.errors import HookError, Reason, WireError
from runtimeproxy.hookapi import api_pb2, codec
from runtimeproxy.hookpoints import BY_NAME, HookPoint, SubjectKind
from runtimeproxy.merge import by_field
from runtimeproxy.model import NO_ADJUSTMENT, Adjustment, ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.telemetry import Recorder
from tests.amounts import examples
from tests.fakes.plugins import FakePlugins

RUN_POD, CREATE, START = (BY_NAME[name] for name in ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer"))
SENT = Resources(cpuset_cpus="0-3")
"""Without a number, so that no answer is an echo: what is 0 or empty in it says nothing."""
POD = PodInfo(uid="u", labels={"kept": "1"}, annotations={"kept": "1"}, cgroup_parent="/pod", resources=SENT)
CONTAINER = ContainerInfo(annotations={"kept": "1"}, envs={"KEPT": "1"}, resources=SENT)
SENT_VALUES = {**dict.fromkeys(("labels.kept", "annotations.kept", "envs.KEPT"), "1"), "cgroup_parent": "/pod"}
SENT_VALUES["resources.cpuset_cpus"] = "0-3"


class Server:
    """A hook server that answers these bytes, and what the proxy made of them."""

    def __init__(self, point: HookPoint, body: bytes) -> None:
        self._point, self._body = point, body
        self._plugins = FakePlugins()
        self._plugins.add("a").call = self._call  # type: ignore[method-assign]
        self.recorder = Recorder(lambda: 0.0)

    async def _call(self, point: HookPoint, *_: object) -> HookAnswer:
        try:
            return codec.decode(point, self._body)
        except WireError as error:
            raise HookError("a", point.name, Reason.BAD_ANSWER, str(error)) from None

    def changed(self) -> dict[str, object] | None:
        """Ask; return what is set, by the names of ``Adjustment.owners``, and None where nothing is even read."""
        dispatcher = Dispatcher(self._plugins, self.recorder, lambda: 0.0, 10.0)
        request = HookRequest(POD, CONTAINER if self._point.subject is SubjectKind.CONTAINER else None)
        with pytest.raises(StopIteration) as end:  # in one go: nothing waits here
            dispatcher.before(self._point, request, 10.0).send(None)
        adjustment: Adjustment = end.value.value
        fields = by_field(adjustment)
        assert adjustment.owners == dict.fromkeys(fields, "a")
        return None if adjustment is NO_ADJUSTMENT else fields

    def bad_fields(self) -> set[str]:
        """Return the names of the bad fields, each of which is counted once; all together are one failure."""
        counted = self.recorder.counters.items()
        found = {dict(labels)["field"]: n for (name, labels), n in counted if name == "hook_bad_fields"}
        assert set(found.values()) <= {1}
        assert self.failures() == bool(found)
        return {field.removeprefix("resources.") for field in found}

    def failures(self) -> int:
        labels = {"plugin": "a", "hook": self._point.name, "reason": Reason.BAD_ANSWER.value}
        counted = self.recorder.counted("hook_failures", **labels)
        assert self.recorder.counted("hook_fail_open", **labels) == self.recorder.total("hook_failures") == counted
        return counted


# -- answers that are put together of good and bad pieces ------------------------------------------------------------


class Piece(NamedTuple):
    """One field of an answer, and whether any runtime takes the value."""

    field: str
    value: Any
    good: bool


def pieces(field: str, good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Piece]:
    return good.map(lambda value: Piece(field, value, True)) | bad.map(lambda value: Piece(field, value, False))


numbers = st.integers
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=4)
NAME = st.text(alphabet="abcXYZ_.-/", min_size=1, max_size=4).map("n".__add__)
PATH = NAME.filter(lambda name: ".." not in name.split("/")).map("/new/".__add__)
NO_PATH = st.sampled_from(["a", "../a", "/a/../b", "/..", "/new/n/..", "/a\0", "."])
LIMIT, BELOW_MINUS_1 = numbers(1, 2**62), numbers(-(2**63), -2)
CPUS = st.lists(numbers(0, 99), min_size=1, max_size=3).map(lambda cpus: ",".join(map(str, cpus)))
NO_CPUS = st.sampled_from(["a", "3-1", "1-", "-1", "1 -2", "0x1", "1-2-3", "0\0", "٣", "all"])
ENTRY, NAMELESS = st.tuples(NAME, TEXT), st.tuples(st.just(""), TEXT)
NO_NUL = st.tuples(NAME, TEXT.filter(lambda text: "\0" not in text))
NO_ENV = st.tuples(st.sampled_from(["", "=", "A=B", "A\0"]), TEXT) | st.tuples(NAME, TEXT.map("\0".__add__))
SCORE, NO_SCORE = numbers(1, 1000) | numbers(-1000, -1), numbers(1001, 2**62) | numbers(-(2**63), -1001)

PIECES = [
    pieces("envs", NO_NUL, NO_ENV),
    *(pieces(name, ENTRY, NAMELESS) for name in ("labels", "annotations", "unified")),
    pieces("hugepage_limits", st.tuples(NAME, LIMIT), st.tuples(st.just(""), LIMIT)),
    pieces("cgroup_parent", PATH, NO_PATH),
    pieces("cpu_period", numbers(1000, 1_000_000), numbers(1, 999) | numbers(1_000_001, 2**62) | BELOW_MINUS_1),
    pieces("cpu_quota", numbers(1000, 2**62) | st.just(-1), BELOW_MINUS_1),
    pieces("cpu_shares", LIMIT, numbers(-(2**63), -1)),
    *(
        pieces(f"memory_{name}", LIMIT | st.just(-1), BELOW_MINUS_1)
        for name in ("limit_in_bytes", "swap_limit_in_bytes")
    ),
    pieces("oom_score_adj", SCORE, NO_SCORE),
    *(pieces(name, CPUS, NO_CPUS) for name in ("cpuset_cpus", "cpuset_mems")),
]
ANSWERS = st.lists(st.one_of(PIECES), max_size=6, unique_by=lambda piece: piece.field)
MAPS = {"envs", "labels", "annotations", "hugepage_limits", "unified"}
ABSENT = {SubjectKind.POD: {"envs"}, SubjectKind.CONTAINER: {"labels"}}
"""What the point's message has no field for."""


def answer(parts: list[Piece]) -> HookAnswer:
    values = {part.field: dict([part.value]) if part.field in MAPS else part.value for part in parts}
    resources = {name: values.pop(name) for name in model.RESOURCE_FIELDS if name in values}
    return HookAnswer(**values, resources=Resources(**resources) if resources else None)


TOGETHER = ({"cpu_period", "cpu_quota"}, {"memory_limit_in_bytes", "memory_swap_limit_in_bytes"})


def lost(bad: set[str]) -> set[str]:
    """Return the fields that are lost with bad ones; a map loses but the bad entry."""
    return bad - MAPS | {name for group in TOGETHER if group & bad for name in group}


def expected(part: Piece) -> tuple[str, object]:
    """Return the name of ``Adjustment.owners`` under which a piece is set, and to what."""
    field = f"resources.{part.field}" if part.field in model.RESOURCE_FIELDS else part.field
    return (f"{field}.{part.value[0]}", part.value[1]) if part.field in MAPS else (field, part.value)


@pytest.mark.slow
@settings(max_examples=examples(1000))
@given(st.sampled_from([RUN_POD, CREATE, START]), ANSWERS)
def test_bad_fields_cost_themselves_and_all_else_is_applied(point: HookPoint, parts: list[Piece]) -> None:
    said = [part for part in parts if part.field not in ABSENT[point.subject]]
    server = Server(point, codec.encode_answer(point, answer(parts)))
    changed, bad = server.changed() or {}, {part.field for part in said if not part.good}
    assert server.bad_fields() == bad
    without_effect = {part.field for part in said if point is START and part.field not in model.RESOURCE_FIELDS}
    effective = [part for part in said if part.good and part.field not in lost(bad) | without_effect]
    assert changed == dict(map(expected, effective))


# -- answers that are damaged ----------------------------------------------------------------------------------------

MESSAGES: dict[HookPoint, Any] = {
    RUN_POD: api_pb2.PodSandboxHookResponse,
    CREATE: api_pb2.ContainerResourceHookResponse,
}
ODD_FIELDS = [
    b"\x0a\x02\xff\xfe",  # a map entry that is none
    b"\x1a\x02\xff\xfe",  # a cgroup parent that is not UTF-8
    b"\x18\x05",  # a number in the place of the cgroup parent
    b"\x22\x06\x0a\x01E\x12\x01\xff",  # an entry whose value is not UTF-8
    b"\x12\x05\x0dabcd",  # a fixed number in the resources
    b"\x12\x02\x10\x05",  # a quota of 5 microseconds
    b"\x0b",  # a group without an end
    b"\x9a\x06\x03abc",  # an unknown field
    b"\x80",
]
Change = tuple[int, int, int]
"""Where, how many bytes are replaced, by which one."""


def damaged(
    point: HookPoint, parts: list[Piece], changes: list[Change], more: bytes, cut: int
) -> tuple[HookPoint, bytes]:
    """Return an answer in which some bytes were changed, added and cut off."""
    body = bytearray(codec.encode_answer(point, answer(parts)))
    for at, count, value in changes:
        body[at : at + count] = bytes([value])
    body += more
    return point, bytes(body[: len(body) - cut])


POINTS = st.sampled_from(list(MESSAGES))
CHANGES = st.lists(st.tuples(numbers(0, 200), numbers(0, 1), numbers(0, 255)), max_size=3)
MORE, CUT = st.sampled_from([b"", *ODD_FIELDS]), st.just(0) | numbers(0, 50)
DAMAGED = st.builds(damaged, POINTS, ANSWERS, CHANGES, MORE, CUT)


def everything(point: HookPoint, body: bytes) -> dict[str, Any] | None:
    """Return all that an answer changes, as protobuf's own runtime reads it; None if it does not."""
    message = MESSAGES[point]()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return None
    pod = point.subject is SubjectKind.POD
    resources = message.resources if pod else message.container_resources
    maps = {
        "annotations": message.annotations if pod else message.container_annotations,
        **({"labels": message.labels} if pod else {"envs": message.container_envs}),
        "resources.unified": resources.unified,
        "resources.hugepage_limits": {entry.page_size: entry.limit for entry in resources.hugepage_limits},
    }
    said = {f"{name}.{key}": value for name, entries in maps.items() for key, value in entries.items()}
    said |= {f"resources.{field.name}": value for field, value in resources.ListFields() if not field.is_repeated}
    if parent := message.cgroup_parent if pod else message.pod_cgroup_parent:
        said["cgroup_parent"] = parent
    return {name: value for name, value in said.items() if SENT_VALUES.get(name) != value}


@pytest.mark.slow
@settings(max_examples=examples(1000))
@given(DAMAGED | st.tuples(POINTS, st.binary(max_size=60)))
def test_all_that_is_not_bad_of_a_damaged_answer_is_applied(answered: tuple[HookPoint, bytes]) -> None:
    server = Server(*answered)
    found, says = server.changed(), everything(*answered)
    if says is None:
        assert found is None
        assert server.failures() == 1
        return
    bad = server.bad_fields()
    found = found or {}
    for name, value in says.items():
        field, _, key = name.removeprefix("resources.").partition(".")
        if field in MAPS:
            is_bad = not key or (field == "envs" and ("=" in key or "\0" in f"{key}{value}"))
            assert found.pop(name, None) == (None if is_bad else value)
            assert not is_bad or field in bad
            continue
        normal = model.tidy(field, value) if field in model.RESOURCE_FIELDS else value
        if field in lost(bad) or normal in ("", SENT_VALUES.get(name)):
            assert name not in found
        else:
            assert found.pop(name) == normal
    assert not found
