"""The Plugins Manager on a real directory: who is called, by which client, what is logged; it survives failures.

How registrations follow swapped, replaced and hostile files: tests/system/test_plugins.py.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.errors import Reason
from runtimeproxy.files import StateFile
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, HookPoint
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins import directory, manager
from runtimeproxy.plugins.client import FAILURES_IN_A_ROW
from runtimeproxy.plugins.directory import Watcher
from runtimeproxy.plugins.disabling import MAX_BYTES
from runtimeproxy.plugins.registration import FailurePolicy
from tests.fakes import registration
from tests.observe.events import shown_of
from tests.patience import SECONDS, until

CREATE, START = BY_NAME["PreCreateContainer"], BY_NAME["PreStartContainer"]
STOP = BY_NAME["PostStopContainer"]


class FakeClient:
    """A client that remembers its arguments and whether it was closed."""

    def __init__(self, plugin: str, endpoint: str) -> None:
        self.plugin = plugin
        self.endpoint = endpoint
        self.closed = 0
        self.busy = asyncio.Event()
        self.busy.set()
        self.abandoned = False

    def abandon(self) -> None:
        self.abandoned = True

    async def close(self) -> None:
        await self.busy.wait()
        self.closed += 1


class Rig:
    """A manager on a directory, and what it made and counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = Metrics(time.monotonic)
        self.clients: list[FakeClient] = []
        self.poll(1000)

    def poll(self, poll: float) -> None:
        """Create the manager again, with another poll interval."""
        self.manager = manager.Manager(
            str(self.folder),
            timeout_seconds=2.0,
            metrics=self.metrics,
            client_factory=self._make,
            mask=StateFile(str(self.folder.parent / "state" / "mask.json"), MAX_BYTES, durable=False),
            poll_seconds=poll,
        )

    async def start(self, *names: str, **more: Any) -> None:
        for name in names:
            self.put(f"{name}.json", **more)
        await self.manager.start()

    def _make(self, plugin: str, endpoint: str) -> FakeClient:
        self.clients.append(FakeClient(plugin, endpoint))
        return self.clients[-1]

    def put(self, name: str, endpoint: str = "", points: tuple[str, ...] = (CREATE.name,), **more: str) -> None:
        text = registration.text(endpoint or f"/run/{name.removesuffix('.json')}.sock", points, **more)
        registration.write(self.folder, name, text)

    def names(self, point: HookPoint = CREATE) -> list[str]:
        return [plugin.name for plugin in self.manager.plugins_for(point)]

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    async def until_called(self, *names: str, point: HookPoint = CREATE) -> None:
        await until(lambda: self.names(point) == list(names))

    async def disable(self, *names: str) -> None:
        for name in names:
            assert await self.manager.disable(name, "hangs", "root") == ()

    def gauges(self, name: str) -> dict[str, float]:
        """Return a gauge of one label, by its value."""
        return {labels[0]: value for (gauge, labels), value in self.metrics.gauges.items() if gauge == name}

    async def until_at(self, *endpoints: str) -> None:
        await until(lambda: [plugin.endpoint for plugin in self.manager.plugins_for(CREATE)] == list(endpoints))

    @property
    def invalid(self) -> float:
        return self.metrics.gauges["config_invalid_files", ()]


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(manager, "FAULT_SECONDS", 0.01)
    tmp_path.chmod(0o700)
    folder = tmp_path / "hooks.d"
    folder.mkdir()
    made = Rig(folder)
    yield made
    await made.manager.stop()


async def test_plugins_registered_before_the_start_serve_the_first_call(rig: Rig) -> None:
    rig.put("b.json", policy="Fail", timeout="500ms")
    await rig.start("a", endpoint="unix:///run/other.sock", points=(CREATE.name, START.name))
    first, second = rig.manager.plugins_for(CREATE)
    assert (first.name, first.endpoint, first.policy) == ("a", "/run/other.sock", FailurePolicy.IGNORE)
    assert (second.name, second.endpoint, second.policy) == ("b", "/run/b.sock", FailurePolicy.FAIL)
    assert (first.timeout_seconds, second.timeout_seconds) == (2.0, 0.5)
    assert rig.manager.plugins_for(START) == (first,)
    assert first.client is rig.clients[0]
    assert (rig.clients[0].plugin, rig.clients[0].endpoint) == ("a", "/run/other.sock")
    registered = [rig.manager.registered(points) for points in ([CREATE], [STOP, START], [STOP], [])]
    assert registered == [True, True, False, False]
    assert [point.name for point in HOOK_POINTS if rig.manager.fail_policy_registered(point)] == [CREATE.name]


REPEATED: list[tuple[str, str, str]] = [("Ignore", "Ignore", "a"), ("Ignore", "Fail", "c"), ("Fail", "Fail", "a")]
"""The policies of two registrations of one socket, a and c, and which of them is called."""


@pytest.mark.parametrize(("policy", "other", "called"), REPEATED)
async def test_socket_is_called_once_for_a_hook_point(
    rig: Rig, caplog: pytest.LogCaptureFixture, tmp_path: Path, policy: str, other: str, called: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    rig.put("a.json", f"{tmp_path}/x.sock", (CREATE.name, START.name), policy=policy)
    rig.put("b.json")
    rig.put("c.json", f"unix://{tmp_path}/link//x.sock", (CREATE.name, STOP.name), policy=other)
    await rig.start()
    assert rig.names() == (["a", "b"] if called == "a" else ["b", "c"])
    assert (rig.names(START), rig.names(STOP)) == (["a"], ["c"])
    assert rig.manager.fail_policy_registered(CREATE) is ("Fail" in (policy, other))
    name = "c" if called == "a" else "a"
    assert rig.manager.repeated == {(name, CREATE.name): called}
    same = f"registrations {called}.json and {name}.json name the same socket, which is called once, by {called}.json"
    warning = f"{same}, at PreCreateContainer; remove one of the two files"
    rig.put("b.json", timeout="1s")
    await until(lambda: rig.manager.plugins[1].timeout_seconds == 1)
    assert [message for message in caplog.messages if "the same socket" in message] == [warning]
    rig.remove(f"{called}.json")
    await rig.until_called(*sorted(["b", name]))


async def test_changed_link_changes_which_sockets_are_the_same(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to("v1")
    rig.put("a.json", f"{tmp_path}/current/x.sock")
    rig.put("b.json", f"{tmp_path}/v1/x.sock")
    rig.poll(0.01)
    await rig.start()
    plugins = rig.manager.plugins
    assert rig.names() == ["a"]
    for target, names in (("v2", ["a", "b"]), ("v1", ["a"])):
        (tmp_path / "new").symlink_to(target)
        (tmp_path / "new").rename(tmp_path / "current")
        await rig.until_called(*names)
    assert rig.manager.plugins == plugins


async def test_client_is_kept_as_long_as_the_endpoint_is_the_same(rig: Rig) -> None:
    await rig.start("a")
    (before,) = rig.manager.plugins_for(CREATE)
    rig.put("a.json", policy="Fail", timeout="1s")
    await until(lambda: rig.manager.fail_policy_registered(CREATE))
    (after,) = rig.manager.plugins_for(CREATE)
    assert (after.client, after.timeout_seconds) == (before.client, 1.0)
    for known in ("breaker", "unserved", "bad_fields", "last_error"):
        assert getattr(after, known) is not getattr(before, known)
    rig.put("a.json", "/run/new.sock")
    await rig.until_at("/run/new.sock")
    await until(lambda: [client.closed for client in rig.clients] == [1, 0])


async def test_plugin_stays_the_same_while_other_files_change(rig: Rig) -> None:
    reported: list[bool] = []
    rig.manager.on_change = lambda: reported.append(rig.manager.fail_policy_registered(CREATE))
    await rig.start("a")
    before = rig.manager.plugins_for(CREATE)
    await rig.manager._scan()
    rig.put("a.json")
    rig.put("b.json", policy="Fail")
    await rig.until_called("a", "b")
    rig.remove("b.json")
    await rig.until_called("a")
    assert rig.manager.plugins_for(CREATE) == before
    assert reported == [False, True, False], "called for each change, and for nothing else"


@pytest.mark.parametrize("change", ["goes", "changes", "stays"])
async def test_gauge_of_an_open_breaker_ends_with_its_plugin(rig: Rig, change: str) -> None:
    await rig.start("a", "b")
    (plugin, closed) = rig.manager.plugins_for(CREATE)
    for _ in range(FAILURES_IN_A_ROW):
        attempt = plugin.breaker.admit("socket", 0.0)
        assert attempt is not None
        plugin.breaker.end(attempt, Reason.DEADLINE, 0.0)
    rig.metrics.gauge("hook_breaker_open", 1.0, "a")
    if change == "goes":
        rig.remove("a.json")
    elif change == "changes":
        rig.put("a.json", timeout="1s")
    rig.remove("b.json")
    await until(lambda: closed not in rig.manager.plugins_for(CREATE))
    shown = {labels: value for (name, labels), value in rig.metrics.gauges.items() if name == "hook_breaker_open"}
    assert shown == ({("a",): 1.0} if change == "stays" else {})
    rig.manager.measure()
    states = {labels[0]: value for (name, labels), value in rig.metrics.gauges.items() if name == "plugins"}
    assert states == {"closed": change == "changes", "open": change == "stays", "half_open": 0, "disabled": 0}
    shown = {labels: value for (name, labels), value in rig.metrics.gauges.items() if name == "hook_breaker_open"}
    assert shown == ({} if change == "goes" else {("a",): float(change == "stays")})


async def test_stop_closes_all_clients_and_waits_for_those_in_use(rig: Rig) -> None:
    await rig.start("a", "b")
    rig.clients[0].busy.clear()
    rig.remove("a.json")
    await rig.until_called("b")
    stopping = asyncio.create_task(rig.manager.stop())
    await until(lambda: rig.clients[1].closed == 1)
    assert not stopping.done()
    rig.clients[0].busy.set()
    await stopping
    assert [client.closed for client in rig.clients] == [1, 1]


async def test_stop_without_a_start_ends(rig: Rig) -> None:
    await rig.manager.stop()


async def test_each_change_of_a_file_is_in_the_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    entry = {"remote-endpoint": "/run/x.sock", "runtime-hooks": [CREATE.name, "Unheard"], "secret": "canary"}
    registration.write(rig.folder, "a.json", json.dumps(entry))
    await rig.manager.start()
    for endpoint in ("/run/y.sock", "/run/z.sock"):
        rig.put("a.json", endpoint)
        await rig.until_at(endpoint)
    rig.put("a.json", "/run/z.sock", points=(START.name,))
    await rig.until_called()
    await rig.until_called("a", point=START)
    rig.remove("a.json")
    await rig.until_called(point=START)
    rig.put("a.json", "/run/z.sock")
    await rig.until_at("/run/z.sock")
    assert [line.removeprefix("registration ") for line in caplog.messages] == [
        "a.json added: endpoint /run/x.sock, policy Ignore, points PreCreateContainer",
        "a.json: unknown keys are ignored: 'secret'",
        "a.json: unknown hook points are ignored: 'Unheard'",
        "a.json changed: endpoint /run/y.sock, policy Ignore, points PreCreateContainer",
        "a.json changed: endpoint /run/z.sock, policy Ignore, points PreCreateContainer",
        "a.json changed: endpoint /run/z.sock, policy Ignore, points PreStartContainer",
        "a.json removed",
        "a.json added: endpoint /run/z.sock, policy Ignore, points PreCreateContainer",
    ]
    assert [vars(line).get("limited", True) for line in caplog.records] == [False, True, True, *[False] * 5]
    assert [rig.metrics.counted("config_reloads", result=result) for result in ("ok", "removed")] == [5, 1]
    events = shown_of(rig.metrics.events)
    assert [event["kind"].removeprefix("plugin_") for event in events] == [
        "added",
        *["changed"] * 3,
        "removed",
        "added",
    ]
    assert {event["hookServer"] for event in events} == {"a"}
    assert events[0]["text"] == "endpoint /run/x.sock, policy Ignore, points PreCreateContainer"
    assert "canary" not in str(events)


async def test_half_written_moment_is_no_change(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """koordlet writes its file in place at every start, and names an unknown hook point."""
    await rig.start("koordlet", points=(CREATE.name, "PreRemoveRunPodSandbox"))
    caplog.set_level("INFO")
    caplog.clear()
    text = (rig.folder / "koordlet.json").read_text()
    (rig.folder / "koordlet.json").write_text(text[:20])
    await until(lambda: rig.invalid == 1)
    assert rig.names() == ["koordlet"]
    (rig.folder / "koordlet.json").write_text(text)
    await until(lambda: rig.invalid == 0)
    *rejected, last = caplog.messages
    assert all(line.startswith("registration rejected: koordlet.json: not JSON (yet?)") for line in rejected)
    assert all(line.endswith("; the last good state stays") for line in rejected)
    assert last.startswith(
        "registration koordlet.json good again, unchanged: endpoint /run/koordlet.sock, policy Ignore,"
    )
    *invalid, restored = [(event["kind"], event["text"]) for event in shown_of(rig.metrics.events)[1:]]
    assert {kind for kind, _ in invalid} == {"plugin_invalid"}
    assert invalid[0][1].startswith("koordlet.json: not JSON (yet?): ")
    assert restored == ("plugin_changed", "endpoint /run/koordlet.sock, policy Ignore, points PreCreateContainer")
    assert len(rig.clients) == 1


async def test_removal_of_a_fail_policy_is_warned_of(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.start("a", policy="Fail", points=(START.name, CREATE.name))
    rig.remove("a.json")
    await rig.until_called()
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert line.getMessage() == (
        "registration a.json removed: it had policy Fail, and calls are no longer refused without it at "
        "PreCreateContainer, PreStartContainer"
    )


async def test_unreadable_directory_keeps_plugins(rig: Rig, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """It is reported once each time."""
    await rig.start("a")
    file = tmp_path / "no directory"
    file.touch()
    for fault in range(2):
        rig.folder.rename(tmp_path / "away")
        file.rename(rig.folder)
        await rig.manager._scan()
        await rig.manager._scan()
        assert rig.names() == ["a"]
        rig.folder.rename(file)
        (tmp_path / "away").rename(rig.folder)
        rig.put("a.json", f"/run/{fault}.sock")
        await rig.until_at(f"/run/{fault}.sock")
    complaint = f"{rig.folder} cannot be read (Not a directory): the plugins stay as they are"
    reported = [vars(line)["limited"] for line in caplog.records if line.getMessage() == complaint]
    assert reported == [False, False]


async def test_fault_in_reading_ends_neither_start_nor_following(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.json", "b.json"):
        made, rig.clients = rig.clients, None  # type: ignore[assignment]  # the factory fails now
        caplog.clear()
        rig.put(name)
        if name == "a.json":
            await rig.manager.start()
        await until(lambda: "failed inside the proxy: AttributeError" in caplog.text)
        rig.clients = made
        os.utime(rig.folder / name)  # any event, or the poll, triggers a read of the directory
        await until(lambda: name.removesuffix(".json") in rig.names())  # noqa: B023


@pytest.mark.parametrize("step", ["arm", "changed"])
async def test_fault_in_watching_does_not_end_the_following(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    def fail(watcher: Watcher) -> None:
        raise RecursionError("a canary")

    rig.poll(0.02)
    rig.put("a.json")
    with monkeypatch.context() as faulty:
        faulty.setattr(Watcher, step, fail)
        await rig.manager.start()
        await until(lambda: "failed inside the proxy: RecursionError" in caplog.text)
        assert rig.names() == ["a"]
    rig.put("b.json")
    await rig.until_called("a", "b")
    assert "canary" not in caplog.text


Hang = Callable[[str], threading.Event]


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    """Make the next looks hang, in setting the watches or in reading, as with a link into a mount that is gone."""
    gate = threading.Event()

    def start(step: str) -> threading.Event:
        monkeypatch.setattr(manager, "PATIENCE_SECONDS", 0.05)
        owner = {"arm": Watcher, "read": directory}[step]
        real = getattr(owner, step)

        def waits(*arguments: object) -> object:
            gate.wait()
            return real(*arguments)

        monkeypatch.setattr(owner, step, waits)
        return gate

    yield start
    gate.set()


@pytest.mark.parametrize("step", ["arm", "read"])
async def test_directory_that_does_not_answer_delays_neither_start_nor_stop(
    rig: Rig, caplog: pytest.LogCaptureFixture, hang: Hang, step: str
) -> None:
    rig.put("a.json")
    gate = hang(step)
    await rig.manager.start()
    await until(lambda: f"{rig.folder} does not answer: is there a link into a mount" in caplog.text)
    assert rig.names() == []
    gate.set()
    await rig.until_called("a")
    caplog.clear()
    gate.clear()
    rig.put("b.json")
    await until(lambda: "does not answer" in caplog.text)
    assert rig.names() == ["a"], "the plugins stay"
    async with asyncio.timeout(SECONDS):
        await rig.manager.stop()


# ---- disabled hook servers


async def test_disabled_plugin_is_in_no_table_until_it_is_enabled(rig: Rig) -> None:
    reported: list[list[str]] = []
    rig.manager.on_change = lambda: reported.append(rig.names())
    rig.put("b.json", policy="Fail", points=(CREATE.name, START.name))
    await rig.start("a", "c")
    (a, _, c) = rig.manager.plugins_for(CREATE)
    await rig.disable("b")
    assert rig.manager.plugins_for(CREATE) == (a, c)
    assert not rig.manager.registered([START])
    assert not rig.manager.fail_policy_registered(CREATE)
    assert {name: entry.name for name, entry in rig.manager.masked.items()} == {"b": "b.json"}
    assert rig.manager.disabled["b"].reason == "hangs"
    assert [client.abandoned for client in rig.clients] == [False, True, False]
    assert await rig.manager.enable("b") == ()
    assert rig.names() == ["a", "b", "c"]
    assert rig.manager.registered([START])
    assert rig.manager.fail_policy_registered(CREATE)
    assert (rig.manager.masked, rig.manager.disabled) == ({}, {})
    assert rig.clients[3:] == [rig.manager.plugins_for(START)[0].client], "it has a new client"
    assert reported == [["a", "b", "c"], ["a", "c"], ["a", "b", "c"]]


async def test_disabling_covers_all_that_name_the_socket(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.json", "c.json"):
        rig.put(name, "/run/x.sock", policy="Fail")
    await rig.start("b")
    assert await rig.manager.disable("c", "hangs", "root") == ("a names the same socket: it is disabled, too",)
    assert (rig.names(), rig.manager.disabled_with, [*rig.manager.masked]) == (["b"], {"a": "c"}, ["a", "c"])
    assert [client.plugin for client in rig.clients if client.abandoned] == ["a", "c"]
    assert not rig.manager.fail_policy_registered(CREATE)
    rig.remove("c.json")
    rig.put("d.json", "/run//x.sock")
    await until(lambda: [*rig.manager.masked] == ["a", "d"])
    assert rig.names() == ["b"]
    rig.remove("d.json")
    await until(lambda: [*rig.manager.masked] == ["a"])
    await rig.manager.disable("a", "hangs", "root")
    assert await rig.manager.enable("a") == ("c names the same socket: it is enabled, too",)
    assert (rig.names(), rig.manager.disabled) == (["a", "b"], {})
    warned = [line for line in caplog.messages if "names the socket of" in line]
    assert warned == [f"hook server {name} is disabled: it names the socket of c" for name in "ad"]
    for kind, names in (("plugin_disabled", "cada"), ("plugin_enabled", "ca")):
        found = [event["hookServer"] for event in shown_of(rig.metrics.events) if event["kind"] == kind]
        assert "".join(found) == names


async def test_file_of_a_disabled_plugin_may_go_come_and_change(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig.put("b.json", policy="Fail")
    await rig.start("a")
    await rig.disable("b")
    for number in range(3):
        rig.put("b.json", f"/run/{number}.sock", policy="Fail")
        await until(lambda: [entry.endpoint for entry in rig.manager.masked.values()] == [f"/run/{number}.sock"])  # noqa: B023
        assert rig.names() == ["a"]
        rig.remove("b.json")
        await until(lambda: not rig.manager.masked)
        assert rig.names() == ["a"]
    rig.put("b.json", "/run/new.sock")
    await until(lambda: bool(rig.manager.masked))
    await rig.manager.enable("b")
    await rig.until_at("/run/a.sock", "/run/new.sock")
    removed = [line for line in caplog.messages if line.startswith("registration b.json removed")]
    assert removed == ["registration b.json removed"] * 3, "no call was refused without it"
    added = (
        "registration b.json added: endpoint /run/new.sock, policy Ignore, points PreCreateContainer; it is disabled"
    )
    assert added in caplog.messages


async def test_name_may_be_disabled_before_it_registers(rig: Rig) -> None:
    await rig.start("a")
    note = f"it is not registered now: it will not be called once b.json is in {rig.folder}"
    assert await rig.manager.disable("b", "not yet", "root") == (note,)
    rig.put("b.json")
    await until(lambda: bool(rig.manager.masked))
    assert rig.names() == ["a"]


async def test_disabled_stays_disabled_in_the_next_process(rig: Rig) -> None:
    await rig.start("a", "b")
    await rig.disable("b")
    for names in (["a"], ["a", "b"]):
        await rig.manager.stop()
        rig.poll(1000)
        await rig.manager.start()
        assert rig.names() == names
        await rig.manager.enable("b")
    assert rig.manager.mask_fault == ""


async def test_old_clients_of_a_disabled_plugin_are_abandoned_too(rig: Rig) -> None:
    """A call may wait for an answer at the endpoint that the file named before."""
    await rig.start("a")
    rig.clients[0].busy.clear()
    rig.put("a.json", "/run/new.sock")
    await rig.until_at("/run/new.sock")
    await rig.disable("a")
    assert [client.abandoned for client in rig.clients] == [True, True]
    rig.clients[0].busy.set()


async def test_gauges_show_who_is_disabled_and_the_time_limits(rig: Rig) -> None:
    rig.put("b.json", timeout="500ms")
    await rig.start("a")
    rig.manager.measure()
    assert rig.gauges("hook_disabled") == {"a": 0, "b": 0}
    assert rig.gauges("hook_timeout_seconds") == {"a": 2.0, "b": 0.5}
    await rig.disable("a")
    await rig.manager.disable("away", "gone", "root")
    assert rig.gauges("hook_disabled") == {"a": 1, "b": 0, "away": 1}
    assert rig.gauges("hook_breaker_open") == {"b": 0}
    reported = [(event["kind"], event["hookServer"], event.get("text")) for event in shown_of(rig.metrics.events)]
    assert reported[2:] == [("plugin_disabled", "a", "hangs"), ("plugin_disabled", "away", "gone")]
    assert rig.gauges("plugins") == {"closed": 1, "open": 0, "half_open": 0, "disabled": 1}
    for name in ("a", "away"):
        await rig.manager.enable(name)
    ended = [(event["kind"], event["hookServer"]) for event in shown_of(rig.metrics.events)[4:]]
    assert ended == [("plugin_enabled", "a"), ("plugin_enabled", "away")]
    assert rig.gauges("hook_disabled") == {"a": 0, "b": 0}
    assert rig.gauges("plugins") == {"closed": 2, "open": 0, "half_open": 0, "disabled": 0}
