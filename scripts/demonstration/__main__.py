"""Runs the demo: ``python -m scripts.demonstration [--fake]``; scripts/demo installs what it needs and calls it."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from scripts.demonstration import cri, processes, report
from tests.engines.containerd import Containerd, EngineError
from tests.fakes import registration

REGISTRATION_NAME = "demo-annotations.json"
"""The file that the demo's hook server registers with."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime behind the proxy."""

    socket: str
    cgroup_parent: str
    log_directory: str


def why_fake(asked: bool) -> str:
    """Say why the fake runtime is used; "" if a real one must be."""
    if asked:
        return "--fake was given"
    if os.geteuid() != 0:
        return "not root, and a container runtime needs root"
    return "" if _is_debian() else "not on Debian, where the runtime's packages are known"


def _is_debian() -> bool:
    try:
        return "ID=debian" in Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return False


@contextmanager
def containerd() -> Iterator[Runtime]:
    """Run a private containerd."""
    with Containerd() as engine:
        print(f"Runtime: a private containerd on {engine.socket}")
        yield Runtime(engine.socket, engine.cgroup_parent("demo"), str(engine.directory("logs")))


@contextmanager
def fake_runtime(folder: Path, reason: str) -> Iterator[Runtime]:
    """Run the fake runtime, and say so."""
    socket = folder / "fake.sock"
    print(f"Runtime: the FAKE one of the tests, no container really runs ({reason})")
    with processes.program("fake", [sys.executable, "-m", "tests.fakes.runtime", f"--socket={socket}"], folder) as fake:
        fake.wait_until_it_listens(socket)
        yield Runtime(str(socket), "/kubepods/besteffort/poddemo", str(folder))


def demonstrate(folder: Path, reason: str) -> bool:
    """Show the CRI scene; return whether all was as it should be."""
    processes.registrations(folder).mkdir()
    with fake_runtime(folder, reason) if reason else containerd() as runtime:
        command = processes.proxy_command(folder, runtime.socket)
        print("Proxy:  ", " ".join(command))
        with processes.program("proxy", command, folder) as proxy:
            proxy.wait_until_it_listens(processes.proxy_socket(folder))
            with processes.program("hooks", processes.hook_server_command(folder), folder) as hooks:
                hooks.wait_until_it_listens(processes.hook_socket(folder))
                processes.wait_for_registration(proxy, REGISTRATION_NAME)
                print("Hooks:   the demo's hook server registered for", ", ".join(registration.ALL_POINTS))
                return _play(folder, runtime, proxy)


def _play(folder: Path, runtime: Runtime, proxy: processes.Program) -> bool:
    try:
        effects = cri.play(processes.proxy_socket(folder), runtime.cgroup_parent, runtime.log_directory)
    except grpc.RpcError as error:
        raise processes.DemoError(f"a call failed: {error}; the proxy's log ends: {proxy.output()[-1500:]}") from error
    return report.show(effects, report.read_calls(processes.call_log(folder)), cri.EXPECTED_CALLS)


def main() -> int:
    """Return the exit code: 0 if every effect was found, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show a pod's way through runtimeproxy.")
    parser.add_argument("--fake", action="store_true", help="use the tests' fake runtime in place of containerd")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is ended on the way out
    folder = Path(tempfile.mkdtemp(prefix="rp-demo-"))
    try:
        return 0 if demonstrate(folder, why_fake(arguments.fake)) else 1
    except (EngineError, processes.DemoError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    return 1


if __name__ == "__main__":
    sys.exit(main())
