"""Run the demo: ``python -m scripts.demonstration [--mode MODE] [--engines | --fake] [--keep SECONDS]``.

scripts/demo installs what it needs. The exit code is 0 only if every effect of every mode was found, else 1; 2 for a
wrong argument.
"""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from the imports
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from scripts.demonstration import hookservers, kubelets, processes, rdt, scene
from scripts.demonstration.pods import new_pods
from scripts.demonstration.processes import interruption
from scripts.demonstration.runtimes import MODES
from tests.engines.engine import EngineError
from tests.engines.probe import RIGHTS_REMEDY

PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def demonstrate(name: str, folder: Path, reason: str, keep_seconds: float) -> bool:
    """Show a mode's scene, on a fake runtime if there is a reason; return whether all was as expected. Then its
    programs keep running for so long. Raises EngineError if the engine cannot run a pod, and DemoError."""
    mode, pods = MODES[name], new_pods()
    with mode.fake(folder, reason) if reason else mode.started() as (socket, kubelet):
        groups = rdt.choose(folder, runtime_is_fake=bool(reason))
        if not reason:
            print(f"         {mode.how_threads_move}")
        servers = hookservers.hook_servers(folder, groups, without_cgroups=bool(reason))
        removed = groups.removed([pod.group for pod in pods])
        with removed, _programs(name, folder, socket, servers) as (proxy, *hooks):
            try:
                with kubelet(str(processes.proxy_socket(folder))) as calls:
                    effects = scene.Scene(name, folder, groups, servers).play(calls, pods)
            except kubelets.ERRORS as error:
                sys.stdout.flush()  # raises again if it is the output that is broken
                if not reason:
                    _check_without_proxy(mode.engine, kubelet, socket)
                log = proxy.output()[-1500:]
                text = f"a call failed: {kubelets.reason(error)}; the proxy's log ends: {log}"
                raise processes.DemoError(text) from error
            print("\nMemory: ", ", ".join(f"{each.name} {each.memory() >> 20} MiB" for each in hooks))
            if keep_seconds:
                print(f"Kept:    for {keep_seconds:g} s; its metrics by: {_exporter(folder)}", flush=True)
                time.sleep(keep_seconds)
    shown = scene.report(effects, scene.read_calls(folder), fake=bool(reason))
    if not shown:
        print(*(f"{each.name}: {line}" for each in hooks for line in each.troubles()), sep="\n")
    return shown


def _exporter(folder: Path) -> str:
    """Return the command that passes the proxy's metrics to collectors."""
    flags = ("--listen=127.0.0.1:9654", f"--metrics-endpoint={processes.metrics_socket(folder)}")
    return processes.shown([*processes.installed("runtimeproxy", "runtimeproxy"), "export", *flags])


def _check_without_proxy(
    engine: str, kubelet: Callable[[str], AbstractContextManager[kubelets.Kubelet]], socket: str
) -> None:
    """Start a pod directly on the engine. Raises EngineError if that fails."""
    pod = new_pods()[0]
    try:
        with kubelet(socket) as calls:
            calls.start(calls.create(calls.run_pod(pod), pod))
    except kubelets.ERRORS as error:
        raise EngineError(f"{engine} cannot start a pod, even without the proxy: {kubelets.reason(error)}") from error


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
                if reason := mode.missing():
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


def run_apart(main: Callable[[], int]) -> int:
    """Run ``main`` in a child with a process group of its own; return its exit code, 1 if a signal ended it.

    A terminal and timeout(1) signal a whole group. An engine that got the signal, too, would end before the demo had
    removed its containers.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return main()
    # Not by handlers: a signal just before waitpid(2) would be handled only after the child has ended.
    while True:
        if signal.sigwait(PASSED_ON | {signal.SIGCHLD}) != signal.SIGCHLD:
            os.kill(child, signal.SIGTERM)
        elif (ended := os.waitpid(child, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            return 1 if code < 0 else code


def main() -> int:
    """Return the exit code: 0 if every effect was found, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show pods' way through runtimeproxy.")
    parser.add_argument("--mode", choices=tuple(MODES), help="show this mode alone; default: one after the other")
    runtimes = parser.add_mutually_exclusive_group()
    engines = "fail if an engine cannot run, instead of using a fake"
    runtimes.add_argument("--engines", action="store_true", help=engines)
    runtimes.add_argument("--fake", action="store_true", help="use the tests' fake runtimes instead of the engines")
    keep = "keep proxy and hook servers running for so long after it"
    parser.add_argument("--keep", type=float, default=0.0, metavar="SECONDS", help=keep)
    arguments = parser.parse_args()
    if processes.PROGRAMS and not Path(processes.PROGRAMS, processes.COMMAND).is_file():
        parser.error(f"$DEMO_PROGRAMS has no {processes.COMMAND}: name the directory bin of an unpacked archive")
    interruption.listen()  # so that all programs are ended on exit
    try:
        shown = [_show_mode(name, arguments) for name in MODES if arguments.mode in (None, name)]
        sys.stdout.flush()
    except BrokenPipeError:  # as by scripts/demo | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0 if all(shown) else 1


if __name__ == "__main__":
    sys.exit(run_apart(main))
