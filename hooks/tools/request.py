"""The request to a hook server, as YAML that a user writes.

Invariant: every error names the line and the key and never a value; no part of the user's text is silently omitted.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import ROWS, ContainerInfo, HookRequest, Kind, PodInfo, Resources
from runtimeproxy.model.hookpoints import HookPoint, SubjectKind
from runtimeproxy.settings.yamltext import NULL, Place, compose, pairs, scalar

STANDARD_INPUT = "-"
_EXAMPLE = "example.yaml"
_BEFORE_CREATE = "PreCreateContainer"
_INT64 = (-(2**63), 2**63 - 1)
_UINT32 = (0, 2**32 - 1)
_UINT64 = (0, 2**64 - 1)

Reader = Callable[[yaml.Node, Place], Any]


# -- reading ---------------------------------------------------------------------------------------------------------


def read(path: str) -> HookRequest:
    """Return the request in a file, "-" for standard input. Raises ConfigError."""
    origin = "standard input" if path == STANDARD_INPUT else path
    try:
        content = sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()
        return parse(content.decode(), origin)
    except OSError as error:
        raise ConfigError(f"{origin}: the request cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{origin}: no UTF-8 text; write the request as YAML") from None


def example_text() -> str:
    return resources.files("runtimeproxy_hooks.tools").joinpath(_EXAMPLE).read_text(encoding="utf-8")


def example() -> HookRequest:
    """Return the default request, with several entries in each map and all numbers set."""
    return parse(example_text(), _EXAMPLE)


def parse(text: str, origin: str) -> HookRequest:
    """Return the request in a YAML text. Raises ConfigError, naming ``origin``, the line and the key."""
    root = compose(text, origin)
    values = {} if root is None or root.tag == NULL else _fields(root, Place(origin), _REQUEST)
    return HookRequest(values.get("pod", PodInfo()), values.get("container"))


def _fields(node: yaml.Node, place: Place, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the values of a message's keys; a key without a value counts as absent. Raises ConfigError."""
    values: dict[str, Any] = {}
    for key, value in pairs(node, place):
        if key not in readers:
            raise place.inside(key).fault(value, f"unknown key; {_nearest(key, readers)}")
        if value.tag != NULL:
            values[key] = readers[key](value, place.inside(key))
    return values


def _nearest(key: str, readers: Mapping[str, Reader]) -> str:
    near = get_close_matches(key, readers, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(readers)}"


def _number(span: tuple[int, int]) -> Reader:
    def read_number(node: yaml.Node, place: Place) -> int:
        try:
            number = int(scalar(node, place))
        except ValueError:
            raise place.fault(node, "write a whole number, without a unit") from None
        if not span[0] <= number <= span[1]:
            raise place.fault(node, f"write a number from {span[0]} to {span[1]}")
        return number

    return read_number


def _entries(reader: Reader) -> Reader:
    return lambda node, place: {key: reader(value, place.inside(key)) for key, value in pairs(node, place)}


def _message(kind: type[PodInfo | ContainerInfo | Resources], readers: Mapping[str, Reader]) -> Reader:
    return lambda node, place: kind(**_fields(node, place, readers))


_READERS: Mapping[Kind, Reader] = {
    Kind.NUMBER: _number(_INT64),
    Kind.TEXT: scalar,
    Kind.NUMBERS: _entries(_number(_UINT64)),
    Kind.TEXTS: _entries(scalar),
}
_RESOURCES = {name: _READERS[row.kind] for name, row in ROWS.items()}
_COMMON: Mapping[str, Reader] = {
    "name": scalar,
    "attempt": _number(_UINT32),
    "annotations": _entries(scalar),
    "cgroup_parent": scalar,
    "resources": _message(Resources, _RESOURCES),
}
_POD: Mapping[str, Reader] = {
    **_COMMON,
    "uid": scalar,
    "namespace": scalar,
    "runtime_handler": scalar,
    "labels": _entries(scalar),
    "overhead": _message(Resources, _RESOURCES),
}
_CONTAINER: Mapping[str, Reader] = {**_COMMON, "id": scalar, "envs": _entries(scalar)}
_REQUEST: Mapping[str, Reader] = {"pod": _message(PodInfo, _POD), "container": _message(ContainerInfo, _CONTAINER)}


# -- sending ----------------------------------------------------------------------------------------------------------


def at_hook_point(hook_point: HookPoint, request: HookRequest) -> HookRequest:
    """Return the part of a request that the proxy sends at a hook point, as the hook server reads it. Raises
    ConfigError if the request has no container at a container's hook point."""
    return codec.decode_request(hook_point, encoded(hook_point, request))


def encoded(hook_point: HookPoint, request: HookRequest) -> bytes:
    """Return the encoded message of a request at a hook point. Raises ConfigError as ``at_hook_point`` does."""
    container = request.container
    if hook_point.subject is SubjectKind.CONTAINER and container is None:
        raise ConfigError(
            f"{hook_point.name} is about a container, and the request has none: add 'container: {{name: main}}'"
        )
    if container is not None and hook_point.name == _BEFORE_CREATE:
        request = replace(request, container=replace(container, id=""))
    return codec.encode(hook_point, request)


def unsent(hook_point: HookPoint, request: HookRequest) -> tuple[str, ...]:
    """Return the names of the fields of a request that the proxy does not send at a hook point."""
    received = at_hook_point(hook_point, request)
    lost = [f"pod.{name}" for name in _differing(request.pod, received.pod)]
    if request.container is None:
        return tuple(lost)
    if received.container is None:
        return (*lost, "container")
    return (*lost, *(f"container.{name}" for name in _differing(request.container, received.container)))


def _differing(given: PodInfo | ContainerInfo, received: PodInfo | ContainerInfo) -> Iterator[str]:
    for field in fields(given):
        # A container's own cgroup parent is sent in place of its pod's.
        own_parent = field.name == "cgroup_parent" and isinstance(given, ContainerInfo)
        given_value = getattr(given, field.name)
        if given_value and not own_parent and given_value != getattr(received, field.name):
            yield field.name
