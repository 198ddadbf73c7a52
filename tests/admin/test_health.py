"""The faults that make the proxy unready, and those that are only reported."""

from operator import attrgetter
from typing import Any

import pytest

from runtimeproxy.admin.health import CHECKS, DEGRADED, FAILED, OK, PATIENCE_SECONDS, STALL_REPORTED_SECONDS
from runtimeproxy.observe.loop_watchdog import Stall
from runtimeproxy.plugins.disabling import Disabled
from runtimeproxy.plugins.reach import Absence
from tests.admin.proxy import Proxy
from tests.fakes.plugins import FAIL, IGNORE

NOW = 100.0
SHORTLY = Absence(NOW - PATIENCE_SECONDS + 1, "/run/a.sock: No such file or directory")
LONG = Absence(NOW - PATIENCE_SECONDS, "/run/a.sock: Connection refused")
IGNORED = Absence(NOW - 3600, "user 7 listens on /run/b.sock")
DISABLED = Disabled("hangs", "uid 0", 0.0, None)

State = dict[str, Any]
"""The attributes of Proxy that differ from a proxy without a fault; ``open`` names a plugin with an open breaker."""

UNREACHABLE = "policy Fail and unreachable: a for 30 s"
FAILING: list[tuple[State, str, str]] = [
    ({"listening_fault": "the socket was removed"}, "listening", "the socket was removed"),
    ({"manager.read": False}, "registrations_read", "the registration directory was not read yet"),
    ({"manager.read": False, "manager.complaint": "/d hangs"}, "registrations_read", "/d hangs"),
    ({"runtime_fault": "Connection refused"}, "runtime", "Connection refused"),
    ({"sync.runtime_fault": "no answer"}, "runtime", "no answer"),
    ({"draining": True}, "not_draining", "the proxy is stopping"),
    ({"reach.absences": {"a": LONG}}, "fail_plugins", f"{UNREACHABLE} (/run/a.sock: Connection refused)"),
]
OFF = {"manager.disabled": dict.fromkeys("de", DISABLED), "manager.mask_fault": "/s is bad"}
SHOWN: list[tuple[State, str, str]] = [
    ({"manager.complaint": "/d cannot be read"}, "registrations_read", "/d cannot be read"),
    ({"reach.absences": {"a": SHORTLY}}, "plugins", "unreachable: a (/run/a.sock: No such file or directory)"),
    ({"open": "a"}, "breakers", "calls suspended, as they keep failing: a (tried again in 30 s)"),
    (OFF, "disabled_plugins", "disabled by hand: d, e; /s is bad"),
    ({"manager.rejected": dict.fromkeys("abcdefg", "")}, "invalid_files", "rejected: a, b, c, d, e and 2 more"),
    ({"sync.filling": True}, "store", "the runtime's pods and containers are still being read"),
    ({"watchdog.last_stall": Stall(NOW - STALL_REPORTED_SECONDS, 0.7213)}, "loop", "it hung for 0.72 s, 60 s ago"),
]


def checks(state: State) -> list[dict[str, str]]:
    proxy = Proxy()
    for name, policy in (("a", FAIL), ("b", IGNORE)):
        proxy.manager.add(name, policy=policy)
    for path, value in state.items():
        part, _, name = path.rpartition(".")
        if name == "open":
            proxy.open_breaker(value)
        else:
            setattr(attrgetter(part)(proxy) if part else proxy, name, value)
    assert proxy.now == NOW
    return list(proxy.call("readyz")["checks"])


@pytest.mark.parametrize(
    ("state", "name", "reason", "expected"), [(*row, FAILED) for row in FAILING] + [(*row, DEGRADED) for row in SHOWN]
)
def test_fault_is_shown_by_its_own_check_alone(state: State, name: str, reason: str, expected: str) -> None:
    found = checks(state)
    assert [tuple(check.values()) for check in found if check["state"] != OK] == [(name, expected, reason)]
    assert tuple(check["name"] for check in found) == CHECKS
    assert all(not check["reason"] for check in found if check["state"] == OK)


@pytest.mark.parametrize("state", [{}, {"watchdog.last_stall": Stall(NOW - STALL_REPORTED_SECONDS - 1, 0.3)}])
def test_checks_are_ok_without_a_fault(state: State) -> None:
    assert all(check["state"] == OK for check in checks(state))


def test_each_unreachable_plugin_is_shown_once() -> None:
    found = {check["name"]: check["reason"] for check in checks({"reach.absences": {"a": LONG, "b": IGNORED}})}
    assert found["fail_plugins"].startswith(UNREACHABLE)
    assert found["plugins"] == "unreachable: b (user 7 listens on /run/b.sock)"
