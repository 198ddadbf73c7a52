"""The table of checks, and how they are run: each ends in at least one finding by its time limit."""

import os
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from runtimeproxy.cli.doctor import clients, hookservers, ours, runtime
from runtimeproxy.cli.doctor.findings import AS_ROOT, CHECK_SECONDS, Check, Finding, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.settings.config import Config

CHECKS: tuple[Check, ...] = (
    Check("socket", "the proxy's socket: kind, owner, mode, listener", ours.socket_file),
    Check("directory", "who can write in the socket's directory", ours.directory),
    Check("lock", "who holds the lock beside the socket", ours.lock),
    Check("proxy", "a call to the runtime through the proxy", runtime.proxy, calls=True),
    Check("runtime", "the runtime's CRI versions, or Docker's API and cgroup driver", runtime.runtime, calls=True),
    Check("cgroup", "the version of the cgroup tree", runtime.cgroup),
    Check("registrations", "the registration files and their directory", hookservers.registrations),
    Check("hook-servers", "a call to each registered hook server", hookservers.hook_servers, calls=True),
    Check("skip-label", "the label of pods that no hook server sees", hookservers.skip_label),
    Check("kubelet", "the kubelet's endpoint: arguments, file, drop-ins", clients.kubelet),
    Check("cri-dockerd", "cri-dockerd's endpoint of dockerd", clients.cri_dockerd),
    Check("clients", "who is connected to the runtime, past the proxy", clients.past_the_proxy),
    Check("nri", "whether a registered koordlet is an NRI plugin of the runtime, too", clients.nri),
    Check("file-limits", "open files of the proxy and of the machine", ours.file_limits),
    Check("unit", "the settings of the proxy's systemd unit that are in force", ours.unit),
    Check("versions", "the proxy, Python, libraries, kernel", ours.versions),
)


def rows(config: Config) -> list[dict[str, str | None]]:
    """Return what the checks found, a row for each finding. No text of one can control the terminal."""
    return [
        {"check": c.id, "verdict": f.verdict.value, "why": _line(f.why), "do": _line(f.do) or None, "doc": c.place}
        for c, f in examine(Machine(config))
    ]


def _line(text: str) -> str:
    """Return a text as one printable line: the names of files are in it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def examine(
    machine: Machine, checks: Sequence[Check] = CHECKS, seconds: float = CHECK_SECONDS
) -> Iterator[tuple[Check, Finding]]:
    """Run the checks that only read, then those that call, and yield all findings in the table's order."""
    found: dict[Check, Sequence[Finding]] = {}
    for calls in (False, True):
        deadline = time.monotonic() + seconds
        for check, running in [(check, _begun(check, machine)) for check in checks if check.calls is calls]:
            try:
                found[check] = running.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                hangs = f"no answer within {seconds:g} s: {check.looks_at}"
                found[check] = [warning(hangs, "look for what hangs: a file system, a socket's owner, or the machine")]
    for check in checks:
        for finding in found[check]:
            yield check, finding


def _begun(check: Check, machine: Machine) -> "Future[tuple[Finding, ...]]":
    future: Future[tuple[Finding, ...]] = Future()  # no executor: the end of the process would wait for its threads
    threading.Thread(target=lambda: future.set_result(_looked(check, machine)), name=check.id, daemon=True).start()
    return future


def _looked(check: Check, machine: Machine) -> tuple[Finding, ...]:
    try:
        return tuple(check.look(machine))
    except OSError as error:
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return (unknown(f"{place}{error.strerror or type(error).__name__}", AS_ROOT),)
    except RuntimeProxyError as error:
        return (warning(str(error), "correct what it names"),)
    except Exception as error:  # a text of unknown origin may quote a value
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"unexpected {type(error).__name__} at {last.filename}:{last.lineno}"
        return (unknown(text, "report it, with this line"),)
