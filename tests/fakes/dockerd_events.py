"""The events of the fake dockerd, sent as they happen, and the filters that select among them.

Every subscriber gets every event, in order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

Event = dict[str, Any]
Filters = Mapping[str, frozenset[str]]


def parse_filters(text: str) -> Filters:
    """Return the values of each filter, in today's form (``{"a": {"b": true}}``) or the old one (``{"a": ["b"]}``)."""
    return {key: frozenset(values) for key, values in json.loads(text or "{}").items()}


def labels_match(labels: Mapping[str, str], wanted: frozenset[str]) -> bool:
    """Return whether all of ``key`` and ``key=value`` are among the labels."""
    pairs = (text.partition("=") for text in wanted)
    return all(key in labels and (not equals or labels[key] == value) for key, equals, value in pairs)


def event_matches(event: Event, filters: Filters) -> bool:
    actor = event["Actor"]
    attributes = actor["Attributes"]
    known: Mapping[str, set[str]] = {
        "type": {event["Type"]},
        "event": {event["Action"], event["Action"].partition(":")[0]},
        "container": {actor["ID"], attributes.get("name", "")} if event["Type"] == "container" else set(),
        "image": {attributes.get("image", actor["ID"])},
    }
    chosen = all(values & known[key] for key, values in filters.items() if key in known)
    return chosen and labels_match(attributes, filters.get("label", frozenset()))


class Events:
    def __init__(self) -> None:
        self._subscribers: set[Callable[[Event], None]] = set()

    def subscribe(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Call the subscriber for every event from now on; return a function that ends it."""
        self._subscribers.add(subscriber)
        return lambda: self._subscribers.discard(subscriber)

    def emit(self, kind: str, action: str, subject: str, attributes: Mapping[str, str], image: str = "") -> None:
        now = time.time_ns()
        old_names = {"status": action, "id": subject, "from": image} if kind == "container" else {}
        actor = {"ID": subject, "Attributes": dict(sorted(attributes.items()))}
        event: Event = {**old_names, "Type": kind, "Action": action, "Actor": actor, "scope": "local"}
        event |= {"time": now // 10**9, "timeNano": now}
        for subscriber in tuple(self._subscribers):
            subscriber(event)
