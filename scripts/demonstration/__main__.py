"""Runs the demo: ``python -m scripts.demonstration [--mode MODE] [--fake]``; scripts/demo installs what it needs.

Owns the order of things: runtime, proxy, hook server, scene, tables; one mode after the other.
Must not know: what is made in the scene.
Invariant: the exit code is 0 only if every effect of every mode was found; else 1, and a wrong argument's is 2.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.demonstration import processes, report, scene
from scripts.demonstration.interruption import interruption, run_apart
from scripts.demonstration.runtimes import MODES, Mode, Runtime, why_fake
from tests.engines.containerd import EngineError
from tests.fakes import registration

__all__ = ["demonstrate", "main", "why_fake"]

REGISTRATION_NAME = "demo-annotations.json"
"""The file that the demo's hook server registers with."""


def demonstrate(name: str, folder: Path, reason: str) -> bool:
    """Show a mode's scene, on a fake runtime if there is a reason; return whether all was as it should be.

    Raises EngineError and DemoError.
    """
    mode = MODES[name]
    processes.registrations(folder).mkdir()
    with mode.fake(folder, reason) if reason else mode.engine() as runtime:
        command = processes.proxy_command(name, folder, runtime.socket)
        print("Proxy:  ", " ".join(command))
        with processes.program("proxy", command, folder) as proxy:
            proxy.wait_until_it_listens(processes.proxy_socket(folder))
            with processes.program("hooks", processes.hook_server_command(folder), folder) as hooks:
                hooks.wait_until_it_listens(processes.hook_socket(folder))
                processes.wait_for_registration(proxy, REGISTRATION_NAME)
                print("Hooks:   the demo's hook server registered for", ", ".join(registration.ALL_POINTS))
                effects = _play(mode, runtime, folder, proxy)
                calls = report.read_calls(processes.call_log(folder))
    return report.show(effects, calls, scene.EXPECTED_CALLS, report.OF_A_FAKE if reason else report.INSIDE)


def _play(mode: Mode, runtime: Runtime, folder: Path, proxy: processes.Program) -> list[report.Effect]:
    try:
        with runtime.kubelet(str(processes.proxy_socket(folder))) as kubelet:
            return scene.play(kubelet)
    except mode.errors as error:
        raise processes.DemoError(f"a call failed: {error}; the proxy's log ends: {proxy.output()[-1500:]}") from error


def _shown(name: str, reason: str) -> bool:
    report.print_title(MODES[name].title)
    folder = Path(tempfile.mkdtemp(prefix="rp-demo-"))
    try:
        return demonstrate(name, folder, reason)
    except (EngineError, processes.DemoError) as error:
        interruption.check()
        sys.stdout.flush()
        print(f"FAILED: {MODES[name].title}: {error}", file=sys.stderr)
    finally:
        with interruption.held():
            shutil.rmtree(folder)
    return False


def main() -> int:
    """Return the exit code: 0 if every effect was found, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show a pod's way through runtimeproxy.")
    parser.add_argument("--mode", choices=tuple(MODES), help="show this mode alone; default: one after the other")
    parser.add_argument("--fake", action="store_true", help="use the tests' fake runtimes in the engines' places")
    arguments = parser.parse_args()
    interruption.listen()  # so that everything is ended on the way out
    reason = why_fake(arguments.fake)
    shown = [_shown(name, reason) for name in MODES if arguments.mode in (None, name)]
    return 0 if all(shown) else 1


if __name__ == "__main__":
    sys.exit(run_apart(main))
