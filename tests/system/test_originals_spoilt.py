"""Whatever is wrong with the file of the kubelet's own values: no call fails, one line tells it, a good one is made."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.fakes import hookanswers
from tests.system.fronts import Front
from tests.system.keeping import on_tmpfs, rows
from tests.system.proxy import PROGRAM, ProxyProcess, until
from tests.system.test_originals import CHANGES, KILLS, QUOTA, SCALING, Node, scaled, with_quota
from tests.system.test_process import SUPERVISED
from tests.system.test_scarce import tiny_disk

pytestmark = pytest.mark.slow

KILLED_CALLS = Amount(5, 200)


@pytest.fixture
def memory() -> Iterator[Path]:
    with on_tmpfs() as folder:
        yield folder


async def live(node: Node) -> None:
    """Make every call of a life; none fails."""
    async with node.caller() as caller:
        pod_id = await caller.run_pod()
        container_id = await caller.create(pod_id, with_quota(QUOTA))
        await caller.act("start", container_id)
        assert await node.quotas(caller, container_id) == (QUOTA, scaled(QUOTA))
        for verb, subject in (("remove", container_id), ("stop_pod", pod_id), ("remove_pod", pod_id)):
            await caller.act(verb, subject)


def told(node: Node) -> list[str]:
    """Return what is logged of the file at level warning."""
    return [line for line in node.proxy.output().splitlines() if " WARNING runtimeproxy.originals" in line]


def as_a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_a_link(file: Path) -> None:
    file.rename(file.parent / "elsewhere")
    file.symlink_to(file.parent / "elsewhere")


SPOILS: dict[str, Callable[[Path], object]] = {
    "noise": lambda file: file.write_bytes(os.urandom(file.stat().st_size)),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 4096),
    "a directory": as_a_directory,
    "a link": as_a_link,
}
LEFT_ALONE = {"a directory", "a link"}


@pytest.mark.parametrize("how", SPOILS)
async def test_a_file_that_is_spoilt_fails_no_call(front: Front, tmp_path: Path, memory: Path, how: str) -> None:
    async with Node(front, tmp_path, memory, SCALING).running() as node:
        async with node.caller() as caller:
            container_id = await caller.create(await caller.run_pod(), with_quota(QUOTA))
            await node.kept(container_id)
        await asyncio.to_thread(node.proxy.kill)
        SPOILS[how](node.file)
        await asyncio.to_thread(node.proxy.start)
        async with node.caller() as caller:
            assert (await node.quotas(caller, container_id))[0] == scaled(QUOTA), (
                "the runtime's own word is all there is"
            )
        await live(node)
        (line,) = told(node)
        assert f"{node.file}: " in line
        assert "; see --originals-dir" in line
        os.kill(node.proxy.pid, signal.SIGUSR1)
        await asyncio.to_thread(node.proxy.wait_for_log, 'originals_failures{reason="')
        if how not in LEFT_ALONE:
            await until(lambda: node.file.exists() and container_id in rows(node.file), "a good one is made")


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill a disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    yield
    filler.unlink()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nobody write; nobody may be about to."""
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("trouble", "starts"),
    [(full, False), (full, True), (read_only, True)],
    ids=["full", "full at the start", "read-only at the start"],
)
async def test_a_disk_that_takes_nothing_fails_no_call(
    front: Front, tmp_path: Path, trouble: Callable[[Path], AbstractContextManager[None]], starts: bool
) -> None:
    """As soon as it takes something, what is to be kept is kept."""
    with tiny_disk(tmp_path / "disk", "size=64k") as disk:
        async with Node(front, tmp_path, disk, SCALING).running() as node:
            async with node.caller() as caller:
                pod_id = await caller.run_pod()
                first = await caller.create(pod_id, with_quota(QUOTA))
                await node.kept(first)
            if starts:
                await asyncio.to_thread(node.proxy.kill)
            with trouble(disk):
                if starts:
                    await asyncio.to_thread(node.proxy.start)
                async with node.caller() as caller:
                    others = [await caller.create(pod_id, with_quota(QUOTA)) for _ in range(50)]
                await live(node)
                await until(lambda: bool(told(node)), "it is told")
            await node.kept(first, *others)
            await until(lambda: f"{node.file} is written again" in node.proxy.output(), "that is told")
            assert len(told(node)) == 1


@pytest.fixture
def two(front: Front, tmp_path: Path, memory: Path) -> Iterator[tuple[Node, ProxyProcess]]:
    """A node, and its next proxy: their socket is a socket unit's."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "proxy.sock"))
        listener.listen(64)
        os.set_inheritable(listener.fileno(), True)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        node = Node(front, tmp_path, memory, SCALING)
        node.proxy, new = (
            front.process(tmp_path, program=program, pass_fds=[listener.fileno()], originals_dir=str(memory))
            for _ in range(2)
        )
        new.log = tmp_path / "new.log"
        yield node, new


async def test_two_proxies_at_once_lose_no_call_and_nothing_that_is_kept(two: tuple[Node, ProxyProcess]) -> None:
    """The next one serves while the one before finishes a call."""
    node, new = two
    gate = asyncio.Event()
    async with node.runtime, node.hooks:
        async with node.proxy, node.caller() as caller:
            pod_id = await caller.run_pod()
            before = await caller.create(pod_id, with_quota(QUOTA))
            await node.kept(before)
            node.hooks.on("PreCreateContainer", hookanswers.behind(gate, SCALING["PreCreateContainer"]))
            held = asyncio.create_task(caller.create(pod_id, with_quota(QUOTA)))
            await until(lambda: len(node.hooks.calls_of("PreCreateContainer")) == 2, "it is held")
            os.kill(node.proxy.pid, signal.SIGTERM)
            await until(lambda: "stopping" in node.proxy.output(), "it drains")
            async with new:
                node.hooks.on("PreCreateContainer", SCALING["PreCreateContainer"])
                async with node.caller() as other:
                    beside = await other.create(pod_id, with_quota(QUOTA))
                    assert await node.quotas(other, before) == (QUOTA, scaled(QUOTA))
                gate.set()
                made = [before, beside, await held]
                await node.kept(*made)
            await until(lambda: node.proxy.ended, "it has drained")  # one more signal would end it at once
        async with new, node.caller() as caller:
            for one in made:
                assert await node.quotas(caller, one) == (QUOTA, scaled(QUOTA))
    for log in (node.proxy.output(), new.output()):
        assert " WARNING runtimeproxy.originals" not in log


async def test_kills_among_calls_leave_a_file_that_is_good(front: Front, tmp_path: Path, memory: Path) -> None:
    """Each kill comes in the middle of changes; what is kept in the end is what there is."""
    async with Node(front, tmp_path, memory, CHANGES | SCALING).running() as node:
        for number in range(KILLED_CALLS.now):
            async with node.caller() as caller:
                pod_id = await caller.run_pod()
                for _ in range(number % KILLS):
                    await caller.create(pod_id, with_quota(QUOTA))
                await asyncio.sleep(0.003 * (number % 7))
            await asyncio.to_thread(node.proxy.kill)
            node.hooks.calls.clear()
            await asyncio.to_thread(node.proxy.start)
        await live(node)
        assert told(node) == []
        for one in (*node.runtime.container_ids(), *node.runtime.pod_ids()):
            node.runtime.vanish(one)
        await node.restart(known=False)
        await node.kept()
