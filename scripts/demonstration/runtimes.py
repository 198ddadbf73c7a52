"""The runtimes of the demo's proxy: private engines, or the tests' fakes, which print that they are and why.

A runtime is ended whatever happens.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scripts.demonstration import processes
from scripts.demonstration.kubelets import Kubelet, cri_kubelet, docker_kubelet
from scripts.demonstration.pods import Place
from scripts.demonstration.processes import interruption
from tests.engines import probe
from tests.engines.containerd import Containerd
from tests.engines.dockerd import PAUSE, Dockerd
from tests.engines.images import PAUSE_IMAGE
from tests.fakes.dockershim_bodies import SANDBOX_OOM_SCORE_ADJ

FAKE_PLACE = Place(lambda uid, qos: f"/kubepods/{qos}/pod{uid}", real=False)
DEMO_PAUSE = "runtimeproxy-demo-pause:1"

Runtime = tuple[str, Callable[[str], AbstractContextManager[Kubelet]]]
"""The socket of the runtime, and a function that connects the scene's kubelet to the proxy."""


class Mode(NamedTuple):
    """A mode and its runtimes; the fake one takes a folder and the reason."""

    title: str
    how_threads_move: str
    engine: str
    started: Callable[[], AbstractContextManager[Runtime]]
    fake: Callable[[Path, str], AbstractContextManager[Runtime]]

    def missing(self) -> str:
        """Return what this machine lacks for the engine, with the remedy; "" if nothing."""
        return probe.missing_for(self.engine)


@contextmanager
def containerd() -> Iterator[Runtime]:
    """Run a private containerd. Raises EngineError."""
    engine = Containerd()
    with _started(engine, "containerd"):
        logs = str(engine.directory("logs"))
        yield engine.socket, partial(cri_kubelet, place=Place(engine.cgroup_parent), log_directory=logs)


@contextmanager
def dockerd() -> Iterator[Runtime]:
    """Run a private dockerd. Raises EngineError."""
    engine = Dockerd()
    with _started(engine, "dockerd"):
        place, score = Place(engine.cgroup_parent), _sandbox_oom_score_adj()
        image = _pause_image(engine)
        yield engine.socket, partial(docker_kubelet, place=place, pause_image=image, oom_score_adj=score)


@contextmanager
def _started(engine: Containerd | Dockerd, name: str) -> Iterator[None]:
    try:
        engine.start()
        print(f"Runtime: a private {name} on {engine.socket}")
        yield
    finally:
        with interruption.held():
            engine.stop()


def _pause_image(engine: Dockerd) -> str:
    """Make a pause image that ends as soon as it is stopped, as a kubelet's does; return its name. The tests' image
    runs sleep, which as the first process of its container ignores SIGTERM."""
    body = json.dumps({"Image": PAUSE, "StopSignal": "SIGKILL"}).encode()
    made = json.loads(engine.request("POST", "/containers/create", body))["Id"]
    name, _, tag = DEMO_PAUSE.partition(":")
    engine.request("POST", f"/commit?container={made}&repo={name}&tag={tag}")
    engine.request("DELETE", f"/containers/{made}")
    return DEMO_PAUSE


def _sandbox_oom_score_adj() -> int:
    """Return the sandbox's OomScoreAdj: dockershim's value, or 0 if the machine refuses it, which is printed."""
    attempt = ["sh", "-c", f"echo {SANDBOX_OOM_SCORE_ADJ} >/proc/self/oom_score_adj"]
    if not subprocess.run(attempt, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        return SANDBOX_OOM_SCORE_ADJ
    asks = f"the sandbox is made with OomScoreAdj 0 where dockershim asks for {SANDBOX_OOM_SCORE_ADJ}"
    print(f"Note:    {asks}; this machine can set no negative one")
    return 0


@contextmanager
def _fake(
    module: str, kubelet: Callable[..., AbstractContextManager[Kubelet]], folder: Path, reason: str
) -> Iterator[Runtime]:
    socket = folder / "fake.sock"
    print(f"Runtime: a FAKE one of the tests, {module}; no container really runs ({reason})")
    with processes.program("fake", [sys.executable, "-m", module, f"--socket={socket}"], folder) as fake:
        fake.wait_until_it_listens(socket)
        yield str(socket), kubelet


MODES: Mapping[str, Mode] = {
    "cri": Mode(
        "CRI mode",
        "this containerd has RDT off: it gets the class; the threads are moved right after the start",
        "containerd",
        containerd,
        partial(_fake, "tests.fakes.runtime", partial(cri_kubelet, place=FAKE_PLACE, log_directory="/var/log/pods")),
    ),
    "docker": Mode(
        "Docker mode",
        "Docker has no field for the class; the threads are moved right after the start",
        "dockerd",
        dockerd,
        partial(
            _fake,
            "tests.fakes.dockerd",
            partial(docker_kubelet, place=FAKE_PLACE, pause_image=PAUSE_IMAGE, oom_score_adj=SANDBOX_OOM_SCORE_ADJ),
        ),
    ),
}
"""The modes by the value of --mode, in the order in which they are shown."""
