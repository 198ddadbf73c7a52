"""The proxy's own commands, asked while the scene's pods run: their output, and whether it tells what is so."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from scripts.demonstration import processes
from scripts.demonstration.hookservers import HookServer
from scripts.demonstration.pods import CONTAINER
from scripts.demonstration.report import Effect

EXPLAINED = "batch"
"""The pod whose container is explained: all its values were set by one hook server."""
_FIELDS = ("cpu_quota", "cpu_shares", "memory_limit_in_bytes")
FIELDS = {"cri": _FIELDS, "docker": (*_FIELDS, "memory_swap_limit_in_bytes")}
"""The changed fields by mode: in Docker mode the swap limit follows the memory limit."""
SECONDS = 20.0
READY = "ready"
READY_SECONDS = 10.0
"""Seconds in which the proxy has read the runtime's state for the hook servers that have just registered."""


def ask(mode: str, folder: Path, servers: Sequence[HookServer]) -> Iterator[Effect]:
    """Print what the commands say, and yield it as effects."""
    ready, _, _ = _said(folder, "status", until=READY).partition(":")
    yield Effect("(proxy)", "", "runtimeproxy status", "-", READY, ready)
    rows = [line.split() for line in _said(folder, "hook", "ls").splitlines()]
    well = sum([server.plugin, "ok"] in (row[1:4:2] for row in rows) for server in servers)
    yield Effect(
        "(proxy)", "", "ok in runtimeproxy hook ls", "-", f"{len(servers)} hook servers", f"{well} hook servers"
    )
    rows = [line.split() for line in _said(folder, "explain", f"default/{EXPLAINED}/{CONTAINER}").splitlines()]
    by = next(server.plugin for server in servers if "batchresource" in server.name)
    changed = [row[0].removeprefix("resources.") for row in rows if row[1:] == ["changed", by]]
    yield Effect(
        EXPLAINED, CONTAINER, "runtimeproxy explain: changed", "-", ", ".join(FIELDS[mode]), ", ".join(changed)
    )


def exporter(folder: Path) -> str:
    """Return the command that passes the proxy's metrics to collectors."""
    flags = ("--listen=127.0.0.1:9654", f"--metrics-endpoint={processes.metrics_socket(folder)}")
    return processes.shown([*processes.installed("runtimeproxy", "runtimeproxy"), "export", *flags])


def _said(folder: Path, *words: str, until: str = "") -> str:
    """Run a command, for READY_SECONDS again if its output does not begin with ``until``; print it with its output, and
    return that. Raises DemoError if it fails."""
    command = [
        *processes.installed("runtimeproxy", "runtimeproxy"),
        *words,
        f"--admin-endpoint={processes.admin_socket(folder)}",
    ]
    call = partial(subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    deadline, run = time.monotonic() + READY_SECONDS, call(check=False)
    while not run.stdout.startswith(until) and time.monotonic() < deadline:
        run = call(check=False)
    print("\n$", processes.shown(command))
    print(run.stdout, end="", flush=True)
    if run.returncode not in (0, 1):  # 1: it found something, which the effects tell
        raise processes.DemoError(f"{processes.shown(command)} ended with {run.returncode}: {run.stderr.strip()}")
    return run.stdout
