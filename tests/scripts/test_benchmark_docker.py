"""The Docker half of the bench: its requests, its daemon's counts, and transfers that count only if they are whole."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.benchmark import docker
from scripts.benchmark.cases import DIRECT, DOCKER, EXPORT, IMPORT, PING, Case
from scripts.benchmark.dockerd import CountingDockerd
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.benchmark.transfers import BUFFER_BYTES, LAST_CHUNK, Export, Import, Transfer
from scripts.demonstration.processes import DemoError
from tests.fakes.dockerd import Injection
from tests.fakes.dockershim import DockerError, Dockershim

HEADERS = docker.HEADERS
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def served(tmp_path: Path) -> Served:
    served = Served(tmp_path, 2 * BUFFER_BYTES)
    served.client.mkdir()
    return served


@pytest.fixture
async def dockerd(served: Served) -> AsyncIterator[CountingDockerd]:
    async with CountingDockerd(str(served.socket(DIRECT))) as dockerd:
        dockerd.export_bytes = served.transfer_bytes
        yield dockerd


async def prepared(served: Served, case: Case) -> docker.Load:
    return await asyncio.to_thread(docker.prepare, served, case, DIRECT)


@contextmanager
def answering(path: Path, end: bytes, reply: bytes) -> Iterator[None]:
    """Read one request up to ``end``, answer it, close."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            tail = b""
            while not tail.endswith(end):
                tail = (tail + connection.recv(BUFFER_BYTES))[-len(end) :]
            connection.sendall(reply)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()


@pytest.mark.slow  # as all tests that need h2load
@pytest.mark.parametrize(
    "case",
    [case for case in MODES[DOCKER].cases if case.pause is None and not case.transfers],
    ids=lambda case: case.name,
)
async def test_the_calls_of_a_case_are_counted_by_its_route(
    served: Served, dockerd: CountingDockerd, case: Case
) -> None:
    load = await prepared(served, case)
    run = await asyncio.to_thread(load.run, 3)
    assert len(run.microseconds) == 3
    assert dockerd.answered == {case.route: 3}


@pytest.mark.slow
async def test_only_good_answers_to_the_benchs_client_are_counted(served: Served, dockerd: CountingDockerd) -> None:
    with Dockershim(str(served.socket(DIRECT))) as other:
        await asyncio.to_thread(other.info)
    failure = dockerd.inject(PING.route, Injection(status=500, message="it broke", times=1))
    load = await prepared(served, PING)
    with pytest.raises(DemoError, match="0 of them with status 200"):
        await asyncio.to_thread(load.run, 1)
    assert failure.times == 0
    assert dockerd.answered == {}


async def test_a_name_that_is_taken_is_still_refused(served: Served, dockerd: CountingDockerd) -> None:
    def create_twice() -> None:
        with Dockershim(str(served.socket(DIRECT))) as shim:
            pod = docker.run_pod(shim)
            shim.create_container(pod, "main")
            with pytest.raises(DockerError, match="already in use"):
                shim.create_container(pod, "main")

    await asyncio.to_thread(create_twice)


@pytest.mark.parametrize("case", [EXPORT, IMPORT], ids=lambda case: case.name)
async def test_a_transfer_is_whole(served: Served, dockerd: CountingDockerd, case: Case) -> None:
    load = await prepared(served, case)
    run = await asyncio.to_thread(load.run, 2)
    assert len(run.microseconds) == 2
    assert sum(run.microseconds) == pytest.approx(run.seconds * 1e6, abs=2)
    assert dockerd.answered == {case.route: 2}


@pytest.mark.parametrize(
    ("kind", "reply", "says"),
    [
        (Export, b"", "ended after 0 bytes"),
        (Export, OK + b"5\r\nabc", "ended after 53 bytes"),
        (Export, OK + LAST_CHUNK, "only 52 bytes came"),
        (Export, b"HTTP/1.1 404 Not Found\r\n\r\n", "the reply is b'HTTP/1.1 404 Not Found"),
        (Import, b"HTTP/1.1 400 Bad Request\r\n\r\n", "the reply is b'HTTP/1.1 400 Bad Request"),
        (Import, OK + b"5\r\nabcde\r\n" + LAST_CHUNK, "the daemon says"),
    ],
)
def test_a_transfer_that_is_not_whole_is_no_measurement(
    tmp_path: Path, kind: type[Transfer], reply: bytes, says: str
) -> None:
    path = tmp_path / "x.sock"
    end = LAST_CHUNK if kind is Import else b"\r\n\r\n"
    with answering(path, end, reply), pytest.raises(DemoError, match=says):
        kind(path, "/target", HEADERS, BUFFER_BYTES).run(1)


def test_a_transfer_without_a_daemon_says_so(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"export of 5 bytes: .*No such file"):
        Export(tmp_path / "x.sock", "/target", HEADERS, 5).run(1)
