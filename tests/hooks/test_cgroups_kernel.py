"""What hooks write is in force in the kernel's own cgroups, of the version that this machine has for the controller."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runtimeproxy_hooks.cgroups import ROOT, SETTINGS, Cgroups
from tests.engines import cgroups as in_force

pytestmark = pytest.mark.engine

PATH = f"/runtimeproxy-test-{os.getpid()}"


@pytest.fixture
def roots() -> Iterator[list[Path]]:
    """Make a cgroup in every hierarchy, with all controllers that it can have; give the roots of both versions."""
    mounted = [root for root in (ROOT, ROOT / "unified") if not Cgroups(root).absent]
    for root in mounted:
        for controller in {row.controller for row in SETTINGS.values()} if in_force.is_v2(root) else ():
            with suppress(OSError):  # version 1 has it
                (root / "cgroup.subtree_control").write_text(f"+{controller}")  # runc does so, too, and leaves it
        for top in in_force.directories("/", root):
            Path(f"{top}{PATH}").mkdir(exist_ok=True)
    yield mounted
    for root in mounted:
        in_force.remove(PATH, root)


QUOTAS = [("cpu_shares", 512), ("cpu_quota", 50000), ("cpu_quota", -1)]
LIMITS = [("memory_limit_in_bytes", 1 << 26), ("memory_limit_in_bytes", -1), ("cpuset_cpus", "0"), ("cpuset_cpus", "")]


@pytest.mark.parametrize(("setting", "value"), [*QUOTAS, *LIMITS])
def test_written_value_is_in_force(roots: list[Path], setting: str, value: int | str) -> None:
    root = next(root for root in roots if Cgroups(root).file(PATH, *SETTINGS[setting]).exists())
    Cgroups(root).write(PATH, setting, value)
    assert in_force.read(PATH, setting, root) == in_force.expected(setting, value, root)
