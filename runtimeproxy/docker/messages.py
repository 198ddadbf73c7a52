"""Read the bodies of Docker's requests into values of ``model``, and put an adjustment into a body.

No other file names Docker's keys and labels (docs/docker-mode.rst, "Names and labels" and "Bodies"). The same pod gives
the same hook message as in CRI mode, as far as dockershim passes it on.
Invariants: reading raises nothing but ``Unreadable``, whatever the bytes, and its text has none of them. An edited body
differs in the changed members only, and without a change the result is the same object. The daemon's own checks hold
("Daemon checks"; moby's adaptContainerSettings, verifyPlatformContainerResources and UpdateContainer). Editing raises
WireError where a body is not JSON or not of the request's kind.

What dockershim adds to the kubelet's values is removed: its labels, and the CPU shares and the OOM score of every pause
container. Without them a sandbox has no resources, as in CRI, where resources are the pod's and not the pause
container's. ``runtime_handler`` is HostConfig.Runtime: "" where the pod names none, as in CRI. Half a surrogate pair in
a text becomes U+FFFD, as in Go, so that a body equals what inspect shows of it later.
A cgroup parent in CRI is a path from the root of the cgroup tree with both drivers; Docker under systemd has one slice
(systemd.slice(5): a-b.slice is inside a.slice, "-.slice" is the root, no part is empty).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from runtimeproxy.core.call import FIELDS_LIMIT, TOO_MANY_FIELDS, Unreadable
from runtimeproxy.errors import WireError
from runtimeproxy.model import fields
from runtimeproxy.model.fields import MEMORY, ROWS, SWAP, TEXT_FIELDS, Changes, Resources, named, overlay
from runtimeproxy.model.values import Adjustment, ContainerInfo, PodInfo
from runtimeproxy.wire import json
from runtimeproxy.wire.json import Chosen, Edit, Elements, Members, Object, Put, parse, rewrite

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

LABEL_PREFIX = "annotation."
"""What dockershim puts before the key of a CRI annotation to make it a label."""

TYPE_LABEL = "io.kubernetes.docker.type"
POD_TYPE = "podsandbox"
CONTAINER_TYPE = "container"
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
    """Return the driver for a CgroupDriver text; any unknown one ("none") takes paths unchanged, like cgroupfs."""
    return Driver.SYSTEMD if text == Driver.SYSTEMD.value else Driver.CGROUPFS


def to_cri(parent: str, driver: Driver) -> str:
    """Return HostConfig.CgroupParent as CRI's path; "" (the daemon's default) stays ""."""
    if driver is Driver.CGROUPFS:
        return parent
    if parent == _ROOT:
        return "/"
    match = _SLICE.fullmatch(parent)
    if match is None:
        return parent
    parts = match[1].split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))


def to_docker(path: str, driver: Driver) -> str:
    """Return CRI's path as HostConfig.CgroupParent."""
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
    """The parts of the name of a pod sandbox or a container (docs/docker-mode.rst, "Names and labels").

    The name is k8s_<container>_<pod>_<namespace>_<uid>_<attempt>, with one more part after a conflict of names; a pod
    sandbox has POD for the container.
    """

    container: str
    pod: str
    namespace: str
    uid: str
    attempt: int


_NAME = re.compile(r"/?k8s_([^_]+)_([^_]+)_([^_]+)_([^_]+)_([0-9]{1,10})(?:_[^_]+)?")


_OF_SANDBOX = "POD"
_OF_PAUSE = {"cpu_shares": 2, "oom_score_adj": -998}
_OF_DOCKERSHIM = frozenset({TYPE_LABEL, CONTAINER_NAME_LABEL, SANDBOX_LABEL, LOGPATH_LABEL})
_RESTARTS = "io.kubernetes.container.restartCount"

INT64 = range(-(2**63), 2**63)
_UINT32 = range(2**32)
_DIGITS = re.compile(r"[0-9]{1,10}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TYPE_TEXT = TYPE_LABEL.encode()
_EMPTY = Object(())


def reads_json(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function so that WireError, of JSON that is invalid or ambiguous, becomes Unreadable."""

    @wraps(read)
    def reads(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return read(*args, **kwargs)
        except WireError as error:
            raise Unreadable(str(error)) from None

    return reads


def parse_name(name: str) -> DockerName | None:
    """Parse a name, with or without the leading "/" that inspect shows; None if it has not dockershim's form."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    container, pod, namespace, uid, attempt = match.groups()
    return DockerName(container, pod, namespace, uid, int(attempt)) if int(attempt) in _UINT32 else None


def is_pods(body: bytes) -> bool:
    r"""Return whether a body may be that of a pod or its container, without parsing it. It has the name of the type
    label, or a \u escape, which could hide that name.
    """
    return _TYPE_TEXT in body or b"\\u" in body


@reads_json
def read_create(body: bytes, name: str) -> RequestedPod | RequestedContainer | None:
    """Read a create; None if it belongs to no pod. ``name`` is the one in the request's query. Raises Unreadable."""
    config = _asked(body)
    labels = labels_of(config)
    if kind_of(labels) is None:
        return None
    return asked(name, labels, texts_of(config, "Env"), object_of(config, "HostConfig"))


def kind_of_unreadable(body: bytes, name: str) -> str | None:
    """Return POD_TYPE or CONTAINER_TYPE for a create that cannot be read: by its labels, else by its name; None if
    neither shows it.
    """
    with suppress(Unreadable, WireError):
        if (kind := kind_of(labels_of(_asked(body)))) is not None:
            return kind
    parts = parse_name(name)
    if parts is None:
        return None
    return POD_TYPE if parts.container == _OF_SANDBOX else CONTAINER_TYPE


@reads_json
def read_update(body: bytes) -> Resources:
    """Read the resources that an update sets; Docker's update has no OOM score. Raises Unreadable."""
    return _resources(_asked(body), of_update=True)


@reads_json
def read_created_id(reply: bytes) -> str:
    """Read the id in the answer to a create. Raises Unreadable, also if it is empty."""
    return id_of(document(reply))


# ---- what a create and an inspect have in common


def kind_of(labels: Labels) -> str | None:
    """Return POD_TYPE or CONTAINER_TYPE; None if the labels are not those of a pod."""
    kind = labels.get(TYPE_LABEL)
    return kind if kind in (POD_TYPE, CONTAINER_TYPE) else None


def asked(name: str, labels: Labels, env: Sequence[str], host: Object) -> RequestedPod | RequestedContainer:
    """Return the pod or container with these labels. They take precedence over the name, which alone has the attempt.
    Raises Unreadable for a container whose labels do not name its sandbox.
    """
    parent = text_of(host, "CgroupParent")
    if kind_of(labels) == POD_TYPE:
        return RequestedPod(_pod(parse_name(name), labels, host), parent)
    return RequestedContainer(_container(parse_name(name), labels, env, host), parent)


def _pod(name: DockerName | None, labels: Labels, host: Object) -> PodInfo:
    return PodInfo(
        name=labels.get(POD_NAME_LABEL, name.pod if name else ""),
        uid=labels.get(POD_UID_LABEL, name.uid if name else ""),
        namespace=labels.get(POD_NAMESPACE_LABEL, name.namespace if name else ""),
        attempt=name.attempt if name else 0,
        runtime_handler=text_of(host, "Runtime"),
        labels={
            key: value
            for key, value in labels.items()
            if key not in _OF_DOCKERSHIM and not key.startswith(LABEL_PREFIX)
        },
        annotations=_annotations(labels),
        resources=_pod_resources(_resources(host)),
    )


def _container(name: DockerName | None, labels: Labels, env: Sequence[str], host: Object) -> ContainerInfo:
    pod_id = labels.get(SANDBOX_LABEL)
    if not pod_id:
        raise Unreadable("container of a pod without the label of its sandbox's id")
    annotations = _annotations(labels)
    return ContainerInfo(
        pod_id=pod_id,
        name=labels.get(CONTAINER_NAME_LABEL, name.container if name else ""),
        attempt=name.attempt if name else _restarts(annotations),
        annotations=annotations,
        resources=_resources(host),
        envs={key: value for key, equals, value in (entry.partition("=") for entry in env) if key and equals},
    )


def _annotations(labels: Labels) -> dict[str, str]:
    return {key.removeprefix(LABEL_PREFIX): value for key, value in labels.items() if key.startswith(LABEL_PREFIX)}


def _restarts(annotations: Labels) -> int:
    digits = annotations.get(_RESTARTS, "")
    return int(digits) if _DIGITS.fullmatch(digits) and int(digits) in _UINT32 else 0


def _resources(owner: Object, *, of_update: bool = False) -> Resources:
    values: dict[str, Any] = {
        field: text_of(owner, key) if field in TEXT_FIELDS else _number_of(owner, key)
        for field, key in RESOURCE_TABLE.items()
        if ROWS[field].in_updates or not of_update
    }
    return Resources(**values)


def _pod_resources(pause: Resources) -> Resources | None:
    """Return the resources of a pause container without those that every one has; None if none are left."""
    return overlay(None, {field: value for field, value in named(pause).items() if _OF_PAUSE.get(field) != value})


# ---- values of a JSON document


def _asked(body: bytes) -> Object:
    """Parse a request's body. Raises Unreadable, also if it has more than FIELDS_LIMIT tokens."""
    if json.has_more_tokens(body, FIELDS_LIMIT):
        raise Unreadable(TOO_MANY_FIELDS)
    return document(body)


def document(text: bytes) -> Object:
    """Parse a JSON text that is an object. Raises WireError if it is invalid, Unreadable if it is no object."""
    return _checked(json.parse(text), Object, "the whole document")


def id_of(owner: Object) -> str:
    """Return the Id. Raises Unreadable if it is missing or empty."""
    value = text_of(owner, "Id")
    if not value:
        raise Unreadable("JSON document without an Id")
    return value


def object_of(owner: Object, name: str) -> Object:
    """Return a member that is an object; an empty one if it is missing or null."""
    return _checked(owner.get(name, _EMPTY), Object, name)


def text_of(owner: Object, name: str) -> str:
    """Return a member that is a text; "" if it is missing or null."""
    return _text(owner.get(name, ""), name)


def texts_of(owner: Object, name: str) -> list[str]:
    """Return a member that is a list of texts; an empty one if it is missing or null."""
    values = _checked(owner.get(name, []), list, name)
    return values if _plain(values) else [_text(value, name) for value in values]


def labels_of(config: Object) -> dict[str, str]:
    """Return the labels of a container's or an image's config."""
    labels = object_of(config, "Labels").map()
    if _plain(labels) and _plain(labels.values()):
        return labels
    return {_text(key, "Labels"): _text(value, "Labels") for key, value in labels.items()}


def _number_of(owner: Object, name: str) -> int:
    value = _checked(owner.get(name, 0), int, name)
    if value not in INT64:
        raise Unreadable(f"JSON document with a number out of range in {name}")
    return value


def _plain(values: Iterable[Any]) -> bool:
    """Return whether all values are ASCII texts, which need no conversion to be what Go reads."""
    try:
        return all(map(str.isascii, values))
    except TypeError:
        return False


def _text(value: Any, name: str) -> str:
    """Return a text as Go reads it: null in a list or a map is "", half a surrogate pair U+FFFD."""
    text = _checked("" if value is None else value, str, name)
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _checked(value: Any, kind: type[_T], name: str) -> _T:
    """Return a value of exactly the type ``kind``, so that True is no int. Raises Unreadable for another type."""
    if type(value) is not kind:
        raise Unreadable(f"JSON document with a value of the wrong type in {name}")
    return value


_OBJECT = re.compile(rb"[ \t\n\r]*\{").match
_CPU_LIMITS = frozenset({"cpu_quota", "cpu_period"})


def edit_pod(body: bytes, adjustment: Adjustment, cgroup_parent: str | None) -> bytes:
    """Put labels, annotations, resources and a cgroup parent into the create of a pod sandbox. ``cgroup_parent`` is in
    the form of Docker's cgroup driver, None to leave the body's; the adjustment's own field is ignored.
    """
    labels = {**adjustment.labels, **_labels(adjustment.annotations)}
    return _edit_create(body, labels, {}, adjustment.resources, cgroup_parent)


def edit_container(body: bytes, adjustment: Adjustment, cgroup_parent: str | None) -> bytes:
    """Put annotations, envs, resources and a cgroup parent (as in ``edit_pod``) into the create of a container."""
    labels = _labels(adjustment.annotations)
    return _edit_create(body, labels, adjustment.envs, adjustment.resources, cgroup_parent)


@dataclass(frozen=True, slots=True)
class Update:
    """An update to send: its body, the resource fields put in, and the names of those that an update cannot set, and of
    those for which it has another value that means the same. A field put in as 0 or "" cancels the request's own value:
    the container keeps what it has.
    """

    body: bytes
    resources: Changes
    left_out: tuple[str, ...]
    respelt: tuple[str, ...] = ()


def edit_update(body: bytes, changes: Changes, present: Resources) -> Update:
    """Put resources into the body of an update; ``present`` is what the container has now. Raises WireError."""
    if not changes:
        return Update(body, {}, ())
    document = _object(parse(body), "the body")
    sent = _in_update(_memory_of(document), present, changes)
    put_in = {name: value for name, value in sent.items() if value or document.get(RESOURCE_TABLE[name])}
    edited = rewrite(body, Members(_resource_edits(document, put_in))) if put_in else body
    return Update(edited, put_in, fields.left_out(changes, sent, present), fields.respelt(changes, sent))


def update_body(changes: Changes, present: Resources) -> Update:
    """Make an update that has only the changes; if the result has no ``resources`` there is no update to send."""
    return edit_update(b"{}", changes, present)


def left_out_of_create(changes: Changes) -> tuple[str, ...]:
    """Return the names of the changed fields that a create cannot carry."""
    return tuple(sorted(changes.keys() - RESOURCE_TABLE.keys()))


def respelt_in_create(changes: Changes) -> tuple[str, ...]:
    """Return the names of the changed fields for which a create has another value that means the same."""
    return fields.respelt(changes, fields.in_create(changes))


# -- the values that Docker's API takes ------------------------------------------------------------------------------


def _in_create(requested: Resources, changes: Changes) -> Changes:
    """Return the fields to put into a create; ``requested`` are the body's own memory limits. A swap limit changes with
    the memory limit.
    """
    sent = fields.in_create(_known(changes))
    if MEMORY in sent and SWAP not in sent:
        limits = requested.memory_limit_in_bytes, requested.memory_swap_limit_in_bytes
        return {**sent, SWAP: fields.swap_for(*limits, sent[MEMORY])}
    return sent


def _in_update(requested: Resources, present: Resources, changes: Changes) -> Changes:
    """Return the fields to put into an update; ``requested`` are the body's own memory limits.

    0 and "" leave a field unchanged, so an update cannot remove a memory limit; a container without one keeps none. The
    daemon rejects a memory limit above the container's swap limit, so a swap limit is always set with a memory limit.
    """
    sent = fields.in_update(_known(changes), None if present.memory_limit_in_bytes else 0)
    if sent.get(MEMORY) and not sent.get(SWAP):
        memory, swap = fields.limits_before(requested, present)
        sent[SWAP] = fields.swap_for(memory, swap or 2 * memory, sent[MEMORY])  # the daemon's default in a create
    elif MEMORY in sent and requested.memory_limit_in_bytes:
        sent.setdefault(SWAP, 0)
    return sent


def _known(changes: Changes) -> Changes:
    """Return the fields that Docker's API has, in their order in it."""
    return {name: changes[name] for name in RESOURCE_TABLE if name in changes}


# -- the members of a body -------------------------------------------------------------------------------------------


def _edit_create(
    body: bytes, labels: Mapping[str, str], envs: Mapping[str, str], resources: Changes, cgroup_parent: str | None
) -> bytes:
    if not (labels or envs or resources or cgroup_parent is not None):
        return body
    if not _OBJECT(body):
        raise WireError("the body is not a JSON object")
    edits: dict[str, Edit] = {}
    if labels:
        edits["Labels"] = Members({key: Put(labels[key]) for key in sorted(labels)}, exact=True)
    if envs:
        edits["Env"] = Chosen(lambda elements: _envs([] if elements is None else elements, envs))
    if resources or cgroup_parent is not None:
        edits["HostConfig"] = Chosen(partial(_host_config, resources, cgroup_parent))
    return rewrite(body, Members(edits))


def _host_config(resources: Changes, cgroup_parent: str | None, found: Any) -> Members:
    host = _object(_EMPTY if found is None else found, "HostConfig")
    edits = _resource_edits(host, _in_create(_memory_of(host), resources))
    if cgroup_parent is not None:
        edits |= _put(host, "CgroupParent", cgroup_parent)
    return Members(edits)


def _labels(annotations: Mapping[str, str]) -> dict[str, str]:
    return {LABEL_PREFIX + key: value for key, value in annotations.items()}


def _envs(elements: Any, envs: Mapping[str, str]) -> Elements:
    """Set entries of Env. Of several with one key the last counts, also a bare key, which unsets the image's value."""
    if not isinstance(elements, list):
        raise WireError("Env is not a list")
    places = {element.partition("=")[0]: index for index, element in enumerate(elements) if isinstance(element, str)}
    changed = {places[key]: f"{key}={value}" for key, value in envs.items() if key in places}
    added = [f"{key}={envs[key]}" for key in sorted(envs) if key not in places]
    return Elements(changed, added)


def _resource_edits(owner: Object, requested: Changes) -> dict[str, Edit]:
    """Set resource fields; a CPU quota or period clears NanoCpus, which means the same and excludes both."""
    edits: dict[str, Edit] = {}
    for name, value in requested.items():
        edits |= _put(owner, RESOURCE_TABLE[name], value)
    if _CPU_LIMITS & requested.keys():
        edits |= _put(owner, "NanoCpus", 0)
    return edits


def _put(asked: Object, key: str, value: Any) -> dict[str, Edit]:
    """Set a member, unless it is missing and the value is the zero that a missing member means."""
    return {key: Put(value)} if value or asked.get(key) else {}


def _memory_of(owner: Object) -> Resources:
    """Return the memory and swap limits of a body, in bytes. Raises WireError."""
    memory, swap = (_number(owner, RESOURCE_TABLE[name]) for name in (MEMORY, SWAP))
    return Resources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=swap)


def _number(owner: Object, key: str) -> int:
    value = owner.get(key, 0)
    if type(value) is not int:
        raise WireError(f"{key} is not a whole number")
    return value


def _object(value: Any, name: str) -> Object:
    if not isinstance(value, Object):
        raise WireError(f"{name} is not a JSON object")
    return value
