"""rdt and coresched on a simulated kernel: groups of pods, their limits and cookies, and their threads."""

import ctypes
import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from runtimeproxy_hooks.lib.cgroups import Cgroups
from runtimeproxy_hooks.lib.koordinator import CORE_SCHED_GROUP, CORE_SCHED_POLICY, RESCTRL
from runtimeproxy_hooks.lib.resctrl import Resctrl
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, HookTester
from runtimeproxy_hooks.servers import coresched, rdt
from runtimeproxy_hooks.servers.coresched import CREATE, GET, ITSELF, PROCESS, SHARE_FROM, SHARE_TO, THREAD, CoreSched
from runtimeproxy_hooks.servers.rdt import RDT_CLASS, ROUNDS, Rdt
from tests.fakes.resctrl import StandIn
from tests.hooks.nodes import annotation, configured, on_node, qos, tree
from tests.hooks.sdk.processes import eventually

Log, Patch, Labels = pytest.LogCaptureFixture, pytest.MonkeyPatch, dict[str, str]

# rdt
POD_GROUP = f"koordlet-{UID}"
EVERY_CLASS = "rdt: {LSR: {enable: true}, LS: {enable: true}, BE: {enable: true}}"
SMALL = {"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 20}}}
OWN_LIMITS: dict[str, Any] = {"annotations": annotation(RESCTRL, SMALL)}
SMALL_LINES, MB_FULL = "L3:0=00f;1=00f\nMB:0= 20;1= 20\n", "MB:0=100;1=100\n"


class Node:
    """A hook on a node with its settings, cgroups and resctrl in a directory of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "resctrl"
        self.resctrl = StandIn(self.root)
        tree(folder, {"cgroup.controllers": ""})  # version 2

    def hook(self, *flags: str, classes: str = "", resctrl: Resctrl | None = None) -> HookTester:
        return on_node(self.folder, Rdt(resctrl or self.resctrl), classes, *flags)

    def groups(self) -> dict[str, str]:
        return {file.parent.name: file.read_text() for file in self.root.glob("*/schemata")}

    def container(self, *tids: int) -> None:
        name = f"kubepods/pod{UID}/{CONTAINER_ID}/cgroup.threads"
        tree(self.folder, {name: "".join(f"{tid}\n" for tid in tids)})


@contextmanager
def threads(count: int) -> Iterator[list[int]]:
    ended = threading.Event()
    started = [threading.Thread(target=ended.wait) for _ in range(count)]
    for thread in started:
        thread.start()
    tids = [thread.native_id or 0 for thread in started]
    try:
        yield tids
    finally:
        ended.set()
        eventually(lambda: not any(Path("/proc", str(tid)).exists() for tid in tids))  # a join waits for Python only


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


BOTH = {
    "llc": {"schemata": {"range": [20, 80]}, "schemataPerCache": [{"cacheID": 0, "range": [20, 50]}]},
    "mb": {"schemata": {"percent": 20}, "schemataPerCache": [{"cacheID": 1, "percent": 40}]},
}
ANY_CASE = {"LLC": {"Schemata": {"Range": [0, 30]}}, "MB": {"schematapercache": [{"cacheid": 0, "Percent": 50}]}}
UNUSED = {"llc": {"schemata": {"percent": 5, "range": [0, 30]}}, "mb": {"schemata": {"range": [5, 6]}}}
NULLS = {"llc": {"schemata": {"range": [0, 30]}, "schemataPerCache": None}, "mb": None, "l2": 1}
UNKNOWN_ID = {"llc": {"schemataPerCache": [{"cacheID": cache_id, "range": [20, 50]} for cache_id in (1, 77)]}}
ANNOTATIONS = [
    *((BOTH, "L3:0=038;1=1f8\nMB:0= 20;1= 40\n"), (ANY_CASE, "L3:0=00f;1=00f\nMB:0= 50;1=100\n")),
    *((value, f"L3:0=00f;1=00f\n{MB_FULL}") for value in (UNUSED, NULLS)),
    (UNKNOWN_ID, f"L3:0=7ff;1=038\n{MB_FULL}"),
]


@pytest.mark.parametrize(("value", "schemata"), ANNOTATIONS)
def test_annotation_creates_group_of_pod(node: Node, caplog: Log, value: object, schemata: str) -> None:
    call: dict[str, Any] = {"annotations": annotation(RESCTRL, value), "namespace": "shop", "pod": "cart"}
    tester = node.hook()
    assert not tester.pre_run_pod_sandbox(**call)
    assert node.groups() == {POD_GROUP: schemata}
    tester.pre_create_container(**call)
    words = f"shop/cart: the annotation {RESCTRL} names cache ids"  # once, without the id
    assert [message.startswith(words) for message in caplog.messages] == [True] * (value is UNKNOWN_ID)
    assert "77" not in caplog.text


def test_stopped_sandbox_removes_its_group_only_if_empty(node: Node) -> None:
    def restarted() -> HookTester:
        return node.hook(resctrl=StandIn(node.root))

    with threads(1) as (tid,):
        node.container(tid)
        restarted().pre_run_pod_sandbox(**OWN_LIMITS, attempt=1)
        restarted().post_start_container(**OWN_LIMITS, pod_attempt=1)
        restarted().post_stop_pod_sandbox(**OWN_LIMITS, attempt=0)  # the second stop of a dead sandbox
        assert node.resctrl.tasks(POD_GROUP) == {tid}
    restarted().post_stop_pod_sandbox(**OWN_LIMITS, uid="another")
    assert node.groups() == {POD_GROUP: SMALL_LINES}
    for _ in range(2):
        restarted().post_stop_pod_sandbox(**OWN_LIMITS, attempt=1)
        assert not node.groups()
    with threads(2) as tids:  # a late stop of an old sandbox, before the new one's container starts
        node.container(*tids)
        restarted().post_start_container(**OWN_LIMITS)
        assert node.resctrl.tasks(POD_GROUP) == set(tids)
    assert node.groups() == {POD_GROUP: SMALL_LINES}


GUARANTEED, BEST_EFFORT = f"/kubepods/pod{UID}", "/kubepods/besteffort/podu"
CLASSES: list[tuple[str, str, Labels, str]] = [
    *(("LSE", GUARANTEED, {}, "LSR"), ("LS", BEST_EFFORT, {}, "LS"), ("BE", "", {}, "BE")),
    *(("SYSTEM", GUARANTEED, {}, ""), ("", GUARANTEED, {}, "LSR"), ("", BEST_EFFORT, {}, "BE"), ("", "", {}, "")),
    # an annotation without limits overrides the class
    *(("LS", "", {RESCTRL: text}, "") for text in ("{}", '{"llc":{}}', '{"llc":{"schemataPerCache":[]},"mb":{}}')),
    *(("LS", "", {RESCTRL: text}, "LS") for text in ("", "null")),
]


@pytest.mark.parametrize(("name", "parent", "annotations", "group"), CLASSES)
def test_qos_class_of_pod_is_its_group(node: Node, name: str, parent: str, annotations: Labels, group: str) -> None:
    call: dict[str, Any] = {"labels": qos(name), "cgroup_parent": parent, "annotations": annotations}
    tester = node.hook(classes=EVERY_CLASS)
    tester.pre_run_pod_sandbox(**call)
    assert not node.groups()
    assert tester.pre_create_container(**call).annotations == ({RDT_CLASS: group} if group else {})
    assert [*node.groups()] == ([group] if group else [])


def test_limits_are_written_when_settings_change(node: Node, monkeypatch: Patch) -> None:
    def change(classes: str) -> None:
        tree(node.folder, {"node.yaml": f"rdt: {{{classes}}}"})

    resctrl, limited = StandIn(node.root), list[str]()
    limit = resctrl.limit
    monkeypatch.setattr(resctrl, "limit", lambda group, lines: limit(group, lines) or limited.append(group))
    tester = node.hook(resctrl=resctrl)
    for times, mb, written in ((1, 50, 50), (2, 70, 70), (2, 90, 70)):
        resctrl.refused = ["schemata"] if mb == 90 else []
        change(f"LS: {{enable: true, l3: [0, 50], mb: {mb}}}")
        for _ in range(2):
            assert tester.pre_create_container(labels=qos("LS")).annotations == {RDT_CLASS: "LS"}
        assert limited == ["LS"] * times
        assert node.groups() == {"LS": f"L3:0=03f;1=03f\nMB:0= {written};1= {written}\n"}
    change("LS: {enable: false}, BE: {enable: true}")
    assert not tester.pre_create_container(labels=qos("LS"))
    change("LS: {enable: true}")
    resctrl.refused = []
    monkeypatch.setattr(rdt, "MAX_WRITTEN", 1)
    for call in 2 * [OWN_LIMITS, {"labels": qos("LS")}]:
        tester.pre_create_container(**call)
    assert limited[2:] == [POD_GROUP, "LS"] * 2


def test_threads_outside_group_are_moved_in_few_rounds(node: Node, caplog: Log, monkeypatch: Patch) -> None:
    def move(resctrl: StandIn, group: str, tid: int) -> None:
        next(acts, lambda: None)()
        moved.append(tid)
        Resctrl.move(resctrl, group, tid)

    moved: list[int] = []
    with threads(1) as ended:
        pass
    with threads(5) as tids:
        node.resctrl.make(POD_GROUP)
        node.resctrl.move(POD_GROUP, tids[0])  # as the runtime does
        monkeypatch.setattr(StandIn, "move", move)
        acts = iter([partial(node.container, *ended, *tids[:count]) for count in (3, 4, 5)])
        next(acts)()
        tester = node.hook("--no-rdt-class-annotation")
        assert not tester.pre_create_container(**OWN_LIMITS)
        tester.post_start_container(**OWN_LIMITS)
        assert node.resctrl.tasks(POD_GROUP) == set(tids)
        assert sorted(moved) == sorted([*ended, *tids[1:]])
    assert not caplog.records
    moved.clear()
    with threads(ROUNDS + 5) as tids:  # it always starts more
        acts = iter([partial(node.container, *tids[:count]) for count in range(1, len(tids) + 1)])
        next(acts)()
        node.hook().post_start_container(**OWN_LIMITS)
        assert len(moved) == ROUNDS
    assert f"each of {ROUNDS} rounds" in caplog.text


def test_node_without_rdt_is_logged_and_runs_pods(node: Node, tmp_path: Path, caplog: Log) -> None:
    later = StandIn(tmp_path / "later")
    hidden = later.root.rename(tmp_path / "hidden")
    invalid = StandIn(tmp_path / "invalid", limits=["L3"], cbm_mask=0b1011)
    notes = {"cbm_mask is not an unbroken row of ones": invalid, "offers neither L3 nor MB": later}
    for words, resctrl in notes.items():
        tester = node.hook(classes=EVERY_CLASS, resctrl=resctrl)
        assert words in caplog.text
        assert f"mount -t resctrl resctrl {resctrl.root}" in caplog.text
        caplog.clear()
        for method in (*CREATED.split(), "post_start_container", "post_stop_pod_sandbox"):
            for value in (SMALL, "no JSON"):
                assert not getattr(tester, method)(annotations=annotation(RESCTRL, value), labels=qos("LS"))
        assert not caplog.records
    assert not list(invalid.root.glob("koordlet-*"))
    hidden.rename(later.root)  # mounted later
    tester.pre_run_pod_sandbox(**OWN_LIMITS)
    assert later.exists(POD_GROUP)


def test_exhausted_classes_of_service_are_logged_once(node: Node, caplog: Log) -> None:
    tester, uids = node.hook(classes=EVERY_CLASS), [f"pod-{number}" for number in range(5)]
    for uid in uids:
        tester.pre_run_pod_sandbox(**OWN_LIMITS, uid=uid)
    changed = [tester.pre_create_container(**OWN_LIMITS, uid=uid, labels=qos("LS")).annotations for uid in uids]
    assert changed == [{RDT_CLASS: f"koordlet-{uid}"} for uid in uids[:3]] + [{}, {}]
    with threads(1) as tids:
        node.container(*tids)
        tester.post_start_container(labels=qos("LS"))
    [message] = caplog.messages
    assert "no class of service is free" in message
    tester.post_stop_pod_sandbox(uid="pod-0")
    assert tester.pre_create_container(labels=qos("LS")).annotations == {RDT_CLASS: "LS"}


CREATED = "pre_run_pod_sandbox pre_create_container"
REFUSALS = [
    ("mkdir", CREATED, [], "no group can be made"),
    ("schemata", CREATED, [], "limits are refused"),  # uses no class of service
    ("schemata rmdir", CREATED, [POD_GROUP], "limits are refused"),
    ("tasks", "post_start_container", [POD_GROUP], "threads of a container stay where they are"),
    ("rmdir", "pre_run_pod_sandbox post_stop_pod_sandbox", [POD_GROUP], "the group of a pod that has ended stays"),
]


@pytest.mark.parametrize(("refused", "methods", "groups", "words"), REFUSALS)
def test_refusal_is_logged_once(node: Node, caplog: Log, refused: str, methods: str, groups: Any, words: str) -> None:
    tester = node.hook(resctrl=StandIn(node.root, refused=refused.split()))
    with threads(1) as tids:
        node.container(*tids)
        for method in 2 * methods.split():
            getattr(tester, method)(**OWN_LIMITS)
    [message] = caplog.messages
    assert f"{words}: Operation not permitted" in message
    assert [*node.groups()] == groups


@pytest.mark.parametrize("refused", [[], ["schemata"]])
def test_group_that_another_thread_creates_is_used(node: Node, caplog: Log, refused: list[str]) -> None:
    resctrl = StandIn(node.root, refused=refused)
    make = resctrl.make
    tester = node.hook(resctrl=resctrl)
    with mock.patch.object(resctrl, "make", lambda group: make(group) and make(group)):
        assert tester.pre_create_container(**OWN_LIMITS).annotations == {RDT_CLASS: POD_GROUP}
    assert [*node.groups()] == [POD_GROUP]
    caplog.clear()
    for parent in (GUARANTEED, "/elsewhere"):
        tester.post_start_container(**OWN_LIMITS, cgroup_parent=parent)
    [message] = caplog.messages
    assert "a container has ended already" in message


# coresched
EXCLUSIVE = {CORE_SCHED_POLICY: "exclusive"}
BLUE, RED = {CORE_SCHED_GROUP: "blue"}, {CORE_SCHED_GROUP: "red"}


class Machine:
    """A hook server that can be restarted, on a cgroup tree, and prctl(PR_SCHED_CORE) as in kernel/sched/core_sched.c
    for the processes in ``cookies``."""

    def __init__(self, folder: Path) -> None:
        tree(folder, {"cgroups/cgroup.controllers": "cpu\n"})
        self.root, self.state = folder / "cgroups", folder / "run/coresched.json"
        self.cookies: dict[int, int] = {}
        self.calls = self.refuses = 0  # the error number of every call, unless 0
        self.on_share: Callable[[int], None] = lambda pid: None
        self._new, self._thread = count(1001), threading.local()
        self.start_server()

    def prctl(self, command: int, pid: int, scope: int) -> int:
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

    def start_server(self) -> None:
        flags = f"--cgroup-root={self.root}", f"--core-sched-state={self.state}"
        self.tester = HookTester(configured(CoreSched(prctl=self.prctl), *flags))

    def processes(self, path: str, *pids: int) -> None:
        """Create a container's cgroup with these processes in it."""
        tree(self.root, {f"{path}/cgroup.procs": "".join(f"{pid}\n" for pid in pids)})
        for pid in pids:
            self.cookies.setdefault(pid, 0)

    def end(self, path: str) -> None:
        for pid in (self.root / path / "cgroup.procs").read_text().split():
            self.cookies.pop(int(pid), None)
        shutil.rmtree(self.root / path)

    def start(self, pid: int, labels: Labels, uid: str = "p") -> int:
        """Start a container of one process, and return its cookie; the container's id is c<pid>."""
        self.processes(f"pod{uid}/c{pid}", pid)
        self.call_hook(pid, labels, uid)
        return self.cookies[pid]

    def call_hook(self, pid: int, labels: Labels, uid: str = "p") -> None:
        call = {"labels": labels, "uid": uid, "cgroup_parent": f"/pod{uid}", "container_id": f"c{pid}"}
        assert not self.tester.post_start_container(pod="web", **call)
        assert self.refuses or self.prctl(GET, ITSELF, THREAD) == 0, "the thread of the call has the cookie"

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


def test_pod_without_group_has_no_cookie(machine: Machine) -> None:
    machine.processes("podp/c11", 11)
    for labels in ({}, DEFAULT, BLUE | NONE, EXCLUSIVE | qos("SYSTEM")):
        machine.tester.post_start_container(labels=labels, uid="p", cgroup_parent="/podp", container_id="c11")
    assert (machine.calls, machine.state.exists()) == (0, False)


def test_malformed_path_id_or_uid_is_error(machine: Machine, node: Node) -> None:
    calls: list[Any] = [{"cgroup_parent": "/.."}, {"container_id": "a/b"}, {"labels": EXCLUSIVE, "uid": ""}]
    for call in calls:
        with pytest.raises(Malformed):
            machine.tester.post_start_container(**{"labels": BLUE, **call})
    assert machine.calls == 0
    for uid in ("", "a/b", "a\nb", "a\0b"):
        with pytest.raises(Malformed, match="pod uid"):
            node.hook().pre_run_pod_sandbox(**OWN_LIMITS, uid=uid)


def test_every_process_of_container_has_cookie(machine: Machine) -> None:
    machine.processes("podp/c11", 11, 12)
    machine.processes("podp/c11/inner", 13)
    machine.processes("podp/c14", 14)
    cookies = machine.cookies
    del cookies[12]  # it ends
    machine.call_hook(11, BLUE)
    assert "cookie" not in {thread.name for thread in threading.enumerate()}, "a helper thread still runs"
    assert cookies == {11: cookies[13], 13: cookies[13], 14: 0}
    cookies.pop(11)  # a member that is still listed
    assert machine.start(15, BLUE) == cookies[13] != 0
    machine.on_share = lambda pid: machine.processes("podp/c20", pid, pid + 1)  # it always forks
    assert machine.start(20, BLUE) == cookies[20 + coresched.ROUNDS - 1] == cookies[13]
    assert cookies[20 + coresched.ROUNDS] == 0


def test_group_exists_as_long_as_one_of_its_containers(machine: Machine) -> None:
    first = machine.start(11, BLUE)
    machine.cookies |= {5: 77, 12: 77}  # foreign cookies are replaced, not copied
    machine.processes("podp/c11", 5, 11)
    assert machine.start(12, BLUE) == first
    assert machine.cookies[5] == 77
    for path in ("podp/c11", "podp/c12"):
        machine.end(path)
    machine.tester = HookTester(CoreSched(Cgroups(machine.root), None, machine.prctl))  # in memory only
    assert machine.start(14, BLUE) == machine.start(15, BLUE) not in {0, first}


def test_restart_splits_no_group_and_forgets_ended_containers(machine: Machine) -> None:
    machine.start(10, EXCLUSIVE, uid="r")
    with ThreadPoolExecutor(8) as pool:
        cookies = set(pool.map(lambda pid: machine.start(pid, BLUE, uid=str(pid)), range(100, 116)))
    exclusive = machine.start(12, EXCLUSIVE)
    machine.end("podr/c10")
    machine.start_server()
    assert ({machine.start(13, BLUE, uid="q")}, machine.start(14, EXCLUSIVE)) == (cookies, exclusive)
    assert "podr" not in machine.state.read_text()


INVALID_STATES = (
    *(b"", b"[]", b"\xff", b"[" * 100_000, b'{"a": {"cookie": 1}}', b'{"a": {"cookie": 1e999, "members": []}}'),
    *(b'{"a": {"cookie": 1, "members": ["../x"]}}', b'{"a": {"cookie": "x", "members": []}}'),
)


@pytest.mark.parametrize("content", [*INVALID_STATES, None])
def test_invalid_state_is_logged_and_replaced(machine: Machine, content: bytes | None, caplog: Log) -> None:
    tree(machine.root.parent, {"run/other": ""})
    machine.state.mkdir() if content is None else machine.state.write_bytes(content)
    cookie = machine.start(11, BLUE)
    assert machine.start(12, BLUE) == cookie
    if content is not None:
        machine.start_server()
    assert machine.start(13, BLUE) == cookie  # the file is valid again
    message, *written = caplog.messages
    assert message.startswith(f"{machine.state} cannot be read, running containers' groups are not known: ")
    words = f"{machine.state} cannot be written, a restart will split groups: Is a directory"
    assert [each.startswith(words) for each in written] == [True] * (content is None)


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


def test_refused_cookie_fails_call_if_machine_has_cookies(machine: Machine, caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {CORE_SCHED_GROUP: "secret-group"}
    for number in (errno.EINVAL, errno.ENODEV):
        machine.refuses = number
        assert machine.start(10, secret) == 0
        machine.stop_pod()
    machine.refuses = 0
    machine.start(11, secret)
    machine.refuses = errno.EPERM
    with pytest.raises(PermissionError):
        machine.start(12, secret)
    without, failed = caplog.messages
    assert without.startswith("pods run without core scheduling, this kernel or machine has none: ")
    assert failed == "default/web main gets no cookie: Operation not permitted"
    assert "secret-group" not in machine.state.read_text()


def test_absent_processes_are_logged_and_found_later(machine: Machine, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    machine.processes("podp/c11")
    for pid in (11, 12):
        machine.call_hook(pid, BLUE)
    cookie = machine.start(11, BLUE)
    hidden = machine.root.rename(machine.root.with_name("hidden"))
    machine.start_server()
    for _ in range(2):
        machine.call_hook(12, BLUE)
        machine.stop_pod()
    *unseen, message = caplog.messages
    assert unseen == [f"default/web main gets no cookie: {coresched.UNSEEN}"] * 2
    assert message.startswith(f"containers get no cookie: {machine.root} holds no cgroups")
    hidden.rename(machine.root)
    assert machine.start(12, BLUE) == cookie


CALLS = {(CREATE, ITSELF, THREAD): (1, 0, 0), (SHARE_TO, 17, PROCESS): (2, 17, 1), (SHARE_FROM, 17, THREAD): (3, 17, 0)}
CALLS |= {(GET, 17, THREAD): (0, 17, 0)}


def test_prctl_has_arguments_of_kernel(monkeypatch: Patch) -> None:
    def prctl(option: int, *arguments: ctypes.c_ulong) -> int:
        *numbers, address = (each.value for each in arguments)
        calls.append((option, *numbers))
        if numbers[0] == GET:
            ctypes.c_uint64.from_address(address).value = 0xFEDCBA9876543210
        assert bool(address) == (numbers[0] == GET)
        ctypes.set_errno(errno.EPERM)
        return -1 if len(calls) > len(CALLS) else 0

    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr(coresched, "LIBC", SimpleNamespace(prctl=prctl))
    assert [coresched.sched_core(*call) for call in CALLS] == [0, 0, 0, 0xFEDCBA9876543210]
    assert calls == [(62, *raw) for raw in CALLS.values()]
    with pytest.raises(PermissionError, match=r"PR_SCHED_CORE: Operation not permitted; .* CAP_SYS_PTRACE"):
        coresched.sched_core(GET, 17, THREAD)
