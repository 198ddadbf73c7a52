"""Of any answer, only the bad parts are dropped; all others are applied (fault matrix H5).

The answers pass through the codec, the validation and the merge, under policy Ignore.
"""

from typing import Any, NamedTuple

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.core.dispatcher import Dispatcher
from runtimeproxy.errors import HookError, Reason, WireError
from runtimeproxy.hookapi import api_pb2, codec
from runtimeproxy.model import fields
from runtimeproxy.model.fields import RESOURCE_FIELDS, Adjustment, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HookPoint, SubjectKind
from runtimeproxy.model.merge import by_field
from runtimeproxy.observe.metrics import Metrics
from tests.amounts import examples
from tests.fakes.calls import FakeCall
from tests.fakes.plugins import FakePlugins
from tests.merge_cases import BAD_FIELDS, BAD_PATHS, GOOD_FIELDS

RUN_POD, CREATE, START = (BY_NAME[name] for name in ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer"))
SENT = Resources(cpuset_cpus="0-3")
"""Resources without a number: no answer is an echo, and 0 or "" means "not set"."""
POD = PodInfo(uid="u", labels={"kept": "1"}, annotations={"kept": "1"}, cgroup_parent="/pod", resources=SENT)
CONTAINER = fields.ContainerInfo(annotations={"kept": "1"}, envs={"KEPT": "1"}, resources=SENT)
SENT_VALUES = {**dict.fromkeys(("labels.kept", "annotations.kept", "envs.KEPT"), "1"), "cgroup_parent": "/pod"}
SENT_VALUES["resources.cpuset_cpus"] = "0-3"


class Server:
    """A hook server that answers given bytes, and the resulting changes."""

    def __init__(self, hook_point: HookPoint, body: bytes) -> None:
        self._hook_point, self._body = hook_point, body
        self._plugins = FakePlugins()
        self._plugins.add("a").call = self._call  # type: ignore[method-assign]
        self.metrics = Metrics(lambda: 0.0)

    async def _call(self, hook_point: HookPoint, *_: object) -> HookAnswer:
        try:
            return codec.decode(hook_point, self._body)
        except WireError as error:
            raise HookError("a", hook_point.name, Reason.BAD_ANSWER, str(error)) from None

    def changed(self) -> dict[str, object] | None:
        """Call the server; return the changes as named in ``Adjustment.owners``, None for a malformed answer."""
        dispatcher = Dispatcher(self._plugins, self.metrics, lambda: 0.0, 10.0)
        request = HookRequest(POD, CONTAINER if self._hook_point.subject is SubjectKind.CONTAINER else None)
        with pytest.raises(StopIteration) as end:  # in one step: nothing waits here
            dispatcher.before(FakeCall(self._hook_point.operation), self._hook_point, request, 10.0).send(None)
        adjustment: Adjustment = end.value.value
        values = by_field(adjustment)
        assert adjustment.owners == dict.fromkeys(values, "a")
        return None if adjustment is fields.NO_ADJUSTMENT else values

    def bad_fields(self) -> set[str]:
        """Return the names of the bad fields, each counted once; all together count as one failure."""
        counted = self.metrics.counters.items()
        bad = {labels[1]: n for (name, labels), n in counted if name == "hook_bad_fields"}
        assert set(bad.values()) <= {1}
        assert self.failures() == bool(bad)
        return {field.removeprefix("resources.") for field in bad}

    def failures(self) -> int:
        labels = {"hook_server": "a", "hook": self._hook_point.name, "reason": Reason.BAD_ANSWER.value}
        counted = self.metrics.counted("hook_failures", **labels)
        assert self.metrics.counted("hook_fail_open", **labels) == self.metrics.total("hook_failures") == counted
        return counted


class Field(NamedTuple):
    """One field of an answer, and whether any runtime accepts the value."""

    field: str
    value: Any
    good: bool


def fields_of(field: str, good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Field]:
    return good.map(lambda value: Field(field, value, True)) | bad.map(lambda value: Field(field, value, False))


numbers = st.integers
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=4)
NAME = st.text(alphabet="abcXYZ_.-/", min_size=1, max_size=4).map("n".__add__)
PATH = NAME.filter(lambda name: ".." not in name.split("/")).map("/new/".__add__)
ENTRY, NAMELESS = st.tuples(NAME, TEXT), st.tuples(st.just(""), TEXT)
NO_NUL = st.tuples(NAME, TEXT.filter(lambda text: "\0" not in text))
NO_ENV = st.tuples(st.sampled_from(["", "=", "A=B", "A\0"]), TEXT) | st.tuples(NAME, TEXT.map("\0".__add__))
ANSWER_FIELDS = [
    fields_of("envs", NO_NUL, NO_ENV),
    *(fields_of(name, ENTRY, NAMELESS) for name in ("labels", "annotations", "unified")),
    fields_of("hugepage_limits", st.tuples(NAME, numbers(1, 2**62)), st.tuples(st.just(""), numbers(1, 2**62))),
    fields_of("cgroup_parent", PATH, st.sampled_from(BAD_PATHS)),
    *(fields_of(name, st.sampled_from(good), st.sampled_from(BAD_FIELDS[name])) for name, good in GOOD_FIELDS.items()),
]
PARTS = st.lists(st.one_of(ANSWER_FIELDS), max_size=6, unique_by=lambda chunk: chunk.field)
MAPS = {"envs", "labels", "annotations", "hugepage_limits", "unified"}
MESSAGES: dict[HookPoint, Any] = {
    RUN_POD: api_pb2.PodSandboxHookResponse,
    **dict.fromkeys((CREATE, START), api_pb2.ContainerResourceHookResponse),
}
ABSENT = {SubjectKind.POD: {"envs"}, SubjectKind.CONTAINER: {"labels"}}
"""The parts without a field in the hook point's message."""


class Answer(NamedTuple):
    """A hook server's answer; ``bad`` has its bad fields, None if bytes were damaged."""

    hook_point: HookPoint
    body: bytes
    bad: set[str] | None


def build_answer(hook_point: HookPoint, parts: list[Field]) -> Answer:
    values = {part.field: dict([part.value]) if part.field in MAPS else part.value for part in parts}
    resources = {name: values.pop(name) for name in RESOURCE_FIELDS if name in values}
    answer = HookAnswer(**values, resources=Resources(**resources) if resources else None)
    bad = {part.field for part in parts if not part.good} - ABSENT[hook_point.subject]
    return Answer(hook_point, codec.encode_answer(hook_point, answer), bad)


def damaged(answer: Answer, changes: list[tuple[int, int, int]], more: bytes, cut: int) -> Answer:
    """Return an answer with some bytes replaced, bytes appended and some cut off."""
    body = bytearray(answer.body)
    for at, count, value in changes:
        body[at : at + count] = bytes([value])
    body += more
    return Answer(answer.hook_point, bytes(body[: len(body) - cut]), None)


ODD_FIELDS = [
    b"\x0a\x02\xff\xfe",  # an invalid map entry
    b"\x1a\x02\xff\xfe",  # a cgroup parent that is not UTF-8
    b"\x18\x05",  # a number in place of the cgroup parent
    b"\x22\x06\x0a\x01E\x12\x01\xff",  # an entry whose value is not UTF-8
    b"\x12\x05\x0dabcd",  # a fixed number in the resources
    b"\x12\x02\x10\x05",  # a quota of 5 microseconds
    b"\x0b",  # a group without an end
    b"\x9a\x06\x03abc",  # an unknown field
    b"\x80",
]
ANY_POINT = st.sampled_from(list(MESSAGES))
INTACT = st.builds(build_answer, ANY_POINT, PARTS)
CHANGES = st.lists(st.tuples(numbers(0, 200), numbers(0, 1), numbers(0, 255)), max_size=3)
MORE, CUT = st.sampled_from([b"", *ODD_FIELDS]), st.just(0) | numbers(0, 50)
DAMAGED = st.builds(damaged, INTACT, CHANGES, MORE, CUT)
ANSWERS = INTACT | DAMAGED | st.builds(Answer, ANY_POINT, st.binary(max_size=60), st.none())


def all_changes(hook_point: HookPoint, body: bytes) -> dict[str, Any] | None:
    """Return all changes of an answer as protobuf's own runtime parses it; None if it cannot."""
    message = MESSAGES[hook_point]()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return None
    pod = hook_point.subject is SubjectKind.POD
    resources = message.resources if pod else message.container_resources
    maps = {
        "annotations": message.annotations if pod else message.container_annotations,
        **({"labels": message.labels} if pod else {"envs": message.container_envs}),
        "resources.unified": resources.unified,
        "resources.hugepage_limits": {entry.page_size: entry.limit for entry in resources.hugepage_limits},
    }
    set_values = {f"{name}.{key}": value for name, entries in maps.items() for key, value in entries.items()}
    set_values |= {f"resources.{field.name}": value for field, value in resources.ListFields() if not field.is_repeated}
    if parent := message.cgroup_parent if pod else message.pod_cgroup_parent:
        set_values["cgroup_parent"] = parent
    return {name: value for name, value in set_values.items() if SENT_VALUES.get(name) != value}


TOGETHER = ({"cpu_period", "cpu_quota"}, {"memory_limit_in_bytes", "memory_swap_limit_in_bytes"})


@pytest.mark.slow
@settings(max_examples=examples(2000))
@given(ANSWERS)
def test_all_valid_fields_of_any_answer_are_applied(answer: Answer) -> None:
    server = Server(answer.hook_point, answer.body)
    changes, expected = server.changed(), all_changes(answer.hook_point, answer.body)
    if expected is None:
        assert changes is None
        assert server.failures() == 1
        return
    bad = server.bad_fields()
    assert answer.bad in (None, bad)
    lost = bad | {name for group in TOGETHER if group & bad for name in group}
    changes = changes or {}
    for name, value in expected.items():
        field, _, key = name.removeprefix("resources.").partition(".")
        if field in MAPS:
            is_bad = not key or (field == "envs" and ("=" in key or "\0" in f"{key}{value}"))
            assert not is_bad or field in bad
        else:
            value = fields.normal_form(field, value) if field in RESOURCE_FIELDS else value
            is_bad = field in lost or value in ("", SENT_VALUES.get(name))
        without_effect = answer.hook_point is START and not name.startswith("resources.")
        assert changes.pop(name, None) == (None if is_bad or without_effect else value)
    assert not changes
