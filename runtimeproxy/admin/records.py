"""The Store's records in answers: names of fields, keys of maps and their owners; no value of a field."""

from typing import Any

from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, Envs, PodInfo, PodRecord, flat, set_fields
from runtimeproxy.model.merge import owners_of

LONGEST_ENVS = 64 * 1024
"""Longest environment in bytes whose names are decoded; of a longer one only its presence is reported."""
UNREAD_ENVS = "envs.*"


def pod_row(record: PodRecord, containers: list[str]) -> dict[str, Any]:
    """Return a pod as JSON; ``containers`` are the ids of its containers."""
    info = record.effective
    return {
        "id": info.id,
        "namespace": info.namespace,
        "name": info.name,
        "uid": info.uid,
        **_fields(record.original, info),
        "owners": {},
        "read": record.read,
        "containers": containers,
    }


def container_row(record: ContainerRecord) -> dict[str, Any]:
    info = record.effective
    return {
        "id": info.id,
        "podId": info.pod_id,
        "name": info.name,
        "attempt": info.attempt,
        **_fields(record.original, info),
        "owners": {f"resources.{name}": owner for name, owner in owners_of(record).items()},
        "read": record.read,
    }


def _fields(original: PodInfo | ContainerInfo, effective: PodInfo | ContainerInfo) -> dict[str, list[str]]:
    """Return the names of the fields that the kubelet set, that the runtime received, and that differ between both."""
    requested = _values(original)
    if effective is original:
        return {"asked": sorted(requested), "sent": sorted(requested), "changed": []}
    sent = _values(effective)
    differing = [name for name in requested.keys() | sent.keys() if requested.get(name) != sent.get(name)]
    return {"asked": sorted(requested), "sent": sorted(sent), "changed": sorted(differing)}


def _values(info: PodInfo | ContainerInfo) -> dict[str, Any]:
    """Return the values of the fields that are set, named as in ``Adjustment.owners``; no answer contains them."""
    if isinstance(info, PodInfo):
        return set_fields(info)
    if type(info.envs) is not Envs:
        return set_fields(info) | flat({"envs": info.envs}, None, {})
    if len(info.envs.raw) > LONGEST_ENVS:
        return {UNREAD_ENVS: None} | set_fields(info) | flat({"envs": info.envs.changes}, None, {})
    return set_fields(info) | flat({"envs": info.envs.decoded()}, None, {})


def is_of_pod(pod: str, namespace: str | None, name: str | None, *ids: str) -> bool:
    """Return whether ``pod`` is NAME, NAMESPACE/NAME, or a prefix of one of the ids; "" matches every pod."""
    return pod in (name, f"{namespace}/{name}") or any(pod_id.startswith(pod) for pod_id in ids)
