"""Every command as a new user types it, on a terminal, before real engines: exit codes, and one plain line of an error.

The locale is C. What the commands print of canned answers, into a pipe and in 80 columns: tests/cli.
"""

import os
import re
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.control import call
from tests.fakes import hookanswers
from tests.system.commands import MAIN, SECONDS, environment, start
from tests.system.node import PLUGIN
from tests.system.proxy import ProxyProcess, wait_until
from tests.system.real import CONTAINERD, DOCKERD, RealNode, on
from tests.system.test_secrets import RESPONSE

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BOTH = on(CONTAINERD, DOCKERD)
CHANGED = hookanswers.reply(RESPONSE(container_envs={"HOOKED": "1"}))
COLUMNS = 80
NOBODY = 65534
WELL, FOUND, WRONG_USE, NO_PROXY = range(4)
ON_A_NODE = [
    ("status", WELL),
    ("hook ls", WELL),
    ("hook trace", WELL),
    ("events", WELL),
    ("events --kind=edited --pod={pod}", WELL),
    ("store ls", WELL),
    ("store get {id}", WELL),
    ("explain {id}", WELL),
    ("explain {pod}", WELL),
    ("top --once", WELL),
    ("log-level info --for=1m", WELL),
    (f"hook disable {PLUGIN}.json --for=1h --reason='it hangs'", WELL),
    ("status", FOUND),
    ("hook ls", WELL),
    (f"hook enable {PLUGIN}.json", WELL),
    ("report --force {folder}/report.tar.gz", WELL),
    ("config check", WELL),
    ("config show --origin", WELL),
    ("version", WELL),
    ("explain no-such-pod", FOUND),
    ("store get no-such-pod", FOUND),
    ("hook enable no-such-server", FOUND),
    ("hook disable no-such-server --reason=x", FOUND),
    ("hook disable", WRONG_USE),
    ("events --kind=odd", WRONG_USE),
    ("log-level loud", WRONG_USE),
    ("store lost", WRONG_USE),
    ("doctor", {WELL, FOUND}),
]
"""Commands in the order in which they are typed; what doctor finds is the machine's."""
CALLING = [
    *["status", "hook ls", "hook trace", "events", "events -f", "store ls", "store get x", "explain x", "top --once"],
    *["log-level info", f"hook disable {PLUGIN} --reason=x", f"hook enable {PLUGIN}"],
]
"""Commands that call the proxy, and get no answer."""


def on_a_terminal(proxy: ProxyProcess, command: str) -> tuple[int, str]:
    """Run a command whose outputs are a terminal of 80 columns; return its exit code and what is on it."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, COLUMNS))
    with start(proxy, command, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # EIO: nobody has it open any more
            while data := os.read(ours, 4096):
                shown += data
        code = running.wait(SECONDS)
    os.close(ours)
    return code, shown.decode("ascii").replace("\r\n", "\n")


def store_is_read(proxy: ProxyProcess) -> bool:
    return {"name": "store", "state": "ok", "reason": ""} in call(proxy.admin, "readyz")["checks"]


@BOTH
def test_commands_end_as_listed(node: RealNode, client: Any) -> None:
    proxy = node.proxy
    wait_until(lambda: store_is_read(proxy), "the runtime's state is read")
    node.hooks.on("PreCreateContainer", CHANGED)
    pod = node.plain_pod("typed")
    container_id = client.create(client.run_pod(pod), node.plain_container(), pod)
    names = {"pod": "typed", "id": container_id[:13], "folder": str(proxy.path)}
    for command, expected in ON_A_NODE:
        typed = command.format(**names)
        code, shown = on_a_terminal(proxy, typed)
        assert code in (expected if isinstance(expected, set) else {expected}), (typed, shown)
        assert (bool(shown), "Traceback" in shown, "\x1b" in shown) == (True, False, False), typed
    wait_until(lambda: store_is_read(proxy), "it is read again")
    assert on_a_terminal(proxy, "status") == (WELL, "ready: 11 checks passed\n")


@BOTH
@pytest.mark.parametrize("command", ["events -f", "hook trace -f"])
def test_ctrl_c_ends_what_follows(node: RealNode, client: Any, command: str) -> None:
    node.hooks.on("PreCreateContainer", CHANGED)
    pod = node.plain_pod("followed")
    client.create(client.run_pod(pod), node.plain_container(), pod)
    # A shell's background job ignores SIGINT, and so would what it starts.
    program = ("env", "--default-signal=INT", *MAIN)
    with start(node.proxy, command, program=program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("TIME ")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=SECONDS)
    assert (running.returncode, "Traceback" in errors) == (130, False)


# ---- no answer


@contextmanager
def gone(proxy: ProxyProcess) -> Iterator[dict[str, Any]]:
    yield {"env": environment(proxy) | {"RUNTIMEPROXY_ADMIN_ENDPOINT": f"{proxy.path}/gone.sock"}}


@contextmanager
def stopped(proxy: ProxyProcess) -> Iterator[dict[str, Any]]:
    os.kill(proxy.pid, signal.SIGSTOP)
    try:
        yield {}
    finally:
        os.kill(proxy.pid, signal.SIGCONT)


@contextmanager
def no_rights(proxy: ProxyProcess) -> Iterator[dict[str, Any]]:
    """Run commands as nobody, who may read all files, as Python may be in root's own directory."""
    may = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    yield {"program": ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *may, *MAIN)}


HINDRANCES = [
    (gone, "nothing listens at "),
    (stopped, r"\(waited 2 s\)"),
    (no_rights, "run as root: permission denied: "),
]
"""What hinders, and what commands print."""


@BOTH
@pytest.mark.parametrize(("hindrance", "words"), HINDRANCES)
def test_command_without_an_answer_prints_why(
    node: RealNode, hindrance: Callable[[ProxyProcess], Any], words: str
) -> None:
    with hindrance(node.proxy) as more:
        both: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        running = [start(node.proxy, command, **both, **more) for command in CALLING]
        ended = [(process.communicate(timeout=SECONDS)[0], process.returncode) for process in running]
    assert (ended[0][1], ended[0][0].partition(":")[0]) == (NO_PROXY, "no answer"), ended[0]
    for text, code in ended[1:]:
        assert (code, bool(re.search(words, text)), text.count("\n")) == (NO_PROXY, True, 1), text
    call(node.proxy.admin, "livez")
