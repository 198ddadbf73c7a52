"""The watchdog restarts a loop that hangs and never one that works, for each form in which the program is shipped."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.amounts import WATCHED_SECONDS
from tests.engines import cri
from tests.machines import node as nodes
from tests.machines.machine import Machine
from tests.soak import MARKS

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

CALL_SECONDS = 0.01
MOST_SECONDS = 15.0
FORMS: Mapping[str, tuple[str, Callable[[Path], Callable[[Machine], None]]]] = {
    "wheel": ("*.whl", nodes.wheel),
    "archive": ("*_linux_x86_64.tar.gz", nodes.archive),
    "deb": ("*.deb", nodes.package),
}
"""Each form by the name that scripts/build knows, its file, and what puts it into a machine."""


@pytest.mark.parametrize("form", FORMS)
def test_loop_that_works_is_left_and_one_that_hangs_is_restarted(
    form: str, release: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pattern, put = FORMS[form]
    (file,) = release.glob(pattern)
    with nodes.node(tmp_path / "machine", put(file)) as machine:
        works = machine.show("runtimeproxy.service", "MainPID")
        with client_of(machine) as client:
            machine.until(lambda: client.version(), "the runtime")
            deadline = time.monotonic() + WATCHED_SECONDS.now
            while time.monotonic() < deadline:
                client.pods()
                time.sleep(CALL_SECONDS)
        assert (machine.show("runtimeproxy.service", "MainPID"), restarts(machine)) == (works, 0)
        began = time.monotonic()
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "runtimeproxy.service")
        with client_of(machine) as client:
            assert client.version().runtime_name == "containerd"
        took = time.monotonic() - began
        assert took < MOST_SECONDS
        assert restarts(machine) == 1
        assert "Failed with result 'watchdog'" in machine.journal("runtimeproxy.service")
        record_property("seconds from a hang to the next process's answer", f"{took:.1f}")


def client_of(machine: Machine) -> cri.CriClient:
    return cri.CriClient(str(machine.path(nodes.SOCKET)))


def restarts(machine: Machine) -> int:
    return int(machine.show("runtimeproxy.service", "NRestarts"))
