"""Upgrades and downgrades between this version and the previous one under load (fault matrix P10).

No call is lost, no connection refused, and each version uses the other's files. The earlier version is built from git's
history. The listener is held as by a socket unit. Before a downgrade only the flags that ``config check --for-version``
names are removed.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.settings import config
from runtimeproxy.settings.options import OPTIONS
from runtimeproxy.settings.version import VERSION
from tests.amounts import Amount
from tests.soak.conftest import MARKS, Findings
from tests.system.fronts import CONTAINER, Front
from tests.system.nodes import Dialler, Load, ShapedNode, store_equals
from tests.system.proxy import ROOT, WAIT_SECONDS, handed_over, on_tmpfs
from tests.system.test_restarts import CHANGES

pytestmark = [*MARKS, pytest.mark.history]

BEFORE = "0.1.0"
REVISION = "186ace7305dc3951521934048ec0ba0dc10cd314"
"""The last commit of that version."""
ROUNDS = Amount(1, 10)
PODS = 20
DISABLED, UPDATE = "disabled-by-the-soak", "PreUpdateContainerResources"


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


def known_before(command: Sequence[str]) -> list[str]:
    """Return a command without flags that are unknown to the previous version."""
    named = {option.flag: option.name for option in OPTIONS}
    values = {named[flag]: value for flag, _, value in (word.partition("=") for word in command) if flag in named}
    unknown = {line.partition(" ")[0] for line in config.unknown_to_version(BEFORE, values, {}).errors}
    return [word for word in command if word.partition("=")[0] not in unknown]


async def test_version_changes_lose_no_call(front: Front, findings: Findings, library: Path, tmp_path: Path) -> None:
    rounds = ROUNDS.now
    with handed_over(tmp_path / "proxy.sock") as handed, on_tmpfs() as memory:
        shaped_node = ShapedNode(front, tmp_path, answers=CHANGES, program=True)
        proxy = shaped_node.proxy = front.process(tmp_path, originals_dir=str(memory), **handed)
        commands = {
            VERSION: (list(proxy.command), dict(proxy.environment)),
            BEFORE: (known_before(proxy.command), {**proxy.environment, "PYTHONPATH": str(library)}),
        }
        proxy.command, proxy.environment = commands[BEFORE]
        async with shaped_node as node:
            containers = [await node.caller.create(await node.caller.run_pod()) for _ in range(PODS)]
            for container in containers:
                await node.caller.act("start", container)
            load, dialler = Load(front, proxy), Dialler(front, proxy.socket)
            answers, own, disabled = [], {VERSION: 0, BEFORE: 0}, 0
            async with load.running(), asyncio.TaskGroup() as group:
                group.create_task(dialler.fetch())
                for number, version in enumerate([*rounds * [VERSION, BEFORE], VERSION]):
                    await load.wait_for_each_kind()
                    proxy.command, proxy.environment = commands[version]
                    started_at = time.monotonic()
                    await node.restart(kill=False)
                    answers.append(await dialler.answered() - started_at)
                    await node.wait_until_loaded()
                    node.notified()
                    for container in containers:
                        await node.caller.update(container, {"cpu_quota": 30_000 + number})
                    sent = {m.container_meta.id: m for point, m in node.notified() if point == UPDATE}
                    shares = [sent[container].container_resources.cpu_shares for container in containers]
                    own[version] += shares.count(CONTAINER.resources["cpu_shares"])
                    if version == VERSION:
                        client = AdminClient(str(proxy.admin), WAIT_SECONDS)
                        disabled += DISABLED in (await asyncio.to_thread(client.call, "hooks"))["masked"]
                        params = {"name": DISABLED, "reason": "a soak", "unregistered": True}
                        await asyncio.to_thread(client.with_new_deadline().call, "disable", **params)
                await load.wait_for_each_kind()
                dialler.end = True
            await store_equals(node.runtime, proxy)
    findings.equal("calls that were lost", load.lost, [])
    findings.equal("connections that were refused", dialler.refused, 0)
    findings.equal("updates with the kubelet's own value, upgraded", own[VERSION], (rounds + 1) * PODS)
    findings.equal("updates with the kubelet's own value, downgraded", own[BEFORE], rounds * PODS)
    findings.equal("upgrades after which what had been disabled still was", disabled, rounds)
    findings.note("seconds from the stop to the next good answer, slowest", f"{max(answers):.2f}")
