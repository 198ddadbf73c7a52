"""Judge the proxy's state: the checks of /readyz.

Invariant: equal facts give equal checks. A check that is degraded never makes the proxy unready.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

PATIENCE_SECONDS = 30.0
"""For how many seconds a plugin with policy Fail may be unreachable before the proxy is not ready."""
STALL_TOLD_SECONDS = 60.0
"""For how many seconds behind its end a stall of the event loop is told."""
_NAMES_SHOWN = 5


class State(Enum):
    """OK; FAILED, which makes the whole fail; DEGRADED, which is told and changes nothing."""

    OK = "ok"
    FAILED = "failed"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class Check:
    """One check; ``reason`` is "" if it is ok."""

    name: str
    state: State = State.OK
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PluginFacts:
    """What is known of a plugin: ``unreachable_seconds`` is None if somebody listens at its socket, ``why`` says why
    not. ``retry_seconds`` is how long its open breaker stays open, None if it is not open."""

    name: str
    fails_closed: bool
    unreachable_seconds: float | None = None
    why: str = ""
    retry_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The proxy's state at one moment; a fault is why something is not so, "" if it is."""

    listening_fault: str = ""
    registrations_read: bool = True
    directory_fault: str = ""
    """Why the registration directory could not be read at the last look."""
    runtime_fault: str = ""
    draining: bool = False
    plugins: tuple[PluginFacts, ...] = ()
    masked: tuple[str, ...] = ()
    """The names that are disabled, registered or not."""
    mask_fault: str = ""
    """Why the file with them could not be used the last time."""
    invalid_files: tuple[str, ...] = ()
    filling: bool = False
    """Whether the runtime's state is still being read into the Store."""
    stall: tuple[float, float] | None = None
    """The length of the event loop's last stall, and how long ago it ended, in seconds."""


Verdict = tuple[State, str]
_OK: Verdict = (State.OK, "")


def readiness(facts: Facts) -> tuple[Check, ...]:
    """Return all checks, those that can fail first."""
    return tuple(Check(name, *judge(facts)) for name, judge in _CHECKS)


SIGNS = {"ok": "[+]", "failed": "[-]", "degraded": "[~]"}


def check_line(check: Mapping[str, str]) -> str:
    """Return a check of an answer (name, state, reason) as a line, as Kubernetes' components print theirs."""
    line = f"{SIGNS[check['state']]}{check['name']} {check['state']}"
    return f"{line}: {check['reason']}" if check["reason"] else line


def _listening(facts: Facts) -> Verdict:
    return _failed(facts.listening_fault)


def _registrations_read(facts: Facts) -> Verdict:
    if not facts.registrations_read:
        return _failed(facts.directory_fault or "the registration directory was not read yet")
    return _degraded(facts.directory_fault)


def _runtime(facts: Facts) -> Verdict:
    return _failed(facts.runtime_fault)


def _not_draining(facts: Facts) -> Verdict:
    return _failed("the proxy is stopping" if facts.draining else "")


def _fail_plugins(facts: Facts) -> Verdict:
    gone = [
        f"{plugin.name} for {plugin.unreachable_seconds:.0f} s ({plugin.why})"
        for plugin in facts.plugins
        if _away(plugin) and plugin.fails_closed and (plugin.unreachable_seconds or 0.0) >= PATIENCE_SECONDS
    ]
    return _failed(f"policy Fail and unreachable: {_shown(gone)}" if gone else "")


def _plugins(facts: Facts) -> Verdict:
    """Tell of each plugin that cannot be reached now, unless ``fail_plugins`` fails for it."""
    gone = [
        f"{plugin.name} ({plugin.why})"
        for plugin in facts.plugins
        if _away(plugin) and not (plugin.fails_closed and (plugin.unreachable_seconds or 0.0) >= PATIENCE_SECONDS)
    ]
    return _degraded(f"unreachable: {_shown(gone)}" if gone else "")


def _breakers(facts: Facts) -> Verdict:
    out = [
        f"{plugin.name} (tried again in {plugin.retry_seconds:.0f} s)"
        for plugin in facts.plugins
        if plugin.retry_seconds is not None
    ]
    return _degraded(f"not asked, as they keep failing: {_shown(out)}" if out else "")


def _disabled(facts: Facts) -> Verdict:
    disabled = f"disabled by hand: {_shown(facts.masked)}" if facts.masked else ""
    return _degraded("; ".join(reason for reason in (disabled, facts.mask_fault) if reason))


def _invalid_files(facts: Facts) -> Verdict:
    return _degraded(f"rejected: {_shown(facts.invalid_files)}" if facts.invalid_files else "")


def _store(facts: Facts) -> Verdict:
    return _degraded("the runtime's pods and containers are still being read" if facts.filling else "")


def _loop(facts: Facts) -> Verdict:
    if facts.stall is None or facts.stall[1] > STALL_TOLD_SECONDS:
        return _OK
    return _degraded("it hung for {:.2f} s, {:.0f} s ago".format(*facts.stall))


_CHECKS: tuple[tuple[str, Callable[[Facts], Verdict]], ...] = (
    ("listening", _listening),
    ("registrations_read", _registrations_read),
    ("runtime", _runtime),
    ("not_draining", _not_draining),
    ("fail_plugins", _fail_plugins),
    ("plugins", _plugins),
    ("breakers", _breakers),
    ("disabled_plugins", _disabled),
    ("invalid_files", _invalid_files),
    ("store", _store),
    ("loop", _loop),
)
CHECKS = tuple(name for name, _ in _CHECKS)


def _failed(reason: str) -> Verdict:
    return (State.FAILED, reason) if reason else _OK


def _degraded(reason: str) -> Verdict:
    return (State.DEGRADED, reason) if reason else _OK


def _away(plugin: PluginFacts) -> bool:
    return plugin.unreachable_seconds is not None


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
