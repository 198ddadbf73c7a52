"""What each method answers, on objects; each answer is JSON and has no value of a request."""

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.admin import queries
from runtimeproxy.admin.protocol import Refused
from runtimeproxy.admin.queries import LONGEST_PAGE
from runtimeproxy.errors import Reason
from runtimeproxy.observe.events import MOST_EVENTS, MOST_FIELDS, About, EventKind
from runtimeproxy.observe.metric_table import HOOK_SERVERS
from runtimeproxy.plugins.reach import Absence
from tests.admin.proxy import CANARY, Proxy
from tests.fakes.plugins import FAIL

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC).timestamp()


# -- health ----------------------------------------------------------------------------------------------------------


def test_runtime_that_does_not_answer_passes_is_reported() -> None:
    proxy = Proxy()
    proxy.sync.runtime_fault = "it did not answer when its state was read last (deadline)"
    assert proxy.checks() == {"runtime": ("failed", proxy.sync.runtime_fault)}
    proxy.runtime_fault = "Connection refused"
    assert proxy.checks() == {"runtime": ("failed", "Connection refused")}


def test_state_is_looked_at_once_a_second_at_most() -> None:
    proxy = Proxy()
    for _ in range(10):
        proxy.call("readyz")
        proxy.now += 0.2
    assert proxy.runtime_checks == 2


async def test_change_of_a_hook_server_is_seen_immediately() -> None:
    proxy = Proxy()
    proxy.manager.add("a")
    proxy.call("readyz")
    for action, reason, state in (("disable", {"reason": "hangs"}, "degraded"), ("enable", {}, "ok")):
        await proxy.switch(action, name="a", **reason)
        (check,) = (check for check in proxy.call("readyz")["checks"] if check["name"] == "disabled_plugins")
        assert check["state"] == state


def test_metrics_say_whether_it_is_ready_as_readyz_does() -> None:
    proxy, found = Proxy(), []
    proxy.sync.filling = True  # degraded alone
    for fault in ("", "Connection refused", ""):
        proxy.runtime_fault = fault
        proxy.now += 1
        found += [value for name, _, value in proxy.call("metrics")["values"] if name == "ready"]
    assert found == [1, 0, 1]


def test_metrics_that_failed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy()
    with monkeypatch.context() as patched:
        patched.setattr(queries, "_process", lambda: os.listdir("/none"))
        with pytest.raises(OSError, match="No such file"):
            proxy.call("metrics")
    assert proxy.call("metrics")["process"]


# -- hooks -----------------------------------------------------------------------------------------------------------


def test_hook_server_without_a_call_has_no_times() -> None:
    proxy = Proxy()
    points = ("PreCreateContainer", "PreRunPodSandbox", "PreStartContainer")
    proxy.manager.add("a", policy=FAIL, points=points, timeout_seconds=0.5)
    proxy.manager.repeated = {("a", "PreStartContainer"): "b", ("b", "PreRunPodSandbox"): "a"}
    proxy.manager.rejected = {"x.json": "x.json: not JSON (yet?)"}
    assert proxy.call("hooks") == {
        "hooks": [
            {
                "name": "a",
                "endpoint": "/run/a.sock",
                "policy": "Fail",
                "points": ["PreRunPodSandbox", "PreCreateContainer"],
                "sameSocketAs": ["b"],
                "timeoutSeconds": 0.5,
                "state": "closed",
                "disabled": None,
                "calls": 0,
                "failures": 0,
                "p50Seconds": None,
                "p99Seconds": None,
                "lastError": None,
                "unreachable": None,
            }
        ],
        "invalid": [{"file": "x.json", "reason": "x.json: not JSON (yet?)"}],
        "masked": [],
    }


def test_hook_servers_are_in_order_with_their_own_figures() -> None:
    proxy = Proxy()
    for name in "ab":
        proxy.manager.add(name)
    for code in ("ok", "ok", "deadline"):
        proxy.metrics.count("hook_calls", "a", "PreCreateContainer", code)
    proxy.metrics.count("hook_calls", "a", "PreRunPodSandbox", "ok")
    proxy.metrics.count("hook_failures", "a", "PreCreateContainer", "deadline")
    proxy.metrics.count("hook_failures", "a", "PreCreateContainer", "breaker_open")
    for _ in range(4):
        proxy.metrics.observe("hook_call_duration_seconds", 0.003, "a")
    proxy.metrics.count("hook_failures", "b", "PreCreateContainer", "unreachable")
    proxy.manager.plugins[1].last_error.note(NOON, "PreCreateContainer", Reason.DEADLINE)
    first, second = proxy.call("hooks")["hooks"]
    assert (first["name"], first["calls"], first["failures"]) == ("a", 4, 2)
    assert (first["p50Seconds"], round(first["p99Seconds"], 6)) == (0.0035, 0.00497)
    assert (second["name"], second["calls"], second["failures"], second["p99Seconds"]) == ("b", 0, 1, None)
    error = {"time": "2026-01-02T12:00:00.000Z", "hook": "PreCreateContainer", "reason": "deadline"}
    assert (first["lastError"], second["lastError"]) == (None, error)


def test_state_of_a_hook_server() -> None:
    proxy = Proxy()
    for name in "abc":
        proxy.manager.add(name)
    proxy.open("b")
    proxy.open("c")
    proxy.reach.absences["c"] = Absence(99.0, "gone")
    proxy.metrics.events.wall_clock = lambda: NOON
    hooks = proxy.call("hooks")["hooks"]
    assert [hook["state"] for hook in hooks] == ["closed", "open", "unreachable"]
    absence = {"since": "2026-01-02T11:59:59.000Z", "reason": "gone"}
    assert [hook["unreachable"] for hook in hooks] == [None, None, absence]


def test_hook_server_beyond_the_names_in_labels_has_no_figures() -> None:
    proxy = Proxy()
    for number in range(HOOK_SERVERS + 1):
        proxy.manager.add(f"{number:02}")
        proxy.metrics.count("hook_calls", f"{number:02}", "PreCreateContainer", "ok")
    hooks = proxy.call("hooks")["hooks"]
    assert [hook["calls"] for hook in hooks] == [1] * HOOK_SERVERS + [None]
    assert hooks[-1]["failures"] is None


# -- disabled hook servers -------------------------------------------------------------------------------------------

SHOWN = {"reason": "hangs", "by": "uid 0", "since": "1970-01-01T00:00:00.000Z", "until": None}


async def test_disabled_hook_server_stays_in_the_list_with_the_reason() -> None:
    proxy = Proxy()
    for name in "abc":
        proxy.manager.add(name, policy=FAIL, points=("PreCreateContainer",), timeout_seconds=0.5)
    proxy.manager.notes = ("a note",)
    proxy.reach.absences = {"b": Absence(60.0, "gone")}
    proxy.manager.disabled_with = {"b": "a"}
    reported = await proxy.switch("disable", name="b", reason="hangs")
    assert (reported.pop("notes"), reported["sameSocketAs"]) == (["a note"], ["a"])
    hooks = proxy.call("hooks")
    assert [(hook["name"], hook["state"]) for hook in hooks["hooks"]] == [
        ("a", "closed"),
        ("b", "disabled"),
        ("c", "closed"),
    ]
    assert hooks["hooks"][1] == reported
    assert (reported["disabled"], reported["policy"], reported["timeoutSeconds"]) == (SHOWN, "Fail", 0.5)
    assert hooks["masked"] == []
    assert proxy.checks() == {"disabled_plugins": ("degraded", "disabled by hand: b")}
    assert (await proxy.switch("enable", name="b"))["disabled"] is None
    assert proxy.checks() == {}


async def test_name_that_is_not_registered_may_be_disabled() -> None:
    proxy = Proxy()
    shown = await proxy.switch("disable", name="x.json", reason="hangs", unregistered=True, **{"for": "1h"})
    assert (shown["state"], shown["endpoint"], shown["points"]) == ("disabled", None, [])
    assert shown["disabled"]["until"] == "1970-01-01T01:00:00.000Z"
    hooks = proxy.call("hooks")
    assert (hooks["hooks"], hooks["masked"]) == ([], ["x"])


@pytest.mark.parametrize(
    ("registered", "given", "meant"),
    [
        (["rdt"], "rdt.json", "rdt"),
        (["rdt", "rdt.json"], "rdt.json", "rdt.json"),
        (["rdt.json"], "rdt.json.json", "rdt.json"),
    ],
)
async def test_name_of_a_registration_file_names_its_hook_server(registered: list[str], given: str, meant: str) -> None:
    proxy = Proxy()
    for name in registered:
        proxy.manager.add(name)
    assert (await proxy.switch("disable", name=given, reason="hangs"))["name"] == meant
    assert list(proxy.manager.disabled) == [meant]
    assert (await proxy.switch("enable", name=given))["name"] == meant
    assert not proxy.manager.disabled


NONE_SUCH = "no such hook server is registered"
UNREGISTERED = "to disable one before it registers add --unregistered"
LETTERS = ", ".join("abcdefghijklmnopqrst")


@pytest.mark.parametrize(
    ("question", "registered", "arguments", "status", "text"),
    [
        ("disable", "x", {"reason": ""}, 400, "reason: write 1 to 200 printable characters"),
        ("disable", "x", {"reason": "hangs", "for": "soon"}, 400, "for is a duration like 30s, 10m or 24h"),
        ("disable", "", {"reason": "hangs"}, 404, f"{NONE_SUCH}: there are none; {UNREGISTERED}"),
        ("disable", "ba\n", {"reason": "hangs"}, 404, f"{NONE_SUCH}: there are ?, a, b; {UNREGISTERED}"),
        ("enable", "ba", {}, 404, f"{NONE_SUCH} or disabled: there are a, b"),
        ("enable", "abcdefghijklmnopqrstuvw", {}, 404, f"{NONE_SUCH} or disabled: there are {LETTERS} and 3 more"),
    ],
)
async def test_switch_that_cannot_be_is_refused(
    question: str, registered: str, arguments: dict[str, str], status: int, text: str
) -> None:
    proxy = Proxy()
    for name in registered:
        proxy.manager.add(name)
    with pytest.raises(Refused) as raised:
        await proxy.switch(question, name="x", **arguments)
    assert (raised.value.status, raised.value.text) == (status, text)
    assert not proxy.manager.disabled


# -- store -----------------------------------------------------------------------------------------------------------


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["id"] for row in answer["pods"] + answer["containers"]]


@pytest.fixture
def shop() -> Proxy:
    """Return a proxy that knows three pods, one name in two namespaces, and a container of an unknown pod."""
    proxy = Proxy()
    proxy.add("p3", "c4", name="db")
    proxy.add("p1", "c3", "c1")
    proxy.add("p2", "d2", namespace="bank")
    proxy.add("p9", "c9")
    proxy.store.drop("p9")
    return proxy


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({}, ["p1", "p2", "p3", "c1", "c3", "c4", "c9", "d2"]),
        ({"pod": "web"}, ["p1", "p2", "c1", "c3", "d2"]),
        ({"pod": "shop/web"}, ["p1", "c1", "c3"]),
        ({"pod": "p2"}, ["p2", "d2"]),
        ({"pod": "p9"}, ["c9"]),
        ({"pod": "nobody"}, []),
        ({"id": "c"}, ["c1", "c3", "c4", "c9"]),
        ({"id": "p1"}, ["p1"]),
        ({"pod": "shop/web", "id": "c3"}, ["c3"]),
        ({"after": "c9"}, ["p1", "p2", "p3", "d2"]),
    ],
)
def test_store_returns_what_is_selected(shop: Proxy, arguments: dict[str, Any], found: list[str]) -> None:
    answer = shop.call("store", **arguments)
    assert (ids(answer), answer["next"]) == (found, None)


def test_pod_names_its_containers_and_they_name_it(shop: Proxy) -> None:
    answer = shop.call("store", pod="p1")
    assert answer["pods"][0]["containers"] == ["c3", "c1"]
    assert {row["podId"] for row in answer["containers"]} == {"p1"}


def test_pages_go_on_after_the_token(shop: Proxy) -> None:
    answer = shop.call("store", limit=3)
    assert (sorted(ids(answer)), answer["next"]) == (["c1", "c3", "c4"], "c4")
    shop.store.drop("c4")
    answer = shop.call("store", limit=3, after=answer["next"])
    assert (sorted(ids(answer)), answer["next"]) == (["c9", "d2", "p1"], "p1")


@pytest.mark.parametrize("limit", [1, 3, 10, 11])
def test_pages_have_each_id_once_in_order(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(queries, "RECORDS_AT_ONCE", 4)
    proxy, numbers = Proxy(), [*range(10)]
    random.Random(1).shuffle(numbers)
    for number in numbers:
        proxy.add(f"{number:02}")
    pages, after = list[list[str]](), ""
    while after is not None:
        answer = proxy.call("store", limit=limit, after=after)
        pages.append(ids(answer))
        after = answer["next"]
    assert [one for page in pages for one in page] == [f"{number:02}" for number in range(10)]
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert pages[-1]


def test_record_removed_between_pages_is_left_out(shop: Proxy) -> None:
    reported: list[Any] = []
    for part in shop.parts("store"):
        if not reported:
            shop.store.drop("c1")
        reported.append(part)
    assert "c1" not in json.dumps(reported)


# -- log level -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ({"level": "debug"}, ("debug", 600.0)),
        ({"level": "Error", "for": "1s"}, ("error", 1.0)),
        ({"level": "info", "for": "24h"}, ("info", 86400.0)),
    ],
)
def test_log_level_is_set_for_a_time(arguments: dict[str, str], change: tuple[str, float]) -> None:
    proxy = Proxy()
    assert proxy.call("loglevel", **arguments) == {"level": change[0], "until": "2026-01-02T00:00:00.000Z"}
    assert proxy.log_level.set == [change]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"level": "loud"}, "level is one of debug, info, warning, error"),
        ({"level": "info", "for": "999ms"}, "for is from 1s to 24h"),
        ({"level": "info", "for": "25h"}, "for is from 1s to 24h"),
        ({"level": "info", "for": "long"}, "for is a duration like 30s, 10m or 24h"),
        ({"level": "info", "for": "1mh"}, "for is a duration like 30s, 10m or 24h"),
        ({"level": "info", "for": "0"}, "for is a duration like 30s, 10m or 24h"),
    ],
)
def test_wrong_log_level_is_refused(arguments: dict[str, str], text: str) -> None:
    proxy = Proxy()
    with pytest.raises(Refused) as refused:
        proxy.call("loglevel", **arguments)
    assert (refused.value.status, refused.value.text) == (400, text)
    assert proxy.log_level.set == []


# -- parameters ------------------------------------------------------------------------------------------------------

WRONG = [
    ("store", {"limit": "canary"}, "limit is not a number from 0"),
    ("store", {"limit": True}, "limit is not a number from 0"),
    ("store", {"limit": 1.0}, "limit is not a number from 0"),
    ("events", {"since": -1}, "since is not a number from 0"),
    ("events", {"since": 1 << 53}, "since is not a number from 0"),
    ("store", {"limit": 0}, "limit is not from 1 to 1000"),
    ("store", {"limit": 1001}, "limit is not from 1 to 1000"),
    ("events", {"limit": 4097}, "limit is not from 1 to 4096"),
    ("events", {"kind": "canary"}, f"kind is not one of {', '.join(queries.KINDS)}"),
    ("events", {"kind": ["edited"]}, f"kind is not one of {', '.join(queries.KINDS)}"),
    ("events", {"follow": "canary"}, "follow is not true or false"),
    ("disable", {"name": "x", "reason": "x", "unregistered": 1}, "unregistered is not true or false"),
    ("store", {"pod": "canary\0"}, "pod is not a text of at most 512 characters"),
    ("store", {"pod": "n" * 513}, "pod is not a text of at most 512 characters"),
    ("enable", {"name": {"canary": 1}}, "name is not a text of at most 512 characters"),
]


@pytest.mark.parametrize(("method", "params", "text"), WRONG, ids=str)
def test_wrong_parameter_is_refused_without_its_value(method: str, params: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused) as raised:
        Proxy().methods[method].checked(method, params)
    assert (raised.value.status, raised.value.text) == (400, text)


# -- all of them -----------------------------------------------------------------------------------------------------


def full() -> Proxy:
    """Return a proxy with 10,000 records, 500 plugins and the series of 32."""
    proxy = Proxy()
    for number in range(2_000):
        proxy.add(f"{number:064}", *(f"{number:063}{letter}" for letter in "abcd"), name=f"pod-{number}")
    for number in range(500):
        proxy.manager.add(f"plugin-{number}", policy=FAIL)
        proxy.reach.absences[f"plugin-{number}"] = Absence(0.0, "gone")
        for hook in ("PreCreateContainer", "PreRunPodSandbox"):
            proxy.metrics.count("hook_calls", f"plugin-{number}", hook, "ok")
        proxy.metrics.observe("hook_call_duration_seconds", 0.1, f"plugin-{number}")
    for number in range(MOST_EVENTS):
        about = About("CreateContainer", "k1", "shop", f"pod-{number}", f"{number:064}", "main", f"{number:063}a")
        fields = {f"envs.NAME_{field}": "plugin-1" for field in range(MOST_FIELDS)}
        proxy.metrics.events.add(EventKind.EDITED, about, fields=fields, seconds=(0.1,) * 5)
    return proxy


READING = ("metrics", "livez", "readyz", "version", "configz", "hooks", "store")
ARGUMENTS: dict[str, dict[str, Any]] = {name: {} for name in READING} | {"events": {"since": 0, "limit": 200}}


def test_no_answer_has_a_value() -> None:
    proxy = full()
    text = json.dumps([proxy.call(name, **params) for name, params in ARGUMENTS.items()])
    assert "envs.key" in text
    assert CANARY not in text


MOST_CALLS = 4_000
"""Calls of functions for a part, those in C too: about a millisecond. ``scripts/bench --mode admin`` has the time."""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [*ARGUMENTS.items(), ("store", {"pod": "pod-1999"}), ("store", {"limit": LONGEST_PAGE})],
    ids=str,
)
def test_each_part_is_made_by_few_calls(monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any]) -> None:
    """A busy machine does not change their number. Rows, which are made for a time, take 10 us here."""
    monkeypatch.setattr(
        queries,
        "time",
        SimpleNamespace(**vars(time) | {"monotonic": itertools.count(0, 0.00001).__next__, "time": lambda: NOON}),
    )
    parts, calls = full().parts(name, **arguments), [0]

    def count(frame: object, event: str, argument: object) -> None:
        calls[-1] += event in ("call", "c_call")

    while True:
        sys.setprofile(count)
        try:
            part = next(parts, None)
        finally:
            sys.setprofile(None)
        if part is None:
            break
        calls.append(0)
    assert max(calls) < MOST_CALLS


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
