"""The soak's execs: each one's time is taken, and one that fails is told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.benchmark import docker
from scripts.demonstration.processes import DemoError
from scripts.soaking.execs import Execs
from tests.fakes.dockerd import FakeDockerd, Injection
from tests.system.docker_streams import run_container

CALLS = 5


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    """A daemon on which the container c1 runs."""
    async with FakeDockerd(str(tmp_path / "dockerd.sock")) as dockerd:
        run_container(dockerd)
        yield dockerd


def execs(fake: FakeDockerd, container: str = "c1") -> Execs:
    return Execs(Path(fake.socket_path), f"{docker.VERSION}/containers/{container}/exec")


async def test_every_exec_is_made_and_timed(fake: FakeDockerd) -> None:
    run = await asyncio.to_thread(execs(fake).run, CALLS)
    assert len(run.microseconds) == CALLS
    assert 0 < max(run.microseconds) <= run.seconds * 1e6
    for route in ("POST /containers/{ref}/exec", "POST /exec/{ref}/start"):
        assert len(fake.requests(route)) == CALLS


async def test_a_create_that_fails_is_told(fake: FakeDockerd) -> None:
    with pytest.raises(DemoError, match="an exec failed: DemoError: the create was answered 404"):
        await asyncio.to_thread(execs(fake, "missing").run, CALLS)


@pytest.mark.parametrize(
    ("injection", "says"),
    [
        (Injection(status=500, message="no"), "b'HTTP/1.1 500 "),
        (Injection(cut_after_bytes=0), "b'' and 0 bytes"),
    ],
)
async def test_a_start_that_fails_is_told(fake: FakeDockerd, injection: Injection, says: str) -> None:
    fake.inject("POST /exec/{ref}/start", injection)
    with pytest.raises(DemoError, match=f"the start was answered {says}"):
        await asyncio.to_thread(execs(fake).run, CALLS)
