"""Who is disabled until when, what is kept of it, what is reported: on a file of the test's own, in virtual time.

That is fault matrix H13.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.files import StateFile
from runtimeproxy.plugins import disabling
from runtimeproxy.plugins.disabling import (
    MOST_NAMES,
    Disabled,
    Disabling,
    MaskError,
    check_name,
    check_seconds,
    mask_file,
    parse,
    read,
    written,
)
from tests.fakes.clock import virtual_time

BEGIN = 1_000_000_000.0
"""The virtual time's second 0 on the machine's clock: 2001-09-09T01:46:40Z."""
BY = "uid 0, pid 7"
Log = pytest.LogCaptureFixture
T = TypeVar("T")


class FakeFile:
    """A mask's file in memory, whose ``fault`` is raised."""

    path = "/state/a.json"

    def __init__(self, **retained: Disabled) -> None:
        self.retained: Mapping[str, Disabled] = retained
        self.fault: Exception | None = None
        self.begun = self.writes = 0

    def read(self) -> tuple[bytes, object]:
        if self.fault:
            raise self.fault
        return written(self.retained), 1

    def write(self, content: bytes) -> None:
        if self.fault:
            raise self.fault
        self.retained = parse(content)
        self.writes += 1


class Desk:
    """What is disabled, on a clock that may be set; ``changed`` are the names after each change."""

    def __init__(self, file: FakeFile | None = None) -> None:
        self.set_by = 0.0
        self.changed: list[list[str]] = []
        self.file = file
        self.disabling = Disabling(file, self._note, self.wall)

    def wall(self) -> float:
        return BEGIN + asyncio.get_running_loop().time() + self.set_by

    def _note(self) -> None:
        self.changed.append(self.names)

    async def disable(self, name: str, seconds: float | None = None, reason: str = "hangs") -> tuple[str, ...]:
        return await self.disabling.disable(name, reason, BY, seconds)

    @property
    def names(self) -> list[str]:
        return list(self.disabling.names)


@pytest.fixture
def desk() -> Desk:
    return Desk(FakeFile())


@pytest.fixture(autouse=True)
def log(caplog: Log) -> Log:
    caplog.set_level("INFO")
    return caplog


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the file's work at once: a thread does not fit into virtual time."""

    async def run(work: Callable[[], T]) -> T:
        return work()

    monkeypatch.setattr(disabling, "run_in_daemon_thread", run)


def at_once(test: Callable[..., object]) -> Callable[..., object]:
    """Run a test in virtual time, with a file that works at once."""
    return virtual_time(pytest.mark.usefixtures("inline")(test))


@at_once
async def test_disabled_is_who_was_disabled_and_not_enabled(desk: Desk, log: Log) -> None:
    assert desk.file
    assert await desk.disable("a") == ()
    assert await desk.disable("b") == ()
    assert (desk.names, desk.file.retained) == (["a", "b"], desk.disabling.names)
    assert await desk.disabling.enable("a") == ()
    assert (desk.names, list(desk.file.retained)) == (["b"], ["b"])
    assert desk.changed == [["a"], ["a", "b"], ["b"]]
    assert [(line.levelname, line.getMessage()) for line in log.records] == [
        *(
            ("WARNING", f"hook server {name} is disabled from now on (by {BY}, since 2001-09-09T01:46:40.000Z): hangs")
            for name in "ab"
        ),
        ("INFO", "hook server a is no longer disabled: an operator has enabled it"),
    ]
    assert all(not vars(line)["limited"] for line in log.records)


@at_once
async def test_enabling_who_is_not_disabled_changes_nothing(desk: Desk) -> None:
    assert await desk.disabling.enable("a") == ("it was not disabled",)
    assert desk.file
    assert (desk.changed, desk.file.writes) == ([], 0)


@at_once
async def test_disabling_again_changes_reason_and_end_but_not_the_begin(desk: Desk) -> None:
    await desk.disable("a", 100)
    await asyncio.sleep(10)
    await desk.disable("a", None, "gone")
    assert desk.disabling.names == {"a": Disabled("gone", BY, BEGIN)}
    await asyncio.sleep(1000)
    assert desk.names == ["a"]


@at_once
async def test_time_ends_and_is_reported(desk: Desk, log: Log) -> None:
    for name, seconds in (("hour", 3600), ("second", 1), ("good", None), ("minute", 60)):
        await desk.disable(name, seconds)
    log.clear()
    for after, left in (
        (0.9, ["hour", "second", "good", "minute"]),
        (0.2, ["hour", "good", "minute"]),
        (58.8, ["hour", "good", "minute"]),
        (0.2, ["hour", "good"]),
        (3539.8, ["hour", "good"]),
        (0.2, ["good"]),
        (86_400, ["good"]),
    ):
        await asyncio.sleep(after)
        assert desk.names == left
    ended = ["second", "minute", "hour"]
    assert desk.changed[4:] == [["hour", "good", "minute"], ["hour", "good"], ["good"]]
    why = "disable period expired"
    assert log.messages == [f"hook server {name} is no longer disabled: {why}" for name in ended]


@at_once
async def test_clock_that_is_set_moves_the_end(desk: Desk) -> None:
    await desk.disable("a", 3600)
    desk.set_by = 3500.0
    await asyncio.sleep(101)
    assert desk.names == []
    await desk.disable("a", 60)
    desk.set_by = 3400.0
    await asyncio.sleep(61)
    assert desk.names == ["a"]
    await asyncio.sleep(100)
    assert desk.names == []


@at_once
async def test_next_start_knows_whom_to_leave_out_and_until_when(log: Log) -> None:
    retained = FakeFile(
        a_over=Disabled("a", BY, BEGIN - 9, BEGIN - 1),
        a_over_too=Disabled("a", BY, BEGIN - 9, BEGIN),
        b_soon=Disabled("it", BY, BEGIN, BEGIN + 5),
        good=Disabled("gone", BY, BEGIN),
    )
    desk = Desk(retained)
    await desk.disabling.load()
    assert desk.names == ["b_soon", "good"]
    assert [line.getMessage() for line in log.records if line.levelname == "WARNING"][2:] == [
        f"hook server b_soon is disabled until 2001-09-09T01:46:45.000Z (by {BY}, since 2001-09-09T01:46:40.000Z): it",
        f"hook server good is disabled (by {BY}, since 2001-09-09T01:46:40.000Z): gone",
    ]
    assert retained.writes == 0
    await asyncio.sleep(6)
    assert desk.names == ["good"]
    await desk.disable("new")
    assert list(retained.retained) == ["good", "new"], "what is over is not kept any longer"


@at_once
async def test_stop_ends_the_looks(desk: Desk) -> None:
    await desk.disable("a", 5)
    desk.disabling.stop()
    await asyncio.sleep(10)
    assert desk.names == ["a"]


@at_once
async def test_without_a_file_it_lasts_until_the_end_and_says_so() -> None:
    desk = Desk()
    await desk.disabling.load()
    note = "a restart of the proxy enables it again: there is no file for it (--state-dir=none)"
    assert await desk.disable("a") == (note,)
    assert desk.names == ["a"]
    assert await desk.disabling.enable("a") == ()
    assert (desk.names, desk.disabling.fault) == ([], "")


@at_once
@pytest.mark.parametrize(
    ("name", "reason", "seconds", "reported"),
    [
        ("", "hangs", None, "no hook server can have this name: "),
        ("a", "", None, "reason: "),
        ("a", "two\nlines", None, "reason: "),
        ("a", "hangs", 0.5, "for: 0.5 s is not a time from 1 s to 365 days"),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    desk: Desk, name: str, reason: str, seconds: float | None, reported: str
) -> None:
    with pytest.raises(ConfigError, match=reported):
        await desk.disable(name, seconds, reason)
    assert desk.file
    assert (desk.names, desk.changed, desk.file.writes) == ([], [], 0)


@at_once
async def test_number_of_disabled_names_is_bounded() -> None:
    desk = Desk()
    for number in range(MOST_NAMES):
        await desk.disable(str(number))
    with pytest.raises(ConfigError, match="100 hook servers are disabled, which is the most: enable one first"):
        await desk.disable("more")
    await desk.disable("7", 60)
    assert len(desk.names) == MOST_NAMES


FAULTS = [(MaskError("/state/a.json is bad"), "/state/a.json is bad"), (RuntimeError(), "no thread can be started")]


@at_once
@pytest.mark.parametrize(("fault", "reported"), FAULTS, ids=["bad", "no thread"])
async def test_bad_file_disables_none_and_is_reported_until_written(
    desk: Desk, log: Log, fault: Exception, reported: str
) -> None:
    assert desk.file
    desk.file.fault = fault
    await desk.disabling.load()
    (line,) = log.records
    assert line.levelname == "ERROR"
    assert line.getMessage() == desk.disabling.fault
    assert reported in desk.disabling.fault
    assert desk.disabling.fault.endswith(
        ": no hook server is disabled by it; remove it, and disable again what must not run"
    )
    assert desk.names == []
    desk.file.fault = None
    assert await desk.disable("a") == ()
    assert desk.disabling.fault == ""


@at_once
@pytest.mark.parametrize(("fault", "reported"), FAULTS, ids=["bad", "no thread"])
async def test_change_that_cannot_be_written_is_in_force_and_says_so(
    desk: Desk, log: Log, fault: Exception, reported: str
) -> None:
    assert desk.file
    desk.file.fault = fault
    (note,) = await desk.disable("a")
    assert note.startswith("a restart of the proxy enables it again: ")
    assert reported in note
    assert reported in desk.disabling.fault
    assert desk.names == ["a"]
    assert log.messages[-1].endswith(": what is disabled does not survive a restart")
    (note,) = await desk.disabling.enable("a")
    assert note.startswith("a restart of the proxy may disable it again: ")
    assert (desk.names, desk.changed) == ([], [["a"], []])
    desk.file.fault = None
    await desk.disable("a")
    assert desk.disabling.fault == ""


@pytest.fixture
def gate(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make the file's reads and writes wait, as in a mount whose server is gone."""
    monkeypatch.setattr(disabling, "PATIENCE_SECONDS", 0.05)
    opened, file = threading.Event(), desk.file
    assert file
    read, write = file.read, file.write

    def waiting_read() -> Mapping[str, Disabled]:
        opened.wait()
        return read()

    def waiting_write(disabled: Mapping[str, Disabled]) -> None:
        file.begun += 1
        opened.wait()
        write(disabled)

    monkeypatch.setattr(file, "read", waiting_read)
    monkeypatch.setattr(file, "write", waiting_write)
    return opened


async def test_file_that_does_not_answer_delays_neither_start_nor_answer(desk: Desk, gate: threading.Event) -> None:
    assert desk.file
    await desk.disabling.load()
    assert desk.disabling.fault.startswith("/state/a.json does not answer: no hook server is disabled by it")
    wait = "a restart of the proxy enables it again: /state/a.json does not answer"
    assert [await desk.disable(name) for name in "ab"] == [(wait,), (wait,)]
    assert desk.names == ["a", "b"]
    assert desk.file.begun == 1, "the second write waits for the first: the last one must win"
    gate.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*desk.disabling._writes)
    assert (list(desk.file.retained), desk.disabling.fault) == (["a", "b"], "")


HOURS = Disabled("hangs since the update", "uid 0, pid 7", 1_000_000_000.25, 1_000_003_600.25)
FOR_GOOD = Disabled("gone", "root", 1_000_000_000.0)
BOTH = {"gpu": HOURS, "koordlet": FOR_GOOD}
SHOWN = {
    "reason": "hangs since the update",
    "by": "uid 0, pid 7",
    "since": "2001-09-09T01:46:40.250Z",
    "until": "2001-09-09T02:46:40.250Z",
}


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    tmp_path.chmod(0o700)
    return mask_file(str(tmp_path), "/run/a.sock")


def test_what_was_written_is_read(file: StateFile, tmp_path: Path) -> None:
    assert file.path == str(tmp_path / "run-a.sock.disabled.json")
    assert read(file) == {}
    for content in (BOTH, {"koordlet": FOR_GOOD}, {}):
        file.write(written(content))
        assert read(file) == content
    assert json.loads(written(BOTH)) == {"schemaVersion": 1, "disabled": {"gpu": SHOWN, "koordlet": FOR_GOOD.shown()}}
    assert FOR_GOOD.shown()["until"] is None


def entry(**changes: object) -> bytes:
    return json.dumps({"schemaVersion": 1, "disabled": {"a": {**SHOWN, **changes}}}).encode()


def of(disabled: object, version: object = 1) -> bytes:
    return json.dumps({"schemaVersion": version, "disabled": disabled}).encode()


NO_JSON, NO_VERSION = "is not JSON", "does not have schemaVersion 1"
NO_FORM = "does not have the form that the proxy writes"
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", NO_JSON),
    "half": (written(BOTH)[:50], NO_JSON),
    "binary": (b"\xff\x00", NO_JSON),
    "too deep": (b"[" * 100_000, NO_JSON),
    "a list": (b"[]", NO_FORM),
    "a number": (b"7", NO_FORM),
    "no version": (b'{"disabled": {}}', NO_FORM),
    "a later version": (of({}, 2), NO_VERSION),
    "nothing disabled": (b'{"schemaVersion": 1}', NO_FORM),
    "a list of names": (of(["a"]), NO_FORM),
    "a reason alone": (of({"a": "reason"}), NO_FORM),
    "no reason": (of({"a": {key: SHOWN[key] for key in ("by", "since")}}), NO_FORM),
    "a line feed in the name": (of({"a\nb": SHOWN}), NO_FORM),
    "a line feed in the reason": (entry(reason="a\nERROR b"), NO_FORM),
    "an endless reason": (entry(reason="a" * 201), NO_FORM),
    "a number for a user": (entry(by=0), NO_FORM),
    "a time without a zone": (entry(since="2001-09-09T01:46:40"), NO_FORM),
    "no time": (entry(until="tomorrow"), NO_FORM),
    "seconds for a time": (entry(until=7), NO_FORM),
}


@pytest.mark.parametrize(("content", "why"), BAD.values(), ids=BAD)
def test_content_that_the_proxy_does_not_write_is_refused(file: StateFile, content: bytes, why: str) -> None:
    file.write(content)
    with pytest.raises(MaskError) as raised:
        read(file)
    assert str(raised.value) == f"{file.path} {why}"


@pytest.mark.parametrize("text", ["", " ", "a" * 201, "two\nlines", "\x1b[31m", "\ud800"])
def test_reason_that_cannot_be_logged_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="reason: write 1 to 200 printable characters"):
        Disabled(text, "root", 0.0)


def test_name_and_time_have_bounds() -> None:
    for name in ("a", "ä b", "a" * 250, "ä" * 125, "a.json", "a..b"):
        check_name(name)
    for name in ("", " ", "a" * 251, "ä" * 126, "a\0", "\udc80", "../x", "/x", "x/", ".", "..", ".x"):
        with pytest.raises(ConfigError, match=r"no hook server can have this name: .* runtimeproxy hook ls shows"):
            check_name(name)
    for seconds in (1, 365 * 86400):
        check_seconds(seconds)
    for seconds in (0.9, -1, 365 * 86400 + 1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"for: .* is not a time from 1 s to 365 days"):
            check_seconds(seconds)
