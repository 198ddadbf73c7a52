"""The state and answers of a fake CRI runtime: pods and containers in memory, one function per method."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Mapping
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
READY = [cri_pb2.RuntimeCondition(type=kind, status=True) for kind in ("RuntimeReady", "NetworkReady")]
IMAGE = cri_pb2.Image(id=IMAGE_REFERENCE, repo_tags=[BUSYBOX_IMAGE], size=1)

Record = TypeVar("Record")
Reply = Message | bytes


@dataclass(eq=False)
class Refused(Exception):
    code: grpc.StatusCode
    details: str


class Absent(Exception):
    """An id that does not exist; the shape determines the runtime's answer."""


@dataclass(slots=True)
class Pod:
    id: str
    request: bytes  # its RunPodSandboxRequest
    created_at: int
    state: cri_pb2.PodSandboxState = cri_pb2.SANDBOX_READY
    updates: list[bytes] = field(default_factory=list)  # the resource updates as received

    @property
    def run(self) -> cri_pb2.RunPodSandboxRequest:
        return cri_pb2.RunPodSandboxRequest.FromString(self.request)


@dataclass(slots=True)
class Container:
    id: str
    pod_id: str
    request: bytes  # its CreateContainerRequest
    created_at: int
    shape: Shape
    cgroup_path: str
    state: cri_pb2.ContainerState = cri_pb2.CONTAINER_CREATED
    started_at: int = 0
    updates: list[bytes] = field(default_factory=list)

    @property
    def create(self) -> cri_pb2.CreateContainerRequest:
        return cri_pb2.CreateContainerRequest.FromString(self.request)

    @property
    def resources(self) -> cri_pb2.LinuxContainerResources:
        """Return the present resources: those of the create, overridden by each update's set fields."""
        current = cri_pb2.LinuxContainerResources()
        current.CopyFrom(self.shape.created(self.create.config.linux.resources))
        for update in self.updates:
            current.MergeFrom(self.shape.updated(cri_pb2.UpdateContainerResourcesRequest.FromString(update).linux))
        return current


class RuntimeState:
    """The pods and containers of a fake runtime, which survive their server; ``shape`` may change for later calls."""

    def __init__(self, shape: Shape = CONTAINERD) -> None:
        self.shape = shape
        self.pods: dict[str, Pod] = {}
        self.containers: dict[str, Container] = {}
        self.big_list: bytes | None = None  # the answer to ListContainers if it is set
        self._finished: dict[tuple[str, str, bytes], Reply] = {}  # of creates whose callers had disconnected
        self._numbers = itertools.count(1)

    def has(self, method: str) -> bool:
        return method == "Version" or hasattr(self, f"_{method}")

    def answer(self, api_version: str, method: str, message: bytes) -> bytes:
        """Return the reply to a unary call. Raises Refused."""
        if method == "Version":
            version = cri_pb2.VersionResponse(version="0.1.0", runtime_version="1.0.0", runtime_api_version=api_version)
            version.runtime_name = self.shape.runtime_name
            return bytes(version.SerializeToString())
        try:
            request = getattr(cri_pb2, f"{method}Request", cri_pb2.VersionRequest).FromString(message)
            finished = self._finished.pop(_create_key(method, request), None) if method in (RUN_POD, CREATE) else None
            reply = finished or getattr(self, f"_{method}")(request, message)
        except Absent as absent:
            code = self.shape.absent_by_method.get(method, self.shape.absent)
            if code is None:
                return b""
            raise Refused(code, f"{absent}: not found") from None
        return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())

    def finish_abandoned(self, method: str, message: bytes) -> None:
        """Finish a call whose caller has disconnected before the answer, if the runtime does so."""
        if self.shape.repeats_answers and method in (RUN_POD, CREATE):
            request = getattr(cri_pb2, f"{method}Request").FromString(message)
            with suppress(Absent, Refused):
                name = _create_key(method, request)
                self._finished[name] = self._finished.get(name) or getattr(self, f"_{method}")(request, message)

    def fill_list(self, count: int, total_bytes: int) -> None:
        """Make ListContainers return ``count`` containers in about ``total_bytes`` bytes."""
        container_bytes = max(1, total_bytes // count)
        listed = [cri_pb2.Container(id=f"{number:064x}", pod_sandbox_id=f"{number:064x}") for number in range(count)]
        for container in listed:
            container.annotations["padding"] = "x" * max(0, container_bytes - container.ByteSize() - 20)
        self.big_list = cri_pb2.ListContainersResponse(containers=listed).SerializeToString()

    def _new_id(self) -> str:
        return hashlib.sha256(str(next(self._numbers)).encode()).hexdigest()

    def _pod(self, request: Any) -> Pod:
        return _find(self.pods, request.pod_sandbox_id, "sandbox")

    def _container(self, request: Any) -> Container:
        return _find(self.containers, request.container_id, "container")

    def _check(self, method: str, resources: cri_pb2.LinuxContainerResources, container_id: str) -> None:
        if any(check(resources) for check in self.shape.refuses.get(method, ())):
            raise Refused(grpc.StatusCode.UNKNOWN, f"invalid resources of container {container_id!r}")

    # The methods have the names that CRI gives them.

    def _Status(self, request: Any, message: bytes) -> Reply:
        return cri_pb2.StatusResponse(status=cri_pb2.RuntimeStatus(conditions=READY))

    def _ListImages(self, request: Any, message: bytes) -> Reply:
        return cri_pb2.ListImagesResponse(images=[IMAGE])

    def _RunPodSandbox(self, request: Any, message: bytes) -> Reply:
        pod = Pod(self._new_id(), message, time.time_ns())
        self.pods[pod.id] = pod
        return cri_pb2.RunPodSandboxResponse(pod_sandbox_id=pod.id)

    def _StopPodSandbox(self, request: Any, message: bytes) -> Reply:
        pod = self._pod(request)
        pod.state = cri_pb2.SANDBOX_NOTREADY
        for container in self.containers.values():
            if container.pod_id == pod.id:
                container.state = cri_pb2.CONTAINER_EXITED
        return b""

    def _RemovePodSandbox(self, request: Any, message: bytes) -> Reply:
        if self.pods.pop(pod_id := request.pod_sandbox_id, None) is None:
            raise Absent(f"sandbox {pod_id!r}")
        self.containers = {key: value for key, value in self.containers.items() if value.pod_id != pod_id}
        return b""

    def _UpdatePodSandboxResources(self, request: Any, message: bytes) -> Reply:
        self._pod(request).updates.append(message)
        return b""

    def _PodSandboxStatus(self, request: Any, message: bytes) -> Reply:
        pod, shape = self._pod(request), self.shape
        handler = pod.run.runtime_handler
        status = cri_pb2.PodSandboxStatus(**self._pod_fields(pod), runtime_handler=shape.status_handler(handler))
        if not request.verbose:
            return cri_pb2.PodSandboxStatusResponse(status=status)
        if shape.verbose_pod_fails is not None:
            raise Refused(shape.verbose_pod_fails, f"sandbox {pod.id!r}: not found")
        info = shape.pod_info and shape.pod_info(pod.id, pod.run.config, handler)
        return cri_pb2.PodSandboxStatusResponse(status=status, info=_info(info))

    def _ListPodSandbox(self, request: Any, message: bytes) -> Reply:
        handler = self.shape.listed_handler
        items = [
            cri_pb2.PodSandbox(**self._pod_fields(pod), runtime_handler=handler(pod.run.runtime_handler))
            for pod in self.pods.values()
            if pod.id.startswith(request.filter.id)
        ]
        return cri_pb2.ListPodSandboxResponse(items=items)

    def _pod_fields(self, pod: Pod) -> dict[str, Any]:
        fields = _fields(pod, pod.run.config)
        return {**fields, "labels": {**fields["labels"], **self.shape.pod_labels}} if fields["labels"] else fields

    def _CreateContainer(self, request: Any, message: bytes) -> Reply:
        pod, new_id = self._pod(request), self._new_id()
        self._check(CREATE, request.config.linux.resources, new_id)
        config = pod.run.config if self.shape.own_parent else request.sandbox_config
        path = self.shape.cgroup_path(config.linux.cgroup_parent, new_id)
        self.containers[new_id] = Container(new_id, pod.id, message, time.time_ns(), self.shape, path)
        return cri_pb2.CreateContainerResponse(container_id=new_id)

    def _StartContainer(self, request: Any, message: bytes) -> Reply:
        container = self._container(request)
        if container.state != cri_pb2.CONTAINER_CREATED:
            raise Refused(grpc.StatusCode.UNKNOWN, f"container {container.id!r} is not in created state")
        self._check(START, container.create.config.linux.resources, container.id)
        container.state, container.started_at = cri_pb2.CONTAINER_RUNNING, time.time_ns()
        return b""

    def _UpdateContainerResources(self, request: Any, message: bytes) -> Reply:
        container = self._container(request)
        self._check(UPDATE, request.linux, container.id)
        container.updates.append(message)
        return b""

    def _StopContainer(self, request: Any, message: bytes) -> Reply:
        self._container(request).state = cri_pb2.CONTAINER_EXITED
        return b""

    def _RemoveContainer(self, request: Any, message: bytes) -> Reply:
        if self.containers.pop(request.container_id, None) is None:
            raise Absent(f"container {request.container_id!r}")
        return b""

    def _ContainerStatus(self, request: Any, message: bytes) -> Reply:
        container = self._container(request)
        create = container.create
        status = cri_pb2.ContainerStatus(**_fields(container, create.config), started_at=container.started_at)
        if self.shape.reports_resources:
            status.resources.linux.CopyFrom(container.resources)
        report = self.shape.container_info if request.verbose else None
        info = report and report(container.id, container.pod_id, create, container.resources, container.cgroup_path)
        return cri_pb2.ContainerStatusResponse(status=status, info=_info(info))

    def _ListContainers(self, request: Any, message: bytes) -> Reply:
        if self.big_list is not None:
            return self.big_list
        listed = [
            cri_pb2.Container(**_fields(found, found.create.config), pod_sandbox_id=found.pod_id)
            for found in self.containers.values()
            if found.id.startswith(request.filter.id) and request.filter.pod_sandbox_id in ("", found.pod_id)
        ]
        return cri_pb2.ListContainersResponse(containers=listed)

    def _ExecSync(self, request: Any, message: bytes) -> Reply:
        container = self._container(request)
        if container.state != cri_pb2.CONTAINER_RUNNING:
            raise Refused(grpc.StatusCode.UNKNOWN, f"container {container.id!r} is not in running state")
        return inside.run(request.cmd, container.create.config, container.resources)


def _create_key(method: str, request: Any) -> tuple[str, str, bytes]:
    """Return the key of a create: its metadata, and the pod's id of a container."""
    pod_id = request.pod_sandbox_id if method == CREATE else ""
    return method, pod_id, request.config.metadata.SerializeToString(deterministic=True)


def _find(records: Mapping[str, Record], key: str, kind: str) -> Record:
    """Return a record by its id, or by a prefix if only one matches, as containerd does."""
    if key in records:
        return records[key]
    matches = [any_id for any_id in records if any_id.startswith(key)]
    if len(matches) != 1 or not key:
        raise Absent(f"{kind} {key!r}")
    return records[matches[0]]


def _fields(record: Pod | Container, config: Any) -> dict[str, Any]:
    """Return the fields that a list and a status share."""
    own = {"id": record.id, "state": record.state, "created_at": record.created_at}
    if isinstance(record, Container):
        own |= {"image": config.image, "image_ref": IMAGE_REFERENCE}
    return {**own, "metadata": config.metadata, "labels": config.labels, "annotations": config.annotations}


def _info(values: Mapping[str, Any] | None) -> dict[str, str]:
    return {} if values is None else {"info": json.dumps(values, separators=(",", ":"))}  # as Go writes it
