"""The runtimes that the demo puts behind the proxy: private engines, or the tests' fakes.

Owns which runtime a mode has, when it is a fake one, and what is printed of that.
Must not know: the proxy, what is shown.
Invariant: a fake runtime is never used without being named with the reason; a runtime is ended whatever happens.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.demonstration import cri, docker, processes
from scripts.demonstration.interruption import interruption
from scripts.demonstration.pods import Place
from scripts.demonstration.scene import Kubelet
from tests.engines import machine
from tests.engines.containerd import Containerd
from tests.engines.dockerd import PAUSE, Dockerd
from tests.engines.images import PAUSE_IMAGE
from tests.fakes.dockershim_bodies import SANDBOX_OOM_SCORE_ADJ

FAKE_PLACE = Place(lambda uid, qos: f"/kubepods/{qos}/pod{uid}", real=False)
DEMO_PAUSE = "runtimeproxy-demo-pause:1"
CRI_MOVES = "this containerd runs with RDT off: it is told the class; the threads are moved right after the start"
DOCKER_MOVES = "Docker cannot be told a class; the threads are moved right after the start"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime behind the proxy; ``kubelet`` connects the scene's kubelet to a socket before it."""

    socket: str
    kubelet: Callable[[str], AbstractContextManager[Kubelet]]


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode: its runtimes, and what a call of its kubelet that fails raises."""

    title: str
    how_threads_move: str
    engine: Callable[[], AbstractContextManager[Runtime]]
    fake: Callable[[Path, str], AbstractContextManager[Runtime]]
    errors: tuple[type[Exception], ...]


def why_fake(asked: bool) -> str:
    """Say why fake runtimes are used; "" if real ones must be."""
    return "--fake was given" if asked else machine.why_no_engine()


@contextmanager
def containerd() -> Iterator[Runtime]:
    """Run a private containerd. Raises EngineError."""
    engine = Containerd()
    with _ended(engine.stop):
        engine.start()
        print(f"Runtime: a private containerd on {engine.socket}")
        logs = str(engine.directory("logs"))
        yield Runtime(engine.socket, partial(cri.kubelet, place=Place(engine.cgroup_parent), log_directory=logs))


@contextmanager
def dockerd() -> Iterator[Runtime]:
    """Run a private dockerd. Raises EngineError."""
    engine = Dockerd()
    with _ended(engine.stop):
        engine.start()
        print(f"Runtime: a private dockerd on {engine.socket}")
        yield Runtime(
            engine.socket,
            partial(
                docker.kubelet,
                place=Place(engine.cgroup_parent),
                pause_image=_pause_image(engine),
                oom_score_adj=_sandbox_oom_score_adj(),
            ),
        )


@contextmanager
def _ended(stop: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        with interruption.held():
            stop()


def _pause_image(engine: Dockerd) -> str:
    """Make a pause image that ends as soon as it is stopped, as a kubelet's does; return its name.

    The tests' one runs a sleep, which as the first process of its container does not listen to SIGTERM.
    """
    body = json.dumps({"Image": PAUSE, "StopSignal": "SIGKILL"}).encode()
    made = json.loads(engine.request("POST", "/containers/create", body))["Id"]
    name, _, tag = DEMO_PAUSE.partition(":")
    engine.request("POST", f"/commit?container={made}&repo={name}&tag={tag}")
    engine.request("DELETE", f"/containers/{made}")
    return DEMO_PAUSE


def _sandbox_oom_score_adj() -> int:
    """Return what the sandbox can be given: dockershim's value, or 0 where the machine refuses it, which is told."""
    attempt = ["sh", "-c", f"echo {SANDBOX_OOM_SCORE_ADJ} >/proc/self/oom_score_adj"]
    if not subprocess.run(attempt, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        return SANDBOX_OOM_SCORE_ADJ
    asks = f"the sandbox is made with OomScoreAdj 0 where dockershim asks for {SANDBOX_OOM_SCORE_ADJ}"
    print(f"Note:    {asks}; this machine can set no negative one")
    return 0


@contextmanager
def _fake(
    folder: Path, reason: str, module: str, kubelet: Callable[..., AbstractContextManager[Kubelet]]
) -> Iterator[Runtime]:
    socket = folder / "fake.sock"
    print(f"Runtime: the FAKE one of the tests, {module}: no container really runs ({reason})")
    with processes.program("fake", [sys.executable, "-m", module, f"--socket={socket}"], folder) as fake:
        fake.wait_until_it_listens(socket)
        yield Runtime(str(socket), kubelet)


def fake_cri(folder: Path, reason: str) -> AbstractContextManager[Runtime]:
    """Run the fake CRI runtime, and say so."""
    kubelet = partial(cri.kubelet, place=FAKE_PLACE, log_directory=str(folder))
    return _fake(folder, reason, "tests.fakes.runtime", kubelet)


def fake_dockerd(folder: Path, reason: str) -> AbstractContextManager[Runtime]:
    """Run the fake dockerd, and say so."""
    kubelet = partial(
        docker.kubelet,
        place=FAKE_PLACE,
        pause_image=PAUSE_IMAGE,
        oom_score_adj=SANDBOX_OOM_SCORE_ADJ,
    )
    return _fake(folder, reason, "tests.fakes.dockerd", kubelet)


MODES: Mapping[str, Mode] = {
    "cri": Mode("CRI mode", CRI_MOVES, containerd, fake_cri, cri.ERRORS),
    "docker": Mode("Docker mode", DOCKER_MOVES, dockerd, fake_dockerd, docker.ERRORS),
}
"""By the value of --mode, in the order in which they are shown."""
