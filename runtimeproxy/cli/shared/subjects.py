"""Pods and containers of the Store, as commands name and show them.

Owns what a name or the start of an id means, and the words for what became of a field.
Must not know: the Store itself.
Invariant: a text means one pod or container, or an error that lists those that it could mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from runtimeproxy.cli.shared.admin_client import AdminClient, Query
from runtimeproxy.errors import RuntimeProxyError

FIELD_COLUMNS = ("field", "sent", "set by")
ID_CHARACTERS = 13
"""How much of an id is shown, as crictl and docker do."""

Record = Mapping[str, Any]

_LISTED = 5


@dataclass(frozen=True, slots=True)
class Subject:
    """A container, or a pod with all its containers; a container's pod is None if the proxy does not know it."""

    pod: Record | None
    container: Record | None = None
    containers: Sequence[Record] = ()

    @property
    def record(self) -> Record:
        """Return the record that it is about."""
        found = self.pod if self.container is None else self.container
        assert found is not None
        return found

    @property
    def name(self) -> str:
        """Return ``NAMESPACE/POD`` or ``NAMESPACE/POD/CONTAINER``."""
        names = [pod_name(self.pod)] if self.container is None else [pod_name(self.pod), self.container["name"]]
        return "/".join(names)


def records(proxy: AdminClient, query: Query) -> tuple[list[Record], list[Record]]:
    """Return the pods and the containers that the proxy knows, all pages of them."""
    pods: list[Record] = []
    containers: list[Record] = []
    after: str | None = None
    while True:
        page = proxy.get("/store", {**query, "after": after})
        pods += page["pods"]
        containers += page["containers"]
        after = page["next"]
        if after is None:
            return pods, containers


def find(proxy: AdminClient, text: str) -> Subject | None:
    """Return what is meant by ``[NAMESPACE/]POD``, ``NAMESPACE/POD/CONTAINER`` or the start of an id; None if nothing
    is. Raises click.ClickException if it could mean several."""
    found = list(_meant(proxy, text))
    if len(found) > 1:
        listed = ", ".join(f"{one.name} ({one.record['id'][:ID_CHARACTERS]})" for one in found[:_LISTED])
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise click.ClickException(f"{text!r} could mean {listed}{more}: write more of one id")
    return found[0] if found else None


def not_found(text: str) -> RuntimeProxyError:
    """Return the error that nothing is meant by a text."""
    return RuntimeProxyError(f"the proxy knows no pod or container {text!r}: `runtimeproxy store ls` lists them")


def pod_name(pod: Record | None) -> str:
    """Return ``NAMESPACE/NAME``."""
    return "?" if pod is None else f"{pod['namespace']}/{pod['name']}"


def field_rows(record: Record, setters: Mapping[str, str] | None = None) -> list[dict[str, str | None]]:
    """Return for each field that the kubelet asked for or that went to the runtime what became of it. ``setters`` are
    the hook servers that set fields, for those of which the record does not say it."""
    asked, sent, owners = set(record["asked"]), set(record["sent"]), {**(setters or {}), **record["owners"]}
    changed = set(record["changed"])
    return [
        {"field": name, "sent": _became(name, asked, sent, changed), "set by": owners.get(name)}
        for name in sorted(asked | sent)
    ]


def _became(name: str, asked: set[str], sent: set[str], changed: set[str]) -> str:
    if name not in asked:
        return "added"
    if name not in sent:
        return "taken out"
    return "changed" if name in changed else "as asked"


def _meant(proxy: AdminClient, text: str) -> Iterator[Subject]:
    parts = text.split("/")
    pods, containers = records(proxy, {"pod": "/".join(parts[:2])})
    by_id = {pod["id"]: pod for pod in pods}
    if len(parts) > 2:
        for one in containers:
            if one["podId"] in by_id and one["name"] == "/".join(parts[2:]):
                yield Subject(by_id[one["podId"]], one)
        return
    named = [pod for pod in pods if pod["name"] == parts[-1]]
    for pod in named or [pod for pod in pods if pod["id"].startswith(text)]:
        yield Subject(pod, None, [one for one in containers if one["podId"] == pod["id"]])
    if not named:
        for one in records(proxy, {"id": text})[1]:
            if one["id"].startswith(text):
                yield Subject(_pod_of(proxy, one), one)


def _pod_of(proxy: AdminClient, container: Record) -> Record | None:
    pods, _ = records(proxy, {"id": container["podId"]})
    return next((pod for pod in pods if pod["id"] == container["podId"]), None)
