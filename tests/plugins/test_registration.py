"""One registration file: every key, every fault (hook-api, "Registration files"; fault matrix C2, C4).

Also their directory: which files a read returns and which are unreadable; waiting for changes.
"""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import HOOK_POINTS
from runtimeproxy.plugins import directory
from runtimeproxy.plugins import registration as plugin_files
from runtimeproxy.plugins.directory import Watcher
from runtimeproxy.plugins.registration import MAX_BYTES, ChangeKind, FailurePolicy, Registration, UnreadableFile, parse
from tests.amounts import examples
from tests.fakes.descriptors import no_descriptors
from tests.relay.test_listener import nobodys_folder

Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
SOCKET = "/run/plugin.sock"
POINT = "PreCreateContainer"


def content(**entry: object) -> bytes:
    """Return a file that is valid except for what is given (names with - spelt _)."""
    keys = {key.replace("_", "-"): value for key, value in entry.items()}
    return json.dumps({"remote-endpoint": SOCKET, "runtime-hooks": [POINT], **keys}).encode()


def read(**entry: object) -> Registration:
    return parse("a.json", content(**entry))


def test_file_of_koordlet_is_read() -> None:
    """The keys may be in any letter case."""
    names = [hook_point.name for hook_point in HOOK_POINTS]
    entry = {"remote-endpoint": SOCKET, "failure-policy": "Ignore", "runtime-hooks": [*names, "PreRemoveRunPodSandbox"]}
    registration = parse("koordlet.json", json.dumps(entry, indent="\t").encode())
    assert registration.points == frozenset(names)
    assert registration.warnings == ("koordlet.json: unknown hook points are ignored: 'PreRemoveRunPodSandbox'",)
    entry = {"remote-endpoint": SOCKET, "failure-policy": "Fail", "runtime-hooks": [POINT], "timeout": "1s"}
    for spell in (str.upper, str.title, lambda key: key.replace("k", "\N{KELVIN SIGN}")):
        text = json.dumps({spell(key): value for key, value in entry.items()}).encode()
        assert parse("a.json", text) == Registration("a.json", SOCKET, FailurePolicy.FAIL, frozenset({POINT}), 1.0)


VALID: list[Any] = [
    ("remote-endpoint", ["/run/a.sock", "unix:///run/a.sock", "unix:/run/a.sock"], "endpoint", "/run/a.sock"),
    ("failure-policy", ["Fail", "FAIL", "fail"], "policy", FailurePolicy.FAIL),
    ("failure-policy", ["Ignore", "iGNORE", "", None], "policy", FailurePolicy.IGNORE),
    *(("timeout", ["500ms"], "timeout_seconds", 0.5), ("timeout", ["2s"], "timeout_seconds", 2.0)),
    *(("timeout", [None], "timeout_seconds", None), ("runtime-hooks", [[POINT, POINT]], "points", {POINT})),
]


@pytest.mark.parametrize(("key", "written", "attribute", "value"), VALID)
def test_valid_value_is_read(key: str, written: list[object], attribute: str, value: object) -> None:
    for spelling in written:
        assert getattr(read(**{key: spelling}), attribute) == value


VALUES = st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4)
KEYS = st.sampled_from(["remote-endpoint", "failure-policy", "runtime-hooks", "timeout"]) | st.text()
CONTENTS = st.binary() | st.dictionaries(KEYS, VALUES).map(lambda entry: json.dumps(entry).encode())


@settings(max_examples=examples())
@given(CONTENTS)
def test_any_file_is_read_or_refused(content: bytes) -> None:
    with suppress(ConfigError):
        parse("a.json", content)


REPEATED = [
    ('"remote-endpoint": "/a", "Remote-Endpoint": "/b"', "endpoint", "/b"),
    ('"Remote-Endpoint": "/b", "remote-endpoint": "/a"', "endpoint", "/a"),
    ('"remote-endpoint": "/a", "remote-endpoint": "/b", "Remote-Endpoint": null', "endpoint", "/b"),
    (f'"runtime-hooks": ["PreStartContainer"], "Runtime-Hooks": ["{POINT}"]', "points", {POINT}),
    (f'"runtime-hooks": ["{POINT}"], "Runtime-Hooks": null', "points", set()),
]


@pytest.mark.parametrize(("members", "attribute", "value"), REPEATED)
def test_last_value_of_repeated_key_is_used(members: str, attribute: str, value: object) -> None:
    """As Go's encoding/json does (1.26) with the struct of koord-runtime-proxy, RuntimeHookConfig."""
    key = members.partition(":")[0].strip('"').lower()
    required = f'"runtime-hooks": ["{POINT}"]' if attribute == "endpoint" else '"remote-endpoint": "/a"'
    registration = parse("a.json", f"{{{required}, {members}}}".encode())
    assert getattr(registration, attribute) == value
    words = "keys that occur more than once, of which the last value is used"
    assert registration.warnings[0] == f"a.json: {words}: '{key}'"


def test_useless_content_is_warned_about() -> None:
    for points in ([], None, ["precreatecontainer"], ["PreCreateContainer "]):
        registration = read(runtime_hooks=points)
        assert registration.points == frozenset()
        assert registration.warnings[-1] == "a.json: runtime-hooks names no hook point, so this plugin is never called"
    points = ["PreRunPodSandbox", "Unknown", POINT, "Other"]
    registration = read(zeta=1, runtime_hooks=points, alpha={"secret": "canary"})
    assert registration == read(alpha={"secret": "canary"}, runtime_hooks=points[::-1], zeta=1)
    assert "a.json: unknown keys are ignored: 'alpha', 'zeta'" in registration.warnings
    (warning,) = read(**{f"k{n:03}\n\x1b" + "x" * 1000: 1 for n in range(100)}).warnings
    assert len(warning) < 500
    assert warning.isprintable()
    assert warning.endswith("and 95 more")


BROKEN = [
    *((text, "not JSON") for text in (b"", b" \n", b'{"remote-endpoint": "/run/pl', b'{"remote-endpoint": "/a"}}')),
    *((b"\xff\xfe\x00\x01", "not UTF-8"), (bytes(range(128)), "not JSON")),
    *((b"[" * 100_000, "nesting too deep"), (b"9" * 5000, "a number too long")),
    (b" " * (MAX_BYTES + 1), "longer than 1048576 bytes"),
    *((text, "must be one JSON object") for text in (b"[]", b"null", b'"text"')),
    *((b"{}", "remote-endpoint is missing"), (b'{"remote-endpoint": null}', "remote-endpoint is missing")),
    (b'{"remote_endpoint": "/a"}', "remote-endpoint is missing"),
]


BAD_VALUES: list[tuple[str, object, str]] = [
    *(("remote-endpoint", value, "must be a text") for value in (7, ["/a"])),
    *(("remote-endpoint", value, "is not a unix socket") for value in ("", "relative", "tcp://127.0.0.1:80")),
    ("remote-endpoint", "/" + "a" * 107, "is too long"),
    ("remote-endpoint", "/" + "a" * 100_000, "longer than 256 characters"),
    *(("remote-endpoint", value, "cannot be printed") for value in ("/a\0b", "/a\ud800")),
    *(("failure-policy", "Sometimes", "must be Fail or Ignore"), ("failure-policy", True, "must be a text")),
    *(("runtime-hooks", value, "must be a list") for value in (POINT, {}, {POINT: 1}, [POINT, 7], [None])),
    *(("timeout", 2, "must be a text"), ("timeout", "0s", "is not a time limit")),
    *(("timeout", value, "is not a duration") for value in ("-1s", "soon")),
]


BROKEN += [(content(**{key: value}), f"{key}.*{cause}") for key, value, cause in BAD_VALUES]


@pytest.mark.parametrize(("text", "cause"), BROKEN, ids=lambda value: repr(value)[:60])
def test_broken_file_is_refused(text: bytes, cause: str) -> None:
    with pytest.raises(ConfigError, match=f"^a.json: .*{cause}") as raised:
        parse("a.json", text)
    assert len(str(raised.value)) < 1000


GOOD, OTHER = (
    json.dumps({"remote-endpoint": endpoint, "runtime-hooks": [POINT]}).encode() for endpoint in ("/run/a", "/run/b")
)
RESPELT, HALF, UNREADABLE = GOOD + b"\n", GOOD[:20], UnreadableFile("a.json: permission denied")
ADDED, CHANGED, RESTORED = ChangeKind.ADDED, ChangeKind.CHANGED, ChangeKind.RESTORED
REMOVED, REJECTED = ChangeKind.REMOVED, ChangeKind.REJECTED


Contents = list[plugin_files.Content | None]
UPDATES: list[Any] = [
    *(([GOOD], ADDED, GOOD), ([GOOD, GOOD], None, GOOD), ([GOOD, RESPELT], None, GOOD)),
    *(([GOOD, None], REMOVED, None), ([GOOD, None, None], None, None), ([GOOD, OTHER], CHANGED, OTHER)),
    *(([GOOD, HALF], REJECTED, GOOD), ([GOOD, HALF, HALF], None, GOOD), ([HALF, b""], REJECTED, None)),
    *(([GOOD, HALF, GOOD], RESTORED, GOOD), ([GOOD, HALF, GOOD, RESPELT], None, GOOD), ([HALF, GOOD], ADDED, GOOD)),
    *(([GOOD, HALF, OTHER], CHANGED, OTHER), ([HALF, None], None, None)),
    *(([HALF, None, HALF], REJECTED, None), ([GOOD, UNREADABLE], REJECTED, GOOD)),
    ([GOOD, UNREADABLE, UNREADABLE], None, GOOD),
]


@pytest.mark.parametrize(("contents", "kind", "good"), UPDATES)
def test_update_returns_change(contents: Contents, kind: ChangeKind | None, good: bytes | None) -> None:
    registry = plugin_files.Registry()
    change = [registry.update("a.json", what) for what in contents][-1]
    registration = None if good is None else parse("a.json", good)
    assert (change is None) == (kind is None)
    if change is not None:
        assert (change.kind, change.name, change.registration) == (kind, "a.json", registration)
        assert bool(change.reason) == (kind is REJECTED)
    assert registry.registrations == (() if registration is None else (registration,))
    assert len(registry.rejected) == (contents[-1] in (HALF, b"", UNREADABLE))


def test_visible_json_files_are_read(tmp_path: Path, monkeypatch: Patch) -> None:
    contents = {"a.json": b"", "a.b.json": os.urandom(MAX_BYTES), "c.json": b"\0\xff"}
    ignored = ["..json", ".json", ".a.json", ".a.json.swp", "a.json~", "a.JSON", "a.yaml", "ajson"]
    for name, content in (contents | dict.fromkeys(ignored, b"x")).items():
        (tmp_path / name).write_bytes(content)
    assert directory.read(str(tmp_path)) == contents
    # A listing never contains ".a.json": it represents a file that a listing during a rename lacks.
    assert directory.read(str(tmp_path), {".a.json"}) == contents | {".a.json": b"x"}
    assert directory.read(str(tmp_path), {"removed.json"}) == contents
    assert directory.read(str(tmp_path / "none"), {"a.json"}) == {}
    # A file of /proc is longer than its reported size, like one that grows while it is read.
    (tmp_path / "grows.json").symlink_to("/proc/self/maps")
    monkeypatch.setattr(directory, "MAX_BYTES", 1000)
    assert len(bytes(directory.read(str(tmp_path))["grows.json"])) == 1001  # type: ignore[arg-type]


NO_FILE = "not a regular file; a registration is one small JSON file"
NOT_READ = {
    **{f"{kind}.json": NO_FILE for kind in ("folder", "fifo", "link", "device", "socket")},
    "dangling.json": "cannot be read: No such file or directory",
    "circle.json": "cannot be read: Too many levels of symbolic links",
    "long.json": "longer than 1048576 bytes; a registration is one small JSON file",
    "x" * 300 + ".json": "cannot be read: File name too long",
}


def test_links_are_followed_to_regular_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "target").write_bytes(b"x")
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "fifo.json")
    with (folder / "long.json").open("wb") as file:
        file.truncate(2**40)  # a sparse file: reading it would take for ever
    targets = {"a": "../target", "dangling": "nothing", "circle": "circle.json", "link": "fifo.json"}
    for name, target in {**targets, "device": "/dev/zero"}.items():
        (folder / f"{name}.json").symlink_to(target)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket.json"))
        contents = directory.read(str(tmp_path / "link"), NOT_READ)
    assert contents.pop("a.json") == b"x"
    assert contents == {name: UnreadableFile(f"{name}: {why}") for name, why in NOT_READ.items()}


def test_read_does_not_block_when_fifo_replaces_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"x")
    status = (tmp_path / "a.json").stat()
    (tmp_path / "a.json").unlink()
    os.mkfifo(tmp_path / "a.json")
    folder = os.open(tmp_path, os.O_RDONLY)
    content = directory._read_regular(folder, "a.json", status)
    os.close(folder)
    assert content == UnreadableFile(f"a.json: {NO_FILE}")


def test_files_without_permission_are_unreadable() -> None:
    with nobodys_folder() as folder:
        (Path(folder) / "a.json").touch(0)
        contents = directory.read(folder)
        Path(folder).chmod(0)
        with pytest.raises(PermissionError):
            directory.read(folder)
        Path(folder).chmod(0o700)
    assert contents == {"a.json": UnreadableFile("a.json: cannot be read: Permission denied")}


MANY = tuple(f"{number}.json" for number in range(100))


@pytest.mark.parametrize("names", [("1.json", "3.json", "2.json"), ("1.json", "2.json"), ("1.json", ".1.json"), MANY])
def test_file_renamed_during_read_has_new_name(tmp_path: Path, monkeypatch: Patch, names: tuple[str, ...]) -> None:
    """After each listing it gets the next name; a file that is renamed repeatedly does not block the read."""
    remaining, listdir = list(names), os.listdir

    def listed(path: int) -> list[str]:
        listing = listdir(path)
        if len(remaining) > 1:
            (tmp_path / remaining.pop(0)).rename(tmp_path / remaining[0])
        return listing

    (tmp_path / names[0]).write_bytes(b"x")
    (tmp_path / "stays.json").write_bytes(b"y")
    monkeypatch.setattr(os, "listdir", listed)
    contents = directory.read(str(tmp_path), {names[0]})
    assert contents.pop("stays.json") == b"y"
    assert names is MANY or contents == {name: b"x" for name in names[-1:] if name[0] != "."}


QUIET_SECONDS = 0.15
"""Seconds without an event after which no more is expected."""


@pytest.fixture
async def watcher(tmp_path: Path) -> AsyncIterator[Watcher]:
    made = Watcher(str(tmp_path / "above" / "hooks.d"), poll_seconds=1000.0)
    yield made
    made.close()


async def seen(watcher: Watcher, within_seconds: float = 10.0) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            await watcher.changed()
        watcher.arm()
        return True
    return False


async def settled(watcher: Watcher) -> None:
    while await seen(watcher, QUIET_SECONDS):
        pass


def do(folder: Path, script: str) -> None:
    subprocess.run(["sh", "-ec", script], cwd=folder, stdout=subprocess.DEVNULL, check=True)


CHANGES = [
    *("echo new > hooks.d/a.json", "echo more >> hooks.d/a.json", "rm hooks.d/a.json", "mv hooks.d/a.json ."),
    *("echo new > hooks.d/.new; mv hooks.d/.new hooks.d/a.json", "chmod 600 hooks.d/a.json"),
    "cd hooks.d; mkdir ..2; ln -s ..2 ..data_tmp; mv -T ..data_tmp ..data",
    *("rm -r hooks.d", "mv hooks.d old.d", "mv ../above ../moved"),
    "mkdir new.d; echo b > new.d/b.json; mv hooks.d old.d; mv new.d hooks.d",
]
MADE, A, NEXT = "mkdir -p above/hooks.d", "echo a > above/hooks.d/a.json", "echo next > above/hooks.d/next.json"
AFTER_LINKS = [
    "echo a > first/a.json",
    "ln -s $PWD/second above/tmp; mv -T above/tmp above/hooks.d",
    *("echo a > second/a.json", "mv second gone", "mkdir second"),
]
TO_NOTHING = f"{MADE} elsewhere; ln -s $PWD/elsewhere/real above/hooks.d/a.json"
RING = f"{MADE}; cd above/hooks.d; ln -s $PWD/b.json a.json; ln -s $PWD/a.json b.json"
PLACES: dict[str, tuple[str, list[str], list[str]]] = {
    **{change: (f"{MADE}; {A}", [], [f"cd above; {change}", f"{MADE}; {NEXT}"]) for change in CHANGES},
    "a missing directory": ("", [], ["mkdir above", "mkdir above/hooks.d", A]),
    "a directory that is created and removed": ("", [], [MADE, "rm -r above"] * 5),
    "what happens elsewhere above": (MADE, ["echo x > above/other", "mkdir another"], [A]),
    "reading": (f"{MADE}; {A}", ["cat above/hooks.d/a.json; ls above/hooks.d"], [A]),
    "a directory that links lead to": ("mkdir first second above; ln -s $PWD/first above/hooks.d", [], AFTER_LINKS),
    "a file that a link points to": (TO_NOTHING, ["echo x > elsewhere/other"], ["echo x > elsewhere/real"] * 2),
    "links in a ring": (RING, [], [NEXT]),
}
"""The initial state, the changes that are not seen, and those that are, one after another."""


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
async def test_only_relevant_changes_are_seen(tmp_path: Path, watcher: Watcher, place: str) -> None:
    setup, unseen, changes = PLACES[place]
    do(tmp_path, setup)
    watcher.arm()
    await settled(watcher)
    for elsewhere in unseen:
        do(tmp_path, elsewhere)
        assert not await seen(watcher, QUIET_SECONDS)
    for change in changes:
        do(tmp_path, change)
        assert await seen(watcher)
        await settled(watcher)


@pytest.mark.slow
async def test_changes_above_kernel_queue_limit_are_seen(tmp_path: Path, watcher: Watcher) -> None:
    do(tmp_path, MADE)
    with no_descriptors():
        watcher.arm()
    watcher.arm()  # tries inotify again
    retained = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(min(retained, 50_000) // 2):  # each is more than two events
        (tmp_path / "above" / "hooks.d" / str(number)).touch()
    assert await seen(watcher)
    await settled(watcher)
    do(tmp_path, A)
    assert await seen(watcher)


@pytest.mark.slow
async def test_poll_replaces_inotify_with_one_warning(tmp_path: Path, caplog: Log) -> None:
    for name, why in (("hooks.d", "Too many open files"), ("n" * 300, "File name too long")):
        caplog.clear()
        watcher = Watcher(str(tmp_path / name), poll_seconds=0.02)
        with no_descriptors() if name == "hooks.d" else nullcontext():
            watcher.arm()
            for _ in range(3):
                await watcher.changed()
                watcher.arm()
        watcher.close()
        (record,) = caplog.records
        assert f"inotify does not work ({why}): changes in {tmp_path / name} take" in record.getMessage()
