"""Hook messages: values of the model <-> bytes of runtime.v1alpha1, the only place (hook-api, first table).

Owns which field of a message holds which field of the model, for the proxy's side and for the hook server's.
Must not know: what an answer means (runtimeproxy.merge), how the bytes travel.
Invariant: every field of a message that the model knows is filled; text that is not UTF-8 is left out, never altered.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.hookpoints import HookPoint, SubjectKind
from runtimeproxy.model import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources

SERVICE = "runtime.v1alpha1.RuntimeHookService"

M = TypeVar("M", bound=Message)


def method_path(point: HookPoint) -> str:
    """Return the HTTP/2 path of the method that serves a hook point."""
    return f"/{SERVICE}/{point.method}"


def encode(point: HookPoint, request: HookRequest) -> bytes:
    """Return what a hook server is told at a hook point.

    Raises ValueError if the request has no container at a container's point, or a number that its field cannot hold.
    """
    return _CODECS[point.subject].write_request(request).SerializeToString()


def decode(point: HookPoint, body: bytes) -> HookAnswer:
    """Return what a hook server answered at a hook point. Raises WireError if it cannot be parsed."""
    return _CODECS[point.subject].read_answer(body)


def decode_request(point: HookPoint, body: bytes) -> HookRequest:
    """Return what the proxy told, for the hook server's side. Raises WireError if it cannot be parsed."""
    return _CODECS[point.subject].read_request(body)


def encode_answer(point: HookPoint, answer: HookAnswer) -> bytes:
    """Return an answer as bytes, for the hook server's side; parts that the point's message lacks are left out.

    Raises ValueError if a number is one that its field cannot hold.
    """
    return _CODECS[point.subject].write_answer(answer).SerializeToString()


# -- pod -------------------------------------------------------------------------------------------------------------


def _write_pod_request(request: HookRequest) -> Message:
    pod = request.pod
    message = api_pb2.PodSandboxHookRequest(
        pod_meta=_write_pod_meta(pod),
        runtime_handler=_text(pod.runtime_handler),
        cgroup_parent=_text(pod.cgroup_parent or ""),
        overhead=_write_resources(pod.overhead),
        resources=_write_resources(pod.resources),
    )
    _fill(message.labels, pod.labels)
    _fill(message.annotations, pod.annotations)
    return message


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
            overhead=_read_resources(message.overhead) if message.HasField("overhead") else None,
            resources=_read_resources(message.resources) if message.HasField("resources") else None,
        )
    )


def _write_pod_answer(answer: HookAnswer) -> Message:
    message = api_pb2.PodSandboxHookResponse(
        cgroup_parent=_text(answer.cgroup_parent), resources=_write_resources(answer.resources)
    )
    _fill(message.labels, answer.labels)
    _fill(message.annotations, answer.annotations)
    return message


def _read_pod_answer(body: bytes) -> HookAnswer:
    message = _parse(api_pb2.PodSandboxHookResponse, body)
    return HookAnswer(
        labels=entries_of(message.labels),
        annotations=entries_of(message.annotations),
        cgroup_parent=message.cgroup_parent,
        resources=_read_resources(message.resources) if message.HasField("resources") else None,
    )


# -- container -------------------------------------------------------------------------------------------------------


def _write_container_request(request: HookRequest) -> Message:
    pod, container = request.pod, request.container
    if container is None:
        raise ValueError("the request of a container's hook point has no container")
    message = api_pb2.ContainerResourceHookRequest(
        pod_meta=_write_pod_meta(pod),
        container_meta=api_pb2.ContainerMetadata(
            name=_text(container.name), attempt=container.attempt, id=_text(container.id)
        ),
        container_resources=_write_resources(container.resources),
        pod_resources=_write_resources(pod.resources),
        pod_cgroup_parent=_text(container.cgroup_parent or pod.cgroup_parent or ""),
    )
    _fill(message.container_annotations, container.annotations)
    _fill(message.pod_annotations, pod.annotations)
    _fill(message.pod_labels, pod.labels)
    _fill(message.container_envs, container.envs)
    return message


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
        resources=_read_resources(message.pod_resources) if message.HasField("pod_resources") else None,
    )
    container = ContainerInfo(
        id=meta.id,
        name=meta.name,
        attempt=meta.attempt,
        annotations=entries_of(message.container_annotations),
        resources=_read_resources(message.container_resources) if message.HasField("container_resources") else None,
        envs=entries_of(message.container_envs),
    )
    return HookRequest(pod, container)


def _write_container_answer(answer: HookAnswer) -> Message:
    message = api_pb2.ContainerResourceHookResponse(
        container_resources=_write_resources(answer.resources), pod_cgroup_parent=_text(answer.cgroup_parent)
    )
    _fill(message.container_annotations, answer.annotations)
    _fill(message.container_envs, answer.envs)
    return message


def _read_container_answer(body: bytes) -> HookAnswer:
    message = _parse(api_pb2.ContainerResourceHookResponse, body)
    return HookAnswer(
        annotations=entries_of(message.container_annotations),
        envs=entries_of(message.container_envs),
        cgroup_parent=message.pod_cgroup_parent,
        resources=_read_resources(message.container_resources) if message.HasField("container_resources") else None,
    )


# -- both ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Codec:
    write_request: Callable[[HookRequest], Message]
    read_request: Callable[[bytes], HookRequest]
    write_answer: Callable[[HookAnswer], Message]
    read_answer: Callable[[bytes], HookAnswer]


_CODECS: Mapping[SubjectKind, _Codec] = {
    SubjectKind.POD: _Codec(_write_pod_request, _read_pod_request, _write_pod_answer, _read_pod_answer),
    SubjectKind.CONTAINER: _Codec(
        _write_container_request, _read_container_request, _write_container_answer, _read_container_answer
    ),
}


def _parse(kind: type[M], body: bytes) -> M:
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise WireError(f"{kind.DESCRIPTOR.name} that is no well-formed protobuf message") from None
    return message


def _write_pod_meta(pod: PodInfo) -> api_pb2.PodSandboxMetadata:
    return api_pb2.PodSandboxMetadata(
        name=_text(pod.name), uid=_text(pod.uid), namespace=_text(pod.namespace), attempt=pod.attempt
    )


def _write_resources(resources: Resources | None) -> api_pb2.LinuxContainerResources | None:
    if resources is None:
        return None
    # Field by field, here and in reading: in a process that was waiting, a loop over the names takes twice as long.
    message = api_pb2.LinuxContainerResources(
        cpu_period=resources.cpu_period,
        cpu_quota=resources.cpu_quota,
        cpu_shares=resources.cpu_shares,
        memory_limit_in_bytes=resources.memory_limit_in_bytes,
        oom_score_adj=resources.oom_score_adj,
        cpuset_cpus=_text(resources.cpuset_cpus),
        cpuset_mems=_text(resources.cpuset_mems),
        memory_swap_limit_in_bytes=resources.memory_swap_limit_in_bytes,
    )
    for size, limit in resources.hugepage_limits.items():
        if _encodable(size):
            message.hugepage_limits.add(page_size=size, limit=limit)
    _fill(message.unified, resources.unified)
    return message


def _read_resources(message: api_pb2.LinuxContainerResources) -> Resources:
    return Resources(
        cpu_period=message.cpu_period,
        cpu_quota=message.cpu_quota,
        cpu_shares=message.cpu_shares,
        memory_limit_in_bytes=message.memory_limit_in_bytes,
        oom_score_adj=message.oom_score_adj,
        cpuset_cpus=message.cpuset_cpus,
        cpuset_mems=message.cpuset_mems,
        hugepage_limits={entry.page_size: entry.limit for entry in message.hugepage_limits},
        unified=entries_of(message.unified),
        memory_swap_limit_in_bytes=message.memory_swap_limit_in_bytes,
    )


def entries_of(entries: Mapping[str, str]) -> dict[str, str]:
    """Return a message's map as a dict, three times faster than ``dict`` does it."""
    return {key: entries[key] for key in entries} if entries else {}


def _fill(entries: MutableMapping[str, str], values: Mapping[str, str]) -> None:
    """Fill a message's map with what has a UTF-8 form."""
    for key, value in values.items():
        try:
            entries[key] = value
        except UnicodeEncodeError:
            continue


def _text(value: str) -> str:
    # "" rather than a replacement character: an echo of "" means "no change", an echo of something else would be one.
    return value if _encodable(value) else ""


def _encodable(text: str) -> bool:
    """Tell whether a text has a UTF-8 form; one with lone surrogates (bytes that were not UTF-8) has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
