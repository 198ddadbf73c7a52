"""docs/migration.rst as it happens: its commands on a machine where koord-runtime-proxy serves a kubelet, and back.

``python -m scripts.soaking.migration PROGRAM`` writes the page's outputs, with Koordinator's own program (``go build
./cmd/koord-runtime-proxy`` in its repository). The step of the soak compares them, with a stand-in that keeps to what
matters of it: at its start it takes the socket's path from whoever has it, and it has nothing beside the socket.
"""

import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent

import grpc

from scripts.demonstration.processes import DemoError
from scripts.figures import Figure
from scripts.soaking.documented import ROOT, node
from tests.machines.machine import Machine

PAGE = ROOT / "docs" / "migration.rst"
SOCKET = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
COMMAND = re.compile(r"^    \$ (.+)\n(?:    (?!\$ ).*\n|\n(?=    (?!\$ )))*", re.MULTILINE)
"""A command with the lines below it, up to the next command or the end of the block."""
KUBELET = "/usr/local/bin/kubelet"
OLD = "/usr/local/bin/koord-runtime-proxy"
UNIT = f"""\
[Unit]
Description=koord-runtime-proxy

[Service]
ExecStart={OLD}
Restart=always

[Install]
WantedBy=multi-user.target
"""
STAND_IN = f"""\
#!/bin/sh
rm -f {SOCKET}
exec /opt/runtimeproxy-*/bin/koord-runtime-proxy --admin-endpoint=none --originals-dir=none --state-dir=none
"""
KOORDLET = """\
{"remote-endpoint": "/var/run/koordlet/koordlet.sock", "failure-policy": "Ignore",
 "runtime-hooks": ["PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"]}
"""
CALL_SECONDS = 0.01
WAIT_SECONDS = 20.0


def migration(share: float) -> list[Figure]:
    """Run the page's commands, with the stand-in. Raises DemoError if an output is another one than on the page."""
    page = PAGE.read_text()
    found, calls, failed = renewed(page, None)
    if found != page:
        lines = [line for line in found.splitlines() if line not in page.splitlines()]
        raise DemoError(f"{PAGE.name} would change, by {lines[:5]}: run python -m scripts.soaking.migration")
    return [Figure("calls of a client meanwhile", f"{calls:,}"), Figure("that failed", f"{failed}")]


def renewed(page: str, old: Path | None) -> tuple[str, int, int]:
    """Return the page with the outputs of now, and how many calls a client made meanwhile and how many of them failed.
    ``old`` is Koordinator's program; None: the stand-in."""
    with tempfile.TemporaryDirectory(prefix="rp-migration-") as folder, node(Path(folder)) as machine:
        _prepare(machine, old)
        with _client(machine) as counts:
            text = COMMAND.sub(lambda found: indent(f"$ {found[1]}\n{_output(machine, found[1])}", " " * 4), page)
    return text, counts[0], counts[1]


def _prepare(machine: Machine, old: Path | None) -> None:
    """Let the old proxy serve a kubelet, beside a koordlet that is registered."""
    if old:
        machine.copy(old, OLD)
    else:
        machine.run("sh", "-c", "tar -xzf /root/runtimeproxy_*_linux_x86_64.tar.gz -C /opt")
        machine.write(OLD, STAND_IN, 0o755)
    machine.write("/etc/systemd/system/koord-runtime-proxy.service", UNIT)
    machine.write("/etc/runtime/hookserver.d/koordlet.json", KOORDLET)
    machine.write("/etc/systemd/system/koordlet.socket", "[Socket]\nListenStream=/run/koordlet/koordlet.sock\n")
    machine.write("/etc/systemd/system/koordlet.service", "[Service]\nExecStart=sleep infinity\n")
    machine.run("systemctl", "start", "koordlet.socket")
    machine.run("cp", "/bin/bash", KUBELET)
    endpoint = f"--container-runtime-endpoint=unix://{SOCKET}"
    # bash would become a last command.
    machine.run("systemd-run", "--quiet", KUBELET, "-c", "sleep infinity; exit", endpoint)
    machine.run("systemctl", "enable", "--now", "koord-runtime-proxy.service")
    machine.until(lambda: machine.path(SOCKET).exists(), "the socket of the old proxy")


@contextmanager
def _client(machine: Machine) -> Iterator[list[int]]:
    """Call Version every 10 ms until the block ends; yield the numbers of calls and of those that failed."""
    counts, over = [0, 0], threading.Event()

    def call() -> None:
        # gRPC connects again by itself, as in a kubelet.
        with grpc.insecure_channel(
            f"unix:{machine.path(SOCKET)}", [("grpc.max_reconnect_backoff_ms", 3000)]
        ) as channel:
            version: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            version = channel.unary_unary("/runtime.v1.RuntimeService/Version")
            while not over.wait(CALL_SECONDS):
                counts[0] += 1
                try:
                    version(b"", timeout=WAIT_SECONDS, wait_for_ready=True)
                except grpc.RpcError as error:
                    print(f"a call failed: {error.code()}: {error.details()}", file=sys.stderr)
                    counts[1] += 1

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join()


def _output(machine: Machine, command: str) -> str:
    """Return what a command prints where 80 columns are wide enough, without the numbers of processes."""
    said = machine.run("sh", "-c", f"cd /root && {command}", check=False, env={"COLUMNS": "80"})
    return re.sub(r"\bpid \d+", "pid 1234", said)


def main() -> int:
    """Write the page; return the exit code."""
    text, calls, failed = renewed(PAGE.read_text(), Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    PAGE.write_text(text)
    print(f"{PAGE.name}: written; {failed} of {calls} calls failed meanwhile")
    return 0


if __name__ == "__main__":
    sys.exit(main())
