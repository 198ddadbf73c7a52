"""The registration file: its content, when it is written and removed, and which server owns it."""

import json
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.plugins import registration as proxy
from runtimeproxy_hooks.sdk.registering import POLICIES, Registration, entry, file_name

Log = pytest.LogCaptureFixture
Act = Callable[[Registration], None]


def content(endpoint: str = "/run/a.sock") -> bytes:
    return entry(endpoint, HOOK_POINTS, "Fail", "500ms")


CONTENT = content()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "hookserver.d"
    folder.mkdir()
    return folder / "a.json"


@pytest.fixture
def registration(file: Path) -> Registration:
    return Registration(str(file.parent), file.name, CONTENT)


@pytest.mark.parametrize("policy", POLICIES)
def test_proxy_reads_written_registration(policy: str) -> None:
    for order, timeout, name, seconds in ((None, None, "a.json", None), (7, "500ms", "07-a.json", 0.5)):
        read = proxy.parse(file_name("a", order), entry("/run/a.sock", HOOK_POINTS, policy, timeout))
        assert (read.name, read.endpoint, read.timeout_seconds) == (name, "/run/a.sock", seconds)
        assert (read.policy, read.points, read.warnings) == (proxy.FailurePolicy(policy), BY_NAME.keys(), ())


def test_mode_of_created_directories_ignores_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Registration(str(tmp_path / "x" / "hooks.d"), "a.json", CONTENT).write()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("x", "x/hooks.d")] == [0o755, 0o755]


def test_file_is_replaced_atomically(file: Path, registration: Registration, tmp_path: Path) -> None:
    file.write_bytes(b"old")
    (tmp_path / "mine").write_text("mine")
    (file.parent / ".a.json.new").symlink_to(tmp_path / "mine")  # not followed
    with file.open("rb") as reading:  # as by a concurrent read of the proxy
        registration.write()
        assert reading.read() == b"old"
    assert (file.read_bytes(), file.is_symlink(), (tmp_path / "mine").read_text()) == (CONTENT, False, "mine")
    before = file.stat()
    registration.watch()
    assert (file.stat(), os.listdir(file.parent)) == (before, ["a.json"])
    registration.remove()
    file.mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*a\.json: Is a directory; check the directory or set --regi"):
        registration.write()
    assert os.listdir(file.parent) == ["a.json"]


def listening(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "with its folder": (lambda path: path.parent.rmdir(), "had vanished"),
    "dangling": (lambda path: path.symlink_to("nothing"), "had vanished"),
    "longer": (lambda path: path.write_bytes(CONTENT + b" "), "was changed"),
    "a pipe": (os.mkfifo, "was changed"),
    "a socket": (lambda path: listening(str(path)).close(), "was changed"),
    "endless": (lambda path: path.symlink_to(path), "was changed"),
    **{
        f"no server: {found[:30]!r}": (lambda path, found=found: path.write_bytes(found), "was changed")
        for found in (b"", b"[]", b'{"remote-endpoint": 7}', b"[" * 60_000, b'{"remote-endpoint": "\\ud800"}')
    },
}


@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES)
def test_changed_file_is_rewritten_but_not_removed(
    file: Path, registration: Registration, caplog: Log, change: Callable[[Path], None], words: str
) -> None:
    change(file)
    before = os.path.lexists(file)
    registration.leave()
    registration.remove()
    assert os.path.lexists(file) == before
    assert not caplog.records
    for _ in range(2):
        registration.watch()
    assert (file.read_bytes(), file.is_symlink(), os.listdir(file.parent)) == (CONTENT, False, ["a.json"])
    assert caplog.messages == [f"{file} {words}: written again"]


def test_failed_rewrite_is_logged_once_and_repeated(file: Path, registration: Registration, caplog: Log) -> None:
    for _ in range(2):  # a second problem is logged again
        file.mkdir()
        for _ in range(3):
            registration.watch()
        file.rmdir()
        registration.watch()
        assert file.read_bytes() == CONTENT
        file.unlink()
    words = f"cannot write {file} again: Is a directory; the proxy may not know this server until it can be"
    assert caplog.messages == [words, f"{file} had vanished: written again"] * 2


@pytest.mark.parametrize("spelling", ["", "unix:", "unix://"])
def test_file_of_ended_server_is_replaced(file: Path, registration: Registration, caplog: Log, spelling: str) -> None:
    path = f"{file.parent.parent}/second.sock"
    existing = json.dumps({"Remote-Endpoint": spelling + path, "runtime-hooks": ["PreRunPodSandbox"]})  # as koordlet's
    file.write_text(existing)
    with listening(path):
        with pytest.raises(ConfigError, match=f"^{file} is the registration of another hook server, which .* {path}; "):
            registration.write()
        for _ in range(3):
            registration.watch()
        assert (file.read_text(), os.listdir(file.parent)) == (existing, ["a.json"])
    registration.watch()
    assert file.read_bytes() == CONTENT
    file.write_text(existing)
    registration.write()
    assert file.read_bytes() == CONTENT
    replaced, *other_messages = caplog.messages
    assert replaced.startswith(f"{file} is now the registration of another hook server, which listens on {path}: ")
    was = f"was the registration of another hook server, at {path}: nobody listens there"
    assert other_messages == [f"{file} was changed: written again", f"{file} {was}"]


@pytest.mark.parametrize("spelling", ["unix://", "link"])
def test_files_of_earlier_starts_are_removed(file: Path, tmp_path: Path, caplog: Log, spelling: str) -> None:
    socket_path, link = tmp_path / "a.sock", tmp_path / "link"
    link.symlink_to(tmp_path)  # its socket's path may be spelt differently, as /run and /var/run
    older = str(link / "a.sock") if spelling == "link" else f"{spelling}{socket_path}"
    for name in ("07-a.json", "a.json", "b.json"):
        (file.parent / name).write_bytes(content(older))
    with listening(str(socket_path)):
        Registration(str(file.parent), "a.json", content(str(socket_path))).write()
    assert (os.listdir(file.parent), file.read_bytes()) == (["a.json"], content(str(socket_path)))
    words = "named this server's socket, too, and was left over: removed"
    assert caplog.messages == [f"{file.parent}/07-a.json {words}", f"{file.parent}/b.json {words}"]


def test_file_with_another_socket_is_not_removed(file: Path, registration: Registration, caplog: Log) -> None:
    folder = file.parent
    (folder / "second.json").write_bytes(content("/run/b.sock"))
    (folder / "folder.json").mkdir()
    (folder / "nowhere.json").symlink_to("nothing")
    os.mkfifo(folder / "pipe.json")
    for ignored in (".a.json", "a.json.bak", "a.yaml"):
        (folder / ignored).write_bytes(CONTENT)
    before = {*os.listdir(folder)}
    registration.write()
    assert {*os.listdir(folder)} == before | {"a.json"}
    assert not caplog.records


BUSY, DENIED = OSError(16, "Device or resource busy"), PermissionError(13, "Permission denied")
TWICE = "names this server's socket, too, so each call would be made twice, and cannot be removed"
REFUSALS: list[tuple[str, OSError, Act, str]] = [
    ("unlink", BUSY, Registration.write, f"{{}}/b.json {TWICE}: Device or resource busy"),
    ("scandir", DENIED, Registration.write, "cannot look for older registrations of this server in {}"),
    ("unlink", DENIED, Registration.remove, "cannot remove {}/a.json: Permission denied; remove it by hand"),
    ("unlink", DENIED, Registration.leave, "{}/a.json stays, because its policy is Fail: calls are refused until"),
]


@pytest.mark.parametrize(("call", "error", "act", "words"), REFUSALS)
def test_failed_system_call_and_leaving_are_logged(
    file: Path, registration: Registration, caplog: Log, call: str, error: OSError, act: Act, words: str
) -> None:
    for name in ("a.json", "b.json"):
        (file.parent / name).write_bytes(CONTENT)
    function = getattr(os, call)

    def refuse(path: str) -> object:
        if path.endswith(".new"):
            return function(path)
        raise error

    with pytest.MonkeyPatch.context() as patched:  # root has every permission
        patched.setattr(os, call, refuse)
        act(registration)
    [message] = caplog.messages
    assert message.startswith(words.format(file.parent))
    assert [path.read_bytes() for path in file.parent.iterdir()] == [CONTENT] * 2
