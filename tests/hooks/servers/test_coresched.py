"""coresched: which containers share a cookie, also after restarts, on a simulated kernel."""

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy_hooks.lib.cgroups import Cgroups
from runtimeproxy_hooks.lib.koordinator import CORE_SCHED_GROUP, CORE_SCHED_POLICY
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import HookTester
from runtimeproxy_hooks.servers import coresched
from runtimeproxy_hooks.servers.coresched import CREATE, GET, ITSELF, PROCESS, SHARE_FROM, SHARE_TO, THREAD, CoreSched
from tests.hooks.nodes import configured, qos, tree

Log, Labels = pytest.LogCaptureFixture, dict[str, str]
EXCLUSIVE = {CORE_SCHED_POLICY: "exclusive"}
BLUE, RED = {CORE_SCHED_GROUP: "blue"}, {CORE_SCHED_GROUP: "red"}


class Kernel:
    """prctl(PR_SCHED_CORE) as in kernel/sched/core_sched.c, for the processes in ``cookies``."""

    def __init__(self) -> None:
        self.cookies: dict[int, int] = {}
        self.refuses = 0  # the error number of every call, unless 0
        self.on_share: Callable[[int], None] = lambda pid: None
        self.calls = 0
        self._new = count(1001)
        self._thread = threading.local()

    def __call__(self, command: int, pid: int, scope: int) -> int:
        self.calls += 1
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        if pid != ITSELF and pid not in self.cookies:
            raise ProcessLookupError(errno.ESRCH, "no such process")
        assert scope == (PROCESS if command == SHARE_TO else THREAD)
        own = getattr(self._thread, "cookie", 0)
        if command == GET:
            return self.cookies[pid] if pid else own
        if command == SHARE_TO:
            self.cookies[pid] = own
            self.on_share(pid)
        elif command == SHARE_FROM:
            self._thread.cookie = self.cookies[pid]
        else:
            assert (command, pid) == (CREATE, ITSELF)
            self._thread.cookie = next(self._new)
        return 0


class Machine:
    """A cgroup tree with containers and processes, and a hook server that can be restarted."""

    def __init__(self, root: Path) -> None:
        tree(root, {"cgroups/cgroup.controllers": "cpu\n"})
        self.root = root / "cgroups"
        self.state = root / "run/coresched.json"
        self.kernel = Kernel()
        self.start_server()

    def start_server(self) -> None:
        flags = f"--cgroup-root={self.root}", f"--core-sched-state={self.state}"
        self.tester = HookTester(configured(CoreSched(prctl=self.kernel), *flags))

    def processes(self, path: str, *pids: int) -> None:
        """Create a container's cgroup with these processes in it."""
        tree(self.root, {f"{path}/cgroup.procs": "".join(f"{pid}\n" for pid in pids)})
        for pid in pids:
            self.kernel.cookies.setdefault(pid, 0)

    def end(self, path: str) -> None:
        file = self.root / path / "cgroup.procs"
        for pid in map(int, file.read_text().split()):
            self.kernel.cookies.pop(pid, None)
        file.unlink()
        file.parent.rmdir()

    def start(self, pid: int, labels: Labels, uid: str = "p") -> int:
        """Start a container of one process, and return its cookie; the container's id is c<pid>."""
        self.processes(f"pod{uid}/c{pid}", pid)
        self.call_hook(pid, labels, uid)
        return self.kernel.cookies[pid]

    def call_hook(self, pid: int, labels: Labels, uid: str = "p") -> None:
        call = {"labels": labels, "uid": uid, "cgroup_parent": f"/pod{uid}", "container_id": f"c{pid}"}
        assert not self.tester.post_start_container(pod="web", **call)
        if not self.kernel.refuses:
            assert self.kernel(GET, ITSELF, THREAD) == 0, "the thread of the call has the cookie"

    def stop_pod(self, uid: str = "p") -> None:
        assert not self.tester.post_stop_pod_sandbox(cgroup_parent=f"/pod{uid}", uid=uid)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


UNNAMED, DEFAULT, NONE = {CORE_SCHED_GROUP: ""}, {CORE_SCHED_POLICY: ""}, {CORE_SCHED_POLICY: "none"}
PAIRS = (
    *((BLUE, BLUE | DEFAULT, "pq", True), (BLUE, RED, "pp", False), (UNNAMED, BLUE, "pq", False)),
    *((EXCLUSIVE | BLUE, EXCLUSIVE | RED, "pp", True), (EXCLUSIVE, EXCLUSIVE, "pq", False)),
    *((EXCLUSIVE | BLUE, BLUE, "pp", False), (EXCLUSIVE, {CORE_SCHED_GROUP: "p"}, "pq", False)),
)


@pytest.mark.parametrize(("first", "second", "uids", "together"), PAIRS)
def test_group_shares_cookie(machine: Machine, first: Labels, second: Labels, uids: str, together: bool) -> None:
    cookies = machine.start(11, first, uids[0]), machine.start(12, second, uids[1])
    assert all(cookies)
    assert (cookies[0] == cookies[1]) == together


@pytest.mark.parametrize("labels", [{}, DEFAULT, BLUE | NONE, EXCLUSIVE | qos("SYSTEM")])
def test_pod_without_group_has_no_cookie(machine: Machine, labels: Labels) -> None:
    machine.processes("podp/c11", 11)
    machine.tester.post_start_container(labels=labels, uid="p", cgroup_parent="/podp", container_id="c11")
    assert (machine.kernel.calls, machine.state.exists()) == (0, False)


@pytest.mark.parametrize("call", [{"cgroup_parent": "/.."}, {"container_id": "a/b"}, {"labels": EXCLUSIVE, "uid": ""}])
def test_malformed_path_id_or_uid_is_error(machine: Machine, call: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        machine.tester.post_start_container(**{"labels": BLUE, **call})
    assert machine.kernel.calls == 0


def test_every_process_of_container_has_cookie(machine: Machine) -> None:
    machine.processes("podp/c11", 11, 12)
    machine.processes("podp/c11/inner", 13)
    machine.processes("podp/c14", 14)
    cookies = machine.kernel.cookies
    del cookies[12]  # it ends
    machine.call_hook(11, BLUE)
    assert "cookie" not in {thread.name for thread in threading.enumerate()}, "a helper thread still runs"
    assert cookies == {11: cookies[13], 13: cookies[13], 14: 0}
    cookies.pop(11)  # a member that is still listed
    assert machine.start(15, BLUE) == cookies[13] != 0
    machine.kernel.on_share = lambda pid: machine.processes("podp/c20", pid, pid + 1)  # it always forks
    assert machine.start(20, BLUE) == cookies[20 + coresched.ROUNDS - 1] == cookies[13]
    assert cookies[20 + coresched.ROUNDS] == 0


def test_group_exists_as_long_as_one_of_its_containers(machine: Machine) -> None:
    first = machine.start(11, BLUE)
    machine.kernel.cookies |= {5: 77, 12: 77}  # foreign cookies are replaced, not copied
    machine.processes("podp/c11", 5, 11)
    assert machine.start(12, BLUE) == first
    assert machine.kernel.cookies[5] == 77
    for path in ("podp/c11", "podp/c12"):
        machine.end(path)
    machine.tester = HookTester(CoreSched(Cgroups(machine.root), None, machine.kernel))  # in memory only
    assert machine.start(14, BLUE) == machine.start(15, BLUE) not in {0, first}


def test_restart_splits_no_group_and_forgets_ended_containers(machine: Machine) -> None:
    machine.start(10, EXCLUSIVE, uid="r")
    with ThreadPoolExecutor(8) as threads:
        cookies = set(threads.map(lambda pid: machine.start(pid, BLUE, uid=str(pid)), range(100, 116)))
    exclusive = machine.start(12, EXCLUSIVE)
    machine.end("podr/c10")
    machine.start_server()
    assert ({machine.start(13, BLUE, uid="q")}, machine.start(14, EXCLUSIVE)) == (cookies, exclusive)
    assert "podr" not in machine.state.read_text()


INVALID_STATES = (
    *(b"", b"[]", b"\xff", b"[" * 100_000, b'{"a": {"cookie": 1}}', b'{"a": {"cookie": 1e999, "members": []}}'),
    *(b'{"a": {"cookie": 1, "members": ["../x"]}}', b'{"a": {"cookie": "x", "members": []}}'),
)


@pytest.mark.parametrize("content", INVALID_STATES)
def test_invalid_state_is_logged_and_replaced(machine: Machine, content: bytes, caplog: Log) -> None:
    machine.state.parent.mkdir()
    machine.state.write_bytes(content)
    cookie = machine.start(11, BLUE)
    assert machine.start(12, BLUE) == cookie
    [message] = caplog.messages
    assert message.startswith(f"{machine.state} cannot be read, running containers' groups are not known: ")
    machine.start_server()
    assert machine.start(13, BLUE) == cookie  # the file is valid again


def test_state_that_cannot_be_written_is_logged_once(machine: Machine, caplog: Log) -> None:
    machine.state.mkdir(parents=True)
    assert len({machine.start(pid, BLUE) for pid in (11, 12, 13)}) == 1
    [_, message] = caplog.messages
    assert message.startswith(f"{machine.state} cannot be written, a restart will split groups: Is a directory")


def test_stopped_pod_is_forgotten(machine: Machine) -> None:
    machine.stop_pod("unknown")
    assert not machine.state.exists()
    machine.start(11, EXCLUSIVE)
    machine.start(12, BLUE, uid="q")
    machine.end("podp/c11")
    machine.stop_pod("q")  # an old sandbox of the pod, whose container runs
    assert "podp" in machine.state.read_text()
    machine.stop_pod("p")
    assert "podp" not in machine.state.read_text()
    machine.end("podq/c12")
    machine.stop_pod("q")
    assert machine.state.read_text() == "{}"


def test_refused_cookie_fails_call_and_shows_no_name(machine: Machine, caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    machine.start(11, {CORE_SCHED_GROUP: "secret-group"})
    machine.kernel.refuses = errno.EPERM
    with pytest.raises(PermissionError):
        machine.start(12, {CORE_SCHED_GROUP: "secret-group"})
    assert caplog.messages == ["default/web main gets no cookie: Operation not permitted"]
    assert "secret-group" not in machine.state.read_text()


def test_machine_without_core_scheduling_is_logged_once(machine: Machine, caplog: Log) -> None:
    for number in (errno.EINVAL, errno.ENODEV):
        machine.kernel.refuses = number
        assert machine.start(11, BLUE) == 0
        machine.stop_pod()
    [message] = caplog.messages
    assert message.startswith("pods run without core scheduling, this kernel or machine has none: ")


def test_absent_processes_are_logged_and_found_later(machine: Machine, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    machine.processes("podp/c11")
    for pid in (11, 12):
        machine.call_hook(pid, BLUE)
    assert caplog.messages == [f"default/web main gets no cookie: {coresched.UNSEEN}"] * 2
    cookie = machine.start(11, BLUE)
    hidden = machine.root.rename(machine.root.with_name("hidden"))
    machine.start_server()
    for _ in range(2):
        machine.call_hook(12, BLUE)
        machine.stop_pod()
    [message] = caplog.messages[2:]
    assert message.startswith(f"containers get no cookie: {machine.root} holds no cgroups")
    hidden.rename(machine.root)
    assert machine.start(12, BLUE) == cookie


CALLS = [
    ((CREATE, ITSELF, THREAD), (62, 1, 0, 0, 0)),
    ((SHARE_TO, 17, PROCESS), (62, 2, 17, 1, 0)),
    ((SHARE_FROM, 17, THREAD), (62, 3, 17, 0, 0)),
    ((GET, 17, THREAD), (62, 0, 17, 0)),
]


def test_prctl_has_arguments_of_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def prctl(option: int, *arguments: ctypes.c_ulong) -> int:
        calls.append((option, *(each.value for each in arguments)))
        if calls[-1][1] == GET:
            ctypes.c_uint64.from_address(calls[-1][4]).value = 0xFEDCBA9876543210
        ctypes.set_errno(errno.EPERM)
        return -1 if len(calls) > len(CALLS) else 0

    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr(coresched, "LIBC", SimpleNamespace(prctl=prctl))
    cookies = [coresched.sched_core(*call) for call, _ in CALLS]
    assert cookies == [0, 0, 0, 0xFEDCBA9876543210]
    assert [(each[: len(raw)], len(each)) for each, (_, raw) in zip(calls, CALLS, strict=True)] == [
        (raw, 5) for _, raw in CALLS
    ]
    with pytest.raises(PermissionError, match=r"PR_SCHED_CORE: Operation not permitted; .* CAP_SYS_PTRACE"):
        coresched.sched_core(GET, 17, THREAD)
