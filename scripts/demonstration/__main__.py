"""Run the demo: ``python -m scripts.demonstration [--mode MODE] [--fake] [--keep SECONDS]``.

scripts/demo installs what it needs. The exit code is 0 only if every effect of every mode was found, else 1; 2 for a
wrong argument.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from scripts.demonstration import commands, hookservers, kubelets, processes, rdt, report, scene
from scripts.demonstration.interruption import interruption, run_apart
from scripts.demonstration.pods import new_pods
from scripts.demonstration.runtimes import MODES, why_fake
from tests.engines.containerd import EngineError


def demonstrate(name: str, folder: Path, reason: str, keep_seconds: float = 0.0) -> bool:
    """Show a mode's scene, on a fake runtime if there is a reason; return whether all was as expected. Then its
    programs go on for so long. Raises EngineError and DemoError."""
    mode, pods = MODES[name], new_pods()
    with mode.fake(folder, reason) if reason else mode.engine() as (socket, kubelet):
        groups = rdt.choose(folder, runtime_is_fake=bool(reason))
        if not reason:
            print(f"         {mode.how_threads_move}")
        servers = hookservers.hook_servers(folder, groups, without_cgroups=bool(reason))
        with (
            groups.removed([pod.group for pod in pods]),
            _programs(name, folder, socket, servers) as (proxy, *hooks),
        ):
            try:
                with kubelet(str(processes.proxy_socket(folder))) as calls:
                    effects = scene.play(calls, pods, groups, partial(commands.ask, folder, servers))
            except kubelets.ERRORS as error:
                log = proxy.output()[-1500:]
                raise processes.DemoError(f"a call failed: {error}; the proxy's log ends: {log}") from error
            print("\nMemory: ", ", ".join(f"{each.name} {each.memory() >> 20} MiB" for each in hooks))
            if keep_seconds:
                print(f"Kept:    for {keep_seconds:g} s; its metrics by: {commands.exporter(folder)}", flush=True)
                time.sleep(keep_seconds)
    noted = report.read_calls(hookservers.call_log(folder))
    shown = report.show(effects, noted, scene.EXPECTED_CALLS, report.OF_A_FAKE if reason else report.INSIDE)
    if not shown:
        print(*(f"{each.name}: {line}" for each in hooks for line in each.troubles()), sep="\n")
    return shown


@contextmanager
def _programs(
    mode: str, folder: Path, runtime: str, servers: Sequence[hookservers.HookServer]
) -> Iterator[list[processes.Program]]:
    """Run proxy and hook servers until the end of the block, which begins when all are registered."""
    processes.registrations(folder).mkdir()
    command = processes.proxy_command(mode, folder, runtime)
    print("Proxy:  ", processes.shown(command, folder))
    commands = {server.plugin: server.command_line(folder) for server in servers}
    with processes.program("proxy", command, folder) as proxy, processes.programs(commands, folder) as hooks:
        print("Hooks:  ", "\n         ".join(server.shown(folder) for server in servers))
        proxy.wait_until_it_listens(processes.proxy_socket(folder))
        for server, running in zip(servers, hooks, strict=True):
            running.wait_until_it_listens(server.socket(folder))
            processes.wait_for_registration(proxy, server.plugin)
        yield [proxy, *hooks]


def _shown(name: str, reason: str, keep_seconds: float) -> bool:
    title = MODES[name].title
    print(f"\n{title}\n{'=' * len(title)}\n")
    folder = Path(tempfile.mkdtemp(prefix="rp-demo-"))
    try:
        return demonstrate(name, folder, reason, keep_seconds)
    except (EngineError, processes.DemoError) as error:
        interruption.check()
        sys.stdout.flush()
        print(f"FAILED: {title}: {error}", file=sys.stderr)
    finally:
        with interruption.held():
            shutil.rmtree(folder)
    return False


def main() -> int:
    """Return the exit code: 0 if every effect was found, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show pods' way through runtimeproxy.")
    parser.add_argument("--mode", choices=tuple(MODES), help="show this mode alone; default: one after the other")
    parser.add_argument("--fake", action="store_true", help="use the tests' fake runtimes in the engines' places")
    parser.add_argument(
        "--keep",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="let proxy and hook servers go on for so long after it",
    )
    arguments = parser.parse_args()
    if processes.PROGRAMS and not Path(processes.PROGRAMS, processes.COMMAND).is_file():
        parser.error(f"$DEMO_PROGRAMS has no {processes.COMMAND}: name the directory bin of an unpacked archive")
    interruption.listen()  # so that all programs are ended on exit
    reason = why_fake(arguments.fake)
    shown = [_shown(name, reason, arguments.keep) for name in MODES if arguments.mode in (None, name)]
    return 0 if all(shown) else 1


if __name__ == "__main__":
    sys.exit(run_apart(main))
