"""The checks of /livez and /readyz: names, states and texts."""

from collections.abc import Collection, Mapping
from itertools import islice

UNREACHABLE_SECONDS = 30.0
"""For how many seconds a plugin with policy Fail may be unreachable before the proxy is not ready."""
STALL_REPORTED_SECONDS = 60.0
"""For how many seconds after its end a stall of the event loop is reported."""
_NAMES_SHOWN = 5

CHECKS = (
    *("listening", "registrations_read", "runtime", "not_draining", "fail_plugins"),
    *("plugins", "breakers", "disabled_plugins", "invalid_files", "store", "loop"),
)
"""The checks of /readyz; those that can fail come first."""
OK, FAILED, DEGRADED = "ok", "failed", "degraded"
"""The states of a check: one FAILED check fails the request, DEGRADED is only shown."""
_SIGNS = {OK: "[+]", FAILED: "[-]", DEGRADED: "[~]"}


def verdict(name: str, failed: str = "", degraded: str = "") -> dict[str, str]:
    """Return a check as answers contain it, with the reason why it is not ok."""
    state = FAILED if failed else DEGRADED if degraded else OK
    return {"name": name, "state": state, "reason": failed or degraded}


def reason_with_names(why: str, names: Collection[str]) -> str:
    """Return a reason with the first names that it is about; "" without a name."""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{why}: {', '.join(islice(names, _NAMES_SHOWN))}{more}" if names else ""


def check_line(check: Mapping[str, str]) -> str:
    """Return a check of an answer (name, state, reason) as a line, as Kubernetes' components print theirs."""
    line = f"{_SIGNS[check['state']]}{check['name']} {check['state']}"
    return f"{line}: {check['reason']}" if check["reason"] else line
