"""Put an adjustment into the JSON body of a Docker request.

Owns which part of an adjustment goes to which member of which body, what Docker's API cannot express, and the extra
update of PreStartContainer.
Must not know: how JSON is rewritten (``wire.json``), who asked for a change, how a cgroup driver spells a parent.
Invariant: a body differs in the changed members only, and without a change the result is the same object; the daemon's
own checks hold (docs/docker-mode.rst, "Daemon checks"; moby's adaptContainerSettings, verifyPlatformContainerResources
and UpdateContainer). Raises WireError where a body is not JSON or not of the request's kind.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from runtimeproxy.docker.resources import LABEL_PREFIX, RESOURCE_TABLE
from runtimeproxy.errors import WireError
from runtimeproxy.model import fields
from runtimeproxy.model.fields import MEMORY, SWAP, Changes, Resources
from runtimeproxy.model.values import Adjustment
from runtimeproxy.wire.json import Chosen, Edit, Elements, Members, Object, Put, parse, rewrite

_CPU_LIMITS = frozenset({"cpu_quota", "cpu_period"})
_EMPTY = Object(())
_OBJECT = re.compile(rb"[ \t\n\r]*\{").match


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
    edited = rewrite(body, Members(_resources(document, put_in))) if put_in else body
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
    edits = _resources(host, _in_create(_memory_of(host), resources))
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


def _resources(asked: Object, said: Changes) -> dict[str, Edit]:
    """Set resource fields; a CPU quota or period clears NanoCpus, which means the same and excludes both."""
    edits: dict[str, Edit] = {}
    for name, value in said.items():
        edits |= _put(asked, RESOURCE_TABLE[name], value)
    if _CPU_LIMITS & said.keys():
        edits |= _put(asked, "NanoCpus", 0)
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
