"""The method events, on objects: the order, gaps, what is selected, and followers."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from runtimeproxy.admin import queries
from runtimeproxy.admin.protocol import Refused
from runtimeproxy.observe.events import MOST_EVENTS, About, EventKind
from tests.admin.proxy import Proxy


def numbers(events: list[dict[str, Any]]) -> list[Any]:
    return [(event["from"], event["to"]) if event["kind"] == "gap" else event["number"] for event in events]


def evented(count: int) -> Proxy:
    """Return a proxy in which so much has happened."""
    proxy = Proxy()
    for number in range(1, count + 1):
        proxy.metrics.events.add(EventKind.DRAIN if number % 2 else EventKind.SLOW)
    return proxy


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({}, [*range(1, 121)]),
        ({"limit": 3}, [1, 2, 3]),
        ({"since": 97, "limit": 60}, [*range(98, 121)]),
        ({"since": 97, "limit": 2}, [98, 99]),
        ({"since": 120}, []),
        ({"since": 10**9, "limit": 2}, [1, 2]),
        ({"since": 2, "limit": 60, "kind": "slow"}, [*range(4, 121, 2)]),
        ({"kind": "slow", "limit": 2}, [2, 4]),
        ({"kind": "edited"}, []),
        ({"limit": 60, "follow": True}, [*range(1, 61)]),
    ],
)
def test_events_after_a_number_are_in_order(params: dict[str, Any], found: list[int]) -> None:
    assert numbers(evented(120).call("events", **params)["events"]) == found


def test_lost_events_are_a_gap_whatever_is_selected() -> None:
    proxy = evented(MOST_EVENTS + 600)
    found = proxy.call("events", since=10, limit=3)["events"]
    assert numbers(found) == [(11, 600), 601, 602]
    assert found[0] == {"kind": "gap", "from": 11, "to": 600}
    assert proxy.call("events", since=10, pod="a")["events"] == found[:1]


EVENT = About("CreateContainer", "k1", "shop", "web-0", "abc1", "main", "def2")


@pytest.mark.parametrize(
    ("selected", "found"),
    [
        ({}, True),
        ({"pod": "web-0"}, True),
        ({"pod": "shop/web-0"}, True),
        ({"pod": "abc"}, True),
        ({"pod": "def2"}, True),
        ({"pod": "other/web-0"}, False),
        ({"pod": "web"}, False),
        ({"pod": "bc1"}, False),
        ({"hookServer": "gpu"}, True),
        ({"hookServer": "g"}, False),
        ({"hookServer": "gpu.json"}, True),
        ({"kind": "edited", "hookServer": "batch", "pod": "shop/web-0"}, True),
        ({"kind": "refused", "hookServer": "batch"}, False),
    ],
)
def test_event_is_selected_by_pod_hook_server_and_kind(selected: dict[str, str], found: bool) -> None:
    proxy = Proxy()
    proxy.metrics.events.add(EventKind.EDITED, EVENT, fields={"resources.cpu_shares": "batch", "envs.A": "gpu"})
    proxy.metrics.events.add(EventKind.DRAIN)
    assert numbers(proxy.call("events", **selected)["events"]) == ([1] if found else []) + ([] if selected else [2])


def following(proxy: Proxy, **params: Any) -> Iterator[list[Any]]:
    """Yield the numbers of each part with events; an empty list whenever no event is left."""
    for part in proxy.parts("events", follow=True, **params):
        if part is None:
            yield []
        elif part.get("events"):
            yield numbers(part["events"])


def test_follower_gets_each_event_once_and_gaps() -> None:
    proxy = evented(2)
    slow, quick = following(proxy, since=1), following(proxy)
    assert [next(slow), next(slow), next(quick), next(quick)] == [[2], [], [1, 2], []]
    for _ in range(MOST_EVENTS):
        proxy.metrics.events.add(EventKind.DRAIN)
        found = next(quick)
        assert (found, next(quick)) == ([proxy.metrics.events.last], [])
    for _ in range(3):
        proxy.metrics.events.add(EventKind.DRAIN)
    assert next(slow)[:2] == [(3, 5), 6]
    rest = list(itertools.takewhile(bool, slow))
    assert rest[-1][-1] == proxy.metrics.events.last


def test_followers_have_a_bound_and_free_their_places() -> None:
    proxy = evented(1)
    followers = [following(proxy) for _ in range(queries.FOLLOWERS)]
    late = following(proxy)
    for follower in followers:
        next(follower)
    with pytest.raises(Refused, match="16 clients follow already") as raised:
        next(late)
    assert raised.value.status == 503
    assert numbers(proxy.call("events")["events"]) == [1]
    del followers, follower
    assert next(following(proxy)) == [1]
