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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts.demonstration import commands, modes, scene
from scripts.demonstration.modes import MODES, Mode
from scripts.demonstration.pods import new_pods
from scripts.demonstration.processes import DemoError, interruption, program
from tests.engines.engine import Engine, EngineError
from tests.engines.probe import RIGHTS_REMEDY
from tests.fakes.resctrl import StandIn


def demonstrate(mode: Mode, why_fake: str, keep_seconds: float) -> bool:
    """Show a mode's scene, on a fake runtime if there is a reason; return whether all was as expected. Then its
    programs continue to run for ``keep_seconds``. Raises EngineError if the engine cannot run a pod, and DemoError."""
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())
        runtime, engine = stack.enter_context(mode.runtime(folder, why_fake))
        resctrl = StandIn(folder / commands.RESCTRL)
        print(f"RDT:     a STAND-IN of the tests{f'; {mode.rdt}' if engine else ''}")
        proxy_command = commands.proxy(folder, mode.flags, runtime)
        print("Proxy:  ", commands.shown(proxy_command))
        servers = commands.hook_servers(folder, without_cgroups=not engine)
        proxy = stack.enter_context(program("proxy", proxy_command, folder))
        hooks = [stack.enter_context(program(name, command, folder)) for name, command in servers.items()]
        print("Hooks:  ", "\n         ".join(map(commands.shown, servers.values())))
        proxy.wait_until_it_listens(folder / commands.PROXY_SOCKET)
        for hook in hooks:
            hook.wait_until_it_listens(commands.hook_socket(folder, hook.name))
            proxy.wait_until_it_prints(hook.name)
        try:
            with mode.client(str(folder / commands.PROXY_SOCKET)) as kubelet:
                effects = scene.Scene(mode, kubelet, engine, folder, resctrl, list(servers)).play(new_pods())
        except modes.ERRORS as error:
            sys.stdout.flush()  # raises again if it is the output that is broken
            if engine:
                _check_without_proxy(mode, runtime, engine)
            log = proxy.output()[-1500:]
            raise DemoError(f"a call failed: {modes.reason(error)}; the proxy's log ends: {log}") from error
        if keep_seconds:
            print(f"Running: for {keep_seconds:g} s more", flush=True)
            time.sleep(keep_seconds)
        lines = [f"{hook.name}: {line}" for hook in hooks for line in hook.output().splitlines()]
    succeeded = scene.report(effects, fake=not engine)
    if not succeeded:
        print(*(line for line in lines if {"WARNING", "ERROR"} & set(line.split())), sep="\n")
    return succeeded


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rp-demo-"))
    try:
        yield folder
    finally:
        with interruption.held():
            shutil.rmtree(folder)


def _check_without_proxy(mode: Mode, socket: str, engine: Engine) -> None:
    """Start a pod directly on the engine. Raises EngineError if that fails."""
    pod = new_pods()[0]
    try:
        with mode.client(socket) as kubelet:
            config = pod.config(engine)
            kubelet.start(kubelet.create(kubelet.run_pod(config), pod.container(), config))
    except modes.ERRORS as error:
        raise EngineError(f"{mode.name} cannot start a pod, even without the proxy: {modes.reason(error)}") from error


def _show_mode(mode: Mode, arguments: argparse.Namespace) -> bool:
    """Show a mode; on a fake runtime, with the reason, if the engine cannot run, unless --engines."""
    print(f"\n{mode.title}\n{'=' * len(mode.title)}\n")
    try:
        try:
            return demonstrate(mode, "--fake was given" if arguments.fake else "", arguments.keep)
        except EngineError as error:
            interruption.check()
            if arguments.engines:
                raise
            print(f"Note:    {error}", flush=True)
        why_fake = f"{mode.name} cannot run here, for the reason above; {RIGHTS_REMEDY}"
        return demonstrate(mode, why_fake, arguments.keep)
    except (EngineError, DemoError) as error:
        interruption.check()
        sys.stdout.flush()
        print(f"FAILED: {mode.title}: {error}", file=sys.stderr)
    return False


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
    if not (commands.PROGRAMS / commands.PROXY).is_file():
        remedy = "run scripts/install, or name the directory bin of an unpacked archive by $DEMO_PROGRAMS"
        parser.error(f"{commands.PROGRAMS} has no {commands.PROXY}: {remedy}")
    interruption.listen()  # so that all programs are ended on exit
    try:
        succeeded = [_show_mode(mode, arguments) for name, mode in MODES.items() if arguments.mode in (None, name)]
        sys.stdout.flush()
    except BrokenPipeError:  # as by scripts/demo | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
