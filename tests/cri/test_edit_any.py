"""Any CRI request, any change: what was not named stays, byte for byte, and nothing but WireError comes out."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from unittest import mock

from google.protobuf.message import DecodeError, Message
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from runtimeproxy.call import Unreadable
from runtimeproxy.cri import api_pb2, edit, translate
from runtimeproxy.errors import WireError
from runtimeproxy.model import Adjustment, ContainerInfo, PodInfo, Resources, ResourceValue, overlay
from tests.cri import rest
from tests.cri.messages import DECLARED, messages
from tests.cri.test_edit import ALL_RESOURCES, UNKNOWN, wire_resources
from tests.fakes import cri_pb2

T = TypeVar("T")

TEXTS = st.sampled_from(("", "a", "A", "2MB")) | st.text(max_size=3)
MAPS = st.dictionaries(TEXTS, TEXTS, max_size=2)
INT64 = st.integers(-(2**63), 2**63 - 1)
RESOURCE_CHANGES: st.SearchStrategy[dict[str, ResourceValue]] = st.fixed_dictionaries(
    {},
    optional={
        "cpu_quota": INT64,
        "oom_score_adj": INT64,
        "cpuset_cpus": TEXTS,
        "hugepage_limits": st.dictionaries(TEXTS, st.integers(0, 2**64 - 1), min_size=1, max_size=2),
        "unified": st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=2),
    },
)
ADJUSTMENTS = st.builds(
    Adjustment,
    labels=MAPS,
    annotations=MAPS,
    envs=MAPS,
    cgroup_parent=st.none() | TEXTS,
    resources=RESOURCE_CHANGES,
)


RESOURCES = RESOURCE_CHANGES.map(wire_resources)


def encoded(message: Message, unknown: bool) -> bytes:
    """Serialize, in a map order that a test can repeat."""
    return message.SerializeToString(deterministic=True) + UNKNOWN * unknown


@st.composite
def pod_configs(draw: st.DrawFn) -> cri_pb2.PodSandboxConfig:
    config = cri_pb2.PodSandboxConfig(hostname=draw(TEXTS), labels=draw(MAPS), annotations=draw(MAPS))
    if draw(st.booleans()):
        config.linux.SetInParent()
        config.linux.cgroup_parent = draw(TEXTS)
        config.linux.sysctls.update(draw(MAPS))
        if draw(st.booleans()):
            config.linux.resources.CopyFrom(draw(RESOURCES))
    config.MergeFromString(UNKNOWN * draw(st.integers(0, 1)))
    return config


@st.composite
def create_requests(draw: st.DrawFn) -> bytes:
    config = cri_pb2.ContainerConfig(working_dir=draw(TEXTS), labels=draw(MAPS), annotations=draw(MAPS))
    for key, value in draw(st.lists(st.tuples(st.sampled_from(["", "A", "B"]), st.binary(max_size=2)), max_size=4)):
        config.envs.add(key=key, value=value)
    if draw(st.booleans()):
        config.linux.resources.CopyFrom(draw(RESOURCES))
    config.MergeFromString(UNKNOWN * draw(st.integers(0, 1)))
    request = cri_pb2.CreateContainerRequest(pod_sandbox_id="p1", config=config, sandbox_config=draw(pod_configs()))
    return encoded(request, draw(st.booleans()))


def parent_of(pod: PodInfo | None) -> str | None:
    """Return the cgroup parent that a create tells of its pod, "" if it tells none."""
    return "" if pod is None else pod.cgroup_parent


def texts(before: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    return {**before, **changes}


def adjusted(resources: Resources | None, changes: Mapping[str, ResourceValue]) -> Resources:
    """Tell what resources mean after a change; unset and set to nothing mean the same."""
    return overlay(resources, changes) or Resources()


def readable(read: Callable[[bytes], T], message: bytes) -> T:
    """Read a message; one that cannot be read is never edited."""
    try:
        return read(message)
    except Unreadable:
        reject()


POD_REQUESTS = st.builds(
    lambda config, unknown: encoded(cri_pb2.RunPodSandboxRequest(config=config, runtime_handler="kata"), unknown),
    pod_configs(),
    st.booleans(),
) | messages(DECLARED["RunPodSandboxRequest"])
CREATE_REQUESTS = create_requests() | messages(DECLARED["CreateContainerRequest"])
UPDATE_REQUESTS = st.builds(
    lambda resources, annotations, unknown: encoded(
        cri_pb2.UpdateContainerResourcesRequest(container_id="c1", linux=resources, annotations=annotations), unknown
    ),
    st.none() | RESOURCES,
    MAPS,
    st.booleans(),
) | messages(DECLARED["UpdateContainerResourcesRequest"])
"""As a client writes them, and with their fields in any order and number."""


# ---- behind the request or within it


def parsed(message: bytes, name: str) -> list[bytes]:
    """Return what parsers make of a message, in a form that can be compared: also what they do not know.

    That of the runtime's side refuses more: all that is a text is UTF-8 there.
    """
    kinds: list[type[Message]] = [getattr(api, name) for api in (api_pb2, cri_pb2)]
    with suppress(DecodeError):
        return [kind.FromString(message).SerializeToString(deterministic=True) for kind in kinds]
    return [kinds[0].FromString(message).SerializeToString(deterministic=True)]


def assert_both_say_the_same(change: Callable[[], bytes], message: bytes, name: str) -> None:
    """Check that a change behind the message, where it stands there, says what it says within the message."""
    result = change()
    with mock.patch.object(edit, "_are_new", return_value=False):
        rewritten = change()
    assert parsed(result, name) == parsed(rewritten, name)
    assert result.startswith(message) or result == rewritten


@settings(deadline=None)
@given(POD_REQUESTS, ADJUSTMENTS)
def test_what_is_said_behind_a_pods_request_is_what_is_said_within(message: bytes, adjustment: Adjustment) -> None:
    readable(translate.read_pod, message)
    assert_both_say_the_same(lambda: edit.edit_pod(message, adjustment), message, "RunPodSandboxRequest")


@settings(deadline=None)
@given(CREATE_REQUESTS, ADJUSTMENTS)
def test_what_is_said_behind_a_containers_request_is_what_is_said_within(
    message: bytes, adjustment: Adjustment
) -> None:
    readable(translate.read_container, message)
    assert_both_say_the_same(
        lambda: edit.edit_container(message, adjustment, adjustment.cgroup_parent),
        message,
        "CreateContainerRequest",
    )


@settings(deadline=None)
@given(UPDATE_REQUESTS, RESOURCE_CHANGES, MAPS)
def test_what_is_said_behind_an_update_is_what_is_said_within(
    message: bytes, changes: dict[str, ResourceValue], annotations: dict[str, str]
) -> None:
    readable(translate.read_update, message)
    assert_both_say_the_same(
        lambda: edit.edit_update(message, changes, annotations), message, "UpdateContainerResourcesRequest"
    )


# ---- what is changed, what is not


@settings(deadline=None)
@given(POD_REQUESTS, ADJUSTMENTS)
def test_an_edited_pod_is_the_pod_with_the_changes(message: bytes, adjustment: Adjustment) -> None:
    before = readable(translate.read_pod, message)
    result = edit.edit_pod(message, adjustment)
    after = translate.read_pod(result)
    parent, resources = adjustment.cgroup_parent, adjustment.resources
    assert replace(after, resources=after.resources or Resources()) == replace(
        before,
        labels=texts(before.labels, adjustment.labels),
        annotations=texts(before.annotations, adjustment.annotations),
        cgroup_parent=before.cgroup_parent if parent is None else parent,
        resources=adjusted(before.resources, resources),
    )
    named = rest.in_pod(adjustment.labels, adjustment.annotations, parent, resources)
    rest.assert_rest_is_untouched(message, result, named)
    assert edit.edit_pod(result, adjustment) is result


@settings(deadline=None)
@given(CREATE_REQUESTS, ADJUSTMENTS)
def test_an_edited_container_is_the_container_with_the_changes(message: bytes, adjustment: Adjustment) -> None:
    container, asked_pod = readable(translate.read_container, message)
    parent, resources = adjustment.cgroup_parent, adjustment.resources
    result = edit.edit_container(message, adjustment, parent)
    after, pod_after = translate.read_container(result)
    assert replace(after, resources=after.resources or Resources()) == replace(
        container,
        annotations=texts(container.annotations, adjustment.annotations),
        envs=texts(container.envs, adjustment.envs),
        resources=adjusted(container.resources, resources),
    )
    assert parent_of(pod_after) == (parent_of(asked_pod) if parent is None else parent)
    named = rest.in_create(adjustment.envs, adjustment.annotations, parent, resources)
    rest.assert_rest_is_untouched(message, result, named)
    assert edit.edit_container(result, adjustment, parent) is result


@settings(deadline=None)
@given(UPDATE_REQUESTS, RESOURCE_CHANGES, MAPS)
def test_an_edited_update_is_the_update_with_the_changes(
    message: bytes, changes: dict[str, ResourceValue], annotations: dict[str, str]
) -> None:
    container_id, asked, annotations_before = readable(translate.read_update, message)
    result = edit.edit_update(message, changes, annotations)
    id_after, after, annotations_after = translate.read_update(result)
    assert (id_after, annotations_after) == (container_id, texts(annotations_before, annotations))
    assert (after or Resources()) == adjusted(asked, changes)
    rest.assert_rest_is_untouched(message, result, rest.in_update(annotations, changes))
    assert edit.edit_update(result, changes, annotations) is result


def echo(subject: PodInfo | ContainerInfo) -> Adjustment:
    """Return an adjustment that sets everything to what it is."""
    resources = subject.resources or Resources()
    return Adjustment(
        labels=getattr(subject, "labels", {}),
        annotations=subject.annotations,
        envs=getattr(subject, "envs", {}),
        cgroup_parent=subject.cgroup_parent,
        resources={name: getattr(resources, name) for name in translate.RESOURCE_TABLE},
    )


@settings(deadline=None)
@given(create_requests())
def test_an_echo_is_no_change(message: bytes) -> None:
    container, pod = translate.read_container(message)
    assert edit.edit_container(message, echo(container), parent_of(pod)) is message
    request = cri_pb2.CreateContainerRequest.FromString(message)
    run = cri_pb2.RunPodSandboxRequest(config=request.sandbox_config).SerializeToString()
    assert edit.edit_pod(run, echo(translate.read_pod(run))) is run


EVERYTHING = Adjustment(
    labels={"l": "1"}, annotations={"a": "1"}, envs={"E": "1"}, cgroup_parent="/x", resources=ALL_RESOURCES
)
EDITS: list[tuple[Callable[[bytes], object], Callable[[bytes], bytes]]] = [
    (translate.read_pod, lambda message: edit.edit_pod(message, EVERYTHING)),
    (translate.read_container, lambda message: edit.edit_container(message, EVERYTHING, "/x")),
    (translate.read_update, lambda message: edit.edit_update(message, ALL_RESOURCES, {"a": "1"})),
]


@settings(deadline=None)
@given(st.sampled_from(EDITS), st.binary(max_size=40), st.sampled_from([b"", b"\x0a\x01p", b"\x0a\x01p\x12\x00"]))
def test_arbitrary_bytes_are_edited_or_refused(
    case: tuple[Callable[[bytes], object], Callable[[bytes], bytes]], tail: bytes, head: bytes
) -> None:
    read, change = case
    message = head + tail
    try:
        read(message)
    except Unreadable:
        return
    try:
        result = change(message)
    except WireError as error:
        refused = str(error)
    else:
        refused = ""
        assert change(result) is result
    assert not refused or "out of range" in refused  # field number 0, which upb takes and Go refuses
