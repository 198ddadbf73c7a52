"""The doctor's checks of the proxy itself, on a machine made of files."""

import os
import socket
from collections.abc import Callable, Iterable

import pytest

from runtimeproxy.cli.doctor import ours
from runtimeproxy.cli.doctor.findings import Finding
from runtimeproxy.cli.doctor.machine import Machine
from tests.doctor.made import KERNEL, Made

Make = Callable[[Made], object]
SYSTEMD = "run/systemd/system/x"


def told(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.verdict.value, finding.why) for finding in findings]


def only(look: Callable[[Machine], Iterable[Finding]], made: Made) -> tuple[str, str]:
    """Return the verdict and the text of a check's one finding."""
    (finding,) = told(look(made.machine))
    return finding


def bind(made: Made, mode: int = 0o600) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(made.ours))
    made.ours.chmod(mode)


def listen(made: Made, mode: int = 0o600) -> None:
    bind(made, mode)
    made.socket(1, made.ours, listening=True)


SOCKETS: list[tuple[Make, str, str]] = [
    (lambda made: None, "failed", "{} is not there: no proxy listens"),
    (lambda made: made.ours.touch(), "failed", "{} is not a socket"),
    (bind, "failed", "{} is there and nobody listens on it"),
    (listen, "ok", "{} listens, mode 0600"),
    (lambda made: listen(made, 0o660), "warning", "{} has mode 0660, wider than --socket-mode 0600"),
]


@pytest.mark.parametrize(("make", "verdict", "why"), SOCKETS)
def test_socket_is_judged_by_kind_listener_and_mode(made: Made, make: Make, verdict: str, why: str) -> None:
    make(made)
    assert only(ours.socket_file, made) == (verdict, why.format(made.ours))


@pytest.mark.engine
def test_socket_of_another_user_is_told(made: Made) -> None:
    listen(made)
    os.chown(made.ours, 12345, -1)
    assert only(ours.socket_file, made) == ("failed", f"{made.ours} belongs to user 12345")


def test_socket_may_be_as_wide_as_configured(made: Made) -> None:
    listen(made, 0o660)
    made.flags["socket-mode"] = "0660"
    assert only(ours.socket_file, made)[0] == "ok"
    made.ours.chmod(0o600)
    assert only(ours.socket_file, made)[0] == "ok"


def to_link(made: Made) -> None:
    made.ours.parent.rmdir()
    made.ours.parent.symlink_to(made.root)


DIRECTORIES: list[tuple[Make, str, str]] = [
    (lambda made: None, "ok", "can be written by no other user"),
    (lambda made: made.ours.parent.chmod(0o777), "failed", "can be written by everybody, who could replace the socket"),
    (lambda made: made.ours.parent.rmdir(), "failed", "is not there"),
    (to_link, "failed", "is a link or no directory"),
]


@pytest.mark.parametrize(("make", "verdict", "why"), DIRECTORIES)
def test_directory_is_judged_by_who_can_write(made: Made, make: Make, verdict: str, why: str) -> None:
    make(made)
    assert only(ours.directory, made) == (verdict, f"{made.ours.parent} {why}")


def lock_of_another(made: Made) -> None:
    made.proxy(pid=70)
    made.process(71, "other")
    made.lock(71)


LOCKS: list[tuple[Make, str, str]] = [
    (lambda made: None, "ok", "{}.lock is not there: no proxy ran here, or systemd made the socket"),
    (lambda made: os.mkdir(f"{made.ours}.lock"), "failed", "{}.lock is not a regular file: no proxy can start"),
    (lambda made: (made.lock(70), made.write("proc/locks", "")), "ok", "nobody holds {}.lock"),
    (lambda made: made.lock(70), "warning", "pid 70 holds {}.lock and does not listen"),
    (lambda made: made.proxy(pid=70), "ok", "pid 70, which listens, holds {}.lock"),
    (lock_of_another, "failed", "pid 71 holds {}.lock and another process listens on the socket"),
]


@pytest.mark.parametrize(("make", "verdict", "why"), LOCKS)
def test_lock_is_judged_by_its_holder(made: Made, make: Make, verdict: str, why: str) -> None:
    make(made)
    assert only(ours.lock, made) == (verdict, why.format(made.ours))


LIMITS: list[tuple[Make, str, str]] = [
    (lambda made: None, "unknown", "no proxy runs"),
    (lambda made: made.proxy(), "ok", "the proxy (pid 70) has 1 of 65536 files open"),
    (lambda made: made.proxy(limit="unlimited"), "ok", "the proxy (pid 70) has 1 files open, without a limit"),
    (lambda made: made.proxy(limit="1024"), "warning", "the proxy (pid 70) may open 1024 files only"),
    (lambda made: made.proxy(limit="5", ends=range(4)), "failed", "the proxy (pid 70) has 5 of 5 files open"),
]


@pytest.mark.parametrize(("make", "verdict", "why"), LIMITS)
def test_open_files_are_compared_with_the_limit(made: Made, make: Make, verdict: str, why: str) -> None:
    make(made)
    assert only(ours.file_limits, made) == (verdict, why)


def test_open_files_of_the_machine_are_told_beside(made: Made) -> None:
    made.proxy()
    made.write("proc/sys/fs/file-nr", "90\t0\t100\n")
    assert [verdict for verdict, _ in told(ours.file_limits(made.machine))] == ["warning", "ok"]


def test_unit_is_not_looked_at_without_systemd(made: Made) -> None:
    made.proxy()
    assert only(ours.unit, made) == ("skipped", "systemd does not run here")
    assert made.units == []


def test_unit_is_unknown_without_a_proxy(made: Made) -> None:
    made.write(SYSTEMD, "")
    assert only(ours.unit, made) == ("unknown", "no proxy runs")


def test_proxy_outside_a_service_is_told(made: Made) -> None:
    made.proxy()
    made.write(SYSTEMD, "")
    made.write("proc/70/cgroup", "0::/user.slice/user-0.slice/session-1.scope\n")
    assert only(ours.unit, made) == ("warning", "the proxy (pid 70) runs in no systemd service")


GOOD = {
    "NeedDaemonReload": "no",
    "Type": "notify",
    "Restart": "always",
    "WatchdogUSec": "30s",
    "OOMScoreAdjust": "-999",
}
BAD = [
    ("NeedDaemonReload", "yes"),
    ("Type", "simple"),
    ("Restart", "no"),
    ("WatchdogUSec", "0"),
    ("OOMScoreAdjust", "0"),
]
CGROUPS = [
    "0::/user.slice/user@0.service/app.slice/rp.service\n",
    "2:cpu:/\n1:name=systemd:/system.slice/rp.service\n0::/\n",
]


@pytest.mark.parametrize("cgroup", CGROUPS)
@pytest.mark.parametrize(("key", "value"), [("", ""), *BAD])
def test_unit_is_judged_by_its_settings_in_force(made: Made, cgroup: str, key: str, value: str) -> None:
    made.proxy()
    made.write(SYSTEMD, "")
    made.write("proc/70/cgroup", cgroup)
    made.unit = "".join(f"{name}={value if name == key else good}\n" for name, good in GOOD.items())
    verdict, why = only(ours.unit, made)
    assert (verdict, why) == ("warning", f"rp.service has {key}={value}") if key else verdict == "ok"
    assert made.units == [["show", f"--property={','.join(GOOD)}", "--", "rp.service"]]


@pytest.mark.parametrize(("kernel", "verdicts"), [(KERNEL, ["ok"]), ("4.18.0", ["warning", "ok"]), ("odd", ["ok"])])
def test_versions_tell_the_kernel_and_warn_of_an_old_one(made: Made, kernel: str, verdicts: list[str]) -> None:
    made.write("proc/sys/kernel/osrelease", kernel)
    found = told(ours.versions(made.machine))
    assert [verdict for verdict, _ in found] == verdicts
    assert found[-1][1].endswith(f"kernel {kernel}")
