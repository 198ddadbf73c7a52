"""The Plugins Manager on a real directory: which hook servers are called, by which client, and what is logged."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
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
from tests.fakes import registration
from tests.observe.events import shown_of
from tests.patience import SECONDS, until

CREATE, START, STOP = (BY_NAME[name] for name in ("PreCreateContainer", "PreStartContainer", "PostStopContainer"))
Log = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch


class FakeClient:
    """A client that records what is done with it; its calls end once ``idle`` is set."""

    def __init__(self, plugin: str, endpoint: str) -> None:
        self.plugin, self.endpoint = plugin, endpoint
        self.closed, self.abandoned, self.idle = 0, False, asyncio.Event()
        self.idle.set()

    def abandon(self) -> None:
        self.abandoned = True

    async def close(self) -> None:
        await self.idle.wait()
        self.closed += 1


class Rig:
    """A manager on a directory, its clients and its metrics."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = Metrics(time.monotonic)
        self.clients: list[FakeClient] = []
        self.renew()

    def renew(self, poll_seconds: float = 1000) -> None:
        mask = StateFile(str(self.folder.parent / "state" / "mask.json"), MAX_BYTES, durable=False)
        options: dict[str, Any] = {"timeout_seconds": 2.0, "metrics": self.metrics, "mask": mask}
        options["client_factory"] = lambda plugin, endpoint: self.make_client(plugin, endpoint)
        self.manager = manager.Manager(str(self.folder), poll_seconds=poll_seconds, **options)

    def make_client(self, plugin: str, endpoint: str) -> FakeClient:
        self.clients.append(FakeClient(plugin, endpoint))
        return self.clients[-1]

    async def start(self, *names: str, **more: Any) -> None:
        for name in names:
            self.put(name, **more)
        await self.manager.start()

    def put(self, name: str, endpoint: str = "", points: tuple[str, ...] = (CREATE.name,), **more: str) -> None:
        text = registration.text(endpoint or f"/run/{name}.sock", points, **more)
        registration.write(self.folder, f"{name}.json", text)

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.json").unlink()

    def names(self, hook_point: HookPoint = CREATE) -> list[str]:
        return [plugin.name for plugin in self.manager.plugins_for(hook_point)]

    async def until_called(self, *names: str, hook_point: HookPoint = CREATE) -> None:
        await until(lambda: self.names(hook_point) == list(names))

    async def until_at(self, *endpoints: str) -> None:
        await until(lambda: [plugin.endpoint for plugin in self.manager.plugins_for(CREATE)] == list(endpoints))

    async def disable(self, name: str) -> tuple[str, ...]:
        return await self.manager.disable(name, "hangs", "root")

    def gauges(self, name: str) -> dict[str, float]:
        return {labels[0]: value for (gauge, labels), value in self.metrics.gauges.items() if gauge == name}

    def events(self) -> list[tuple[str, ...]]:
        events = shown_of(self.metrics.events)
        return [(event["kind"], event["hookServer"], event.get("text", "")) for event in events]


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: Patch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(manager, "FAULT_SECONDS", 0.01)
    tmp_path.chmod(0o700)
    (tmp_path / "hooks.d").mkdir()
    made = Rig(tmp_path / "hooks.d")
    yield made
    await made.manager.stop()


async def test_registered_plugins_are_called_and_shown(rig: Rig) -> None:
    rig.put("b", policy="Fail", timeout="500ms")
    await rig.start("a", endpoint="unix:///run/other.sock", points=(CREATE.name, START.name))
    plugins = rig.manager.plugins_for(CREATE)
    assert [(plugin.name, plugin.endpoint, plugin.policy.value, plugin.timeout_seconds) for plugin in plugins] == [
        ("a", "/run/other.sock", "Ignore", 2.0),
        ("b", "/run/b.sock", "Fail", 0.5),
    ]
    assert (rig.manager.plugins_for(START), [plugin.client for plugin in plugins]) == (plugins[:1], rig.clients)
    assert (rig.clients[0].plugin, rig.clients[0].endpoint) == ("a", "/run/other.sock")
    registered = [rig.manager.registered(points) for points in ([CREATE], [STOP, START], [STOP], [])]
    assert registered == [True, True, False, False]
    failing = [hook_point for hook_point in HOOK_POINTS if rig.manager.fail_policy_registered(hook_point)]
    assert failing == [CREATE]
    for _ in range(FAILURES_IN_A_ROW):
        plugins[0].breaker.end(plugins[0].breaker.admit("socket", 0.0) or 0, Reason.DEADLINE, 0.0)
    rig.metrics.gauge("hook_breaker_open", 1.0, "a")
    rig.manager.measure()
    assert rig.gauges("plugins") == {"closed": 1, "open": 1, "half_open": 0, "disabled": 0}
    assert (rig.gauges("hook_timeout_seconds"), rig.gauges("hook_disabled")) == ({"a": 2, "b": 0.5}, {"a": 0, "b": 0})
    rig.put("a", timeout="1s")
    await until(lambda: rig.manager.plugins[0].timeout_seconds == 1)
    assert rig.gauges("hook_breaker_open") == {"b": 0}
    for name in ("a", "unregistered"):
        await rig.disable(name)
    assert rig.gauges("hook_disabled") == {"a": 1, "b": 0, "unregistered": 1}
    assert rig.gauges("plugins") == {"closed": 1, "open": 0, "half_open": 0, "disabled": 1}
    for name in ("a", "unregistered"):
        await rig.manager.enable(name)
    assert (rig.gauges("hook_disabled"), rig.gauges("hook_breaker_open")) == ({"a": 0, "b": 0}, {"a": 0, "b": 0})
    rig.remove("a")
    await rig.until_called("b")
    assert rig.gauges("hook_breaker_open") == {"b": 0}


@pytest.mark.parametrize(("policy", "called"), [("Ignore", "a"), ("Fail", "c")])
async def test_shared_socket_is_called_once(rig: Rig, caplog: Log, tmp_path: Path, policy: str, called: str) -> None:
    repeated = "ac".replace(called, "")
    (tmp_path / "link").symlink_to(tmp_path)
    rig.put("a", f"{tmp_path}/x.sock", (CREATE.name, START.name), policy="Ignore")
    rig.put("c", f"unix://{tmp_path}/link//x.sock", (CREATE.name, STOP.name), policy=policy)
    await rig.start("b")
    assert (rig.names(), rig.names(START), rig.names(STOP)) == (sorted(["b", called]), ["a"], ["c"])
    assert rig.manager.fail_policy_registered(CREATE) is (policy == "Fail")
    assert rig.manager.repeated == {(repeated, CREATE.name): called}
    rig.put("b", timeout="1s")
    await until(lambda: rig.manager.plugins[1].timeout_seconds == 1)
    same = f"{called}.json and {repeated}.json name the same socket, which is called once, by {called}.json"
    warning = f"registrations {same}, at PreCreateContainer; remove one of the two files"
    assert [message for message in caplog.messages if "the same socket" in message] == [warning]
    rig.remove(called)
    await rig.until_called(*sorted(["b", repeated]))


async def test_changed_registration_retains_client_of_endpoint(rig: Rig) -> None:
    await rig.manager.stop()  # it was not started
    changes: list[bool] = []
    rig.manager.on_change = lambda: changes.append(rig.manager.fail_policy_registered(CREATE))
    await rig.start("a")
    (before,) = rig.manager.plugins_for(CREATE)
    await rig.manager._scan()
    rig.put("b", policy="Fail")
    await rig.until_called("a", "b")
    rig.remove("b")
    await rig.until_called("a")
    assert rig.manager.plugins_for(CREATE) == (before,)
    assert changes == [False, True, False], "called for each change, and for nothing else"
    rig.put("a", policy="Fail", timeout="1s")
    await until(lambda: rig.manager.fail_policy_registered(CREATE))
    (after,) = rig.manager.plugins_for(CREATE)
    assert (after.client, after.timeout_seconds) == (before.client, 1.0)
    for state in ("breaker", "unserved", "bad_fields", "last_error"):
        assert getattr(after, state) is not getattr(before, state)
    rig.clients[0].idle.clear()  # a call waits for an answer at the old endpoint
    rig.put("a", "/run/new.sock")
    await rig.until_at("/run/new.sock")
    await rig.disable("a")
    assert [client.abandoned for client in rig.clients] == [True, False, True]
    rig.remove("a")
    rig.put("c")
    await rig.until_called("c")
    stopping = asyncio.create_task(rig.manager.stop())
    await until(lambda: [client.closed for client in rig.clients] == [0, 1, 1, 1])
    assert not stopping.done(), "it waits for the call"
    rig.clients[0].idle.set()
    await stopping
    assert [client.closed for client in rig.clients] == [1, 1, 1, 1]


async def test_file_changes_are_logged(rig: Rig, caplog: Log) -> None:
    caplog.set_level("INFO")
    entry = {"remote-endpoint": "/run/x.sock", "runtime-hooks": [CREATE.name, "Unheard"], "secret": "canary"}
    registration.write(rig.folder, "a.json", json.dumps(entry))
    await rig.start()
    rig.put("a", "/run/y.sock", points=(START.name, CREATE.name), policy="Fail")
    await rig.until_called("a", hook_point=START)
    rig.remove("a")
    await rig.until_called(hook_point=START)
    added = "endpoint /run/x.sock, policy Ignore, points PreCreateContainer"
    changed = "endpoint /run/y.sock, policy Fail, points PreCreateContainer, PreStartContainer"
    had = "it had policy Fail, and calls are no longer refused without it at PreCreateContainer, PreStartContainer"
    lines = [(line.levelname[0], line.getMessage(), vars(line).get("limited", True)) for line in caplog.records]
    assert [(level, text.removeprefix("registration "), limited) for level, text, limited in lines] == [
        ("I", f"a.json added: {added}", False),
        ("W", "a.json: unknown keys are ignored: 'secret'", True),
        ("W", "a.json: unknown hook points are ignored: 'Unheard'", True),
        ("I", f"a.json changed: {changed}", False),
        ("W", f"a.json removed: {had}", False),
    ]
    assert [rig.metrics.counted("config_reloads", result=result) for result in ("ok", "removed")] == [2, 1]
    assert rig.events() == [("plugin_added", "a", added), ("plugin_changed", "a", changed), ("plugin_removed", "a", "")]


async def test_half_written_file_changes_nothing(rig: Rig, caplog: Log) -> None:
    """koordlet writes its file in place at every start, and names an unknown hook point."""
    await rig.start("koordlet", points=(CREATE.name, "PreRemoveRunPodSandbox"))
    caplog.set_level("INFO")
    caplog.clear()
    file = rig.folder / "koordlet.json"
    text = file.read_text()
    for content, invalid in ((text[:20], 1), (text, 0)):
        file.write_text(content)
        await until(lambda: rig.metrics.gauges["config_invalid_files", ()] == invalid)  # noqa: B023
        assert rig.names() == ["koordlet"]
    *rejected, restored = caplog.messages
    bad, stays = "registration rejected: koordlet.json: not JSON (yet?)", "; the last good state stays"
    assert {(line.startswith(bad), line.endswith(stays)) for line in rejected} == {(True, True)}
    good = "endpoint /run/koordlet.sock, policy Ignore, points PreCreateContainer"
    assert restored == f"registration koordlet.json good again, unchanged: {good}"
    _, *invalid_events, event = rig.events()
    assert {kind for kind, *_ in invalid_events} == {"plugin_invalid"}
    assert (event, len(rig.clients)) == (("plugin_changed", "koordlet", good), 1)


async def test_unreadable_directory_retains_plugins(rig: Rig, caplog: Log, tmp_path: Path) -> None:
    """It is reported once each time."""
    await rig.start("a")
    for endpoint in ("/run/0.sock", "/run/1.sock"):
        rig.folder.rename(tmp_path / "away")
        rig.folder.touch()
        for _ in range(2):
            await rig.manager._scan()
        assert rig.names() == ["a"]
        rig.folder.unlink()
        (tmp_path / "away").rename(rig.folder)
        rig.put("a", endpoint)
        await rig.until_at(endpoint)
    complaint = f"{rig.folder} cannot be read (Not a directory): the plugins stay as they are"
    assert [vars(line)["limited"] for line in caplog.records if line.getMessage() == complaint] == [False, False]


@pytest.mark.parametrize("step", ["arm", "changed", "make_client"])
async def test_internal_error_does_not_end_start_or_watch(rig: Rig, monkeypatch: Patch, caplog: Log, step: str) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("a canary")

    rig.renew(poll_seconds=0.02)
    with monkeypatch.context() as faulty:
        faulty.setattr(Rig if step == "make_client" else Watcher, step, fail)
        await rig.start("a")
        await until(lambda: "failed inside the proxy: RecursionError" in caplog.text)
        assert rig.names() == ([] if step == "make_client" else ["a"])
    await rig.until_called("a")
    rig.put("b")
    await rig.until_called("a", "b")
    assert "canary" not in caplog.text


@pytest.mark.parametrize(("owner", "step"), [(Watcher, "arm"), (directory, "read")])
async def test_dead_mount_delays_nothing(rig: Rig, caplog: Log, monkeypatch: Patch, owner: object, step: str) -> None:
    """As with a link into a dead mount."""
    real, gate = getattr(owner, step), threading.Event()

    def wait(*arguments: object) -> object:
        gate.wait()
        return real(*arguments)

    monkeypatch.setattr(manager, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(owner, step, wait)
    await rig.start("a")
    await until(lambda: f"{rig.folder} does not answer: is there a link into a mount" in caplog.text)
    assert rig.names() == []
    gate.set()
    await rig.until_called("a")
    caplog.clear()
    gate.clear()
    rig.put("b")
    await until(lambda: "does not answer" in caplog.text)
    assert rig.names() == ["a"], "the plugins stay"
    async with asyncio.timeout(SECONDS):
        await rig.manager.stop()
    gate.set()


async def test_disable_covers_hook_servers_of_same_socket(rig: Rig, caplog: Log) -> None:
    for name in ("a", "c"):
        rig.put(name, "/run/x.sock", policy="Fail")
    await rig.start("b")
    assert await rig.disable("c") == ("a names the same socket: it is disabled, too",)
    assert (rig.names(), rig.manager.disabled_with, [*rig.manager.masked]) == (["b"], {"a": "c"}, ["a", "c"])
    assert [client.plugin for client in rig.clients if client.abandoned] == ["a", "c"]
    assert not rig.manager.fail_policy_registered(CREATE)
    rig.remove("c")
    rig.put("d", "/run//x.sock")
    await until(lambda: [*rig.manager.masked] == ["a", "d"])
    assert rig.names() == ["b"]
    rig.remove("d")
    await until(lambda: [*rig.manager.masked] == ["a"])
    await rig.disable("a")
    assert await rig.manager.enable("a") == ("c names the same socket: it is enabled, too",)
    assert (rig.names(), rig.manager.disabled) == (["a", "b"], {})
    warned = [line for line in caplog.messages if "names the socket of" in line]
    assert warned == [f"hook server {name} is disabled: it names the socket of c" for name in "ad"]
    events = [event for event in rig.events() if event[0] in ("plugin_disabled", "plugin_enabled")]
    hangs = [("plugin_disabled", name, "hangs") for name in "cada"]
    assert events == [*hangs, *(("plugin_enabled", name, "") for name in "ca")]


async def test_name_stays_disabled_when_its_file_changes(rig: Rig, caplog: Log) -> None:
    """Also if it is not registered yet, and in the next process."""
    caplog.set_level("INFO")
    await rig.start("a")
    note = f"it is not registered now: it will not be called once b.json is in {rig.folder}"
    assert await rig.disable("b") == (note,)
    for _ in range(2):
        rig.put("b", policy="Fail")
        await until(lambda: rig.manager.masked)
        rig.put("b", "/run/new.sock", policy="Fail")
        await until(lambda: rig.manager.masked["b"].endpoint == "/run/new.sock")
        assert rig.names() == ["a"]
        rig.remove("b")
        await until(lambda: not rig.manager.masked)
    rig.put("b", "/run/new.sock")
    await until(lambda: rig.manager.masked)
    await rig.manager.stop()
    rig.renew()
    await rig.start()
    assert (rig.names(), rig.manager.mask_fault) == (["a"], "")
    await rig.manager.enable("b")
    await rig.until_at("/run/a.sock", "/run/new.sock")
    removed = [line for line in caplog.messages if line.startswith("registration b.json removed")]
    assert removed == ["registration b.json removed"] * 2, "no call was refused without it"
    added = "endpoint /run/new.sock, policy Ignore, points PreCreateContainer; it is disabled"
    assert f"registration b.json added: {added}" in caplog.messages
