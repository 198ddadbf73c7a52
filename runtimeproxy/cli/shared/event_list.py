"""The events that the proxy remembers, and the words for one.

Owns reading them page by page, their columns, and what stands in each.
Must not know: which events a command wants.
Invariant: an event is told by names and reasons, never by a value of a request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtimeproxy.cli.shared import times
from runtimeproxy.cli.shared.admin_client import AdminClient, Query

COLUMNS = ("time", "kind", "call", "detail")
AT_ONCE = 1000
"""How many events are asked for in one question."""

Event = Mapping[str, Any]


def remembered(proxy: AdminClient, query: Query, after: int = 0) -> Iterator[Event]:
    """Yield the events behind a number that the proxy still has."""
    while True:
        page = [event for event in _page(proxy, query, after) if number(event) > after]
        yield from page
        if not page:
            return
        after = number(page[-1])


def number(event: Event) -> int:
    """Return an event's number; a gap's is that of its last event."""
    return int(event["number"] if "number" in event else event["to"])


def row(event: Event) -> dict[str, str | None]:
    """Return an event in the columns."""
    return {
        "time": times.clock(event["time"]) if "time" in event else None,
        "kind": event["kind"],
        "call": event.get("call"),
        "detail": detail(event) or None,
    }


def detail(event: Event) -> str:
    """Return in words what an event has beside its columns."""
    if event["kind"] == "gap":
        return f"events {event['from']} to {event['to']} are no longer there"
    subject = "/".join(event[name] for name in ("namespace", "pod", "container") if event.get(name))
    about = " ".join(part for part in (event.get("operation"), subject) if part)
    who = " at ".join(event[name] for name in ("hookServer", "hook") if event.get(name))
    parts = [about, who, event.get("reason"), _fields(event.get("fields") or ()), event.get("text")]
    return ": ".join(part for part in parts if part) + _times(event.get("seconds") or {})


def _fields(fields: Sequence[Mapping[str, str]]) -> str:
    """Return the fields by the hook server that set them."""
    owners: dict[str | None, list[str]] = {}
    for field in fields:
        owners.setdefault(field.get("hookServer"), []).append(field["field"])
    return "; ".join(
        f"{owner} set {', '.join(names)}" if owner else ", ".join(names) for owner, names in owners.items()
    )


def _times(seconds: Mapping[str, float]) -> str:
    """Return how long a call took, and how much of that was in hook servers."""
    in_hooks = seconds.get("hooks", 0.0) + seconds.get("post", 0.0)
    return f" ({sum(seconds.values()) * 1000:.1f}ms, hooks {in_hooks * 1000:.1f}ms)" if seconds else ""


def _page(proxy: AdminClient, query: Query, after: int) -> list[Event]:
    return list(proxy.lines("/events", {**query, "since": after, "limit": AT_ONCE}))
