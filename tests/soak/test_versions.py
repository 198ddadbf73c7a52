"""Upgrades and downgrades between this version and the previous one under load (fault matrix P10).

No call is lost, no connection refused, and each version uses the other's files. The earlier version is built from git's
history. The listener is held as by a socket unit. Before a downgrade only the flags that ``config check --for-version``
names are removed.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.settings import config
from runtimeproxy.settings.options import OPTIONS
from runtimeproxy.settings.version import VERSION
from tests.amounts import Amount
from tests.soak import MARKS
from tests.soak.conftest import Findings
from tests.system.fronts import CONTAINER, Front
from tests.system.keeping import on_tmpfs
from tests.system.load import Dialler, Load, store_equals
from tests.system.proxy import ROOT, WAIT_SECONDS, ProxyProcess
from tests.system.shaped import ShapedNode
from tests.system.supervising import handed_over
from tests.system.test_restart import CHANGES

pytestmark = [*MARKS, pytest.mark.history]

BEFORE = "0.1.0"
REVISION = "186ace7305dc3951521934048ec0ba0dc10cd314"
"""The last commit of that version."""
ROUNDS = Amount(1, 10)
PODS = 20
DISABLED = "disabled-by-the-soak"


class Version(NamedTuple):
    """The command and flags of a version."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the previous version, without its libraries, which this one has too; return the directory."""
    folder = tmp_path_factory.mktemp("before")
    source, library = folder / "source", folder / "library"
    source.mkdir()
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*git, "archive", f"--output={folder}/source.tar", REVISION], check=True)
    subprocess.run(["tar", "-xf", f"{folder}/source.tar", "-C", source], check=True)
    subprocess.run([*pip, "--target", library, source], check=True)
    assert f'VERSION = "{BEFORE}"' in (library / "runtimeproxy" / "version.py").read_text()
    return library


def older_than(newer: Version, library: Path) -> Version:
    """Return the command of the previous version, without flags that are unknown to it."""
    named = {option.flag: option.name for option in OPTIONS}
    flags = [word.partition("=") for word in newer.command if word.partition("=")[0] in named]
    unknown = config.unknown_to_version(BEFORE, {named[flag]: value for flag, _, value in flags}, {}).errors
    origins = {line.partition(" ")[0] for line in unknown}
    command = [word for word in newer.command if word.partition("=")[0] not in origins]
    return Version(BEFORE, command, {**newer.environment, "PYTHONPATH": str(library)})


async def test_version_changes_lose_no_call(front: Front, findings: Findings, library: Path, tmp_path: Path) -> None:
    rounds = ROUNDS.now
    with handed_over(tmp_path / "proxy.sock") as handed, on_tmpfs() as memory:
        shaped_node = ShapedNode(front, tmp_path, answers=CHANGES, program=True)
        proxy = shaped_node.proxy = front.process(tmp_path, originals_dir=str(memory), **handed)
        newer = Version(VERSION, proxy.command, proxy.environment)
        older = older_than(newer, library)
        become(proxy, older)
        async with shaped_node as node:
            containers = [await node.caller.create(await node.caller.run_pod()) for _ in range(PODS)]
            for container in containers:
                await node.caller.act("start", container)
            load, dialler = Load(front, proxy), Dialler(front, proxy.socket)
            own = {newer.name: 0, older.name: 0}
            answers, disabled = [], 0
            async with load.running(), asyncio.TaskGroup() as group:
                group.create_task(dialler.fetch())
                for number, version in enumerate([*rounds * [newer, older], newer]):
                    await load.wait_for_each_kind()
                    become(proxy, version)
                    started_at = time.monotonic()
                    await node.restart(kill=False)
                    answers.append(await dialler.answered() - started_at)
                    await node.wait_until_loaded()
                    own[version.name] += await own_values(node, containers, number)
                    if version is newer:
                        client = AdminClient(str(proxy.admin), WAIT_SECONDS)
                        disabled += DISABLED in (await asyncio.to_thread(client.call, "hooks"))["masked"]
                        params = {"name": DISABLED, "reason": "a soak", "unregistered": True}
                        await asyncio.to_thread(client.with_new_deadline().call, "disable", **params)
                await load.wait_for_each_kind()
                dialler.end = True
            await store_equals(node.runtime, proxy)
    findings.equal("calls that were lost", load.lost, [])
    findings.equal("connections that were refused", dialler.refused, 0)
    findings.equal("updates with the kubelet's own value, upgraded", own[newer.name], (rounds + 1) * PODS)
    findings.equal("updates with the kubelet's own value, downgraded", own[older.name], rounds * PODS)
    findings.equal("upgrades after which what had been disabled still was", disabled, rounds)
    findings.note("seconds from the stop to the next good answer, slowest", f"{max(answers):.2f}")


def become(proxy: ProxyProcess, version: Version) -> None:
    """Make the next start use a version."""
    proxy.command, proxy.environment = list(version.command), dict(version.environment)


async def own_values(node: ShapedNode, containers: Sequence[str], number: int) -> int:
    """Update each container; return the number of hook calls with the kubelet's value of the create."""
    node.notified()
    for container in containers:
        await node.caller.update(container, {"cpu_quota": 30_000 + number})
    sent = {m.container_meta.id: m for hook_point, m in node.notified() if hook_point == "PreUpdateContainerResources"}
    return sum(sent[c].container_resources.cpu_shares == CONTAINER.resources["cpu_shares"] for c in containers)
