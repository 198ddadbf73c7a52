"""Command lines of hook servers, of the project's together (``python -m runtimeproxy_hooks``), and a server's files.

Problems with a path in general (directories, locks, foreign sockets) are tested in tests/relay/test_listener.py.
"""

import errno
import json
import logging
import os
import runpy
import socket
import stat
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.plugins import registration as proxy
from runtimeproxy.relay.listener import MAX_PATH_BYTES
from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks import Hook, main
from runtimeproxy_hooks import __main__ as hosting
from runtimeproxy_hooks.sdk.flags import parser, server_name
from runtimeproxy_hooks.sdk.hook import hook_name
from runtimeproxy_hooks.sdk.registering import POLICIES, Registration, entry, file_name
from runtimeproxy_hooks.sdk.socket_path import listens, place
from runtimeproxy_hooks.servers.cpuset import Cpuset
from runtimeproxy_hooks.servers.groupidentity import GroupIdentity
from tests.hooks.nodes import umask
from tests.hooks.sdk.processes import Dreamy, Obedient

Patch, Out, Log = pytest.MonkeyPatch, pytest.CaptureFixture[str], pytest.LogCaptureFixture
Serve = Callable[[str], None]
NAMES = sorted(hosting.HOOKS)
HOOK_NAMES = ", ".join(NAMES)


@pytest.fixture
def isolated(monkeypatch: Patch, caplog: Log) -> None:
    """Ensure that no server can be started, and undo the log setup of ``main`` at the end."""
    monkeypatch.delitem(sys.modules, "runtimeproxy_hooks.sdk.serving", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in ("runtimeproxy_hooks", "tests"):
        caplog.set_level(logging.INFO, name)


def test_named_hooks_are_served_with_own_name_and_socket() -> None:
    for words, flags, name in (("gpu cpuset", "--order 5 rdt", ""), ("all", "--help", "all")):
        with mock.patch.object(hosting, "main") as served:
            hosting.run(f"{words} {flags}".split())
        assert [hook_name(hook) for hook in served.call_args.args] == (NAMES if name else words.split())
        assert served.call_args.kwargs == {"name": name, "argv": flags.split()}
    together = list(chain.from_iterable(combinations(NAMES, count) for count in range(1, len(NAMES) + 1)))
    servers = {server_name(names) for names in together}
    assert len(servers) == len(together)
    for name in servers:
        assert len(os.fsencode(parser(name).parse_args([]).endpoint)) <= MAX_PATH_BYTES
    assert server_name(NAMES[:2]) == "batchresource-coresched"
    assert server_name(NAMES) == "batchres-coresche-cpunorma-cpuset-gpu-groupide-oomscore-rdt"


def test_hooks_of_server_share_node_settings(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    (file := tmp_path / "node.yaml").write_text("system-cpuset: 0-1")
    hooks, flags = [Cpuset(), GroupIdentity()], ArgumentParser()
    for hook in hooks:
        hook.add_arguments(flags)
    arguments = flags.parse_args([f"--node-config={file}"])
    for hook in hooks:
        hook.configure(arguments)
    assert caplog.messages == [f"{file}: node settings applied"], "at the start, and once"
    assert hooks[0].node is hooks[1].node


UNNAMED, UNKNOWN = f"name the hooks to serve first: {HOOK_NAMES}, or all", f"there are {HOOK_NAMES}; all must be alone"
WRONG_NAMES = {
    **{"": UNNAMED, "--order=5": UNNAMED, "gpu all": f"there is no hook 'all'; {UNKNOWN}"},
    **{"gpu gppu": "there is no hook 'gppu'; did you mean 'gpu'?", "gpu cpuset gpu": "gpu is named twice"},
}
WRONG_FLAGS = {
    "--endpoint=a.sock": "--endpoint: 'a.sock' is not a unix socket: write /path, unix:/path or ",
    "--failure-policy=fail": "argument --failure-policy: invalid choice: 'fail' (choose from ",
    "--order=100": "argument --order: '100' is not a place: write a number from 0 to 99",
    "--timeout=0s": "--timeout: '0s' is not a time limit: write one above zero, like 500ms, 2s or 1m",
    "--log=debug": "unrecognized arguments: --log=debug; --help lists the flags",
}
NO_GRPC = "obedient: error: the Python package grpc is missing, which serves gRPC; install runtimeproxy with its "
NO_GRPC += "extra: 'runtimeproxy[hooks]'"
TWICE = "two hooks, or a hook and the SDK, have the same flag: argument --mark: conflicting option string: --mark"
WRONG_HOOKS: list[tuple[list[Any], str, str]] = [
    ([Dreamy(), Dreamy()], "two", f"two: error: {TWICE}"),
    ([], "", ": error: there is no hook to serve; give main one: main(MyHook())"),
    ([Dreamy], "", "dreamy: error: <class 'tests.hooks.sdk.processes.Dreamy'> is not a hook; give main instances of "),
    ([Hook()], "", "hook: error: Hook has no method named like a hook point; there are pre_"),
    *(([Obedient()], name, f"{name}: error: {name!r} cannot be in a file's name; ") for name in ("a/b", ".a")),
]
WRONG: list[tuple[Callable[[], None], str]] = [
    *((partial(hosting.run, text.split()), f"runtimeproxy-hooks: error: {line}") for text, line in WRONG_NAMES.items()),
    *((partial(main, Obedient(), argv=[flag]), f"obedient: error: {line}") for flag, line in WRONG_FLAGS.items()),
    (partial(main, Dreamy(), argv=["--mark=xy"]), "dreamy: error: --mark: write one letter"),
    (partial(main, Dreamy(), argv=["--mark=/no"]), "dreamy: error: [Errno 2] No such file or directory: '/no'"),
    *((partial(main, *hooks, name=name, argv=[]), line) for hooks, name, line in WRONG_HOOKS),
    (partial(main, Obedient(), argv=["--register-dir="]), NO_GRPC),
]


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(("run", "line"), WRONG, ids=[line for _, line in WRONG])
def test_wrong_command_line_is_reported_in_one_line(capsys: Out, run: Callable[[], None], line: str) -> None:
    with pytest.raises(SystemExit) as exited:
        run()
    assert exited.value.code == (1 if line == NO_GRPC else 2)
    error, empty = capsys.readouterr().err.split("\n")
    assert (error.startswith(line), empty) == (True, "")


HELPS = {"__main__ -h": f"hooks: {HOOK_NAMES}\n", "__main__ --version": f"runtimeproxy-hooks {VERSION}"}
HELPS |= {"__main__ all --help": "--node-config FILE"} | {f"servers.{name} --help": f"/{name}.sock" for name in NAMES}


@pytest.mark.usefixtures("isolated")
@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
@pytest.mark.parametrize(("command", "printed"), HELPS.items())
def test_module_is_program_with_help(monkeypatch: Patch, capsys: Out, command: str, printed: str) -> None:
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as exited:
        runpy.run_module(f"runtimeproxy_hooks.{sys.argv[0]}", run_name="__main__")
    assert not exited.value.code
    assert printed in capsys.readouterr().out


# The registration.
def listening(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


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
def test_proxy_reads_registration_in_folder_with_narrow_mode(tmp_path: Path, policy: str) -> None:
    for order, timeout, name, seconds in ((None, None, "a.json", None), (7, "500ms", "07-a.json", 0.5)):
        written = entry("/run/a.sock", HOOK_POINTS, policy, timeout)
        with umask(0):
            Registration(str(tmp_path / "x" / "hooks.d"), file_name("a", order), written).write()
        read = proxy.parse(name, (tmp_path / "x/hooks.d" / name).read_bytes())
        assert (read.endpoint, read.timeout_seconds) == ("/run/a.sock", seconds)
        assert (read.policy, read.points, read.warnings) == (proxy.FailurePolicy(policy), BY_NAME.keys(), ())
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("x", "x/hooks.d")] == [0o755, 0o755]


def test_file_is_replaced_atomically_until_that_fails(file: Path, registration: Registration, caplog: Log) -> None:
    mine = file.parent.parent / "mine"
    mine.write_text("mine")
    file.write_bytes(b"old")
    (file.parent / ".a.json.new").symlink_to(mine)  # not followed
    with file.open("rb") as reading:  # as by a concurrent read of the proxy
        registration.write()
        assert reading.read() == b"old"
    assert (file.read_bytes(), file.is_symlink(), mine.read_text()) == (CONTENT, False, "mine")
    before = file.stat()
    registration.watch()
    assert (file.stat(), os.listdir(file.parent)) == (before, ["a.json"])
    registration.remove()
    for _ in range(2):  # a second problem is logged again
        file.mkdir()
        with pytest.raises(
            ConfigError, match=r"cannot write .*a\.json: Is a directory; check the directory or set --r"
        ):
            registration.write()
        for _ in range(3):
            registration.watch()
        assert os.listdir(file.parent) == ["a.json"]
        file.rmdir()
        registration.watch()
        assert file.read_bytes() == CONTENT
        file.unlink()
    words = f"cannot write {file} again: Is a directory; the proxy may not know this server until it can be"
    assert caplog.messages == [words, f"{file} had vanished: written again"] * 2


Change = Callable[[Path], object]
CHANGES: list[Change] = [os.mkfifo, lambda path: path.symlink_to(path), lambda path: listening(str(path)).close()]
VANISHED: list[Change] = [lambda path: path.parent.rmdir(), lambda path: path.symlink_to("nothing")]
FOUND = [CONTENT + b" ", b"", b"[]", b'{"remote-endpoint": 7}', b"[" * 60_000, b'{"remote-endpoint": "\\ud800"}']


@pytest.mark.parametrize(
    "change", [*VANISHED, *CHANGES, *FOUND], ids=lambda change: getattr(change, "__name__", ascii(change)[:40])
)
def test_changed_file_is_only_rewritten(file: Path, registration: Registration, caplog: Log, change: Any) -> None:
    file.write_bytes(change) if isinstance(change, bytes) else change(file)
    before, words = os.path.lexists(file), "had vanished" if change in VANISHED else "was changed"
    registration.leave()
    registration.remove()
    assert os.path.lexists(file) == before
    assert not caplog.records
    for _ in range(2):
        registration.watch()
    assert (file.read_bytes(), file.is_symlink(), os.listdir(file.parent)) == (CONTENT, False, ["a.json"])
    assert caplog.messages == [f"{file} {words}: written again"]


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
def test_only_files_of_earlier_starts_are_removed(file: Path, tmp_path: Path, caplog: Log, spelling: str) -> None:
    folder, path, link = file.parent, str(tmp_path / "a.sock"), tmp_path / "link"
    link.symlink_to(tmp_path)  # its socket's path may be spelt differently, as /run and /var/run
    older = content(f"{link}/a.sock" if spelling == "link" else f"{spelling}{path}")
    (folder / "second.json").write_bytes(content("/run/b.sock"))
    (folder / "folder.json").mkdir()
    (folder / "nowhere.json").symlink_to("nothing")
    os.mkfifo(folder / "pipe.json")
    for ignored in (".a.json", "a.json.bak", "a.yaml"):
        (folder / ignored).write_bytes(older)
    before = {*os.listdir(folder)}
    for name in ("07-a.json", "a.json", "b.json"):
        (folder / name).write_bytes(older)
    with listening(path):
        Registration(str(folder), "a.json", content(path)).write()
    assert ({*os.listdir(folder)}, file.read_bytes()) == (before | {"a.json"}, content(path))
    words = "named this server's socket, too, and was left over: removed"
    assert sorted(caplog.messages) == [f"{folder}/07-a.json {words}", f"{folder}/b.json {words}"]


BUSY, DENIED = OSError(16, "Device or resource busy"), PermissionError(13, "Permission denied")
TOO = "names this server's socket, too, so each call would be made twice, and cannot be removed"
REFUSALS: list[tuple[str, OSError, Callable[[Registration], None], str]] = [
    ("unlink", BUSY, Registration.write, f"{{}}/b.json {TOO}: Device or resource busy"),
    ("scandir", DENIED, Registration.write, "cannot look for older registrations of this server in {}"),
    ("unlink", DENIED, Registration.remove, "cannot remove {}/a.json: Permission denied; remove it by hand"),
    ("unlink", DENIED, Registration.leave, "{}/a.json stays, because its policy is Fail: calls are refused until"),
]


@pytest.mark.parametrize(("call", "error", "act", "words"), REFUSALS)
def test_failed_system_call_and_leaving_are_logged(
    file: Path, registration: Registration, caplog: Log, call: str, error: OSError, act: Any, words: str
) -> None:
    for name in ("a.json", "b.json"):
        (file.parent / name).write_bytes(CONTENT)
    function = getattr(os, call)

    def refuse(path: str) -> object:  # root has every permission
        if path.endswith(".new"):
            return function(path)
        raise error

    with mock.patch.object(os, call, refuse):
        act(registration)
    [message] = caplog.messages
    assert message.startswith(words.format(file.parent))
    assert [path.read_bytes() for path in file.parent.iterdir()] == [CONTENT] * 2


# The socket.
@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that binds as gRPC does: it removes what exists at the path, before and at the end."""
    with ExitStack() as stack:

        def bind(path: str) -> None:
            Path(path).unlink(missing_ok=True)
            stack.callback(Path(path).unlink, missing_ok=True)
            stack.enter_context(listening(path))

        yield bind


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sock"


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_socket_is_private_and_served_before_renamed(path: Path, serve: Serve, mask: int) -> None:
    def check(bound: str) -> None:
        serve(bound)
        assert stat.S_IMODE(os.lstat(bound).st_mode) == 0o600
        assert listens(bound)
        assert not path.exists()

    with umask(mask):
        placed = place(str(path), check)
        assert os.umask(mask) == mask
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert listens(str(path))
    assert sorted(os.listdir(path.parent)) == ["a.sock", "a.sock.lock"]
    placed.close()


def test_close_removes_own_socket_and_releases_lock(path: Path, serve: Serve, caplog: Log) -> None:
    for _ in range(2):
        placed = place(str(path), serve)
        placed.close()
        placed.close()
        assert sorted(os.listdir(path.parent)) == ["a.sock.lock"]
    placed = place(str(path), serve)
    path.unlink()
    listening(str(path)).close()
    placed.close()
    assert path.is_socket(), "the socket of another process was removed"
    path.unlink()
    placed = place(str(path), serve)
    with mock.patch("os.unlink", side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))):
        placed.close()
    stays = f"{path} stays: it cannot be removed (Read-only file system); the next start tries again"
    assert caplog.messages == [stays]
    path.unlink()
    with pytest.raises(ConfigError, match=r"cannot listen on .*: File exists"):  # the lock was released
        place(str(path), lambda bound: serve(bound) or path.touch())
    assert path.is_file(), "a file that appears meanwhile was removed"


def test_stale_socket_is_replaced_under_both_names(path: Path, serve: Serve) -> None:
    lock = path.with_name("a.sock.lock")
    lock.touch()
    listening(str(path)).close()
    listening(str(path.with_name(f".{lock.stat().st_ino}.sock"))).close()  # killed between creating and naming it
    with closing(place(str(path), serve)):
        assert listens(str(path))
        assert sorted(os.listdir(path.parent)) == ["a.sock", "a.sock.lock"]


def test_listener_with_full_backlog_is_found(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert not listens(str(path))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(3)]
        for client in waiting:
            client.connect_ex(str(path))
        assert listens(str(path))
        for client in waiting:
            client.close()
    (path.parent / "file").touch()
    for name in ("a.sock", "none", "file", "x" * 200, "nul\0"):
        assert not listens(f"{path.parent}/{name}")
