"""Run the demo: ``python -m scripts.demonstration [--mode MODE] [--engines | --fake] [--keep SECONDS]``.

scripts/demo installs what it needs. The exit code is 0 only if every effect of every mode was found, else 1; 2 for a
wrong argument.
"""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from the imports

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.demonstration import hookservers, modes, processes, scene
from scripts.demonstration.modes import MODES
from scripts.demonstration.pods import new_pods
from scripts.demonstration.processes import interruption
from tests.engines.engine import EngineError
from tests.engines.probe import RIGHTS_REMEDY, missing_for
from tests.fakes.resctrl import StandIn


def demonstrate(name: str, folder: Path, reason: str, keep_seconds: float) -> bool:
    """Show a mode's scene, on a fake runtime if there is a reason; return whether all was as expected. Then its
    programs continue to run for ``keep_seconds``. Raises EngineError if the engine cannot run a pod, and DemoError."""
    mode, pods = MODES[name], new_pods()
    with modes.fake(mode, folder, reason) if reason else mode.started() as (socket, connect):
        resctrl = StandIn(folder / "resctrl")
        print("RDT:     a STAND-IN of the tests")
        if not reason:
            print(f"         {mode.rdt}")
        servers = hookservers.hook_servers(folder, resctrl, without_cgroups=bool(reason))
        with _programs(name, folder, socket, servers) as (proxy, *hooks):
            try:
                with connect(str(processes.proxy_socket(folder))) as kubelet:
                    effects = scene.Scene(name, folder, resctrl, servers).play(kubelet, pods)
            except modes.ERRORS as error:
                sys.stdout.flush()  # raises again if it is the output that is broken
                if not reason:
                    _check_without_proxy(mode.engine, connect, socket)
                log = proxy.output()[-1500:]
                text = f"a call failed: {modes.reason(error)}; the proxy's log ends: {log}"
                raise processes.DemoError(text) from error
            print("\nMemory: ", ", ".join(f"{each.name} {each.memory() >> 20} MiB" for each in hooks))
            if keep_seconds:
                print(f"Running: for {keep_seconds:g} s more", flush=True)
                time.sleep(keep_seconds)
    succeeded = scene.report(effects, fake=bool(reason))
    if not succeeded:
        print(*(f"{each.name}: {line}" for each in hooks for line in each.troubles()), sep="\n")
    return succeeded


def _check_without_proxy(engine: str, connect: modes.Connect, socket: str) -> None:
    """Start a pod directly on the engine. Raises EngineError if that fails."""
    pod = new_pods()[0]
    try:
        with connect(socket) as kubelet:
            kubelet.start(kubelet.create(kubelet.run_pod(pod), pod))
    except modes.ERRORS as error:
        raise EngineError(f"{engine} cannot start a pod, even without the proxy: {modes.reason(error)}") from error


@contextmanager
def _programs(
    mode: str, folder: Path, runtime: str, servers: Sequence[hookservers.HookServer]
) -> Iterator[list[processes.Program]]:
    """Run proxy and hook servers until the end of the block, which begins when all are registered."""
    processes.registrations(folder).mkdir()
    command = processes.proxy_command(mode, folder, runtime)
    print("Proxy:  ", processes.shown(command))
    commands = {server.plugin: server.command_line(folder) for server in servers}
    with processes.program("proxy", command, folder) as proxy, processes.programs(commands, folder) as hooks:
        print("Hooks:  ", "\n         ".join(map(processes.shown, commands.values())))
        proxy.wait_until_it_listens(processes.proxy_socket(folder))
        for server, running in zip(servers, hooks, strict=True):
            running.wait_until_it_listens(server.socket(folder))
            processes.wait_for_registration(proxy, server.plugin)
        yield [proxy, *hooks]


def _show_mode(name: str, arguments: argparse.Namespace) -> bool:
    """Show a mode; on a fake runtime, with the reason, if the engine cannot run, unless --engines."""
    mode = MODES[name]
    print(f"\n{mode.title}\n{'=' * len(mode.title)}\n")
    reason = "--fake was given" if arguments.fake else ""
    try:
        if not reason:
            try:
                if reason := missing_for(mode.engine):
                    raise EngineError(reason)
                return _in_folder(name, "", arguments.keep)
            except EngineError as error:
                interruption.check()
                if arguments.engines:
                    raise
                if not reason:
                    print(f"Note:    {error}", flush=True)
                    reason = f"{mode.engine} cannot run here, for the reason above; {RIGHTS_REMEDY}"
        return _in_folder(name, reason, arguments.keep)
    except (EngineError, processes.DemoError) as error:
        interruption.check()
        sys.stdout.flush()
        print(f"FAILED: {mode.title}: {error}", file=sys.stderr)
    return False


def _in_folder(name: str, reason: str, keep_seconds: float) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="rp-demo-"))
    try:
        return demonstrate(name, folder, reason, keep_seconds)
    finally:
        with interruption.held():
            shutil.rmtree(folder)


def main() -> int:
    """Return the exit code: 0 if every effect was found, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show pods that pass through runtimeproxy.")
    parser.add_argument("--mode", choices=tuple(MODES), help="show only this mode; default: one after the other")
    runtimes = parser.add_mutually_exclusive_group()
    engines = "fail if an engine cannot run, instead of using a fake"
    runtimes.add_argument("--engines", action="store_true", help=engines)
    runtimes.add_argument("--fake", action="store_true", help="use the tests' fake runtimes instead of the engines")
    keep = "run proxy and hook servers for this time after it"
    parser.add_argument("--keep", type=float, default=0.0, metavar="SECONDS", help=keep)
    arguments = parser.parse_args()
    if processes.PROGRAMS and not Path(processes.PROGRAMS, processes.COMMAND).is_file():
        parser.error(f"$DEMO_PROGRAMS has no {processes.COMMAND}: name the directory bin of an unpacked archive")
    interruption.listen()  # so that all programs are ended on exit
    try:
        succeeded = [_show_mode(name, arguments) for name in MODES if arguments.mode in (None, name)]
        sys.stdout.flush()
    except BrokenPipeError:  # as by scripts/demo | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
