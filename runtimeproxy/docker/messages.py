"""Read the bodies of Docker's requests into values of ``model``, and put an adjustment into a body.

Readers raise only ``Unreadable``, whose text has none of the bytes; editors raise WireError. An edited body differs
only in the changed members; without a change the result is the same object. Edited values pass the daemon's checks
(docs/docker-mode.rst, "Daemon checks"; moby's adaptContainerSettings, verifyPlatformContainerResources,
UpdateContainer). Readers remove dockershim's own labels, and the CPU shares and OOM score of its pause containers.
Half a surrogate pair becomes U+FFFD, as in Go, so that a body equals a later inspect.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from runtimeproxy.core.call import FIELDS_LIMIT, TOO_MANY_FIELDS, Unreadable
from runtimeproxy.errors import WireError
from runtimeproxy.model import fields
from runtimeproxy.model.fields import MEMORY, SWAP, Changes, ContainerInfo, PodInfo, Resources
from runtimeproxy.wire import json
from runtimeproxy.wire.json import Chosen, Edit, Elements, Members, Object, Put, Table, read_members

RESOURCE_TABLE: dict[str, str] = {
    "cpu_period": "CpuPeriod",
    "cpu_quota": "CpuQuota",
    "cpu_shares": "CpuShares",
    "memory_limit_in_bytes": "Memory",
    "oom_score_adj": "OomScoreAdj",
    "cpuset_cpus": "CpusetCpus",
    "cpuset_mems": "CpusetMems",
    "memory_swap_limit_in_bytes": "MemorySwap",
}
"""Maps a field of ``Resources`` to its key in Docker's HostConfig; Docker's API has no other fields."""

# The members that are read from a create and from an inspected container.
LABELS: Table = {"labels": ("Labels", dict)}
ENV_AND_HOST: Table = {"env": ("Env", list), "host": ("HostConfig", Object)}
_PARENT: Table = {"parent": ("CgroupParent", str)}
_RUNTIME: Table = {"runtime": ("Runtime", str)}
_RESOURCES: Table = {name: (key, fields.ROWS[name].kind.type) for name, key in RESOURCE_TABLE.items()}
_UPDATE_RESOURCES: Table = {name: row for name, row in _RESOURCES.items() if fields.ROWS[name].in_updates}
_ID: Table = {"id": ("Id", str)}

LABEL_PREFIX = "annotation."  # before the key of a CRI annotation that dockershim makes a label
TYPE_LABEL = "io.kubernetes.docker.type"
POD_TYPE = "podsandbox"
CONTAINER_TYPE = "container"
TYPES = (POD_TYPE, CONTAINER_TYPE)
SANDBOX_LABEL = "io.kubernetes.sandbox.id"
LOGPATH_LABEL = "io.kubernetes.container.logpath"
POD_NAME_LABEL = "io.kubernetes.pod.name"
POD_NAMESPACE_LABEL = "io.kubernetes.pod.namespace"
POD_UID_LABEL = "io.kubernetes.pod.uid"
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"


class Driver(Enum):
    """The daemon's cgroup driver; the value is the CgroupDriver of its /info."""

    __hash__ = object.__hash__

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


_ROOT = "-.slice"
_SLICE = re.compile(r"([^-/]+(?:-[^-/]+)*)\.slice")


def driver(text: str) -> Driver:
    """Return the driver for a CgroupDriver text; paths stay unchanged for any other text ("none"), as for cgroupfs."""
    return Driver.SYSTEMD if text == Driver.SYSTEMD.value else Driver.CGROUPFS


def to_cri(parent: str | None, driver: Driver) -> str | None:
    """Return HostConfig.CgroupParent as CRI's path from the root of the cgroup tree; "", the daemon's default, stays.
    Docker under systemd has one slice (systemd.slice(5)): a-b.slice is inside a.slice, "-.slice" is the root."""
    if driver is Driver.CGROUPFS or parent is None:
        return parent
    if parent == _ROOT:
        return "/"
    match = _SLICE.fullmatch(parent)
    if match is None:
        return parent
    parts = match[1].split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))


def to_docker(path: str, driver: Driver) -> str:
    if driver is Driver.CGROUPFS or "/" not in path:
        return path
    return path.rstrip("/").rpartition("/")[2] or _ROOT


Labels = Mapping[str, str]
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RequestedPod:
    """A pod sandbox, and its cgroup parent in Docker's form, None if unknown; ``pod.cgroup_parent`` is not set."""

    pod: PodInfo
    cgroup_parent: str | None


@dataclass(frozen=True, slots=True)
class RequestedContainer:
    """A container of a pod, and its cgroup parent in Docker's form, None if unknown; ``container`` has none set."""

    container: ContainerInfo
    cgroup_parent: str | None


@dataclass(frozen=True, slots=True)
class DockerName:
    """The name k8s_<container>_<pod>_<namespace>_<uid>_<attempt> (docs/docker-mode.rst, "Names and labels"). After a
    conflict of names it has another part. The container of a pod sandbox is POD."""

    container: str
    pod: str
    namespace: str
    uid: str
    attempt: int


_NAME = re.compile(r"/?k8s_([^_]+)_([^_]+)_([^_]+)_([^_]+)_([0-9]{1,10})(?:_[^_]+)?")

_SANDBOX_NAME = "POD"
_DEFAULTS = {"cpu_shares": 2, "oom_score_adj": -998}
_DOCKERSHIM_LABELS = frozenset({TYPE_LABEL, CONTAINER_NAME_LABEL, SANDBOX_LABEL, LOGPATH_LABEL})
_RESTART_COUNT = "io.kubernetes.container.restartCount"

_UINT32 = range(2**32)
_DIGITS = re.compile(r"[0-9]{1,10}")
_TYPE_TEXT = TYPE_LABEL.encode()


def reads_json(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function to raise Unreadable for a WireError, that is, for invalid or ambiguous JSON."""

    @wraps(read)
    def reads(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return read(*args, **kwargs)
        except WireError as error:
            raise Unreadable(str(error)) from None

    return reads


def parse_name(name: str) -> DockerName | None:
    """Parse a name, with or without inspect's leading "/"; None if it has not dockershim's form."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    container, pod, namespace, uid, attempt = match.groups()
    return DockerName(container, pod, namespace, uid, int(attempt)) if int(attempt) in _UINT32 else None


def may_belong_to_pod(body: bytes) -> bool:
    r"""Return whether a body may be of a pod or its container: it has the type label, or a \u escape."""
    return _TYPE_TEXT in body or b"\\u" in body


@reads_json
def read_create(body: bytes, name: str) -> RequestedPod | RequestedContainer | None:
    """Read a create; None if it belongs to no pod. ``name`` is from the request's query. Raises Unreadable."""
    config = document(body, of_request=True)
    labels = read_members(config, LABELS)["labels"]
    return requested(name, labels, **read_members(config, ENV_AND_HOST)) if labels.get(TYPE_LABEL) in TYPES else None


def kind_of_unreadable(body: bytes, name: str) -> str | None:
    """Return the kind of a create that cannot be read, by its labels, else by its name; None if neither shows it."""
    with suppress(Unreadable, WireError):
        kind: str | None = read_members(document(body, of_request=True), LABELS)["labels"].get(TYPE_LABEL)
        if kind in TYPES:
            return kind
    parts = parse_name(name)
    if parts is None:
        return None
    return POD_TYPE if parts.container == _SANDBOX_NAME else CONTAINER_TYPE


@reads_json
def read_update(body: bytes) -> Resources:
    """Read the resources that an update sets; Docker's update has no OOM score. Raises Unreadable."""
    return Resources(**read_members(document(body, of_request=True), _UPDATE_RESOURCES))


@reads_json
def read_created_id(reply: bytes) -> str:
    """Read the id in the answer to a create. Raises Unreadable, also if it is empty."""
    return id_of(document(reply))


def document(text: bytes, *, of_request: bool = False) -> Object:
    """Parse a JSON object. Raises WireError, and Unreadable for a request of more than FIELDS_LIMIT tokens."""
    if of_request and json.has_more_tokens(text, FIELDS_LIMIT):
        raise Unreadable(TOO_MANY_FIELDS)
    value = json.parse(text)
    if isinstance(value, Object):
        return value
    raise WireError("JSON document with a value of the wrong type in the whole document")


def id_of(owner: Object) -> str:
    """Return the Id. Raises WireError, and Unreadable if it is missing or empty."""
    value: str = read_members(owner, _ID)["id"]
    if not value:
        raise Unreadable("JSON document without an Id")
    return value


def requested(name: str, labels: Labels, env: Sequence[str], host: Object) -> RequestedPod | RequestedContainer:
    """Return the pod or container with these labels. They take precedence over the name, but only that has the attempt.
    Raises WireError, and Unreadable for a container whose labels lack its sandbox."""
    parent = read_members(host, _PARENT)["parent"]
    parts = parse_name(name)
    prefix = len(LABEL_PREFIX)
    annotations = {key[prefix:]: value for key, value in labels.items() if key.startswith(LABEL_PREFIX)}
    if labels[TYPE_LABEL] == POD_TYPE:
        handler = read_members(host, _RUNTIME)["runtime"]
        pause = fields.named(Resources(**read_members(host, _RESOURCES)))
        pod = PodInfo(
            name=labels.get(POD_NAME_LABEL, parts.pod if parts else ""),
            uid=labels.get(POD_UID_LABEL, parts.uid if parts else ""),
            namespace=labels.get(POD_NAMESPACE_LABEL, parts.namespace if parts else ""),
            attempt=parts.attempt if parts else 0,
            runtime_handler=handler,
            labels={
                key: value
                for key, value in labels.items()
                if key not in _DOCKERSHIM_LABELS and not key.startswith(LABEL_PREFIX)
            },
            annotations=annotations,
            resources=fields.overlay(None, {key: value for key, value in pause.items() if _DEFAULTS.get(key) != value}),
        )
        return RequestedPod(pod, parent)
    pod_id = labels.get(SANDBOX_LABEL)
    if not pod_id:
        raise Unreadable("container of a pod without the label of its sandbox's id")
    restarts = annotations.get(_RESTART_COUNT, "")
    restart_count = int(restarts) if _DIGITS.fullmatch(restarts) else 0
    container = ContainerInfo(
        pod_id=pod_id,
        name=labels.get(CONTAINER_NAME_LABEL, parts.container if parts else ""),
        attempt=parts.attempt if parts else restart_count if restart_count in _UINT32 else 0,
        annotations=annotations,
        resources=Resources(**read_members(host, _RESOURCES)),
        envs={key: value for key, equals, value in (entry.partition("=") for entry in env) if key and equals},
    )
    return RequestedContainer(container, parent)


_OBJECT = re.compile(rb"[ \t\n\r]*\{").match
_CPU_LIMITS = frozenset({"cpu_quota", "cpu_period"})


def edit_create(body: bytes, adjustment: fields.Adjustment, cgroup_parent: str | None, *, is_pod: bool) -> bytes:
    """Put an adjustment into a create; only a pod gets its labels, only a container its envs. ``cgroup_parent`` has the
    form of Docker's cgroup driver, None to leave the body's; the adjustment's own field is ignored."""
    labels = {LABEL_PREFIX + key: value for key, value in adjustment.annotations.items()}
    if is_pod:
        labels = {**adjustment.labels, **labels}
    envs, resources = {} if is_pod else adjustment.envs, adjustment.resources
    if not (labels or envs or resources or cgroup_parent is not None):
        return body
    if not _OBJECT(body):
        raise WireError("the body is not a JSON object")
    edits: dict[str, Edit] = {}
    if labels:
        edits["Labels"] = Members({key: Put(labels[key]) for key in sorted(labels)}, exact=True)
    if envs:
        edits["Env"] = Chosen(partial(_envs, envs))
    if resources or cgroup_parent is not None:
        edits["HostConfig"] = Chosen(partial(_host_config, resources, cgroup_parent))
    return json.rewrite(body, Members(edits))


@dataclass(frozen=True, slots=True)
class Update:
    """An update to send, with the names of fields that it cannot set, and of those that it sets to equivalent values.
    A field put in as 0 or "" cancels the request's own value: the container keeps its value."""

    body: bytes
    resources: Changes
    unsupported: tuple[str, ...]
    normalised: tuple[str, ...] = ()


def edit_update(body: bytes, changes: Changes, current: Resources) -> Update:
    """Put resources into the body of an update; ``current`` are the container's resources. Raises WireError."""
    if not changes:
        return Update(body, {}, ())
    document = json.parse(body)
    requested = _limits(document, "the body")
    # 0 and "" leave a field unchanged, so an update cannot remove a memory limit, only repeat that there is none.
    # The daemon rejects a memory limit above the container's swap limit, so both are always set together.
    settable = {name: changes[name] for name in RESOURCE_TABLE if name in changes}
    sent = fields.in_update(settable, None if current.memory_limit_in_bytes else 0)
    if sent.get(MEMORY) and not sent.get(SWAP):
        memory, swap = fields.limits_before(requested, current)
        sent[SWAP] = fields.swap_for(memory, swap or 2 * memory, sent[MEMORY])  # the daemon's default in a create
    elif MEMORY in sent and requested.memory_limit_in_bytes:
        sent.setdefault(SWAP, 0)
    put_in = {name: value for name, value in sent.items() if value or document.get(RESOURCE_TABLE[name])}
    edited = json.rewrite(body, Members(_resource_edits(document, put_in))) if put_in else body
    return Update(edited, put_in, fields.unsupported_changes(changes, sent, current), fields.converted(changes, sent))


def check_create_fields(changes: Changes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of changed fields that a create cannot set, and of those that it sets to equivalent values."""
    return tuple(sorted(changes.keys() - RESOURCE_TABLE.keys())), fields.converted(changes, fields.in_create(changes))


def _host_config(resources: Changes, cgroup_parent: str | None, value: Any) -> Members:
    """Edit HostConfig. A swap limit changes with the memory limit."""
    host = Object() if value is None else value
    limits = _limits(host, "HostConfig")
    sent = fields.in_create({name: resources[name] for name in RESOURCE_TABLE if name in resources})
    if MEMORY in sent and SWAP not in sent:
        swap = fields.swap_for(limits.memory_limit_in_bytes, limits.memory_swap_limit_in_bytes, sent[MEMORY])
        sent = {**sent, SWAP: swap}
    edits = _resource_edits(host, sent)
    if cgroup_parent or (cgroup_parent is not None and host.get("CgroupParent")):
        edits["CgroupParent"] = Put(cgroup_parent)
    return Members(edits)


def _envs(envs: Mapping[str, str], elements: Any) -> Elements:
    """Set entries of Env. The last entry with a key counts, also a bare key, which unsets the image's value."""
    if elements is None:
        elements = []
    if not isinstance(elements, list):
        raise WireError("Env is not a list")
    indices = {element.partition("=")[0]: index for index, element in enumerate(elements) if isinstance(element, str)}
    changed = {indices[key]: f"{key}={value}" for key, value in envs.items() if key in indices}
    added = [f"{key}={envs[key]}" for key in sorted(envs) if key not in indices]
    return Elements(changed, added)


def _resource_edits(owner: Object, requested: Changes) -> dict[str, Edit]:
    """Set resource fields, but no missing field to zero. A CPU quota or period clears NanoCpus, which excludes both."""
    values: dict[str, Any] = {RESOURCE_TABLE[name]: value for name, value in requested.items()}
    if _CPU_LIMITS & requested.keys():
        values["NanoCpus"] = 0
    return {key: Put(value) for key, value in values.items() if value or owner.get(key)}


def _limits(owner: Any, name: str) -> Resources:
    """Return the memory and swap limits of the object ``name``, in bytes. Raises WireError if they are not numbers."""
    if not isinstance(owner, Object):
        raise WireError(f"{name} is not a JSON object")
    limits = {}
    for field in (MEMORY, SWAP):
        limits[field] = owner.get(RESOURCE_TABLE[field], 0)
        if type(limits[field]) is not int:
            raise WireError(f"{RESOURCE_TABLE[field]} is not a whole number")
    return Resources(**limits)
