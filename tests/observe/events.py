"""The events of a proxy as JSON objects."""

from typing import Any

from runtimeproxy.observe.events import Events, event_object


def shown_of(events: Events) -> list[dict[str, Any]]:
    return [event_object(row) for row in events.read()[0]]
