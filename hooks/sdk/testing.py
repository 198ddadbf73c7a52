"""A tester for hooks, without sockets: it calls hooks with the fields of a request and returns their changes.

Invariant: hooks get only fields that are sent, and a Difference is the proxy's result for their answer.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from json import dumps
from typing import Any, TypedDict, Unpack, get_type_hints

from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import NO_RESOURCES, RESOURCE_FIELDS, ContainerInfo, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import HookPoint, SubjectKind
from runtimeproxy.model.merge import difference

from .hook import METHODS, Hook, call_hooks, hook_points_of, method_name

UID = "11111111-2222-4333-8444-555555555555"
CONTAINER_ID = "c0ffee" * 10 + "0123"
"""The container's default id, at all points after create."""
PATIENCE_SECONDS = 10.0
"""Largest duration of an ``async`` method."""

ResourceFields = Mapping[str, Any]
"""Values by the names of LinuxContainerResources' fields: {"cpu_shares": 2, "unified": {"memory.high": "max"}}."""


class _Call(TypedDict, total=False):
    """Fields that a test can set at each hook point; others have defaults, are empty or are not sent."""

    labels: Mapping[str, str]
    """The pod's labels."""
    annotations: Mapping[str, str]
    """The pod's annotations."""
    pod: str
    namespace: str
    uid: str
    attempt: int
    cgroup_parent: str
    resources: ResourceFields | None


class PodCall(_Call, total=False):
    """Fields that a test can set at the hook points of pods."""

    runtime_handler: str
    overhead: ResourceFields | None


class ContainerCall(_Call, total=False):
    """Fields that a test can set at a container's hook points; ``attempt`` and ``resources`` are the container's."""

    pod_attempt: int
    pod_resources: ResourceFields | None
    container: str
    container_id: str
    container_annotations: Mapping[str, str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Difference:
    """The changes of hooks: the keys that they set, the fields that they change; None for an unchanged cgroup parent.

    ``resources`` has field names of LinuxContainerResources; its maps contain changed entries only, and a cpuset of ""
    is cleared.
    """

    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    cgroup_parent: str | None = None

    def __bool__(self) -> bool:
        return self != NO_DIFFERENCE

    def __str__(self) -> str:
        """Return the changes as lines like YAML's, including values."""
        changed = {name: value for name, value in asdict(self).items() if value not in ({}, None)}
        return "\n".join(_lines(changed)) or "nothing is changed"


NO_DIFFERENCE = Difference()


def _lines(entries: Mapping[str, Any], indent: str = "") -> Iterable[str]:
    for key, value in entries.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {dumps(value, ensure_ascii=False)}"


class HookTester:
    """Calls hooks in order, as their server would; the methods raise what a hook raises.

    Raises TypeError for an argument that is not a hook. The methods raise LookupError if no hook has such a method,
    TypeError and ValueError for fields that cannot be sent, TimeoutError for an ``async`` method that does not end.
    """

    def __init__(self, *hooks: Hook) -> None:
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise TypeError("HookTester is given hooks, made from their classes: HookTester(MyHook())")
        self._hooks = hooks

    def pre_run_pod_sandbox(self, **call: Unpack[PodCall]) -> Difference:
        """Return the changes before a pod's sandbox is created."""
        return self._query("pre_run_pod_sandbox", call)

    def post_stop_pod_sandbox(self, **call: Unpack[PodCall]) -> Difference:
        """Call the hooks after a pod's sandbox was stopped; nothing can change."""
        return self._query("post_stop_pod_sandbox", call)

    def pre_create_container(self, **call: Unpack[ContainerCall]) -> Difference:
        """Return the changes before a container is created; it has no id yet."""
        call.setdefault("container_id", "")
        return self._query("pre_create_container", call)

    def pre_start_container(self, **call: Unpack[ContainerCall]) -> Difference:
        """Return the changes before a container starts."""
        return self._query("pre_start_container", call)

    def post_start_container(self, **call: Unpack[ContainerCall]) -> Difference:
        """Call the hooks after a container started; nothing can change."""
        return self._query("post_start_container", call)

    def pre_update_container_resources(self, **call: Unpack[ContainerCall]) -> Difference:
        """Return the changes of an update; ``resources`` are all of the container's, overridden by the update's."""
        return self._query("pre_update_container_resources", call)

    def post_stop_container(self, **call: Unpack[ContainerCall]) -> Difference:
        """Call the hooks after a container was stopped; nothing can change."""
        return self._query("post_stop_container", call)

    def _query(self, method: str, call: Mapping[str, Any]) -> Difference:
        hook_point = METHODS[method]
        if hook_point not in hook_points_of(self._hooks):
            methods = ", ".join(map(method_name, hook_points_of(self._hooks))) or "none at all"
            raise LookupError(f"no hook here has the method {method}; they have {methods}")
        request = codec.decode_request(hook_point, codec.encode(hook_point, _request(hook_point, call)))
        answer = call_hooks(self._hooks, hook_point, request, _finish)
        change = difference(request, codec.decode(hook_point, codec.encode_answer(hook_point, answer)))
        return Difference(
            env={**change.envs},
            labels={**change.labels},
            annotations={**change.annotations},
            resources={**change.resources},
            cgroup_parent=change.cgroup_parent,
        )


def _finish(waiting: Awaitable[None]) -> None:
    """Run an ``async`` method to its end, in a thread of its own because the test itself may be ``async``."""

    async def patiently() -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS) as limit:
                await waiting
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"an async method of a hook did not end within {PATIENCE_SECONDS} s") from None
            raise

    with ThreadPoolExecutor(1, "hook-tester") as thread:
        thread.submit(asyncio.run, patiently()).result()


# -- the request -----------------------------------------------------------------------------------------------------


def _request(hook_point: HookPoint, call: Mapping[str, Any]) -> HookRequest:
    of_pod = hook_point.subject is SubjectKind.POD
    allowed = get_type_hints(PodCall if of_pod else ContainerCall)
    for name in call:
        if name not in allowed:
            raise TypeError(f"{name} is nothing that is sent at {hook_point.name}{_suggestion(name, allowed)}")
    call = {"uid": UID, **call}
    if of_pod:
        return HookRequest(_pod(call, attempt="attempt", resources="resources"))
    container = ContainerInfo(
        id=call.get("container_id", CONTAINER_ID),
        name=call.get("container", "main"),
        attempt=call.get("attempt", 0),
        annotations=call.get("container_annotations", {}),
        resources=_resources("resources", call),
        envs=call.get("env", {}),
    )
    return HookRequest(_pod(call, attempt="pod_attempt", resources="pod_resources"), container)


def _pod(call: Mapping[str, Any], attempt: str, resources: str) -> PodInfo:
    return PodInfo(
        name=call.get("pod", "pod"),
        uid=call["uid"],
        namespace=call.get("namespace", "default"),
        attempt=call.get(attempt, 0),
        runtime_handler=call.get("runtime_handler", ""),
        labels=call.get("labels", {}),
        annotations=call.get("annotations", {}),
        cgroup_parent=call.get("cgroup_parent", f"/kubepods/pod{call['uid']}"),
        overhead=_resources("overhead", call),
        resources=_resources(resources, call),
    )


def _resources(name: str, call: Mapping[str, Any]) -> Resources | None:
    """Return a resources message; None, which is not sent, if the call has none."""
    fields: ResourceFields | None = call.get(name)
    if fields is None:
        return None
    for key, value in fields.items():
        if key not in RESOURCE_FIELDS:
            raise ValueError(f"{name}: there is no field {key}{_suggestion(key, RESOURCE_FIELDS)}")
        kind = type(getattr(NO_RESOURCES, key))
        if not isinstance(value, kind):
            raise TypeError(f"{name}: {key} is of type {kind.__name__}; leave it out for 'not set'")
    return Resources(**fields)


def _suggestion(name: str, allowed: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(allowed), 1)
    return f", did you mean {nearest[0]}?" if nearest else f"; there are {', '.join(allowed)}"
