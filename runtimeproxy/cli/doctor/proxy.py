"""Checks of the proxy itself. Nothing is opened for writing, connected to or locked."""

import os
import platform
import re
import stat
from collections.abc import Iterator
from importlib import metadata

from runtimeproxy.cli.doctor.findings import Finding, failed, ok, skipped, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine
from runtimeproxy.files import folder_fault
from runtimeproxy.relay.listener import group_id
from runtimeproxy.settings.version import VERSION

LEAST_FILES = 4096
"""A limit of open files below which a node's connections may not fit: each takes two, a tunnel two more."""
HIGH_SHARE = 0.8
"""The share of a limit above which a check warns or fails."""
OLDEST_KERNEL = (4, 19)
_LIBRARIES = ("aiohttp", "protobuf", "uvloop")
_START = "start the proxy, or give doctor the flags that the proxy runs with"

UNIT = {
    "NeedDaemonReload": ("(?!yes$).*", "systemctl daemon-reload, then restart the unit"),
    "Type": ("notify(-reload)?", "set Type=notify: systemd then knows when it listens"),
    "Restart": ("always|on-failure", "set Restart=always: without the proxy the node is down"),
    "WatchdogUSec": ("(?!0$|infinity$).+", "set WatchdogSec=: a loop that hangs is restarted"),
    "OOMScoreAdjust": (
        "-.*",
        "set OOMScoreAdjust=-999, as the kubelet and the runtime have: it is on the node's critical path",
    ),
}
"""The properties of the unit that matter: the pattern of a good value, and what to do about any other."""


def socket_file(machine: Machine) -> list[Finding]:
    path, mode = machine.config.listen_endpoint, machine.config.socket_mode
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return [failed(f"{path} is not there: no proxy listens", _START)]
    rights = stat.S_IMODE(status.st_mode)
    if not stat.S_ISSOCK(status.st_mode):
        return [failed(f"{path} is not a socket", "remove it, or set --koord-runtimeproxy-endpoint to another path")]
    if not machine.listeners(path):
        advice = "start the proxy, which replaces the old socket, or give doctor the proxy's flags"
        return [failed(f"{path} is there and nobody listens on it", advice)]
    if status.st_uid not in (0, os.geteuid()):
        return [failed(f"{path} belongs to user {status.st_uid}", "stop the program that made it, and start the proxy")]
    if rights & ~mode:
        advice = "restart the proxy; where systemd makes the socket set SocketMode="
        return [warning(f"{path} has mode {rights:04o}, wider than --socket-mode {mode:04o}", advice)]
    return [ok(f"{path} listens, mode {rights:04o}")]


def directory(machine: Machine) -> list[Finding]:
    folder, group = os.path.dirname(machine.config.listen_endpoint), machine.config.socket_group
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return [failed(f"{folder} is not there", "start the proxy, which makes it, or give doctor the proxy's flags")]
    if not stat.S_ISDIR(status.st_mode):
        advice = "set --koord-runtimeproxy-endpoint to a real directory's path"
        return [failed(f"{folder} is a link or no directory", advice)]
    if fault := folder_fault(status, None if group is None else group_id(group)):
        return [failed(f"{folder} {fault}, who could replace the socket", "chown it to root and chmod it to 0755")]
    return [ok(f"{folder} can be written by no other user")]


def lock(machine: Machine) -> list[Finding]:
    path = machine.config.listen_endpoint
    try:
        regular = stat.S_ISREG(os.lstat(f"{path}.lock").st_mode)
    except FileNotFoundError:
        return [ok(f"{path}.lock is not there: no proxy ran here, or systemd made the socket")]
    if not regular:
        return [failed(f"{path}.lock is not a regular file: no proxy can start", "remove it")]
    holder, listening = machine.lock_holder(), machine.listeners(path)
    if holder is None:
        return [ok(f"nobody holds {path}.lock")]
    if not listening:
        advice = "wait for its end: its log shows what it waits for (docs/operation.rst, Stop)"
        return [warning(f"pid {holder} holds {path}.lock and does not listen", advice)]
    if listening.isdisjoint(machine.open_sockets(holder)):
        advice = f"stop pid {holder} if it is no proxy, or the program that took the socket's place"
        return [failed(f"pid {holder} holds {path}.lock and another process listens on the socket", advice)]
    return [ok(f"pid {holder}, which listens, holds {path}.lock")]


def file_limits(machine: Machine) -> Iterator[Finding]:
    used, _, most = (int(number) for number in machine.text("proc/sys/fs/file-nr").split())
    if used > HIGH_SHARE * most:
        yield warning(f"{used} of the machine's {most} files are open", "raise fs.file-max, or find who leaks them")
    pid = machine.proxy()
    if pid is None:
        yield unknown("no proxy runs", _START)
        return
    limit = re.search(r"^Max open files +(\d+|unlimited)", machine.text(f"proc/{pid}/limits"), re.MULTILINE)
    count = len(os.listdir(machine.path(f"proc/{pid}/fd")))
    if limit is None or limit[1] == "unlimited":
        yield ok(f"the proxy (pid {pid}) has {count} files open, without a limit")
    elif count > HIGH_SHARE * int(limit[1]):
        advice = "raise LimitNOFILE= and restart; a log that names a peer's many connections shows who uses them"
        yield failed(f"the proxy (pid {pid}) has {count} of {limit[1]} files open", advice)
    elif int(limit[1]) < LEAST_FILES:
        yield warning(f"the proxy (pid {pid}) may open {limit[1]} files only", f"set LimitNOFILE={LEAST_FILES} or more")
    else:
        yield ok(f"the proxy (pid {pid}) has {count} of {limit[1]} files open")


def unit(machine: Machine) -> list[Finding]:
    if not machine.path("run/systemd/system").is_dir():
        return [skipped("systemd does not run here")]
    pid = machine.proxy()
    if pid is None:
        return [unknown("no proxy runs", _START)]
    services = re.findall(r"[^/\n]+\.service(?=/|\n|$)", machine.text(f"proc/{pid}/cgroup"))
    if not services:
        return [warning(f"the proxy (pid {pid}) runs in no systemd service", "give it one: nobody restarts it now")]
    name = services[-1]
    lines = machine.systemctl(["show", f"--property={','.join(UNIT)}", "--", name]).splitlines()
    shown = dict(line.split("=", 1) for line in lines if "=" in line)
    findings = [
        warning(f"{name} has {key}={shown[key]}", advice)
        for key, (good, advice) in UNIT.items()
        if key in shown and not re.fullmatch(good, shown[key])
    ]
    return findings or [ok(f"{name}: {', '.join(f'{key}={value}' for key, value in shown.items())}")]


def versions(machine: Machine) -> Iterator[Finding]:
    kernel = machine.text("proc/sys/kernel/osrelease").strip()
    numbers = re.match(r"(\d+)\.(\d+)", kernel)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_KERNEL:
        yield warning(f"kernel {kernel} is older than {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]}", "update the kernel")
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    yield ok(f"runtimeproxy {VERSION}, Python {platform.python_version()}, {libraries}, kernel {kernel}")
