"""Parse the bodies of Docker's requests into values of ``model``.

Owns which part of a create or an update becomes which part of a pod or a container, and the parts of a name.
Must not know: how a body is edited (``edit``), what inspect adds (``status``), the forms of a cgroup parent.
Invariant: nothing but ``Unreadable`` is raised, whatever the bytes, and its text has none of them. The same pod gives
the same hook message as in CRI mode, as far as dockershim passes it on (docs/docker-mode.rst, "Bodies").

What dockershim adds to the kubelet's values is removed: its labels, and the CPU shares and the OOM score of every pause
container. Without them a sandbox has no resources, as in CRI, where resources are the pod's and not the pause
container's. ``runtime_handler`` is HostConfig.Runtime: "" where the pod names none, as in CRI. Half a surrogate pair in
a text becomes U+FFFD, as in Go, so that a body equals what inspect shows of it later.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from runtimeproxy.core.call import FIELDS_LIMIT, TOO_MANY_FIELDS, Unreadable
from runtimeproxy.docker.resources import (
    CONTAINER_NAME_LABEL,
    CONTAINER_TYPE,
    LABEL_PREFIX,
    LOGPATH_LABEL,
    POD_NAME_LABEL,
    POD_NAMESPACE_LABEL,
    POD_TYPE,
    POD_UID_LABEL,
    RESOURCE_TABLE,
    SANDBOX_LABEL,
    TYPE_LABEL,
)
from runtimeproxy.errors import WireError
from runtimeproxy.model.fields import ROWS, TEXT_FIELDS, Resources, named, overlay
from runtimeproxy.model.values import ContainerInfo, PodInfo
from runtimeproxy.wire import json
from runtimeproxy.wire.json import Object

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
