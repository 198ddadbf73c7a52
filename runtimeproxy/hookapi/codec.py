"""Convert the model's values to and from messages of runtime.v1alpha1; no other module does (hook-api, first table).

Invariant: every message field that the model has is set; text that is not UTF-8 is omitted, never altered.

A container's request is the concatenation of two parts: the fields of the pod, and those of the container. To a parser
that is one message (protobuf.dev, "Last One Wins"), and each part is encoded once per value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import api_pb2, entries_pb2
from runtimeproxy.model.fields import (
    MAP_FIELDS,
    NO_CHANGES,
    RESOURCE_FIELDS,
    ROWS,
    ContainerInfo,
    Envs,
    HookAnswer,
    HookRequest,
    Kind,
    PodInfo,
    Resources,
)
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint, SubjectKind
from runtimeproxy.wire.cache import Cache

POD_PARTS: Cache[int, tuple[PodInfo, bytes]] = Cache(1 << 20)
"""The pod's fields of a container's hook message, by the identity of the pod's value. The value is cached too, so that
no other object can have its identity. All containers of a pod share one value until a call changes it."""

CONTAINER_PARTS: Cache[int, tuple[ContainerInfo, bytes]] = Cache(1 << 18)
"""The container's own fields of a hook message, by the identity of the container's value, in the same way. A start
sends one value twice; other calls send it once."""

ANSWERS: Cache[tuple[SubjectKind, bytes], HookAnswer] = Cache(1 << 18)
"""Decoded answers, by kind of subject and encoded bytes: hook servers mostly repeat an earlier or an empty answer."""

SERVICE = "runtime.v1alpha1.RuntimeHookService"

PATHS = {hook_point.name: f"/{SERVICE}/{hook_point.method}" for hook_point in HOOK_POINTS}
"""The HTTP/2 path of the method that serves a hook point, by the point's name."""

_GROWTH = 24
"""Estimated bytes of a decoded answer per encoded byte, at most: an entry of a map has at least five bytes."""

M = TypeVar("M", bound=Message)

_V = TypeVar("_V", PodInfo, ContainerInfo, Resources, HookAnswer)


def request_fields(hook_point: HookPoint) -> dict[int, str]:
    """Return the fields of a hook point's request: their names by their numbers."""
    kinds = (api_pb2.PodSandboxHookRequest, api_pb2.ContainerResourceHookRequest)
    return {field.number: field.name for field in kinds[hook_point.subject is SubjectKind.CONTAINER].DESCRIPTOR.fields}


def encode(hook_point: HookPoint, request: HookRequest) -> bytes:
    """Return the encoded request for a hook point. Raises ValueError if the request lacks the container, or has a
    number that its field cannot hold."""
    pod, container = request.pod, request.container
    if hook_point.subject is SubjectKind.POD:
        return _pod_request(pod)
    if container is None:
        raise ValueError("the request of a container's hook point has no container")
    of_pod, own = POD_PARTS.get(id(pod)), CONTAINER_PARTS.get(id(container))
    return (_pod_part(pod) if of_pod is None else of_pod[1]) + (_container_part(container) if own is None else own[1])


def decode(hook_point: HookPoint, body: bytes) -> HookAnswer:
    """Return the decoded answer of a hook server. Raises WireError if it cannot be parsed. Equal bytes may give the
    same object, so its maps are read-only."""
    key = hook_point.subject, body
    answer = ANSWERS.get(key)
    if answer is None:
        answer = ANSWERS.keep(key, _frozen(_READ_ANSWER[hook_point.subject](body)), _GROWTH * len(body))
    return answer


def decode_request(hook_point: HookPoint, body: bytes) -> HookRequest:
    """Return the decoded request, for the hook server's side. Raises WireError if it cannot be parsed."""
    return _read_pod_request(body) if hook_point.subject is SubjectKind.POD else _read_container_request(body)


def encode_answer(hook_point: HookPoint, answer: HookAnswer) -> bytes:
    """Return the encoded answer, for the hook server's side, without parts that the message lacks. Raises ValueError if
    a field cannot hold its number."""
    return _write_pod_answer(answer) if hook_point.subject is SubjectKind.POD else _write_container_answer(answer)


# -- pod -------------------------------------------------------------------------------------------------------------


def _pod_request(pod: PodInfo) -> bytes:
    try:
        message = api_pb2.PodSandboxHookRequest(
            pod_meta=_pod_meta(pod),
            runtime_handler=pod.runtime_handler,
            labels=pod.labels,
            annotations=pod.annotations,
            cgroup_parent=pod.cgroup_parent,
            overhead=_resources(pod.overhead),
            resources=_resources(pod.resources),
        )
    except UnicodeEncodeError:
        return _pod_request(_encodable(pod))
    return message.SerializeToString()


def _read_pod_request(body: bytes) -> HookRequest:
    message = _parse(api_pb2.PodSandboxHookRequest, body)
    meta = message.pod_meta
    return HookRequest(
        PodInfo(
            name=meta.name,
            uid=meta.uid,
            namespace=meta.namespace,
            attempt=meta.attempt,
            runtime_handler=message.runtime_handler,
            labels=entries_of(message.labels),
            annotations=entries_of(message.annotations),
            cgroup_parent=message.cgroup_parent,
            overhead=resources_of(message.overhead) if message.HasField("overhead") else None,
            resources=resources_of(message.resources) if message.HasField("resources") else None,
        )
    )


def _write_pod_answer(answer: HookAnswer) -> bytes:
    try:
        message = api_pb2.PodSandboxHookResponse(
            labels=answer.labels,
            annotations=answer.annotations,
            cgroup_parent=answer.cgroup_parent,
            resources=_resources(answer.resources),
        )
    except UnicodeEncodeError:
        return _write_pod_answer(_encodable(answer))
    return message.SerializeToString()


def _read_pod_answer(body: bytes) -> HookAnswer:
    message = _parse(api_pb2.PodSandboxHookResponse, body)
    return HookAnswer(
        labels=entries_of(message.labels),
        annotations=entries_of(message.annotations),
        cgroup_parent=message.cgroup_parent,
        resources=resources_of(message.resources) if message.HasField("resources") else None,
    )


# -- container -------------------------------------------------------------------------------------------------------


def _pod_part(pod: PodInfo) -> bytes:
    """Encode the pod's fields of a container's request; cached with the pod's value, which is about as large."""
    try:
        message = api_pb2.ContainerResourceHookRequest(
            pod_meta=_pod_meta(pod),
            pod_resources=_resources(pod.resources),
            pod_annotations=pod.annotations,
            pod_labels=pod.labels,
            pod_cgroup_parent=pod.cgroup_parent,
        )
    except UnicodeEncodeError:
        return _pod_part(_encodable(pod))
    part = message.SerializeToString()
    POD_PARTS.keep(id(pod), (pod, part), 2 * len(part))
    return part


def _container_part(container: ContainerInfo) -> bytes:
    """Encode the container's own fields of a container's request. Its own cgroup parent overrides the pod's because it
    follows it. Not cached for a container without an id, whose value is used once, in its create."""
    envs = container.envs
    try:
        message = api_pb2.ContainerResourceHookRequest(
            container_meta={"name": container.name, "attempt": container.attempt, "id": container.id},
            container_annotations=container.annotations,
            container_resources=_resources(container.resources),
            pod_cgroup_parent=container.cgroup_parent,
            container_envs=envs.changes if type(envs) is Envs else envs,
        )
    except UnicodeEncodeError:
        return _container_part(_encodable(container))
    part = message.SerializeToString()
    if type(envs) is Envs:
        part = envs.raw + part
    if container.id:
        CONTAINER_PARTS.keep(id(container), (container, part), 2 * len(part))
    return part


def envs_of(entries: Sequence[bytes]) -> Envs | None:
    """Return the variables of a container from encoded entries of the field container_envs, without decoding them.

    None if hook servers cannot get them in this form: an entry is not UTF-8, for which Go refuses the message, has an
    unknown field, or has the key of another entry.
    """
    raw = entries_pb2.ContainerEnvs(container_envs=entries).SerializeToString()
    try:
        envs = api_pb2.ContainerResourceHookRequest.FromString(raw).container_envs
    except DecodeError:
        return None
    return Envs(raw, _read_envs, NO_CHANGES) if len(envs) == len(entries) else None


def _read_envs(raw: bytes) -> dict[str, str]:
    return entries_of(api_pb2.ContainerResourceHookRequest.FromString(raw).container_envs)


def _read_container_request(body: bytes) -> HookRequest:
    message = _parse(api_pb2.ContainerResourceHookRequest, body)
    pod_meta, meta = message.pod_meta, message.container_meta
    pod = PodInfo(
        name=pod_meta.name,
        uid=pod_meta.uid,
        namespace=pod_meta.namespace,
        attempt=pod_meta.attempt,
        labels=entries_of(message.pod_labels),
        annotations=entries_of(message.pod_annotations),
        cgroup_parent=message.pod_cgroup_parent,
        resources=resources_of(message.pod_resources) if message.HasField("pod_resources") else None,
    )
    container = ContainerInfo(
        id=meta.id,
        name=meta.name,
        attempt=meta.attempt,
        annotations=entries_of(message.container_annotations),
        resources=resources_of(message.container_resources) if message.HasField("container_resources") else None,
        envs=entries_of(message.container_envs),
    )
    return HookRequest(pod, container)


def _write_container_answer(answer: HookAnswer) -> bytes:
    try:
        message = api_pb2.ContainerResourceHookResponse(
            container_annotations=answer.annotations,
            container_resources=_resources(answer.resources),
            pod_cgroup_parent=answer.cgroup_parent,
            container_envs=answer.envs,
        )
    except UnicodeEncodeError:
        return _write_container_answer(_encodable(answer))
    return message.SerializeToString()


def _read_container_answer(body: bytes) -> HookAnswer:
    message = _parse(api_pb2.ContainerResourceHookResponse, body)
    return HookAnswer(
        annotations=entries_of(message.container_annotations),
        envs=entries_of(message.container_envs),
        cgroup_parent=message.pod_cgroup_parent,
        resources=resources_of(message.container_resources) if message.HasField("container_resources") else None,
    )


# -- both ------------------------------------------------------------------------------------------------------------


_READ_ANSWER: Mapping[SubjectKind, Callable[[bytes], HookAnswer]] = {
    SubjectKind.POD: _read_pod_answer,
    SubjectKind.CONTAINER: _read_container_answer,
}


def _parse(kind: type[M], body: bytes) -> M:
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise WireError(f"{kind.DESCRIPTOR.name} that is not a well-formed protobuf message") from None
    return message


def _pod_meta(pod: PodInfo) -> dict[str, Any]:
    return {"name": pod.name, "uid": pod.uid, "namespace": pod.namespace, "attempt": pod.attempt}


_fields_of = attrgetter(*RESOURCE_FIELDS)
_LIMITS = frozenset(name for name, row in ROWS.items() if row.kind is Kind.NUMBERS)


def _resources(resources: Resources | None) -> dict[str, Any] | None:
    """Return a LinuxContainerResources as a message's constructor accepts it."""
    if resources is None:
        return None
    values: dict[str, Any] = {}
    for name in RESOURCE_FIELDS:
        if value := getattr(resources, name):
            if name in _LIMITS:
                value = [{"page_size": page_size, "limit": limit} for page_size, limit in value.items()]
            values[name] = value
    return values


def resources_of(message: Any) -> Resources:
    """Read a LinuxContainerResources, of a hook message or of CRI: they have the same fields."""
    values = [*_fields_of(message)]
    for index, read in _READ_MAP:
        values[index] = read(values[index]) if values[index] else {}
    return Resources(*values)


def _limits_of(message: Any) -> dict[str, int]:
    return {entry.page_size: entry.limit for entry in message}


def entries_of(entries: Mapping[str, str]) -> dict[str, str]:
    """Return a message's map as a dict; ``dict()`` would call three functions of the abstract base class per entry."""
    copied = {}
    for key in entries:
        copied[key] = entries[key]
    return copied


_READ_MAP: Sequence[tuple[int, Callable[[Any], Any]]] = [
    (index, _limits_of if name in _LIMITS else entries_of)
    for index, name in enumerate(RESOURCE_FIELDS)
    if name in MAP_FIELDS
]
"""The indexes of the map fields in ``RESOURCE_FIELDS``, and functions that read them."""


def _frozen(answer: HookAnswer) -> HookAnswer:
    """Return an answer with read-only maps: several callers may be given the same object."""
    resources = answer.resources
    if resources is not None:
        maps: dict[str, Any] = {name: MappingProxyType(getattr(resources, name)) for name in MAP_FIELDS}
        resources = replace(resources, **maps)
    return HookAnswer(
        labels=MappingProxyType(answer.labels),
        annotations=MappingProxyType(answer.annotations),
        envs=MappingProxyType(answer.envs),
        cgroup_parent=answer.cgroup_parent,
        resources=resources,
    )


# -- text that is not UTF-8 ------------------------------------------------------------------------------------------


def _encodable(value: _V) -> _V:
    """Return a value without text that cannot be encoded as UTF-8: such map entries are omitted, such texts become "".
    A replacement character is no solution: an echo of "" means "no change", an echo of any other text is a change."""
    return replace(value, **{field.name: _of_text(getattr(value, field.name)) for field in fields(value)})


def _of_text(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: value for key, value in part.items() if _is_text(key) and _is_text(value)}
    if isinstance(part, Resources):
        return _encodable(part)
    return part if _is_text(part) else ""


def _is_text(part: object) -> bool:
    """Return whether the text of a value is free of lone surrogates, which stand for bytes that were not UTF-8."""
    try:
        str(part).encode()
    except UnicodeEncodeError:
        return False
    return True
