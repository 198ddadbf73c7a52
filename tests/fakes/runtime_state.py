"""The state and answers of a fake container runtime: pods and containers in memory, one function per CRI method.

A status shows the present state; if the shape shows a config, it is that of the create.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import cri_pb2, inside
from tests.fakes.shapes import CONTAINERD, CREATE, START, UPDATE, Shape

RUN_POD = "RunPodSandbox"
IMAGE_REFERENCE = "sha256:" + "0" * 64

Record = TypeVar("Record")
Mangle = Callable[[str, Any], Message | bytes]
"""Called with a method and its reply; returns what is answered instead."""


@dataclass(eq=False)
class Refused(Exception):
    code: grpc.StatusCode
    details: str


@dataclass(eq=False)
class Absent(Exception):
    """An id that does not exist; the shape determines the runtime's answer."""

    kind: str
    subject_id: str


@dataclass(slots=True)
class Pod:
    """A pod sandbox: ``request`` is the RunPodSandboxRequest, ``updates`` the resource updates, as they came."""

    id: str
    request: bytes
    created_at: int
    state: cri_pb2.PodSandboxState = cri_pb2.SANDBOX_READY
    updates: list[bytes] = field(default_factory=list)

    @property
    def config(self) -> cri_pb2.PodSandboxConfig:
        return cri_pb2.RunPodSandboxRequest.FromString(self.request).config


@dataclass(slots=True)
class Container:
    """A container: ``request`` is the CreateContainerRequest, ``updates`` the resource updates, as they came."""

    id: str
    pod_id: str
    request: bytes
    created_at: int
    shape: Shape
    cgroup_path: str
    """The cgroup that it runs in."""
    state: cri_pb2.ContainerState = cri_pb2.CONTAINER_CREATED
    started_at: int = 0
    updates: list[bytes] = field(default_factory=list)

    @property
    def config(self) -> cri_pb2.ContainerConfig:
        return cri_pb2.CreateContainerRequest.FromString(self.request).config

    @property
    def resources(self) -> cri_pb2.LinuxContainerResources:
        """Return the present resources: those of the create, overridden by each update's set fields."""
        current = cri_pb2.LinuxContainerResources()
        current.CopyFrom(self.shape.created(self.config.linux.resources))
        for update in self.updates:
            current.MergeFrom(self.shape.updated(cri_pb2.UpdateContainerResourcesRequest.FromString(update).linux))
        return current


class RuntimeState:
    """The pods and containers of a fake runtime, which survive their server.

    ``shape`` may be changed for later calls.
    """

    def __init__(self, shape: Shape = CONTAINERD) -> None:
        self.shape = shape
        self.pods: dict[str, Pod] = {}
        self.containers: dict[str, Container] = {}
        self.big_list: bytes | None = None
        """The answer of ListContainers in place of the containers; see ``fill_list``."""
        self.verbose = True
        """False for a runtime whose statuses have no verbose part."""
        self.mangle: Mangle | None = None
        """Replaces replies, for a runtime that answers what none should."""
        self._finished: dict[tuple[str, str, bytes], Message | bytes] = {}
        """The replies of creates whose callers had left, by what names them."""
        self._numbers = itertools.count(1)
        self._methods: dict[str, Callable[[Any, bytes], Message | bytes]] = {
            "Status": self._status,
            "RunPodSandbox": self._run_pod,
            "StopPodSandbox": self._stop_pod,
            "RemovePodSandbox": self._remove_pod,
            "UpdatePodSandboxResources": self._update_pod,
            "PodSandboxStatus": self._pod_status,
            "ListPodSandbox": self._list_pods,
            "CreateContainer": self._create,
            "StartContainer": self._start,
            "UpdateContainerResources": self._update,
            "StopContainer": self._stop,
            "RemoveContainer": self._remove,
            "ContainerStatus": self._container_status,
            "ListContainers": self._list_containers,
            "ExecSync": self._exec_sync,
            "ListImages": self._list_images,
        }

    def knows(self, method: str) -> bool:
        return method == "Version" or method in self._methods

    def answer(self, api_version: str, method: str, message: bytes) -> bytes:
        """Return the reply to one unary call. Raises Refused."""
        if method == "Version":
            return _version(api_version, self.shape.runtime_name)
        try:
            request = getattr(cri_pb2, f"{method}Request", cri_pb2.VersionRequest).FromString(message)
            finished = self._finished.pop(_named(method, request), None) if method in (RUN_POD, CREATE) else None
            reply = finished or self._methods[method](request, message)
        except Absent as absent:
            failure = self.shape.absence(method)
            if failure is None:
                return b""
            raise Refused(failure.code, failure.details(absent.kind, absent.subject_id)) from None
        if self.mangle is not None and isinstance(reply, Message):
            reply = self.mangle(method, reply)
        return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())

    def left(self, method: str, message: bytes) -> None:
        """Do what the runtime does with a call whose caller has left before the answer."""
        if self.shape.repeats_answers and method in (RUN_POD, CREATE):
            request = getattr(cri_pb2, f"{method}Request").FromString(message)
            with suppress(Absent, Refused):
                name = _named(method, request)
                self._finished[name] = self._finished.get(name) or self._methods[method](request, message)

    def fill_list(self, count: int, total_bytes: int) -> None:
        """Make ListContainers answer ``count`` containers in about ``total_bytes`` bytes; it is built once, here."""
        share = max(1, total_bytes // count)
        listed = [cri_pb2.Container(id=f"{number:064x}", pod_sandbox_id=f"{number:064x}") for number in range(count)]
        for container in listed:
            container.annotations["padding"] = "x" * max(0, share - container.ByteSize() - 20)
        self.big_list = cri_pb2.ListContainersResponse(containers=listed).SerializeToString()

    def _new_id(self) -> str:
        return hashlib.sha256(str(next(self._numbers)).encode()).hexdigest()

    def _pod(self, pod_id: str) -> Pod:
        return _found(self.pods, pod_id, "sandbox")

    def _container(self, container_id: str) -> Container:
        return _found(self.containers, container_id, "container")

    # ---- pods

    def _status(self, request: Any, message: bytes) -> Message | bytes:
        ready = [cri_pb2.RuntimeCondition(type=kind, status=True) for kind in ("RuntimeReady", "NetworkReady")]
        return cri_pb2.StatusResponse(status=cri_pb2.RuntimeStatus(conditions=ready))

    def _run_pod(self, request: Any, message: bytes) -> Message | bytes:
        pod = Pod(self._new_id(), message, time.time_ns())
        self.pods[pod.id] = pod
        return cri_pb2.RunPodSandboxResponse(pod_sandbox_id=pod.id)

    def _stop_pod(self, request: Any, message: bytes) -> Message | bytes:
        pod = self._pod(request.pod_sandbox_id)
        pod.state = cri_pb2.SANDBOX_NOTREADY
        for container in self.containers.values():
            if container.pod_id == pod.id:
                container.state = cri_pb2.CONTAINER_EXITED
        return b""

    def _remove_pod(self, request: Any, message: bytes) -> Message | bytes:
        if self.pods.pop(pod_id := request.pod_sandbox_id, None) is None:
            raise Absent("sandbox", pod_id)
        self.containers = {key: value for key, value in self.containers.items() if value.pod_id != pod_id}
        return b""

    def _update_pod(self, request: Any, message: bytes) -> Message | bytes:
        self._pod(request.pod_sandbox_id).updates.append(message)
        return b""

    def _pod_status(self, request: Any, message: bytes) -> Message | bytes:
        pod = self._pod(request.pod_sandbox_id)
        asked = cri_pb2.RunPodSandboxRequest.FromString(pod.request).runtime_handler
        status = cri_pb2.PodSandboxStatus(**self._pod_told(pod), runtime_handler=self.shape.status_handler(asked))
        if not (request.verbose and self.verbose):
            return cri_pb2.PodSandboxStatusResponse(status=status)
        if (failure := self.shape.verbose_pod_fails) is not None:
            raise Refused(failure.code, failure.details("sandbox", pod.id))
        info = self.shape.pod_info and self.shape.pod_info(pod.id, pod.config, asked)
        return cri_pb2.PodSandboxStatusResponse(status=status, info=_info(info))

    def _list_pods(self, request: Any, message: bytes) -> Message | bytes:
        pods = [pod for pod in self.pods.values() if pod.id.startswith(request.filter.id)]
        return cri_pb2.ListPodSandboxResponse(items=[self._listed_pod(pod) for pod in pods])

    def _listed_pod(self, pod: Pod) -> cri_pb2.PodSandbox:
        asked = cri_pb2.RunPodSandboxRequest.FromString(pod.request).runtime_handler
        return cri_pb2.PodSandbox(**self._pod_told(pod), runtime_handler=self.shape.listed_handler(asked))

    def _pod_told(self, pod: Pod) -> dict[str, Any]:
        told = _told(pod)
        return {**told, "labels": {**told["labels"], **self.shape.pod_labels}} if told["labels"] else told

    # ---- containers

    def _check(self, method: str, resources: cri_pb2.LinuxContainerResources, container_id: str) -> None:
        refusal = self.shape.refusal(method, resources, container_id)
        if refusal:
            raise Refused(grpc.StatusCode.UNKNOWN, refusal)

    def _create(self, request: Any, message: bytes) -> Message | bytes:
        pod = self._pod(request.pod_sandbox_id)
        new_id = self._new_id()
        self._check(CREATE, request.config.linux.resources, new_id)
        config = pod.config if self.shape.own_parent else request.sandbox_config
        path = self.shape.cgroup_path(config.linux.cgroup_parent, new_id)
        container = Container(new_id, pod.id, message, time.time_ns(), self.shape, path)
        self.containers[container.id] = container
        return cri_pb2.CreateContainerResponse(container_id=container.id)

    def _start(self, request: Any, message: bytes) -> Message | bytes:
        container = self._container(request.container_id)
        if container.state != cri_pb2.CONTAINER_CREATED:
            raise Refused(grpc.StatusCode.UNKNOWN, f"container {container.id!r} is not in created state")
        self._check(START, container.config.linux.resources, container.id)
        container.state, container.started_at = cri_pb2.CONTAINER_RUNNING, time.time_ns()
        return b""

    def _update(self, request: Any, message: bytes) -> Message | bytes:
        container = self._container(request.container_id)
        self._check(UPDATE, request.linux, container.id)
        container.updates.append(message)
        return b""

    def _stop(self, request: Any, message: bytes) -> Message | bytes:
        self._container(request.container_id).state = cri_pb2.CONTAINER_EXITED
        return b""

    def _remove(self, request: Any, message: bytes) -> Message | bytes:
        if self.containers.pop(request.container_id, None) is None:
            raise Absent("container", request.container_id)
        return b""

    def _container_status(self, request: Any, message: bytes) -> Message | bytes:
        container = self._container(request.container_id)
        asked = cri_pb2.CreateContainerRequest.FromString(container.request)
        status = cri_pb2.ContainerStatus(**_told(container), image=asked.config.image, image_ref=IMAGE_REFERENCE)
        if self.shape.tells_resources:
            status.resources.linux.CopyFrom(container.resources)
        status.mounts.extend(asked.config.mounts)
        status.log_path = f"{asked.sandbox_config.log_directory}/{asked.config.log_path}"
        status.started_at = container.started_at
        if not (request.verbose and self.verbose):
            return cri_pb2.ContainerStatusResponse(status=status)
        tell = self.shape.container_info
        info = tell and tell(container.id, container.pod_id, asked, container.resources, container.cgroup_path)
        return cri_pb2.ContainerStatusResponse(status=status, info=_info(info))

    def _list_containers(self, request: Any, message: bytes) -> Message | bytes:
        if self.big_list is not None:
            return self.big_list
        wanted = request.filter
        found = [
            container
            for container in self.containers.values()
            if container.id.startswith(wanted.id) and wanted.pod_sandbox_id in ("", container.pod_id)
        ]
        return cri_pb2.ListContainersResponse(containers=[_listed_container(container) for container in found])

    def _exec_sync(self, request: Any, message: bytes) -> Message | bytes:
        container = self._container(request.container_id)
        if container.state != cri_pb2.CONTAINER_RUNNING:
            raise Refused(grpc.StatusCode.UNKNOWN, f"container {container.id!r} is not in running state")
        return inside.run(request.cmd, container.config, container.resources)

    def _list_images(self, request: Any, message: bytes) -> Message | bytes:
        return cri_pb2.ListImagesResponse(images=[cri_pb2.Image(id=IMAGE_REFERENCE, repo_tags=[BUSYBOX_IMAGE], size=1)])


def _named(method: str, request: Any) -> tuple[str, str, bytes]:
    """Return what names a create: the metadata, of a container together with its pod."""
    pod_id = request.pod_sandbox_id if method == CREATE else ""
    return method, pod_id, request.config.metadata.SerializeToString(deterministic=True)


def _version(api_version: str, runtime_name: str) -> bytes:
    reply = cri_pb2.VersionResponse(version="0.1.0", runtime_name=runtime_name, runtime_version="1.0.0")
    reply.runtime_api_version = api_version
    return reply.SerializeToString()


def _found(records: Mapping[str, Record], key: str, kind: str) -> Record:
    """Return a record by its id, or by a prefix if only one matches, as containerd does."""
    if key in records:
        return records[key]
    found = [any_id for any_id in records if any_id.startswith(key)]
    if len(found) != 1 or not key:
        raise Absent(kind, key)
    return records[found[0]]


def _told(record: Pod | Container) -> dict[str, Any]:
    """Return what both a list and a status tell."""
    config, known = record.config, {"id": record.id, "state": record.state, "created_at": record.created_at}
    return {**known, "metadata": config.metadata, "labels": config.labels, "annotations": config.annotations}


def _listed_container(container: Container) -> cri_pb2.Container:
    return cri_pb2.Container(**_told(container), pod_sandbox_id=container.pod_id, image=container.config.image)


def _info(values: Mapping[str, Any] | None) -> dict[str, str]:
    return {} if values is None else {"info": json.dumps(values, separators=(",", ":"))}  # as Go writes it
