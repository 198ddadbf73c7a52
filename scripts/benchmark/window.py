"""The RDT window in Docker mode: how long a container runs before its threads are in the group of its pod.

Owns the real dockerd with the proxy and the hook before it, the containers, and the two marks that a start has.
Must not know: how figures are shown.
Invariant: a start whose marks are not all known is no measurement; it raises.

The first mark is the moment at which runc opens the container's program to become it, which the kernel tells whoever
watches that file: no instruction of the container is earlier. The second is dockerd's own "start" event, which comes
when containerd has told dockerd that the container runs. Both are of the clock that the hook's note is of.
"""

import json
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from urllib.parse import quote

from asyncinotify import Inotify, Mask

from runtimeproxy_hooks.koordinator import RESCTRL
from scripts.benchmark import windowhook
from scripts.demonstration import processes
from scripts.demonstration.processes import DemoError, Program, program
from tests.engines.containerd import EngineError
from tests.engines.dockerd import BUSYBOX, PATH, PAUSE, Dockerd
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_structs import go_json
from tests.fakes.dockershim import DockerError, Dockershim
from tests.fakes.dockershim_bodies import Container

STARTS = 30
ANNOTATION = {RESCTRL: json.dumps({"llc": {"schemata": {"range": [0, 30]}}})}
COMMAND = ("sh", "-c", "sleep 1000 & sleep 1000 & sleep 1000 & wait")
"""Four threads: the shell, and what it starts at once."""
PROGRAM = "/program/busybox"
"""Where the container finds its program, which the bench watches."""
WAIT_SECONDS = 10.0
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Start:
    """One start: microseconds from each mark to the last thread's move, and how many threads were moved.

    0 from the program on if the hook was first: then it was the runtime's threads that it moved, one of which became
    the container's.
    """

    from_program: int
    from_event: int
    threads: int


def measure(starts: int) -> list[Start]:
    """Start so many containers of one pod, one after the other, and remove each. Raises DemoError."""
    try:
        with (
            Dockerd() as engine,
            tempfile.TemporaryDirectory(prefix="rp-bench-") as made,
            _pod(engine, Path(made)) as pod,
        ):
            return [pod.start(number) for number in range(starts)]
    except (EngineError, DockerError, OSError) as error:
        raise DemoError(f"the RDT window: {error}") from None


@contextmanager
def _pod(engine: Dockerd, folder: Path) -> Iterator["_Pod"]:
    """Run the hook server, the proxy and a pod's sandbox until the end of the block."""
    processes.registrations(folder).mkdir()
    with (
        _hook_server(folder),
        program("proxy", processes.proxy_command("docker", folder, engine.socket), folder) as proxy,
    ):
        proxy.wait_until_it_listens(processes.proxy_socket(folder))
        processes.wait_for_registration(proxy, windowhook.NAME)
        with Dockershim(str(processes.proxy_socket(folder)), pause_image=PAUSE) as shim:
            yield _Pod(engine, folder, shim)


@contextmanager
def _hook_server(folder: Path) -> Iterator[Program]:
    socket = folder / "hooks.sock"
    command = [
        *(sys.executable, "-m", "scripts.benchmark.windowhook", str(folder / "resctrl"), str(folder / "notes")),
        f"--endpoint={socket}",
        f"--register-dir={processes.registrations(folder)}",
        f"--node-config={folder / 'node.yaml'}",
    ]
    with program(windowhook.NAME, command, folder) as server:
        server.wait_until_it_listens(socket)
        yield server


class _Pod:
    """A pod whose annotation asks for a group of its own; its containers run a program from ``folder``."""

    def __init__(self, engine: Dockerd, folder: Path, shim: Dockershim) -> None:
        self._engine, self._folder, self._shim = engine, folder, shim
        self._program = folder / "program" / Path(PROGRAM).name
        self._program.parent.mkdir()
        found = shutil.which(self._program.name, path=PATH)
        assert found is not None  # the engine has looked for it
        shutil.copy(found, self._program)
        uid = str(uuid.uuid4())
        parent = engine.cgroup_parent(uid)
        self._id = shim.run_pod_sandbox("bench", uid, annotations=ANNOTATION, cgroup_parent=parent, oom_score_adj=0)

    def start(self, number: int) -> Start:
        """Start a container, see when it came into its group, and remove it. Raises DemoError."""
        made = self._create(number)
        with opened(self._program) as times:
            self._shim.start_container(made)
            began = first(times)
        event, note = self._event(made), note_of(self._folder / "notes", made)
        self._shim.stop_container(made)
        self._shim.remove_container(made)
        return Start(max(note.at - began, 0) // 1000, (note.at - event) // 1000, note.threads)

    def _create(self, number: int) -> str:
        """Create a container as the kubelet does, with its program from outside."""
        pod = self._shim.pods[self._id]
        container = Container("main", BUSYBOX, attempt=number, command=(PROGRAM, *COMMAND))
        body = bodies.container_body(pod, container, self._id, self._shim.cgroup_driver)
        body["HostConfig"]["Binds"] = [f"{self._program.parent}:{Path(PROGRAM).parent}:ro"]
        target = f"{self._shim.prefix}/containers/create?name={bodies.container_name(pod, container)}"
        proxy = str(processes.proxy_socket(self._folder))
        return str(json.loads(self._engine.request("POST", target, go_json(body), proxy))["Id"])

    def _event(self, container: str) -> int:
        """Return when dockerd says that it started the container, in nanoseconds of the epoch."""
        filters = quote(json.dumps({"container": [container], "event": ["start"]}))
        now = time.time_ns()
        until = f"{now // 10**9}.{now % 10**9:09}"
        return int(self._engine.get(f"/events?since=1&until={until}&filters={filters}")["timeNano"])


def note_of(file: Path, container: str) -> windowhook.Note:
    """Return the hook's note on a container: it answers, and with it the start, when its work is done.

    Raises DemoError.
    """
    notes = [note for note in windowhook.read(file) if note.container == container]
    if not notes or not notes[0].threads:
        raise DemoError("the RDT window: the hook moved no thread of a container that was started")
    return notes[0]


@contextmanager
def opened(file: Path) -> Iterator["SimpleQueue[int]"]:
    """Give a queue in which is noted when a file was opened, each time, in nanoseconds of the epoch."""
    times: SimpleQueue[int] = SimpleQueue()
    over = threading.Event()

    def note() -> None:
        while not over.is_set():
            if watch.sync_get() is not None:
                times.put(time.time_ns())

    with Inotify(sync_timeout=LOOK_SECONDS) as watch:
        watch.add_watch(file, Mask.OPEN)
        noting = threading.Thread(target=note)
        noting.start()
        try:
            yield times
        finally:
            over.set()
            noting.join()


def first(times: "SimpleQueue[int]") -> int:
    """Return the first time in the queue, which may be on its way. Raises DemoError."""
    try:
        return times.get(timeout=WAIT_SECONDS)
    except Empty:
        raise DemoError("the RDT window: no program of a container that was started was seen to be opened") from None
