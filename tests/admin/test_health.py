"""What makes the proxy unready, and what is only told: facts in, checks out."""

import pytest

from runtimeproxy.admin import health
from runtimeproxy.admin.health import (
    CHECKS,
    PATIENCE_SECONDS,
    STALL_TOLD_SECONDS,
    Facts,
    PluginFacts,
    check_line,
    readiness,
)

WELL = PluginFacts("well", fails_closed=True)
SHORTLY = PluginFacts("a", True, PATIENCE_SECONDS - 1, "/run/a.sock: No such file or directory")
LONG = PluginFacts("a", True, PATIENCE_SECONDS, "/run/a.sock: Connection refused")
IGNORED = PluginFacts("b", False, 3600.0, "user 7 listens on /run/b.sock")
OPEN = PluginFacts("c", True, retry_seconds=12.4)

FAILED: list[tuple[Facts, str, str]] = [
    (Facts(listening_fault="the socket was removed"), "listening", "the socket was removed"),
    (
        Facts(registrations_read=False),
        "registrations_read",
        "the registration directory was not read yet",
    ),
    (Facts(registrations_read=False, directory_fault="/d hangs"), "registrations_read", "/d hangs"),
    (Facts(runtime_fault="Connection refused"), "runtime", "Connection refused"),
    (Facts(draining=True), "not_draining", "the proxy is stopping"),
    (
        Facts(plugins=(WELL, LONG)),
        "fail_plugins",
        "policy Fail and unreachable: a for 30 s (/run/a.sock: Connection refused)",
    ),
]
DEGRADED: list[tuple[Facts, str, str]] = [
    (Facts(directory_fault="/d cannot be read"), "registrations_read", "/d cannot be read"),
    (Facts(plugins=(SHORTLY, WELL)), "plugins", "unreachable: a (/run/a.sock: No such file or directory)"),
    (Facts(plugins=(WELL, IGNORED)), "plugins", "unreachable: b (user 7 listens on /run/b.sock)"),
    (Facts(plugins=(OPEN, WELL)), "breakers", "not asked, as they keep failing: c (tried again in 12 s)"),
    (Facts(plugins=(WELL,), masked=("d", "e")), "disabled_plugins", "disabled by hand: d, e"),
    (Facts(mask_fault="/s is not JSON"), "disabled_plugins", "/s is not JSON"),
    (Facts(masked=("d",), mask_fault="/s is bad"), "disabled_plugins", "disabled by hand: d; /s is bad"),
    (Facts(invalid_files=tuple("abcdefg")), "invalid_files", "rejected: a, b, c, d, e and 2 more"),
    (Facts(filling=True), "store", "the runtime's pods and containers are still being read"),
    (Facts(stall=(0.7213, STALL_TOLD_SECONDS)), "loop", "it hung for 0.72 s, 60 s ago"),
]


@pytest.mark.parametrize(
    ("facts", "name", "reason", "state"),
    [(*row, health.FAILED) for row in FAILED] + [(*row, health.DEGRADED) for row in DEGRADED],
)
def test_fact_is_told_by_its_own_check_alone(facts: Facts, name: str, reason: str, state: str) -> None:
    checks = readiness(facts)
    assert [(check["name"], check["state"], check["reason"]) for check in checks if check["state"] != health.OK] == [
        (name, state, reason)
    ]
    assert tuple(check["name"] for check in checks) == CHECKS
    assert all(not check["reason"] for check in checks if check["state"] == health.OK)


@pytest.mark.parametrize("facts", [Facts(), Facts(plugins=(WELL,)), Facts(stall=(0.3, STALL_TOLD_SECONDS + 1))])
def test_all_is_well(facts: Facts) -> None:
    assert all(check["state"] == health.OK for check in readiness(facts))


def test_each_plugin_that_is_away_is_told_once() -> None:
    told = {check["name"]: check["reason"] for check in readiness(Facts(plugins=(LONG, IGNORED)))}
    assert told["fail_plugins"].startswith("policy Fail and unreachable: a for 30 s")
    assert told["plugins"] == "unreachable: b (user 7 listens on /run/b.sock)"


def test_each_check_has_a_case() -> None:
    assert {name for _, name, _ in FAILED + DEGRADED} == set(CHECKS)


@pytest.mark.parametrize(
    ("state", "reason", "line"),
    [
        ("ok", "", "[+]loop ok"),
        ("degraded", "slow", "[~]loop degraded: slow"),
        ("failed", "hung", "[-]loop failed: hung"),
    ],
)
def test_check_is_shown_as_a_line(state: str, reason: str, line: str) -> None:
    assert check_line({"name": "loop", "state": state, "reason": reason}) == line
