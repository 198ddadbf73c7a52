"""Pods, containers, hook servers and events of the running proxy, as commands name, complete and print them.

An event is described by names and reasons, never by a value of a request.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from runtimeproxy.cli.shared import output
from runtimeproxy.cli.shared.admin_client import AdminClient, socket_path
from runtimeproxy.cli.shared.flags import flags_given
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.observe.events import MOST_EVENTS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FIELD_COLUMNS = ("field", "sent", "set by")
ID_CHARACTERS = 13
"""How much of an id is shown, as crictl and docker do."""

Record = Mapping[str, Any]

_LISTED = 5


@dataclass(frozen=True, slots=True)
class Subject:
    """``record`` is a container, or ``pod`` with all its containers; a container's pod is None if it is not known."""

    record: Record
    pod: Record | None
    containers: Sequence[Record] = ()

    @property
    def is_pod(self) -> bool:
        return self.record is self.pod

    @property
    def name(self) -> str:
        """Return ``NAMESPACE/POD`` or ``NAMESPACE/POD/CONTAINER``."""
        return pod_name(self.pod) if self.is_pod else f"{pod_name(self.pod)}/{self.record['name']}"


def records(proxy: AdminClient, **query: Any) -> tuple[list[Record], list[Record]]:
    """Return the pods and the containers that the proxy knows, all pages of them."""
    pods: list[Record] = []
    containers: list[Record] = []
    after: str | None = None
    while True:
        page = proxy.call("store", **query, after=after)
        pods += page["pods"]
        containers += page["containers"]
        after = page["next"]
        if after is None:
            return pods, containers


def find(proxy: AdminClient, text: str) -> Subject | None:
    """Return the subject that ``[NAMESPACE/]POD``, ``NAMESPACE/POD/CONTAINER`` or the start of an id names; None
    without a match. Raises click.ClickException for several matches."""
    matches = list(_matching_subjects(proxy, text))
    if len(matches) > 1:
        listed = ", ".join(f"{subject.name} ({subject.record['id'][:ID_CHARACTERS]})" for subject in matches[:_LISTED])
        more = f" and {len(matches) - _LISTED} more" if len(matches) > _LISTED else ""
        raise click.ClickException(f"{text!r} could mean {listed}{more}: write more of one id")
    return matches[0] if matches else None


def not_found(text: str) -> RuntimeProxyError:
    return RuntimeProxyError(f"the proxy knows no pod or container {text!r}: `runtimeproxy store ls` lists them")


def pod_name(pod: Record | None) -> str:
    return "?" if pod is None else f"{pod['namespace']}/{pod['name']}"


def field_rows(record: Record, setters: Mapping[str, str] | None = None) -> list[dict[str, str | None]]:
    """Return a row for each field that the kubelet requested or that was sent to the runtime. ``setters`` are the hook
    servers that set fields whose owner the record lacks."""
    requested, sent, owners = set(record["asked"]), set(record["sent"]), {**(setters or {}), **record["owners"]}
    changes = dict.fromkeys(record["changed"], "changed")
    changes |= dict.fromkeys(requested - sent, "taken out") | dict.fromkeys(sent - requested, "added")
    return [
        {"field": name, "sent": changes.get(name, "as requested"), "set by": owners.get(name)}
        for name in sorted(requested | sent)
    ]


def _matching_subjects(proxy: AdminClient, text: str) -> Iterator[Subject]:
    parts = text.split("/")
    pods, containers = records(proxy, pod="/".join(parts[:2]))
    by_id = {pod["id"]: pod for pod in pods}
    if len(parts) > 2:
        for container in containers:
            if container["podId"] in by_id and container["name"] == "/".join(parts[2:]):
                yield Subject(container, by_id[container["podId"]])
        return
    named = [pod for pod in pods if pod["name"] == parts[-1]]
    for pod in named or [pod for pod in pods if pod["id"].startswith(text)]:
        yield Subject(pod, pod, [container for container in containers if container["podId"] == pod["id"]])
    if not named:
        for container in records(proxy, id=text)[1]:
            if container["id"].startswith(text):
                pods, _ = records(proxy, id=container["podId"])
                yield Subject(container, next((pod for pod in pods if pod["id"] == container["podId"]), None))


COLUMNS = ("time", "kind", "call", "detail")

Event = Mapping[str, Any]


def recent_events(proxy: AdminClient, since: int = 0, **filters: str | None) -> list[Event]:
    """Return the events after a number that the proxy still has and that ``filters`` selects."""
    events = proxy.call("events", since=since, limit=MOST_EVENTS, **filters)["events"]
    return [event for event in events if number(event) > since]


def number(event: Event) -> int:
    """Return an event's number; a gap's is that of its last event."""
    return int(event["number"] if "number" in event else event["to"])


def row(event: Event) -> dict[str, str | None]:
    return {
        "time": output.clock(event["time"]) if "time" in event else None,
        "kind": event["kind"],
        "call": event.get("call"),
        "detail": detail(event) or None,
    }


def detail(event: Event) -> str:
    if event["kind"] == "gap":
        return f"events {event['from']} to {event['to']} are no longer there"
    subject = "/".join(event[name] for name in ("namespace", "pod", "container") if event.get(name))
    about = " ".join(part for part in (event.get("operation"), subject) if part)
    who = " at ".join(event[name] for name in ("hookServer", "hook") if event.get(name))
    parts = [about, who, event.get("reason"), _fields(event.get("fields") or ()), event.get("text")]
    text = ": ".join(part for part in parts if part)
    seconds = event.get("seconds")
    if not seconds:
        return text
    in_hooks = seconds.get("hooks", 0.0) + seconds.get("post", 0.0)
    return f"{text} ({sum(seconds.values()) * 1000:.1f}ms, hooks {in_hooks * 1000:.1f}ms)"


def _fields(fields: Sequence[Mapping[str, str]]) -> str:
    owners: dict[str | None, list[str]] = {}
    for field in fields:
        owners.setdefault(field.get("hookServer"), []).append(field["field"])
    return "; ".join(
        f"{owner} set {', '.join(names)}" if owner else ", ".join(names) for owner, names in owners.items()
    )


SECONDS = 0.3
_FLAGS = ("admin_endpoint", "config")

Completion = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def _completion(names: Callable[[AdminClient, str], Iterable[str]]) -> Completion:
    """Return a completion by the names that a function gets from the proxy for the incomplete text."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem[str]]":
        from click.shell_completion import CompletionItem

        try:
            flags = flags_given({name: context.params.get(name) for name in _FLAGS})
            proxy = AdminClient(socket_path(flags, os.environ), SECONDS)
            return [CompletionItem(name) for name in sorted(names(proxy, incomplete)) if name.startswith(incomplete)]
        except Exception:  # completion must not print errors
            return []

    return complete


def _hook_servers(*, enabled: bool = True, disabled: bool = True) -> Completion:
    def names(proxy: AdminClient, incomplete: str) -> Iterator[str]:
        answer = proxy.call("hooks")
        for hook in answer["hooks"]:
            if disabled if hook["state"] == "disabled" else enabled:
                yield hook["name"]
        yield from answer["masked"] if disabled else ()

    return _completion(names)


def _subjects(proxy: AdminClient, incomplete: str) -> Iterator[str]:
    """Yield the pods, the containers of a pod that is complete in the text, and the ids if there is a text."""
    pods, containers = records(proxy)
    names = {pod["id"]: pod_name(pod) for pod in pods}
    yield from names.values()
    for container in containers:
        pod = names.get(container["podId"])
        if pod is not None and incomplete.startswith(f"{pod}/"):
            yield f"{pod}/{container['name']}"
    if incomplete:
        yield from (record["id"] for record in (*pods, *containers))


hook_servers = _hook_servers()
enabled_hook_servers = _hook_servers(disabled=False)
disabled_hook_servers = _hook_servers(enabled=False)
pods = _completion(lambda proxy, incomplete: map(pod_name, records(proxy)[0]))
pods_and_containers = _completion(_subjects)
