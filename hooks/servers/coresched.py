"""coresched: control which pods may run at the same time on the two threads of a CPU core.

Invariant: no thread that outlives a call has a group's cookie. No group with a running process has two cookies.
"""

import argparse
import ctypes
import errno
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..lib.cgroups import Cgroups
from ..lib.koordinator import CORE_SCHED_GROUP, CORE_SCHED_POLICY, Qos, qos
from ..lib.nodehook import NodeHook
from ..sdk import ContainerContext, Malformed, PodContext, main

LOG = logging.getLogger(__name__)

STATE = Path("/run/runtimeproxy/coresched.json")
ROUNDS = 10
"""Largest number of lists of a container's processes; new processes of one that still forks are then ignored."""

PR_SCHED_CORE = 62
GET, CREATE, SHARE_TO, SHARE_FROM = range(4)
THREAD, PROCESS = 0, 1
"""Scopes: one thread, or all threads of a process (linux/prctl.h, Linux 5.14 and later)."""
ITSELF = 0
"""The calling thread, as a process id."""
NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENODEV})
"""Errors of a kernel without CONFIG_SCHED_CORE, or a machine without (enabled) SMT."""
UNSEEN = "none of its processes is to be seen: it has ended, or this server is not in the node's PID namespace"
LIBC = ctypes.CDLL(None, use_errno=True)
_HINTS = {errno.EPERM: "; the hook server needs CAP_SYS_PTRACE"}

SchedCore = Callable[[int, int, int], int]
"""Called with command, process id and scope; returns the cookie's id for GET, 0 if there is none. Raises OSError."""


def sched_core(command: int, pid: int, scope: int) -> int:
    """Call prctl(PR_SCHED_CORE), the only access to the kernel's cookies. Raises OSError: ProcessLookupError for a
    process that has ended, PermissionError, NOT_SUPPORTED."""
    cookie = ctypes.c_uint64()
    address = ctypes.addressof(cookie) if command == GET else 0
    arguments = [ctypes.c_ulong(number) for number in (command, pid, scope, address)]
    if LIBC.prctl(PR_SCHED_CORE, *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl PR_SCHED_CORE: {os.strerror(number)}{_HINTS.get(number, '')}")
    return cookie.value


@dataclass(slots=True)
class Group:
    """The id of a group's cookie, and the cgroups of the containers that have it."""

    cookie: int = 0
    members: list[str] = field(default_factory=list)


class CoreSched(NodeHook):
    """Give the containers of a group one core scheduling cookie. Source of the rules: koordlet's CoreSched.

    The label koordinator.sh/core-sched-group-id names a pod's group. With koordinator.sh/core-sched-policy "exclusive"
    the pod has its own group; with "none", or QoS SYSTEM, it has no group. A pod without these labels is unchanged:
    koordlet decides by the node's strategy, which also adds "-expeller" to groups; neither is known here.

    A cookie exists as long as a task has it, so only the group's own processes keep it alive. Each call starts a
    thread. It copies the cookie of a process of the group, or creates a new one if none runs, shares it with the
    container's processes, and ends. A file has the containers of each group and the id of its cookie, under hashes of
    the groups' names, so that a restarted hook server finds the group's processes. If that file cannot be written, a
    restart splits groups that have several containers, which is logged. The id distinguishes a process of the group
    from one with another cookie (containerd's own core scheduling, an exec).

    Processes that start later inside the container inherit the cookie. A process from outside (exec) does not, and this
    hook does not check again as koordlet does every ten seconds. The pause container has no cookie. A container runs
    without one from its start until this hook: PostStartContainer is the first hook point at which it has processes.

    Needs the node's PID namespace, and CAP_SYS_PTRACE or root.
    """

    reads_settings = False

    def __init__(
        self, cgroups: Cgroups | None = None, state: Path | None = None, prctl: SchedCore = sched_core
    ) -> None:
        super().__init__(cgroups=cgroups)
        self._prctl = prctl
        self._state = state
        self._groups: dict[str, Group] | None = None
        self._groups_lock = threading.Lock()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        help_text = "where the groups' containers are kept over a restart (default: %(default)s)"
        parser.add_argument("--core-sched-state", metavar="FILE", type=Path, default=STATE, help=help_text)

    def configure(self, arguments: argparse.Namespace) -> None:
        super().configure(arguments)
        self._state = arguments.core_sched_state

    def post_start_container(self, container: ContainerContext) -> None:
        """Give the container its group's cookie. Raises Malformed if the cgroup's path is invalid or the pod of an
        exclusive group has no uid, OSError if the kernel refuses."""
        name = group_of(container.pod.labels, container.pod.uid)
        if name is None:
            return
        who = f"{container.pod.namespace}/{container.pod.name} {container.name}"
        if absent := self.cgroups.absent:
            self.warn_once("root", "containers get no cookie: %s", absent)
            return
        path = self.cgroups.container(container.cgroup_parent, container.id)
        if path is None or not self.cgroups.pids(path):
            LOG.info("%s gets no cookie: %s", who, UNSEEN)
            return
        with self._groups_lock:
            try:
                self._prctl(GET, ITSELF, THREAD)  # a kernel without core scheduling fails here, without a thread
                self._admit(path, name)
            except OSError as error:
                if error.errno not in NOT_SUPPORTED:
                    LOG.error("%s gets no cookie: %s", who, error.strerror)
                    raise
                text = "pods run without core scheduling, this kernel or machine has none: %s"
                self.warn_once("kernel", text, error.strerror)

    def post_stop_pod_sandbox(self, pod: PodContext) -> None:
        """Remove the pod's containers without processes from their groups. The kubelet stops an old sandbox again when
        the pod already has a new one in the same cgroup, with running containers."""
        if self.cgroups.absent:
            return  # without cgroups it is unknown which containers have processes
        below = f"{pod.cgroup_parent.rstrip('/')}/"
        with self._groups_lock:
            groups = self._load()
            retained = {name: self._without_ended(group, below) for name, group in groups.items()}
            self._store({name: group for name, group in retained.items() if group.members})

    def _without_ended(self, group: Group, below: str = "") -> Group:
        members = [path for path in group.members if not path.startswith(below) or self.cgroups.pids(path)]
        return Group(group.cookie, members)

    def _admit(self, path: str, name: str) -> None:
        group = self._without_ended(self._load().get(name, Group()))
        given: Future[int] = Future()

        def hand_over() -> None:
            try:
                given.set_result(self._share(group, path))
            except BaseException as error:
                given.set_exception(error)

        thread = threading.Thread(target=hand_over, name="cookie")
        thread.start()
        thread.join()  # it has ended, and no longer has the cookie
        group.cookie = given.result()
        group.members = sorted({*group.members, path})
        self._store({**self._load(), name: group})

    def _share(self, group: Group, path: str) -> int:
        """Give a container's processes the group's cookie; return its id. Must run in a thread that ends soon."""
        members = (pid for member in group.members for pid in self.cgroups.pids(member))
        if not any(self._copy_cookie(pid, group.cookie) for pid in members):
            self._prctl(CREATE, ITSELF, THREAD)
        done: set[int] = set()
        for _ in range(ROUNDS):
            new = set(self.cgroups.pids(path)) - done
            if not new:
                break
            for pid in new:
                with suppress(ProcessLookupError):
                    self._prctl(SHARE_TO, pid, PROCESS)
            done |= new
        return self._prctl(GET, ITSELF, THREAD)

    def _copy_cookie(self, pid: int, cookie: int) -> bool:
        """Copy the cookie of a process to this thread; return whether it is the group's."""
        try:
            self._prctl(SHARE_FROM, pid, THREAD)
        except ProcessLookupError:
            return False
        return self._prctl(GET, ITSELF, THREAD) == cookie

    def _load(self) -> dict[str, Group]:
        if self._groups is not None:
            return self._groups
        self._groups = {}
        try:
            groups = parse(self._state.read_bytes()) if self._state else {}
            self._groups = {name: self._without_ended(group) for name, group in groups.items()}
        except FileNotFoundError:
            pass  # the first start on this node
        except (OSError, ValueError, RecursionError) as error:
            text = "%s cannot be read, running containers' groups are not known: %s"
            self.warn_once("read", text, self._state, error)
        return self._groups

    def _store(self, groups: dict[str, Group]) -> None:
        if groups == self._groups:
            return
        self._groups = groups
        if self._state is None:
            return
        content = json.dumps({name: asdict(group) for name, group in groups.items()})
        temporary = self._state.with_name(f".{self._state.name}")
        try:
            self._state.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(content)
            os.replace(temporary, self._state)
        except OSError as error:
            text = "%s cannot be written, a restart will split groups: %s"
            self.warn_once("write", text, self._state, error.strerror)


def group_of(labels: Mapping[str, str], uid: str) -> str | None:
    """Return the key of a pod's group; None if it is in no group.

    The key is a hash, so that the label's value is not stored; the kinds keep a pod's uid and a group's name apart.
    Raises Malformed if the group should be the pod's own and the pod has no uid.
    """
    policy = labels.get(CORE_SCHED_POLICY, "")
    if qos(labels) is Qos.SYSTEM or policy == "none":
        return None
    if policy == "exclusive":
        if not uid:
            raise Malformed("pod uid", "is empty, so an exclusive group has no name")
        return _hashed("uid", uid)
    return _hashed("name", labels[CORE_SCHED_GROUP]) if CORE_SCHED_GROUP in labels else None


def _hashed(kind: str, name: str) -> str:
    return hashlib.sha256(f"{kind}:{name}".encode()).hexdigest()


def parse(content: bytes) -> dict[str, Group]:
    """Return the groups in the file's content. Raises ValueError for content that this hook does not write."""
    entries: Any = json.loads(content)
    try:
        return {name: _group(**entry) for name, entry in entries.items()}
    except (AttributeError, TypeError, OverflowError):  # OverflowError for a number such as 1e999
        raise ValueError("not a JSON object of groups") from None


def _group(cookie: int, members: list[str]) -> Group:
    return Group(int(cookie), [str(path) for path in members])


if __name__ == "__main__":
    main(CoreSched())
