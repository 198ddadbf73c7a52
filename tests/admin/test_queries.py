"""The answer of each method, on objects: it is JSON and contains no value of a request."""

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from unittest.mock import call

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from runtimeproxy.admin import queries
from runtimeproxy.admin.exposition import exposition
from runtimeproxy.admin.health import DEGRADED, FAILED, STALL_REPORTED_SECONDS, UNREACHABLE_SECONDS
from runtimeproxy.admin.protocol import Refused
from runtimeproxy.admin.queries import LONGEST_PAGE
from runtimeproxy.admin.records import LONGEST_ENVS, UNREAD_ENVS, container_row, pod_row
from runtimeproxy.errors import Reason
from runtimeproxy.model import fields
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, Envs, PodInfo, PodRecord, Resources, changed_envs
from runtimeproxy.observe import events
from runtimeproxy.observe.events import MOST_EVENTS, MOST_FIELDS, About, EventKind
from runtimeproxy.observe.loop_watchdog import Stall
from runtimeproxy.observe.metric_table import ROWS, Kind
from runtimeproxy.plugins.disabling import Disabled
from runtimeproxy.plugins.reach import Absence
from tests.admin.conftest import CANARY, Proxy
from tests.fakes.plugins import FAIL, IGNORE

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


def test_state_is_checked_at_most_once_per_second(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metric ready is the result of readyz."""
    for _ in range(10):
        proxy.call("readyz")
        proxy.now += 0.2
    assert proxy.runtime_checks == 2
    proxy.sync.filling = True  # degraded only
    values = []
    for proxy.runtime_fault in ("", "Connection refused", ""):
        proxy.now += 1
        values += [value for name, _, value in proxy.call("metrics")["values"] if name == "ready"]
    assert values == [1, 0, 1]
    proxy.now += 1
    with monkeypatch.context() as patched:
        patched.setattr(queries, "_process", lambda: os.listdir("/none"))
        with pytest.raises(OSError, match="No such file"):
            proxy.call("metrics")
    assert proxy.call("metrics")["process"], "an error is not kept"


def samples(lines: str) -> dict[tuple[str, str], float]:
    found = [sample for family in text_string_to_metric_families(lines) for sample in family.samples]
    own = [sample for sample in found if not sample.name.startswith("process_")]
    return {(sample.name, str(sorted(sample.labels.items()))): sample.value for sample in own}


def test_exposition_has_all_series_logged_by_sigusr1(proxy: Proxy) -> None:
    """Rows with labels have two series, others one. The metrics of the process are included."""
    metrics, value = proxy.metrics, itertools.count(1)
    for row in ROWS:
        for text in ("a", 'b"\\\n') if row.given else ("",):
            labels = [text] * len(row.given)
            if row.kind is Kind.COUNTER:
                metrics.set_counter(row.name, next(value), *labels)
            elif row.kind is Kind.GAUGE:
                metrics.gauge(row.name, next(value) / 8, *labels)
            else:
                for seconds in (0.0001, 0.3, 20.0):
                    metrics.observe(row.name, seconds, *labels)
    text = exposition(proxy.call("metrics")).decode()
    assert samples(text) == samples("\n".join(metrics.figures()) + "\n")
    assert 'runtime="containerd"' in text
    shown = {family.name: family for family in text_string_to_metric_families(text) if family.samples}
    for usual in ProcessCollector(registry=None).collect():
        family = shown[usual.name]
        assert (family.type, family.documentation) == (usual.type, usual.documentation)
        assert family.samples[0].name == usual.samples[0].name
        assert family.samples[0].value == pytest.approx(usual.samples[0].value, rel=0.2, abs=5)


def test_hook_servers_have_their_own_figures_and_states(proxy: Proxy) -> None:
    names = ("PreCreateContainer", "PreRunPodSandbox", "PreStartContainer")
    for name in "abc":
        proxy.manager.add(name, policy=FAIL, points=names, timeout_seconds=0.5)
    proxy.manager.repeated = {("a", "PreStartContainer"): "b", ("c", "PreRunPodSandbox"): "a"}
    proxy.manager.rejected = {"x.json": "x.json: not JSON (yet?)"}
    for index, code in ((0, "ok"), (0, "ok"), (0, "deadline"), (1, "ok")):
        proxy.metrics.count("hook_calls", "a", names[index], code)
        proxy.metrics.observe("hook_call_duration_seconds", 0.003, "a")
    for name, code in (("a", "deadline"), ("a", "breaker_open"), ("b", "unreachable")):
        proxy.metrics.count("hook_failures", name, "PreCreateContainer", code)
    proxy.manager.plugins[1].last_error.note(NOON, "PreCreateContainer", Reason.DEADLINE)
    for name in "bc":
        proxy.open_breaker(name)
    proxy.reach.absences["c"] = Absence(99.0, "gone")
    proxy.metrics.events.wall_clock = lambda: NOON
    answer = proxy.call("hooks")
    first, *more = answer["hooks"]
    assert first == {
        **{"name": "a", "endpoint": "/run/a.sock", "policy": "Fail", "timeoutSeconds": 0.5, "sameSocketAs": ["b"]},
        **{"points": ["PreRunPodSandbox", "PreCreateContainer"], "state": "closed", "disabled": None, "calls": 4},
        **{"failures": 2, "p50Seconds": 0.0035, "p99Seconds": pytest.approx(0.00497)},
        **{"lastError": None, "unreachable": None},
    }
    error = {"time": "2026-01-02T12:00:00.000Z", "hook": "PreCreateContainer", "reason": "deadline"}
    absence = {"since": "2026-01-02T11:59:59.000Z", "reason": "gone"}
    keys = ("name", "state", "calls", "failures", "p50Seconds", "p99Seconds", "lastError", "unreachable")
    assert [tuple(hook[key] for key in keys) for hook in more] == [
        ("b", "open", 0, 1, None, None, error, None),
        ("c", "unreachable", 0, 0, None, None, None, absence),
    ]
    assert answer["invalid"] == [{"file": "x.json", "reason": "x.json: not JSON (yet?)"}]
    assert answer["masked"] == []


async def test_hook_server_is_disabled_by_name_with_reason(proxy: Proxy) -> None:
    none_such, letters = "no such hook server is registered", "abcdefghijklmnopqrstuvw"
    hint = "to disable one before it registers add --unregistered"
    none_switched = [
        ("", "disable", f"{none_such}: there are none; {hint}"),
        ("ba\n", "disable", f"{none_such}: there are ?, a, b; {hint}"),
        (letters, "enable", f"{none_such} or disabled: there are {', '.join(letters[:20])} and 3 more"),
    ]
    for name in "abc":
        proxy.manager.add(name, policy=FAIL, points=("PreCreateContainer",), timeout_seconds=0.5)
    proxy.manager.notes = ("a note",)
    proxy.reach.absences = {"b": Absence(60.0, "gone")}
    proxy.manager.disabled_with = {"b": "a"}
    assert proxy.faults().keys() == {"fail_plugins"}
    reported = await proxy.switch("disable", name="b", reason="hangs")
    assert (reported.pop("notes"), reported["sameSocketAs"]) == (["a note"], ["a"])
    hooks = proxy.call("hooks")
    assert [hook["state"] for hook in hooks["hooks"]] == ["closed", "disabled", "closed"]
    assert (hooks["hooks"][1], hooks["masked"]) == (reported, [])
    disabled = {"reason": "hangs", "by": "uid 0", "since": "1970-01-01T00:00:00.000Z", "until": None}
    assert (reported["disabled"], reported["policy"], reported["timeoutSeconds"]) == (disabled, "Fail", 0.5)
    assert proxy.faults() == {"disabled_plugins": ("degraded", "disabled by hand: b")}
    assert (await proxy.switch("enable", name="b"))["disabled"] is None
    assert proxy.faults() == {}
    for registered, action, text in none_switched:
        proxy.manager.plugins.clear()
        for name in registered:
            proxy.manager.add(name)
        with pytest.raises(Refused) as raised:
            await proxy.switch(action, name="x", **({"reason": "hangs"} if action == "disable" else {}))
        assert (raised.value.status, raised.value.text, proxy.manager.disabled) == (404, text, {})
    proxy.manager.plugins.clear()
    shown = await proxy.switch("disable", name="x.json", reason="hangs", unregistered=True, **{"for": "1h"})
    assert (shown["state"], shown["endpoint"], shown["points"]) == ("disabled", None, [])
    assert shown["disabled"]["until"] == "1970-01-01T01:00:00.000Z"
    hooks = proxy.call("hooks")
    assert (hooks["hooks"], hooks["masked"]) == ([], ["x"])
    for meant in ("rdt", "rdt.json"):
        proxy.manager.add(meant)
        assert (await proxy.switch("disable", name="rdt.json", reason="hangs"))["name"] == meant
        assert list(proxy.manager.disabled) == ["x", meant]
        assert (await proxy.switch("enable", name="rdt.json"))["name"] == meant
        assert list(proxy.manager.disabled) == ["x"]
        proxy.manager.add("rdt")


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["id"] for row in answer["pods"] + answer["containers"]]


def test_store_returns_each_selected_record_once(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """One name is in two namespaces, the pod of one container is unknown, and pages are in order."""
    store_selections: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["p1", "p2", "p3", "c1", "c3", "c4", "c9", "d2"]),
        ({"pod": "web"}, ["p1", "p2", "c1", "c3", "d2"]),
        ({"pod": "shop/web"}, ["p1", "c1", "c3"]),
        ({"pod": "p2"}, ["p2", "d2"]),
        ({"pod": "p9"}, ["c9"]),
        ({"pod": "nobody"}, []),
        ({"id": "c"}, ["c1", "c3", "c4", "c9"]),
        ({"pod": "shop/web", "id": "c3"}, ["c3"]),
        ({"after": "c9"}, ["p1", "p2", "p3", "d2"]),
    ]
    proxy.add("p3", "c4", name="db")
    proxy.add("p1", "c3", "c1")
    proxy.add("p2", "d2", namespace="bank")
    proxy.add("p9", "c9")
    proxy.store.drop("p9")
    for params, expected in store_selections:
        answer = proxy.call("store", **params)
        assert (ids(answer), answer["next"]) == (expected, None), params
    answer = proxy.call("store", limit=3)
    assert (sorted(ids(answer)), answer["next"]) == (["c1", "c3", "c4"], "c4")
    assert [row["podId"] for row in answer["containers"]] == ["p1", "p1", "p3"]
    proxy.store.drop("c4")
    answer = proxy.call("store", limit=3, after=answer["next"])
    assert (sorted(ids(answer)), answer["next"]) == (["c9", "d2", "p1"], "p1")
    assert answer["pods"][0]["containers"] == ["c3", "c1"]
    parts = proxy.parts("store")
    first = next(parts)
    proxy.store.drop("c1")
    assert "c1" not in json.dumps([first, *parts])
    monkeypatch.setattr(queries, "RECORDS_PER_ITERATION", 4)
    proxy, records = Proxy(), "abcdefghij"
    for name in random.Random(1).sample(records, 10):
        proxy.add(name)
    for limit in (1, 3, 10):
        pages, after = list[str](), ""
        while after is not None:
            answer = proxy.call("store", limit=limit, after=after)
            pages.append("".join(ids(answer)))
            after = answer["next"]
        assert pages == [records[at : at + limit] for at in range(0, 10, limit)]


DURATION = "for is a duration like 30s, 10m or 24h"
WRONG: list[tuple[str, dict[str, Any], str]] = [
    *(("store", {"limit": value}, "limit is not a number from 0") for value in ("canary", True, 1.0)),
    *(("events", {"since": value}, "since is not a number from 0") for value in (-1, 1 << 53)),
    *(("store", {"limit": value}, "limit is not from 1 to 1000") for value in (0, 1001)),
    ("events", {"limit": 4097}, "limit is not from 1 to 4096"),
    ("events", {"kind": ["edited"]}, f"kind is not one of {', '.join(queries.KINDS)}"),
    ("disable", {"name": "x", "reason": "x", "unregistered": 1}, "unregistered is not true or false"),
    ("disable", {"name": "x", "reason": ""}, "reason: write 1 to 200 printable characters"),
    ("disable", {"name": "x", "reason": "hangs", "for": "soon"}, DURATION),
    *(("store", {"pod": value}, "pod is not a text of at most 512 characters") for value in ("canary\0", "n" * 513)),
    ("enable", {"name": {"canary": 1}}, "name is not a text of at most 512 characters"),
    ("loglevel", {"level": "loud"}, "level is one of debug, info, warning, error"),
    *(("loglevel", {"level": "info", "for": text}, "for is from 1s to 24h") for text in ("999ms", "25h")),
    *(("loglevel", {"level": "info", "for": text}, DURATION) for text in ("long", "1mh", "0")),
]


async def test_wrong_parameter_is_refused_without_value(proxy: Proxy) -> None:
    proxy.manager.add("x")
    for method, params, text in WRONG:
        with pytest.raises(Refused) as raised:
            await proxy.switch(method, **params) if method in ("disable", "enable") else proxy.call(method, **params)
        assert (raised.value.status, raised.value.text) == (400, text)
    assert (proxy.log_level.change.mock_calls, proxy.manager.disabled) == ([], {})
    assert proxy.call("loglevel", level="debug") == {"level": "debug", "until": "2026-01-02T00:00:00.000Z"}
    assert proxy.call("loglevel", level="Error", **{"for": "1s"})["level"] == "error"
    assert proxy.log_level.change.mock_calls == [call("debug", 600.0), call("error", 1.0)]


def full(pods: int, plugins: int, events: int) -> Proxy:
    """Return a proxy with five records for each pod, and the metrics of 32 plugins."""
    proxy = Proxy()
    for number in range(pods):
        proxy.add(f"{number:064}", *(f"{number:063}{letter}" for letter in "abcd"), name=f"pod-{number}")
    for number in range(plugins):
        proxy.manager.add(f"plugin-{number}", policy=FAIL)
        proxy.reach.absences[f"plugin-{number}"] = Absence(0.0, "gone")
        for hook in ("PreCreateContainer", "PreRunPodSandbox"):
            proxy.metrics.count("hook_calls", f"plugin-{number}", hook, "ok")
        proxy.metrics.observe("hook_call_duration_seconds", 0.1, f"plugin-{number}")
    for number in range(events):
        about = About("CreateContainer", "k1", "shop", f"pod-{number}", f"{number:064}", "main", f"{number:063}a")
        fields = {f"envs.NAME_{field}": "plugin-1" for field in range(MOST_FIELDS)}
        proxy.metrics.events.add(EventKind.EDITED, about, fields=fields, seconds=(0.1,) * 5)
    return proxy


READING: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("metrics", "livez", "readyz", "version", "configz", "hooks", "store")),
    *(("events", {"since": 0, "limit": 200}), ("store", {"pod": "pod-1199"}), ("store", {"limit": LONGEST_PAGE})),
]
MOST_CALLS = 4_000
"""Calls of functions for a part, those in C too: about a millisecond. ``scripts/bench --mode admin`` has the time."""


def test_parts_contain_no_value_and_take_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine does not change the number of calls. Rows, which are made for a time, take 10 us here."""
    proxy = full(20, 3, 3)
    text = json.dumps([proxy.call(name, **params) for name, params in READING])
    assert ("envs.key" in text, CANARY in text) == (True, False)
    clocks = {"monotonic": itertools.count(0, 0.00001).__next__, "time": lambda: NOON}
    monkeypatch.setattr(queries, "time", SimpleNamespace(**vars(time) | clocks))
    largest, calls = full(1_200, 500, MOST_EVENTS), [0]

    def count(frame: object, event: str, argument: object) -> None:
        calls[-1] += event in ("call", "c_call")

    for name, params in READING:
        parts = largest.parts(name, **params)
        while True:
            calls.append(0)
            sys.setprofile(count)
            try:
                if next(parts, None) is None:
                    break
            finally:
                sys.setprofile(None)
        assert max(calls) < MOST_CALLS, name


def numbers(events: list[dict[str, Any]]) -> list[Any]:
    return [(event["from"], event["to"]) if event["kind"] == "gap" else event["number"] for event in events]


def add_events(proxy: Proxy, count: int) -> None:
    """Add events; those with an even number are slow calls."""
    for _ in range(count):
        proxy.metrics.events.add(EventKind.SLOW if proxy.metrics.events.last % 2 else EventKind.DRAIN)


LOST = (11, 60)
EVENT_SELECTIONS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"since": 97, "limit": 2}, [98, 99]),
    ({"since": 160}, []),
    ({"since": 10**9, "limit": 2}, [(1, 60), 61]),
    ({"since": 61, "limit": 60, "kind": "slow"}, [*range(62, 161, 2)]),
    ({"since": 80, "limit": 60, "follow": True}, [*range(81, 141)]),
    ({"since": 10, "limit": 3}, [LOST, 61, 62]),
    ({"since": 10, "pod": "a"}, [LOST]),
]


EVENT = About("CreateContainer", "k1", "shop", "web-0", "abc1", "main", "def2")
MATCHES: list[tuple[dict[str, str], bool]] = [
    *(({"pod": text}, True) for text in ("shop/web-0", "abc", "def2")),
    *(({"pod": text}, False) for text in ("shop/web-1", "bc1")),
    *(({"hookServer": name}, found) for name, found in (("gpu.json", True), ("g", False))),
    ({"kind": "edited", "hookServer": "batch", "pod": "shop/web-0"}, True),
    ({"kind": "refused", "hookServer": "batch"}, False),
]


def follow(proxy: Proxy, **params: Any) -> Iterator[list[Any]]:
    """Yield the numbers of each part with events, and an empty list when there is no further event."""
    for part in proxy.parts("events", follow=True, **params):
        if part is None:
            yield []
        elif part.get("events"):
            yield numbers(part["events"])


def test_selected_events_are_sent_once_in_order(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower gets the gaps, too, and the number of followers is limited."""
    monkeypatch.setattr(queries, "ROW_SECONDS", 20.0)  # a busy machine, too, reads the ring in one part
    monkeypatch.setattr(events, "MOST_EVENTS", 100)
    proxy.metrics.events.add(EventKind.EDITED, EVENT, fields={"resources.cpu_shares": "batch", "envs.A": "gpu"})
    proxy.metrics.events.add(EventKind.DRAIN)
    for selected, expected in MATCHES:
        assert numbers(proxy.call("events", **selected)["events"]) == [1] * expected, selected
    add_events(proxy, 158)
    for params, selected_numbers in EVENT_SELECTIONS:
        assert numbers(proxy.call("events", **params)["events"]) == selected_numbers, params
    proxy = Proxy()
    add_events(proxy, 2)
    slow, quick = follow(proxy, since=1), follow(proxy)
    assert [next(slow), next(slow), next(quick), next(quick)] == [[2], [], [1, 2], []]
    for _ in range(100):
        add_events(proxy, 1)
        assert (next(quick), next(quick)) == ([proxy.metrics.events.last], [])
    add_events(proxy, 3)
    found = itertools.chain(*itertools.takewhile(bool, slow))
    assert [*found] == [(3, 5), *range(6, proxy.metrics.events.last + 1)]
    followers = [slow, quick, *(follow(proxy) for _ in range(queries.FOLLOWERS - 2))]
    for follower in followers:
        next(follower, None)
    with pytest.raises(Refused, match="16 clients follow already") as raised:
        next(follow(proxy))
    assert raised.value.status == 503
    assert len(proxy.call("events")["events"]) == 101, "the gap and the ring"
    del followers, follower, slow, quick
    assert len(next(follow(proxy))) == 101


NOW = 100.0
SHORTLY = Absence(NOW - UNREACHABLE_SECONDS + 1, "/run/a.sock: No such file or directory")
LONG = Absence(NOW - UNREACHABLE_SECONDS, "/run/a.sock: Connection refused")
IGNORED = Absence(NOW - 3600, "user 7 listens on /run/b.sock")
DISABLED, DISABLED_WHY = Disabled("hangs", "uid 0", 0.0, None), "disabled by hand: d; /s is bad"
UNREACHABLE = "policy Fail and unreachable: a for 30 s"
FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"listening_fault": "the socket was removed"}, "listening", "the socket was removed"),
    ({"manager.read": False}, "registrations_read", "the registration directory was not read yet"),
    ({"manager.read": False, "manager.directory_fault": "/d hangs"}, "registrations_read", "/d hangs"),
    ({"runtime_fault": "Connection refused"}, "runtime", "Connection refused"),
    ({"sync.runtime_fault": "no answer"}, "runtime", "no answer"),
    ({"draining": True}, "not_draining", "the proxy is stopping"),
    ({"reach.absences": {"a": LONG}}, "fail_plugins", f"{UNREACHABLE} (/run/a.sock: Connection refused)"),
    ({"manager.directory_fault": "/d cannot be read"}, "registrations_read", "/d cannot be read"),
    ({"reach.absences": {"a": SHORTLY}}, "plugins", "unreachable: a (/run/a.sock: No such file or directory)"),
    ({"open": "a"}, "breakers", "calls suspended, as they keep failing: a (tried again in 30 s)"),
    ({"manager.disabled": {"d": DISABLED}, "manager.mask_fault": "/s is bad"}, "disabled_plugins", DISABLED_WHY),
    ({"manager.rejected": dict.fromkeys("abcdefg", "")}, "invalid_files", "rejected: a, b, c, d, e and 2 more"),
    ({"sync.filling": True}, "store", "the runtime's pods and containers are still being read"),
    ({"watchdog.last_stall": Stall(NOW - STALL_REPORTED_SECONDS, 0.7213)}, "loop", "it hung for 0.72 s, 60 s ago"),
]


FAILING = 7  # the number of faults, the first ones, that fail the request


def faults(state: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the checks that are not ok, of a proxy with these attributes; ``open`` names one with an open breaker."""
    proxy = Proxy()
    for name, policy in (("a", FAIL), ("b", IGNORE)):
        proxy.manager.add(name, policy=policy)
    for path, value in state.items():
        part, _, name = path.rpartition(".")
        if name == "open":
            proxy.open_breaker(value)
        else:
            setattr(attrgetter(part)(proxy) if part else proxy, name, value)
    assert proxy.now == NOW
    return proxy.faults()


def test_fault_fails_only_its_own_check() -> None:
    """A plugin is shown once, and a stall for some time."""
    for at, (state, name, reason) in enumerate(FAULTS):
        assert faults(state) == {name: (FAILED if at < FAILING else DEGRADED, reason)}
    for state in ({}, {"watchdog.last_stall": Stall(NOW - STALL_REPORTED_SECONDS - 1, 0.3)}):
        assert faults(state) == {}
    found = faults({"reach.absences": {"a": LONG, "b": IGNORED}})
    assert (found["fail_plugins"][0], found["fail_plugins"][1].startswith(UNREACHABLE)) == (FAILED, True)
    assert found["plugins"][1] == "unreachable: b (user 7 listens on /run/b.sock)"


KUBELETS = Resources(cpu_quota=4711, cpuset_cpus=CANARY, unified={"memory.high": CANARY})
HOOKS = Resources(cpu_quota=9999, cpuset_cpus=CANARY, unified={"memory.high": CANARY, "cpu.idle": CANARY})
HOOKS = replace(HOOKS, memory_limit_in_bytes=8, memory_swap_limit_in_bytes=8)
LIMITS = ["resources.memory_limit_in_bytes", "resources.memory_swap_limit_in_bytes"]

POD = PodInfo("p1", "web", "uid-1", "shop", labels={"app": CANARY}, annotations={"note": CANARY}, cgroup_parent="/kube")
TEXTS = {"TOKEN": CANARY, "HOME": CANARY}


def encoded(values: Mapping[str, str]) -> Envs:
    return Envs(json.dumps(values).encode(), lambda raw: dict(json.loads(raw)), fields.NO_CHANGES)


def test_rows_have_names_of_fields_and_owners() -> None:
    """The environment is not cached, nor decoded when it is long."""
    hooked = replace(POD, annotations={"note": CANARY, "gpu": CANARY}, cgroup_parent="")
    assert pod_row(PodRecord(POD, hooked, read=True), ["c1", "c2"]) == {
        **{"id": "p1", "namespace": "shop", "name": "web", "uid": "uid-1", "containers": ["c1", "c2"]},
        "asked": ["annotations.note", "cgroup_parent", "labels.app"],
        "sent": ["annotations.gpu", "annotations.note", "labels.app"],
        **{"changed": ["annotations.gpu", "cgroup_parent"], "owners": {}, "read": True},
    }
    envs = encoded(TEXTS)
    requested = ContainerInfo("c1", "p1", "main", 2, {"note": CANARY}, KUBELETS, envs)
    sent = replace(requested, resources=HOOKS, envs=changed_envs(envs, {"GPU": CANARY, "HOME": "x"}))
    owners = (("cpu_quota", "batch"), ("memory_limit_in_bytes", "batch"))
    kubelets = ["annotations.note", "envs.HOME", "envs.TOKEN", "resources.cpu_quota", "resources.cpuset_cpus"]
    kubelets.append("resources.unified.memory.high")
    assert container_row(ContainerRecord(requested, sent, owners, read=True)) == {
        **{"id": "c1", "podId": "p1", "name": "main", "attempt": 2, "asked": kubelets},
        "sent": sorted([*kubelets, "envs.GPU", *LIMITS, "resources.unified.cpu.idle"]),
        "changed": ["envs.GPU", "envs.HOME", "resources.cpu_quota", *LIMITS, "resources.unified.cpu.idle"],
        "owners": dict.fromkeys(["resources.cpu_quota", *LIMITS], "batch"),
        "read": True,
    }
    envs = encoded(TEXTS)
    info = ContainerInfo("c1", "p1", "main", envs=envs)
    row = container_row(ContainerRecord(info, info))
    assert row["asked"] == row["sent"] == ["envs.HOME", "envs.TOKEN"]
    assert (row["changed"], row["owners"], row["read"], envs._texts) == ([], {}, False, None)
    envs = encoded({"LONG": "x" * LONGEST_ENVS})
    info = replace(info, envs=envs)
    row = container_row(ContainerRecord(info, replace(info, envs=changed_envs(envs, {"GPU": "0"}))))
    assert (row["asked"], row["sent"], row["changed"]) == ([UNREAD_ENVS], [UNREAD_ENVS, "envs.GPU"], ["envs.GPU"])
