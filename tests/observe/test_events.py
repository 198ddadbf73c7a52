"""The ring of events: its numbers, its two limits, and reading."""

import json
import tracemalloc
from typing import Any

import pytest

from runtimeproxy.observe import events as module
from runtimeproxy.observe.events import LONGEST_TEXT, MOST_BYTES, MOST_EVENTS, MOST_FIELDS, PAGE, EventKind, Events
from tests.observe.events import shown_of

ID = "0123456789abcdef" * 4
CREATE = module.About("CreateContainer", "ab12-57", "shop", "web-1", f"p{ID}", "main", f"c{ID}")
SECONDS = (0.001, 0.0, 0.02, 0.3, 0.0)


@pytest.fixture
def events() -> Events:
    return Events(lambda: 1_764_000_000.25)


def full(count: int, text: str = "") -> Events:
    events = Events(lambda: 0.0)
    for _ in range(count):
        events.add(EventKind.SYNC, text=text)
    return events


def test_event_is_read_with_all_fields(events: Events) -> None:
    fields = {"envs.A": "koordlet", "resources.cpu_quota": "gpu"}
    more: dict[str, Any] = {"hook": "PreCreateContainer", "reason": "deadline", "fields": fields, "seconds": SECONDS}
    events.add(EventKind.FAILED_OPEN, CREATE, hook_server="koordlet", text="some", **more)
    (event,) = shown_of(events)
    about = {"operation": "CreateContainer", "call": "ab12-57", "namespace": "shop", "pod": "web-1", "podId": f"p{ID}"}
    about |= {"container": "main", "containerId": f"c{ID}", "hookServer": "koordlet", "text": "some"}
    assert json.loads(json.dumps(event)) == {
        **{"number": 1, "time": "2025-11-24T16:00:00.250Z", "kind": "failed_open", **about},
        **{"hook": "PreCreateContainer", "reason": "deadline"},
        "fields": [{"field": field, "hookServer": name} for field, name in fields.items()],
        "seconds": dict(zip(module.PARTS, SECONDS, strict=True)),
    }


def test_gap_is_reported_when_ring_dropped_events() -> None:
    events = full(MOST_EVENTS + 7)
    assert (len(events), events.last) == (MOST_EVENTS, MOST_EVENTS + 7)
    for since, gap in ((0, (1, 7)), (6, (7, 7)), (7, None), (9, None)):
        rows, reported = events.read(since)
        assert (reported, rows[0][0], len(rows)) == (gap, max(since, 7) + 1, PAGE)


def test_page_ends_after_byte_limit() -> None:
    """One event may exceed the bound; a longer text than LONGEST_TEXTS is cut."""
    for length, read in ((0, PAGE), (1_000, 33), (8_000, 5), (module.PAGE_BYTES, 81)):
        assert len(full(3 * PAGE, "x" * length).read()[0]) == read


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f600" * 100_000], ids=["ascii", "wide"])
def test_long_texts_are_cut_and_fields_beyond_bound_counted(events: Events, text: str) -> None:
    fields = {f"envs.{number}{text}": text for number in range(MOST_FIELDS + 3)}
    events.add(EventKind.EDITED, module.About("CreateContainer", *[text] * 6), hook_server=text, fields=fields)
    (event,) = shown_of(events)
    assert event["pod"] == event["hookServer"] == text[:LONGEST_TEXT]
    assert event["fields"][1] == {"field": f"envs.1{text}"[:LONGEST_TEXT], "hookServer": text[:LONGEST_TEXT]}
    assert (len(event["fields"]), event["text"]) == (MOST_FIELDS, "and 3 fields more")
    assert events.bytes < MOST_BYTES / 8


def test_separators_and_surrogates_in_texts_are_replaced(events: Events) -> None:
    events.add(EventKind.EDITED, module.About(namespace="a\0b\0", pod="\udc80", pod_id="p"), fields={"envs.\0": "x"})
    (event,) = shown_of(events)
    assert (event["namespace"], event["pod"], event["podId"]) == ("ab", r"\udc80", "p")
    assert event["fields"] == [{"field": "envs.", "hookServer": "x"}]


@pytest.mark.parametrize("length", [1_000, 7_000])
def test_oldest_events_are_dropped_at_byte_limit(length: int) -> None:
    events = full(MOST_EVENTS, "x" * length)
    assert events.bytes == len(events) * (module.FIXED_BYTES + length + 7)
    assert MOST_BYTES - (module.FIXED_BYTES + length + 7) < events.bytes <= MOST_BYTES
    assert events.read()[0][0][0] == events.last - len(events) + 1


def test_runtime_is_lost_once_and_back_once(events: Events) -> None:
    """It is back when no observer sees it lost, or when one reports it for all."""
    events.runtime_back("clients")
    for seen_by in ("clients", "passes", "clients"):
        events.runtime_lost(seen_by, "unavailable")
    events.runtime_back("clients")
    assert (len(events), events.runtime_is_lost) == (1, True)
    events.runtime_back("passes")
    assert not events.runtime_is_lost
    events.runtime_lost("passes", "deadline")
    events.runtime_lost("clients", "unreachable")
    for _ in range(2):
        events.runtime_back()
    reported = [(event["kind"], event.get("reason")) for event in shown_of(events)]
    lost, back = "runtime_lost", ("runtime_back", None)
    assert reported == [(lost, "unavailable"), back, (lost, "deadline"), back]


@pytest.mark.parametrize(("count", "wide"), [(0, ""), pytest.param(30, "\U0001f600", marks=pytest.mark.slow)])
def test_full_ring_uses_no_more_memory_than_counted(count: int, wide: str) -> None:
    """All texts are new for each event, as those of removed pods."""
    clock = iter(range(1_764_000_000, 1 << 40))
    events = Events(lambda: next(clock) + 0.5)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2 * MOST_EVENTS):
            about = module.About("CreateContainer", f"ab12-{number}", "shop", f"web-{number}{wide}", f"{number:064}")
            fields = {f"envs.{number}.{index}{wide}": f"{number}" for index in range(count)}
            events.add(EventKind.EDITED, about, fields=fields, seconds=(number + 0.1, 0.2, 0.3, 0.4, 0.5))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held <= events.bytes + 4096 <= MOST_BYTES + 4096
    assert len(events) == MOST_EVENTS or events.bytes > 0.99 * MOST_BYTES
