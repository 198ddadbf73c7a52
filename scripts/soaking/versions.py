"""This version and the one before change places under load, up and down again (fault matrix P10).

Is a call lost or a connection refused, and does each version use the files that the other one left?

The earlier version is built from git's history. The listener is held as by a socket unit. Before a downgrade ``config
check --for-version`` says which flags to take out; no others are.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.settings import config
from runtimeproxy.settings.options import OPTIONS
from runtimeproxy.settings.version import VERSION
from scripts.demonstration.processes import DemoError
from scripts.figures import Figure
from scripts.soaking.endurance import FRONTS
from tests.amounts import Amount
from tests.system.fronts import CONTAINER
from tests.system.keeping import on_tmpfs
from tests.system.load import Dialler, Load, store_equals
from tests.system.proxy import ROOT, WAIT_SECONDS, ProxyProcess
from tests.system.shaped import ShapedNode
from tests.system.supervising import handed_over
from tests.system.test_restart import CHANGES

BEFORE = "0.1.0"
REVISION = "186ace7305dc3951521934048ec0ba0dc10cd314"
"""The last commit of that version."""
ROUNDS = Amount(1, 10)
PODS = 20
DISABLED = "disabled-by-the-soak"


class Version(NamedTuple):
    """How a proxy of a version is started."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


def changed(mode: str, share: float) -> list[Figure]:
    """Run a share of the rounds. Raises DemoError, AssertionError, Failed."""
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as folder:
        library = _installed(Path(folder))
        return asyncio.run(_change(mode, ROUNDS.at(share), Path(folder), library))


def _installed(folder: Path) -> Path:
    """Install the version before, without its libraries, which this one has too; return the directory."""
    source, library = folder / "source", folder / "library"
    source.mkdir()
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(library),
        str(source),
    ]
    archive = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "archive", f"--output={folder}/source.tar", REVISION]
    environ = os.environ | {"PYTHONPATH": str(library)}
    told = [sys.executable, "-c", "from runtimeproxy.version import VERSION; print(VERSION)"]
    try:
        for command in (archive, ["tar", "-xf", f"{folder}/source.tar", "-C", str(source)], pip):
            subprocess.run(command, check=True, capture_output=True, text=True)
        found = subprocess.run(told, check=True, capture_output=True, text=True, env=environ, cwd=folder).stdout.strip()
    except subprocess.CalledProcessError as error:
        raise DemoError(f"{BEFORE} cannot be built from git's history: {error.stderr[-1000:]}") from None
    if found != BEFORE:
        raise DemoError(f"{REVISION} is version {found}")
    return library


def _older(newer: Version, library: Path) -> Version:
    """Return how the version before is started: without the flags that it does not know."""
    named = {option.flag: option.name for option in OPTIONS}
    flags = [word.partition("=") for word in newer.command if word.partition("=")[0] in named]
    unknown = config.unknown_to(BEFORE, {named[flag]: value for flag, _, value in flags}, {}).errors
    origins = {line.partition(" ")[0] for line in unknown}
    command = [word for word in newer.command if word.partition("=")[0] not in origins]
    return Version(BEFORE, command, {**newer.environment, "PYTHONPATH": str(library)})


async def _change(mode: str, rounds: int, folder: Path, library: Path) -> list[Figure]:
    front = FRONTS[mode]
    async with AsyncExitStack() as stack:
        handed = stack.enter_context(handed_over(folder / "proxy.sock"))
        memory = stack.enter_context(on_tmpfs())
        made = ShapedNode(front, folder, answers=CHANGES, program=True)
        proxy = made.proxy = front.process(folder, originals_dir=str(memory), **handed)
        newer = Version(VERSION, proxy.command, proxy.environment)
        older = _older(newer, library)
        _become(proxy, older)
        node = await stack.enter_async_context(made)
        containers = [await node.caller.create(await node.caller.run_pod()) for _ in range(PODS)]
        for container in containers:
            await node.caller.act("start", container)
        load, dialler = Load(front, proxy), Dialler(front, proxy.socket)
        own = {newer.name: 0, older.name: 0}
        answers, disabled = [], 0
        async with load.going_on(), asyncio.TaskGroup() as group:
            group.create_task(dialler.ask())
            for number, version in enumerate([*rounds * [newer, older], newer]):
                await load.each_kind_is_answered()
                _become(proxy, version)
                begun = time.monotonic()
                await node.restart(kill=False)
                answers.append(await dialler.answered() - begun)
                await node.known()
                own[version.name] += await _own_values(node, containers, number)
                if version is newer:
                    client = AdminClient(str(proxy.admin), WAIT_SECONDS)
                    disabled += DISABLED in (await asyncio.to_thread(client.call, "hooks"))["masked"]
                    params = {"name": DISABLED, "reason": "a soak", "unregistered": True}
                    await asyncio.to_thread(client.again().call, "disable", **params)
            await load.each_kind_is_answered()
            dialler.end = True
        await store_equals(node.runtime, proxy)
    return [
        Figure("changes of the version", f"{2 * rounds + 1}"),
        _exactly("calls that were lost", len(load.lost), 0),
        _exactly("connections that were refused", dialler.refused, 0),
        _exactly("updates that told the kubelet's own value, upgraded", own[newer.name], (rounds + 1) * PODS),
        _exactly("updates that told the kubelet's own value, downgraded", own[older.name], rounds * PODS),
        _exactly("upgrades behind which what had been disabled still was", disabled, rounds),
        Figure("seconds from the stop to the next good answer, slowest", f"{max(answers):.2f}"),
    ]


def _become(proxy: ProxyProcess, version: Version) -> None:
    """Have the next start be one of a version."""
    proxy.command, proxy.environment = list(version.command), dict(version.environment)


async def _own_values(node: ShapedNode, containers: Sequence[str], number: int) -> int:
    """Update each container; return how many hook calls had the value that the kubelet asked for at the create."""
    node.told()
    for container in containers:
        await node.caller.update(container, {"cpu_quota": 30_000 + number})
    told = {m.container_meta.id: m for point, m in node.told() if point == "PreUpdateContainerResources"}
    return sum(told[one].container_resources.cpu_shares == CONTAINER.resources["cpu_shares"] for one in containers)


def _exactly(what: str, found: int, expected: int) -> Figure:
    return Figure(what, f"{found}", f"{expected}", found == expected)
