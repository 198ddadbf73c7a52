"""The table of checks, and how they are run: each ends in at least one finding by its time limit."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import partial

from runtimeproxy.cli.doctor import clients, hookservers, proxy, runtime
from runtimeproxy.cli.doctor.findings import AS_ROOT, CHECK_SECONDS, Check, Finding, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine
from runtimeproxy.cli.shared.output import error_text, printable
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.relay.eventloop import run_in_daemon_thread
from runtimeproxy.settings.config import Config

CHECKS: tuple[Check, ...] = (
    Check("socket", "the proxy's socket: kind, owner, mode, listener", proxy.socket_file),
    Check("directory", "who can write in the socket's directory", proxy.directory),
    Check("lock", "who holds the lock next to the socket", proxy.lock),
    Check("proxy", "a call to the runtime through the proxy", runtime.proxy, calls=True),
    Check("runtime", "the runtime's CRI versions, or Docker's API and cgroup driver", runtime.runtime, calls=True),
    Check("cgroup", "the version of the cgroup tree", runtime.cgroup),
    Check("registrations", "the registration files and their directory", hookservers.registrations),
    Check("hook-servers", "a call to each registered hook server", hookservers.hook_servers, calls=True),
    Check("skip-label", "the label of pods that no hook server sees", hookservers.skip_label),
    Check("kubelet", "the kubelet's endpoint: arguments, file, drop-ins", clients.kubelet),
    Check("cri-dockerd", "cri-dockerd's endpoint of dockerd", clients.cri_dockerd),
    Check("clients", "who is connected to the runtime, past the proxy", clients.bypassing_clients),
    Check("nri", "whether a registered koordlet is an NRI plugin of the runtime, too", clients.nri),
    Check("file-limits", "open files of the proxy and of the machine", proxy.file_limits),
    Check("unit", "the settings of the proxy's systemd unit that are in force", proxy.unit),
    Check("versions", "the proxy, Python, libraries, kernel", proxy.versions),
)


def rows(config: Config) -> list[dict[str, str | None]]:
    """Return what the checks found, a row for each finding. No text of one can control the terminal."""
    return [
        {
            "check": check.id,
            "verdict": finding.verdict.value,
            "why": printable(finding.why),
            "do": printable(finding.do) or None,
            "doc": check.place,
        }
        for check, finding in examine(Machine(config))
    ]


def examine(
    machine: Machine, checks: Sequence[Check] = CHECKS, seconds: float = CHECK_SECONDS
) -> Iterator[tuple[Check, Finding]]:
    """Run the checks that only read, then those that call, and yield all findings in the table's order."""
    findings: dict[Check, Sequence[Finding]] = {}
    for calls in (False, True):
        findings |= asyncio.run(_run([check for check in checks if check.calls is calls], machine, seconds))
    for check in checks:
        for finding in findings[check]:
            yield check, finding


async def _run(checks: Sequence[Check], machine: Machine, seconds: float) -> dict[Check, Sequence[Finding]]:
    async def run(check: Check) -> Sequence[Finding]:
        try:
            async with asyncio.timeout(seconds):
                return await run_in_daemon_thread(partial(_findings, check, machine))
        except TimeoutError:
            hangs = f"no answer within {seconds:g} s: {check.subject}"
            return [warning(hangs, "look for what hangs: a file system, a socket's owner, or the machine")]

    return dict(zip(checks, await asyncio.gather(*map(run, checks)), strict=True))


def _findings(check: Check, machine: Machine) -> tuple[Finding, ...]:
    try:
        return tuple(check.inspect(machine))
    except OSError as error:
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return (unknown(f"{place}{error.strerror or type(error).__name__}", AS_ROOT),)
    except RuntimeProxyError as error:
        return (warning(str(error), "correct what it names"),)
    except Exception as error:
        return (unknown(error_text(error), "report it, with this line"),)
