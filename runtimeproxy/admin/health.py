"""Judge the proxy's state: the checks of /readyz."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PATIENCE_SECONDS = 30.0
"""For how many seconds a plugin with policy Fail may be unreachable before the proxy is not ready."""
STALL_TOLD_SECONDS = 60.0
"""For how many seconds after its end a stall of the event loop is reported."""
_NAMES_SHOWN = 5


OK, FAILED, DEGRADED = "ok", "failed", "degraded"
"""The states of a check: FAILED makes the whole fail; DEGRADED is shown only."""


@dataclass(frozen=True, slots=True)
class PluginFacts:
    """``unreachable_seconds`` is None if a process listens at its socket, ``why`` is the reason that none does.
    ``retry_seconds`` is how long its open breaker stays open, None if it is not open."""

    name: str
    fails_closed: bool
    unreachable_seconds: float | None = None
    why: str = ""
    retry_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The proxy's state at one moment. A fault is a reason, "" if there is none; ``masked`` are the disabled names."""

    listening_fault: str = ""
    registrations_read: bool = True
    directory_fault: str = ""
    runtime_fault: str = ""
    draining: bool = False
    plugins: tuple[PluginFacts, ...] = ()
    masked: tuple[str, ...] = ()
    mask_fault: str = ""
    invalid_files: tuple[str, ...] = ()
    filling: bool = False
    stall: tuple[float, float] | None = None
    """The length of the event loop's last stall, and how long ago it ended, in seconds."""


def verdict(name: str, failed: str = "", degraded: str = "") -> dict[str, str]:
    """Return a check as answers contain it, with the reason why it is not ok."""
    state = FAILED if failed else DEGRADED if degraded else OK
    return {"name": name, "state": state, "reason": failed or degraded}


def readiness(facts: Facts) -> list[dict[str, str]]:
    """Return all checks, those that can fail first."""
    not_read = (
        "" if facts.registrations_read else facts.directory_fault or "the registration directory was not read yet"
    )
    failing, unreachable, suspended = [], [], []
    for plugin in facts.plugins:
        seconds = plugin.unreachable_seconds
        if seconds is not None and plugin.fails_closed and seconds >= PATIENCE_SECONDS:
            failing.append(f"{plugin.name} for {seconds:.0f} s ({plugin.why})")
        elif seconds is not None:
            unreachable.append(f"{plugin.name} ({plugin.why})")
        if plugin.retry_seconds is not None:
            suspended.append(f"{plugin.name} (tried again in {plugin.retry_seconds:.0f} s)")
    disabled = _joined("disabled by hand", facts.masked)
    stall = ""
    if facts.stall is not None and facts.stall[1] <= STALL_TOLD_SECONDS:
        stall = "it hung for {:.2f} s, {:.0f} s ago".format(*facts.stall)
    return [
        verdict("listening", failed=facts.listening_fault),
        verdict("registrations_read", failed=not_read, degraded=facts.directory_fault),
        verdict("runtime", failed=facts.runtime_fault),
        verdict("not_draining", failed="the proxy is stopping" if facts.draining else ""),
        verdict("fail_plugins", failed=_joined("policy Fail and unreachable", failing)),
        verdict("plugins", degraded=_joined("unreachable", unreachable)),
        verdict("breakers", degraded=_joined("not asked, as they keep failing", suspended)),
        verdict("disabled_plugins", degraded="; ".join(filter(None, (disabled, facts.mask_fault)))),
        verdict("invalid_files", degraded=_joined("rejected", facts.invalid_files)),
        verdict("store", degraded="the runtime's pods and containers are still being read" if facts.filling else ""),
        verdict("loop", degraded=stall),
    ]


def _joined(why: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{why}: {', '.join(names[:_NAMES_SHOWN])}{more}" if names else ""


CHECKS = tuple(each["name"] for each in readiness(Facts()))
SIGNS = {"ok": "[+]", "failed": "[-]", "degraded": "[~]"}


def check_line(check: Mapping[str, str]) -> str:
    """Return a check of an answer (name, state, reason) as a line, as Kubernetes' components print theirs."""
    line = f"{SIGNS[check['state']]}{check['name']} {check['state']}"
    return f"{line}: {check['reason']}" if check["reason"] else line
