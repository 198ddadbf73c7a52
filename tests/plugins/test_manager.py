"""The Plugins Manager on a real directory: who is asked, from when on, and by which client."""

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy import logs
from runtimeproxy.errors import Reason
from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.plugins.breaker import FAILURES_IN_A_ROW
from runtimeproxy.plugins.registration import FailurePolicy
from tests.fakes import registration
from tests.plugins.rig import CREATE, Rig

START = BY_NAME["PreStartContainer"]
TRIES = 10
SOON_SECONDS = 0.5
"""How fast a change must take effect (hook-api, "Registration files")."""


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    folder = tmp_path / "hooks.d"
    folder.mkdir()
    made = Rig(folder)
    yield made
    await made.manager.stop()


async def test_plugins_registered_before_the_start_serve_the_first_call(rig: Rig) -> None:
    rig.put("b.json", policy="Fail", timeout="500ms")
    rig.put("a.json", "unix:///run/other.sock", (CREATE.name, START.name))
    await rig.manager.start()
    first, second = rig.manager.plugins_for(CREATE)
    assert (first.name, first.endpoint, first.policy, first.timeout_seconds) == (
        "a",
        "/run/other.sock",
        FailurePolicy.IGNORE,
        2.0,
    )
    assert (second.name, second.policy, second.timeout_seconds) == ("b", FailurePolicy.FAIL, 0.5)
    assert rig.manager.plugins_for(START) == (first,)
    assert first.client is rig.clients[0]
    assert (rig.clients[0].plugin, rig.clients[0].endpoint) == ("a", "/run/other.sock")


async def test_who_is_registered_for_what(rig: Rig) -> None:
    rig.put("a.json", policy="Fail")
    rig.put("b.json", points=(START.name,))
    await rig.manager.start()
    assert rig.manager.registered([CREATE])
    assert rig.manager.registered([BY_NAME["PostStopContainer"], START])
    assert not rig.manager.registered([BY_NAME["PostStopContainer"]])
    assert not rig.manager.registered([])
    assert [point.name for point in HOOK_POINTS if rig.manager.fail_policy_registered(point)] == [CREATE.name]


async def test_a_missing_directory_is_no_error_and_is_waited_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "later" / "hooks.d")
    await rig.manager.start()
    assert not rig.manager.registered(HOOK_POINTS)
    assert rig.manager.plugins_for(CREATE) == ()
    rig.folder.mkdir(parents=True)
    rig.put("a.json")
    await rig.until(lambda: rig.names() == ["a"])
    await rig.manager.stop()


async def test_files_come_change_and_go(rig: Rig) -> None:
    await rig.manager.start()
    rig.put("b.json")
    await rig.until(lambda: rig.names() == ["b"])
    rig.put("a.json")
    await rig.until(lambda: rig.names() == ["a", "b"])
    rig.put("a.json", "/run/new.sock")
    await rig.until(lambda: rig.endpoints() == ["/run/new.sock", "/run/a.sock"])
    rig.put("a.json", points=(START.name,))
    await rig.until(lambda: rig.names() == ["b"] and rig.names(START) == ["a"])
    (rig.folder / "b.json").unlink()
    await rig.until(lambda: rig.names() == [])
    assert rig.recorder.counted("config_reloads", result="ok") == 4
    assert rig.recorder.counted("config_reloads", result="removed") == 1


async def test_a_change_takes_effect_in_time(rig: Rig) -> None:
    await rig.manager.start()

    async def took(change: Callable[[], object], condition: Callable[[], bool]) -> float:
        begun = time.monotonic()
        change()
        await rig.until(condition)
        return time.monotonic() - begun

    rounds: list[float] = []
    for number in range(TRIES):
        if min(rounds, default=SOON_SECONDS) < SOON_SECONDS:
            break
        endpoint = f"/run/{number}.sock"
        added = await took(lambda: rig.put("a.json"), lambda: rig.names() == ["a"])
        in_place = await took(
            lambda: (rig.folder / "a.json").write_text(registration.text(endpoint)),  # noqa: B023
            lambda: rig.endpoints() == [endpoint],  # noqa: B023
        )
        removed = await took((rig.folder / "a.json").unlink, lambda: rig.names() == [])
        rounds.append(max(added, in_place, removed))
    assert min(rounds) < SOON_SECONDS, "the best round: the others have met a busy machine"


async def test_order_is_the_order_of_the_file_names(rig: Rig) -> None:
    for name in ("b.json", "10-x.json", "9-x.json", "a.json"):
        rig.put(name)
    await rig.manager.start()
    assert rig.names() == ["10-x", "9-x", "a", "b"]


async def test_a_directory_that_is_replaced(rig: Rig) -> None:
    rig.put("a.json")
    await rig.manager.start()
    new = rig.folder.with_name("new.d")
    new.mkdir()
    registration.write(new, "b.json", registration.text("/run/b.sock"))
    rig.folder.rename(rig.folder.with_name("old.d"))
    new.rename(rig.folder)
    await rig.until(lambda: rig.names() == ["b"])
    rig.put("c.json")
    await rig.until(lambda: rig.names() == ["b", "c"])


async def test_a_directory_that_goes_takes_its_plugins_along(rig: Rig) -> None:
    rig.put("a.json")
    await rig.manager.start()
    rig.folder.rename(rig.folder.with_name("away"))
    await rig.until(lambda: rig.names() == [])


async def test_a_directory_that_cannot_be_read_keeps_the_plugins(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("a.json")
    await rig.manager.start()
    rig.folder.rename(rig.folder.with_name("away"))
    # In one step with the rename for the manager, which reads some milliseconds later.
    rig.folder.symlink_to(rig.folder.name)
    await rig.until(lambda: "Too many levels" in caplog.text)
    assert rig.names() == ["a"]
    (rig.folder.parent / "link").symlink_to("link")
    os.replace(rig.folder.parent / "link", rig.folder)
    await asyncio.sleep(0.1)
    assert caplog.text.count("the plugins stay as they are") == 1
    rig.folder.unlink()
    await rig.until(lambda: rig.names() == [])


async def test_a_config_map_update(rig: Rig) -> None:
    def publish(version: int, *names: str) -> None:
        """Swap the links as the kubelet does: a new directory, ..data renamed over, then the links beside it."""
        payload = rig.folder / f"..{version}"
        payload.mkdir()
        for name in names:
            (payload / name).write_text(registration.text(f"/run/{version}.sock"))
        (rig.folder / "..data_tmp").symlink_to(payload.name)
        os.replace(rig.folder / "..data_tmp", rig.folder / "..data")
        for name in names:
            if not (rig.folder / name).is_symlink():
                (rig.folder / name).symlink_to(f"..data/{name}")
        for link in rig.folder.glob("*.json"):
            if link.name not in names:
                link.unlink()

    publish(1, "a.json", "b.json")
    await rig.manager.start()
    assert rig.endpoints() == ["/run/1.sock", "/run/1.sock"]
    publish(2, "a.json", "c.json")
    await rig.until(lambda: (rig.names(), rig.endpoints()) == (["a", "c"], ["/run/2.sock", "/run/2.sock"]))


async def test_koordlet_writes_its_file_in_place(rig: Rig) -> None:
    await rig.manager.start()
    for seed in range(12):
        registration.write_as_koordlet(rig.folder, "/run/koordlet.sock", seed=seed)
        await rig.until(lambda: rig.names() == ["koordlet"])
        await asyncio.sleep(0.01 * (seed % 4))
    assert all(rig.names(point) == ["koordlet"] for point in HOOK_POINTS)
    assert len(rig.clients) == 1


async def test_a_file_written_byte_by_byte_settles_on_its_last_text(rig: Rig) -> None:
    rig.put("a.json", "/run/old.sock")
    await rig.manager.start()
    text = registration.text("/run/new.sock")
    with (rig.folder / "a.json").open("w", buffering=1) as file:
        for at in range(0, len(text), 16):
            file.write(text[at : at + 16])
            file.flush()
            await asyncio.sleep(0.01)
            if at + 16 < len(text):
                assert rig.endpoints() == ["/run/old.sock"]
    await rig.until(lambda: rig.endpoints() == ["/run/new.sock"])
    assert rig.invalid == 0


async def test_no_call_is_unhooked_while_files_are_swapped(rig: Rig) -> None:
    rig.put("a.json")
    rig.put("b.json")
    await rig.manager.start()
    missed = 0
    for number in range(400):
        rig.put("a.json", f"/run/{number}.sock")
        await asyncio.sleep(0)
        missed += rig.names() != ["a", "b"]
    await rig.until(lambda: rig.endpoints()[0] == "/run/399.sock")
    assert missed == 0


async def test_a_file_that_returns_to_what_it_was_is_counted_again(rig: Rig) -> None:
    rig.put("a.json")
    await rig.manager.start()
    (rig.folder / "a.json").write_text("{")
    await rig.until(lambda: rig.invalid == 1)
    rig.put("a.json")
    await rig.until(lambda: rig.invalid == 0)
    assert rig.recorder.counted("config_reloads", result="ok") == 2
    assert len(rig.clients) == 1


async def test_a_client_is_kept_as_long_as_the_endpoint_is_the_same(rig: Rig) -> None:
    rig.put("a.json")
    await rig.manager.start()
    (before,) = rig.manager.plugins_for(CREATE)
    rig.put("a.json", policy="Fail", timeout="1s")
    await rig.until(lambda: rig.manager.fail_policy_registered(CREATE))
    (after,) = rig.manager.plugins_for(CREATE)
    assert after.client is before.client
    assert after.timeout_seconds == 1.0
    rig.put("a.json", "/run/new.sock")
    await rig.until(lambda: rig.endpoints() == ["/run/new.sock"])
    await rig.until(lambda: [client.closed for client in rig.clients] == [1, 0])


async def test_who_wants_to_know_is_told_of_every_change(rig: Rig) -> None:
    told: list[bool] = []
    rig.manager.on_change = lambda: told.append(rig.manager.fail_policy_registered(CREATE))
    rig.put("a.json")
    await rig.manager.start()
    assert told == [False]
    rig.put("a.json")
    rig.put("b.json", policy="Fail")
    await rig.until(lambda: told == [False, True])


async def test_a_plugin_stays_what_it_is_until_its_own_file_changes(rig: Rig) -> None:
    rig.put("a.json")
    await rig.manager.start()
    (first,) = rig.manager.plugins_for(CREATE)
    rig.put("b.json")
    await rig.until(lambda: rig.names() == ["a", "b"])
    (rig.folder / "b.json").unlink()
    await rig.until(lambda: rig.names() == ["a"])
    assert rig.manager.plugins_for(CREATE) == (first,)
    rig.put("a.json", policy="Fail")
    await rig.until(lambda: rig.manager.fail_policy_registered(CREATE))
    (second,) = rig.manager.plugins_for(CREATE)
    assert second.client is first.client
    assert second.breaker is not first.breaker
    assert second.unserved is not first.unserved
    assert second.bad_fields is not first.bad_fields


@pytest.mark.parametrize("change", ["goes", "changes", "stays"])
async def test_an_open_breaker_of_a_plugin_that_is_no_more_is_not_shown(rig: Rig, change: str) -> None:
    rig.put("a.json")
    rig.put("b.json")
    await rig.manager.start()
    (plugin, closed) = rig.manager.plugins_for(CREATE)
    for _ in range(FAILURES_IN_A_ROW):
        attempt = plugin.breaker.admit("socket", 0.0)
        assert attempt is not None
        plugin.breaker.end(attempt, Reason.DEADLINE, 0.0)
    rig.recorder.gauge("hook_breaker_open", 1.0, plugin="a")
    if change == "goes":
        (rig.folder / "a.json").unlink()
    elif change == "changes":
        rig.put("a.json", timeout="1s")
    (rig.folder / "b.json").unlink()
    await rig.until(lambda: closed not in rig.manager.plugins_for(CREATE))
    shown = {labels: value for (name, labels), value in rig.recorder.gauges.items() if name == "hook_breaker_open"}
    assert shown == {(("plugin", "a"),): float(change == "stays")}


async def test_stop_closes_all_clients_and_waits_for_those_in_use(rig: Rig) -> None:
    rig.put("a.json")
    rig.put("b.json")
    await rig.manager.start()
    rig.clients[0].busy.clear()
    (rig.folder / "a.json").unlink()
    await rig.until(lambda: rig.names() == ["b"])
    stopping = asyncio.create_task(rig.manager.stop())
    await asyncio.sleep(0.02)
    assert not stopping.done()
    rig.clients[0].busy.set()
    await stopping
    assert [client.closed for client in rig.clients] == [1, 1]


async def test_the_log_says_what_changed_once_and_no_more(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    entry = {"remote-endpoint": "/run/a.sock", "runtime-hooks": [CREATE.name, "Unheard"], "secret": "canary"}
    registration.write(rig.folder, "a.json", json.dumps(entry))
    await rig.manager.start()
    (rig.folder / "a.json").unlink()
    await rig.until(lambda: rig.names() == [])
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("runtimeproxy.")]
    assert lines == [
        "registration a.json added: endpoint /run/a.sock, policy Ignore, points PreCreateContainer",
        "registration a.json: unknown keys are ignored: 'secret'",
        "registration a.json: unknown hook points are ignored: 'Unheard'",
        "registration a.json removed",
    ]


async def test_a_half_written_moment_is_no_change(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """koordlet writes its file in place at every start, and names a hook point that no proxy knows."""
    rig.put("koordlet.json", points=(CREATE.name, "PreRemoveRunPodSandbox"))
    await rig.manager.start()
    caplog.set_level("INFO")
    caplog.clear()
    text = (rig.folder / "koordlet.json").read_text()
    (rig.folder / "koordlet.json").write_text(text[:20])
    await rig.until(lambda: rig.invalid == 1)
    (rig.folder / "koordlet.json").write_text(text)
    await rig.until(lambda: rig.invalid == 0)
    *rejected, last = caplog.messages
    assert all(line.startswith("registration rejected: koordlet.json: not JSON (yet?)") for line in rejected)
    assert last.startswith("registration koordlet.json good again, unchanged: endpoint /run/a.sock, policy Ignore,")


async def test_the_end_of_a_guard_is_warned_of(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig.put("a.json", policy="Fail", points=(START.name, CREATE.name))
    await rig.manager.start()
    (rig.folder / "a.json").unlink()
    await rig.until(lambda: rig.names() == [])
    last = caplog.records[-1]
    assert last.levelname == "WARNING"
    assert last.getMessage().startswith("registration a.json removed: it had policy Fail, and calls are no longer ref")
    assert last.getMessage().endswith(" at PreCreateContainer, PreStartContainer")


@pytest.fixture
def told() -> Iterator[Callable[[], list[str]]]:
    """What is logged from now on; to be asked for once."""
    logger = logging.getLogger(logs.OWN_LOGGER)
    level = logger.level
    read_end, write_end = os.pipe()
    handler = logs.configure("info", "text", write_end)

    def lines() -> list[str]:
        handler.close()
        os.close(write_end)
        with os.fdopen(read_end, closefd=False) as stream:
            return stream.read().splitlines()

    yield lines
    os.close(read_end)
    logger.setLevel(level)


async def test_the_logs_last_word_on_a_registration_is_its_state(rig: Rig, told: Callable[[], list[str]]) -> None:
    await rig.manager.start()
    for endpoint in ("/run/x.sock", "/run/y.sock", "/run/z.sock"):
        rig.put("a.json", endpoint)
        await rig.until(lambda: rig.endpoints() == [endpoint])  # noqa: B023
    (rig.folder / "a.json").unlink()
    await rig.until(lambda: rig.names() == [])
    rig.put("a.json", "/run/z.sock")
    await rig.until(lambda: rig.endpoints() == ["/run/z.sock"])
    assert [line.partition("registration ")[2].partition(", ")[0] for line in told()] == [
        "a.json added: endpoint /run/x.sock",
        "a.json changed: endpoint /run/y.sock",
        "a.json changed: endpoint /run/z.sock",
        "a.json removed",
        "a.json added: endpoint /run/z.sock",
    ]


async def test_a_directory_that_cannot_be_read_is_told_each_time(rig: Rig, told: Callable[[], list[str]]) -> None:
    rig.folder.rmdir()
    for _ in range(2):
        rig.folder.write_text("no directory")
        await rig.manager._scan()
        await rig.manager._scan()
        rig.folder.unlink()
        await rig.manager._scan()
    assert [line.count("cannot be read (Not a directory)") for line in told()] == [1, 1]
