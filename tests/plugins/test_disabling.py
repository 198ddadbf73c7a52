"""Disabled hook servers: their periods, the mask and the reports, in virtual time (fault matrix H13)."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.plugins import disabling
from runtimeproxy.plugins.disabling import Disabled, Disabling, MaskError, encode, parse
from runtimeproxy.relay.eventloop import run_in_daemon_thread
from tests.fakes.clock import virtual_time

BEGIN = 1_000_000_000.0
"""The virtual time's second 0 on the machine's clock: 2001-09-09T01:46:40Z."""
BY = "uid 0, pid 7"
Log = pytest.LogCaptureFixture


class Desk:
    """The disabled hook servers, on a clock that may be set; their file is in memory.

    The file raises ``fault``, and waits for ``gate``; ``changed`` are the names after each change.
    """

    path = "/state/a.json"

    def __init__(self, **retained: Disabled) -> None:
        self.retained: Mapping[str, Disabled] = retained
        self.fault: Exception | None = None
        self.begun = self.writes = 0
        self.gate = threading.Event()
        self.gate.set()
        self.set_by = 0.0
        self.changed: list[list[str]] = []
        self.disabling = Disabling(self, lambda: self.changed.append(self.names), self.wall)  # type: ignore[arg-type]

    def _access(self) -> None:
        self.gate.wait()
        if self.fault:
            raise self.fault

    def read(self) -> tuple[bytes, object]:
        self._access()
        return encode(self.retained), 1

    def write(self, content: bytes) -> None:
        self.begun += 1
        self._access()
        self.retained = parse(content)
        self.writes += 1

    def wall(self) -> float:
        return BEGIN + asyncio.get_running_loop().time() + self.set_by

    async def disable(self, name: str, seconds: float | None = None, reason: str = "hangs") -> tuple[str, ...]:
        return await self.disabling.disable(name, reason, BY, seconds)

    @property
    def names(self) -> list[str]:
        return list(self.disabling.names)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(autouse=True)
def log(caplog: Log, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Do the file's work immediately: a thread does not fit into virtual time."""

    async def run(work: Callable[[], object]) -> object:
        return work()

    monkeypatch.setattr(disabling, "run_in_daemon_thread", run)
    caplog.set_level("INFO")
    return caplog


@virtual_time
async def test_disabled_hook_server_is_retained_until_enabled(desk: Desk, log: Log) -> None:
    assert await desk.disable("a") == ()
    assert await desk.disable("b") == ()
    assert (desk.names, desk.retained) == (["a", "b"], desk.disabling.names)
    assert await desk.disabling.enable("a") == ()
    assert (desk.names, list(desk.retained)) == (["b"], ["b"])
    assert desk.changed == [["a"], ["a", "b"], ["b"]]
    since = f"is disabled from now on (by {BY}, since 2001-09-09T01:46:40.000Z): hangs"
    assert [(line.levelname, line.getMessage()) for line in log.records] == [
        *(("WARNING", f"hook server {name} {since}") for name in "ab"),
        ("INFO", "hook server a is enabled again: an operator has enabled it"),
    ]
    assert all(not vars(line)["limited"] for line in log.records)


@virtual_time
async def test_repeated_disable_or_clock_change_moves_end(desk: Desk) -> None:
    await desk.disable("a", 100)
    await asyncio.sleep(10)
    await desk.disable("a", None, "gone")
    assert desk.disabling.names == {"a": Disabled("gone", BY, BEGIN)}
    await asyncio.sleep(1000)
    assert desk.names == ["a"]
    assert await desk.disabling.enable("b") == ("it was not disabled",)
    assert (len(desk.changed), desk.writes) == (2, 2)
    for set_by, seconds, rests in ((3500.0, 3600, ((101, []),)), (3400.0, 60, ((61, ["a"]), (100, [])))):
        await desk.disable("a", seconds)
        desk.set_by = set_by  # the machine's clock is changed
        for rest, names in rests:
            await asyncio.sleep(rest)
            assert desk.names == names
    await desk.disable("a", 5)
    desk.disabling.stop()
    await asyncio.sleep(1000)
    assert desk.names == ["a"], "no check follows the stop"


@virtual_time
async def test_expired_period_enables_and_is_logged(desk: Desk, log: Log) -> None:
    for name, seconds in (("hour", 3600), ("second", 1), ("good", None), ("minute", 60)):
        await desk.disable(name, seconds)
    log.clear()
    disabled = desk.names
    for at, ended in ((1, "second"), (60, "minute"), (3600, "hour")):
        await asyncio.sleep(at - 0.1 - asyncio.get_running_loop().time())
        assert desk.names == disabled
        await asyncio.sleep(0.2)
        disabled.remove(ended)
        assert desk.names == disabled == desk.changed[-1]
    await asyncio.sleep(86_400)
    assert len(desk.changed) == 7
    why = "disable period expired"
    assert log.messages == [f"hook server {name} is enabled again: {why}" for name in ("second", "minute", "hour")]


@virtual_time
async def test_next_start_loads_unexpired_entries(log: Log) -> None:
    over = {"over": Disabled("a", BY, BEGIN - 9, BEGIN - 1), "over_too": Disabled("a", BY, BEGIN - 9, BEGIN)}
    desk = Desk(**over, soon=Disabled("it", BY, BEGIN, BEGIN + 5), stays=Disabled("gone", BY, BEGIN))
    await desk.disabling.load()
    assert (desk.names, desk.writes) == (["soon", "stays"], 0)
    by = f"(by {BY}, since 2001-09-09T01:46:40.000Z)"
    assert [line.getMessage() for line in log.records if line.levelname == "WARNING"][2:] == [
        f"hook server soon is disabled until 2001-09-09T01:46:45.000Z {by}: it",
        f"hook server stays is disabled {by}: gone",
    ]
    await asyncio.sleep(6)
    assert desk.names == ["stays"]
    await desk.disable("new")
    assert list(desk.retained) == ["new", "stays"], "expired entries are not retained"


@virtual_time
async def test_disable_without_file_lasts_until_restart() -> None:
    desk = Disabling(None, lambda: None)
    await desk.load()
    note = "a restart of the proxy enables it again: there is no file for it (--state-dir=none)"
    assert (await desk.disable("a", "hangs", BY), await desk.enable("a")) == ((note,), ())
    assert (desk.names, desk.fault) == ({}, "")


@virtual_time
async def test_disable_above_bounds_is_refused_without_change(desk: Desk) -> None:
    for name, reason, seconds in (("", "hangs", None), ("a", "", None), ("a", "hangs", 0.5)):
        with pytest.raises(ConfigError, match=r"can have this name: |reason: |for: 0\.5 s is not a time"):
            await desk.disable(name, seconds, reason)
    assert (desk.names, desk.changed, desk.writes) == ([], [], 0)
    for number in range(disabling.MAX_NAMES):
        await desk.disable(str(number))
    with pytest.raises(ConfigError, match="100 hook servers are disabled, which is the most: enable one first"):
        await desk.disable("more")
    await desk.disable("7", 60)
    assert len(desk.names) == disabling.MAX_NAMES


FAULTS = [(MaskError("/state/a.json is bad"), "/state/a.json is bad"), (RuntimeError(), "no thread can be started")]


@virtual_time
@pytest.mark.parametrize(("fault", "reported"), FAULTS, ids=["bad", "no thread"])
async def test_bad_file_disables_none(desk: Desk, log: Log, fault: Exception, reported: str) -> None:
    desk.fault = fault
    await desk.disabling.load()
    (line,) = log.records
    assert (line.levelname, line.getMessage(), desk.names) == ("ERROR", desk.disabling.fault, [])
    assert reported in desk.disabling.fault
    remedy = ": no hook server is disabled by it; remove it, and disable again what must not run"
    assert desk.disabling.fault.endswith(remedy)
    (note,) = await desk.disable("a")
    assert note.startswith("a restart of the proxy enables it again: ")
    assert reported in note
    assert reported in desk.disabling.fault
    assert log.messages[-1].endswith(": disabled hook servers are enabled again after a restart")
    (note,) = await desk.disabling.enable("a")
    assert note.startswith("a restart of the proxy may disable it again: ")
    assert desk.changed == [["a"], []]
    desk.fault = None
    assert (await desk.disable("a"), desk.disabling.fault) == ((), "")


async def test_silent_file_delays_neither_start_nor_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a mount whose server is unavailable."""
    monkeypatch.setattr(disabling, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(disabling, "run_in_daemon_thread", run_in_daemon_thread)
    desk.gate.clear()
    await desk.disabling.load()
    assert desk.disabling.fault.startswith("/state/a.json does not answer: no hook server is disabled by it")
    wait = "a restart of the proxy enables it again: /state/a.json does not answer"
    assert ([await desk.disable(name) for name in "ab"], desk.names) == ([(wait,), (wait,)], ["a", "b"])
    assert desk.begun == 1, "the second write waits for the first: the last one must win"
    desk.gate.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*desk.disabling._writes)
    assert (list(desk.retained), desk.disabling.fault) == (["a", "b"], "")


PERMANENT = Disabled("gone", "root", BEGIN)
BOTH = {"gpu": Disabled("hangs", BY, BEGIN + 0.25, BEGIN + 3600.25), "koordlet": PERMANENT}
SHOWN = {"reason": "hangs", "by": BY, "since": "2001-09-09T01:46:40.250Z", "until": "2001-09-09T02:46:40.250Z"}


def of(disabled: object, version: object = 1) -> bytes:
    return json.dumps({"schemaVersion": version, "disabled": disabled}).encode()


def entry(**changes: object) -> bytes:
    return of({"a": {**SHOWN, **changes}})


UNFORMED = [
    *(b"[]", b"7", b'{"disabled": {}}', b'{"schemaVersion": 1}', of(["a"]), of({"a": "reason"}), of({"a\nb": SHOWN})),
    *(of({"a": {key: SHOWN[key] for key in ("by", "since")}}), entry(reason="a\nERROR b"), entry(reason="a" * 201)),
    *(entry(by=0), entry(since="2001-09-09T01:46:40"), entry(until="tomorrow"), entry(until=7)),
]
BAD = [*((content, "is not JSON") for content in (b"", encode(BOTH)[:50], b"\xff\x00", b"[" * 100_000))]
BAD += [*((content, "does not have the form that the proxy writes") for content in UNFORMED)]
BAD += [(of({}, 2), "does not have schemaVersion 1")]


def test_written_mask_is_read_and_foreign_content_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = disabling.mask_file(str(tmp_path), "/run/a.sock")
    assert file.path == str(tmp_path / "run-a.sock.disabled.json")
    assert disabling.read(file) == {}
    for content in (BOTH, {"koordlet": PERMANENT}, {}):
        file.write(encode(content))
        assert disabling.read(file) == content
    assert json.loads(encode(BOTH)) == {"schemaVersion": 1, "disabled": {"gpu": SHOWN, "koordlet": PERMANENT.shown()}}
    assert PERMANENT.shown()["until"] is None
    for foreign, why in BAD:
        file.write(foreign)
        with pytest.raises(MaskError, match=f"^{re.escape(file.path)} {why}$"):
            disabling.read(file)


def test_reason_name_and_seconds_are_bounded() -> None:
    for text in ("", " ", "a" * 201, "two\nlines", "\x1b[31m", "\ud800"):
        with pytest.raises(ConfigError, match="reason: write 1 to 200 printable characters"):
            Disabled(text, "root", 0.0)
    for name in ("a", "ä b", "a" * 250, "ä" * 125, "a.json", "a..b"):
        disabling.check_name(name)
    for name in ("", " ", "a" * 251, "ä" * 126, "a\0", "\udc80", "../x", "/x", "x/", ".", "..", ".x"):
        with pytest.raises(ConfigError, match=r"no hook server can have this name: .* runtimeproxy hook ls shows"):
            disabling.check_name(name)
    for seconds in (1, 365 * 86400):
        disabling.check_seconds(seconds)
    for seconds in (0.9, -1, 365 * 86400 + 1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"for: .* is not a time from 1 s to 365 days"):
            disabling.check_seconds(seconds)
