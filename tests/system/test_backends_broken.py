"""A runtime dies, is unavailable, stops, sends broken answers: a call fails once (fault matrix B1 to B5).

Without a runtime the proxy listens and logs it, and serves when one listens (relay-rules A12).
"""

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from runtimeproxy.wire.http2 import FrameBuffer
from tests.amounts import SHARE_VARIABLE, Amount
from tests.cri import peer
from tests.docker.client import chunked
from tests.fakes import cri_pb2
from tests.fakes.faults import FaultRelay
from tests.fakes.server import StreamServer
from tests.system import hostile
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Failed, Front
from tests.system.hostile import Process
from tests.system.proxy import ROOT, WAIT_SECONDS, ProxyProcess, answers, until
from tests.system.times import FEW_TIMES, in_time, judged, limit

pytestmark = pytest.mark.slow

KILLS = Amount(10, 1_000)
AWAY_SECONDS = (Amount(1, 1), Amount(1, 60), Amount(1, 600))
MUTATIONS = Amount(100, 10_000)
DEADLINE_SECONDS = 0.5
LOST_SECONDS = 0.100
BACK_SECONDS = 0.500
DIAL_SECONDS = 0.050
FOLLOWING = 1
"""Number of connections on which the proxy follows the runtime's state once a client has called."""
PROGRAMS = {"cri": "tests.fakes.runtime", "docker": "tests.fakes.dockerd"}


# ---- B1


@pytest.mark.parametrize("end", [FaultRelay.cut, FaultRelay.reset], ids=["end", "reset"])
async def test_calls_whose_runtime_dies_fail_at_once_and_are_never_sent_again(
    front: Front, tmp_path: Path, end: Callable[[FaultRelay], None]
) -> None:
    """A stream ends with them. The runtime is back at once, so that a second try would reach it."""
    took: list[float] = []
    requests: list[bytes] = []
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))

    def came(request: bytes) -> int:
        """Return how often a request has begun to arrive."""
        return sum(request.startswith(asked) for asked in runtime.asked("create"))

    async with runtime, proxy, FaultRelay(str(proxy.runtime), runtime.socket_path) as relay:
        for _ in range(KILLS.now):
            for subject_id in (*runtime.container_ids(), *runtime.pod_ids()):
                runtime.vanish(subject_id)
            async with front.caller(proxy.socket) as caller:
                runtime.upset("create", delay_seconds=0)
                stream = await caller.chat()
                requests.append(caller.create_request(await caller.run_pod()))
                runtime.upset("create", delay_seconds=60)
                calls: list[Awaitable[object]] = [caller.send("create", requests[-1]), stream.hear()]
                waiting = [asyncio.ensure_future(call) for call in calls]
                await until(lambda: came(requests[-1]) > 0, "it is at the runtime")
                begun = time.monotonic()
                end(relay)
                ends = await asyncio.gather(*waiting, return_exceptions=True)
                took.append(time.monotonic() - begun)
                assert [end.status for end in ends if isinstance(end, Failed)] == [front.lost] * 2, ends
        assert [came(request) for request in requests] == [1] * KILLS.now
    assert judged(took) < limit(took, LOST_SECONDS), took


# ---- B2, B3


async def test_proxy_listens_within_a_second_without_a_runtime(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
    took = [await _seconds_to_listen(proxy, number) for number in range(1, Amount(3, 100).now + 1)]
    assert judged(took) < limit(took, 1.0), took


async def _seconds_to_listen(proxy: ProxyProcess, number: int) -> float:
    """Start a proxy, for the first time or once more, and end it; return the seconds until somebody could connect."""
    begun = time.monotonic()
    proxy.launch()
    try:
        await until(lambda: proxy.ended or answers(proxy.socket), "somebody can connect")
        took = time.monotonic() - begun
        await asyncio.to_thread(proxy.wait_until_it_listens, number)
        await asyncio.to_thread(proxy.stop)
    finally:
        if not proxy.ended:
            proxy.kill()
    return took


async def test_first_answer_comes_within_100_ms_of_the_runtimes_start(front: Front, tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in count())

    async def first_answer() -> list[float]:
        async with front.process(next(folders)) as proxy:
            away = f"container runtime at {proxy.runtime} is not reachable"
            await until(lambda: away in proxy.output(), "it is logged before any client connects", proxy.output)
            dialling = asyncio.create_task(_dial_until_answered(front, proxy.socket))
            await asyncio.sleep(4 * DIAL_SECONDS)
            assert not dialling.done()
            async with front.runtime(str(proxy.runtime)):
                await until(lambda: answers(proxy.runtime), "the runtime listens")
                begun = time.monotonic()
                return [await asyncio.wait_for(dialling, 20) - begun]

    await in_time(0.100, Amount(1, 100), first_answer)


async def test_runtime_that_was_away_is_used_as_soon_as_it_is_back(front: Front, tmp_path: Path) -> None:
    """A client dials all the while: the proxy adds no wait of its own, however long the runtime was away."""
    proxy, runtime = front.process(tmp_path), front.runtime(str(tmp_path / "inner.sock"))
    took = []
    async with runtime, proxy:
        for away_seconds in sorted({amount.now for amount in AWAY_SECONDS}):
            async with FaultRelay(str(proxy.runtime), runtime.socket_path), front.caller(proxy.socket) as caller:
                await caller.run_pod()
            dialling = asyncio.create_task(_dial_until_answered(front, proxy.socket))
            await asyncio.sleep(away_seconds)
            assert not dialling.done()
            async with FaultRelay(str(proxy.runtime), runtime.socket_path):
                back = time.monotonic()
                took.append(await asyncio.wait_for(dialling, WAIT_SECONDS) - back)
    assert max(took) < BACK_SECONDS * (1 if SHARE_VARIABLE in os.environ else FEW_TIMES), took


async def _dial_until_answered(front: Front, socket: Path) -> float:
    while True:
        try:
            async with front.sent(socket) as answer:
                await answer
            return time.monotonic()
        except ConnectionError:
            await asyncio.sleep(DIAL_SECONDS)


# ---- B4


@asynccontextmanager
async def ended(process: subprocess.Popen[bytes]) -> AsyncIterator[subprocess.Popen[bytes]]:
    with process:
        try:
            yield process
        finally:
            process.kill()


async def test_call_to_a_stopped_runtime_ends_by_its_deadline_alone(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
    command = [sys.executable, "-m", PROGRAMS[front.name], f"--socket={proxy.runtime}"]
    async with proxy, ended(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)) as running:
        await until(lambda: answers(proxy.runtime), "the runtime listens")
        process = Process(proxy.pid)
        before = process.descriptors()
        async with front.caller(proxy.socket) as caller:
            pod_id = await caller.run_pod()
        async with front.caller(proxy.socket) as caller:
            running.send_signal(signal.SIGSTOP)
            for verb, request in (("list", caller.request("list")), ("create", caller.create_request(pod_id))):
                begun = time.monotonic()
                with pytest.raises(Failed):
                    await caller.send(verb, request, DEADLINE_SECONDS)
                assert time.monotonic() - begun > DEADLINE_SECONDS * 0.9
            waiting = [asyncio.ensure_future(call) for call in (caller.act("list"), caller.create(pod_id))]
            await asyncio.sleep(3 * DEADLINE_SECONDS)
            assert not any(call.done() for call in waiting)
            running.send_signal(signal.SIGCONT)
            await asyncio.gather(*waiting)
        await until(lambda: process.descriptors() <= before + FOLLOWING, "nothing is left of them")


# ---- B5: answers that are broken, the same way for the same number

MOST_CHANGES = 4
AT_ONCE_BYTES = 1 << 16
CONTAINER_ID = "c" * 64


@dataclass(frozen=True)
class Call:
    """A call as bytes: the request, the part that the runtime waits for, and good answers."""

    front: Front
    request: bytes
    whole: Callable[[bytes], bool]
    answers: tuple[bytes, ...]
    good: bytes
    """The content of a good answer as the client sees it."""

    def answer(self, number: int) -> bytes:
        return mutated(self.answers[number % len(self.answers)], random.Random(number))


def mutated(answer: bytes, chance: random.Random) -> bytes:
    data = bytearray(answer)
    for _ in range(chance.randint(1, MOST_CHANGES)):
        at = chance.randrange(len(data) + 1)
        end = min(at + chance.choice((1, 2, 9, 100)), len(data))
        piece = data[at:end]
        flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in piece)
        inserted = chance.choice((chance.randbytes(9), b"\r\n", b"\0" * 9, b"\xff" * 9)) + piece
        put = {"flip": flipped, "replace": chance.randbytes(len(piece)), "insert": inserted, "double": piece * 2}
        change = chance.choice(("flip", "remove", "move", "cut", *put))
        data[at : None if change == "cut" else end] = put.get(change, b"")
        data[:0] = piece if change == "move" else b""
    return bytes(data)


def _cri_whole(data: bytes) -> bool:
    return any(kind in (0, 1) and flags & 0x1 for kind, flags, _, _ in FrameBuffer().feed(data[len(peer.PREFACE) :]))


def _docker_whole(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return bool(found) and len(body) >= int(length[1] if length else 0)


def _http(status: str, body: bytes, *lines: str) -> bytes:
    head = [f"HTTP/1.1 {status}", "Content-Type: application/json", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def _docker_answers(status: str, body: bytes) -> tuple[bytes, ...]:
    return (
        _http(status, body, f"Content-Length: {len(body)}"),
        _http(status, chunked(body), "Transfer-Encoding: chunked"),
        _http(status, body, "Connection: close"),
        _http("101 UPGRADED", body, "Connection: Upgrade", "Upgrade: tcp"),
    )


def calls() -> dict[str, Call]:
    """Return one call that passes and one that is held, for each front."""
    cri, docker = CRI.caller("nowhere"), DOCKER.caller("nowhere")
    created = cri_pb2.CreateContainerResponse(container_id=CONTAINER_ID).SerializeToString()
    body = f'{{"Id":"{CONTAINER_ID}","Warnings":[]}}\n'.encode()

    def of_cri(fields: peer.Fields, request: bytes, message: bytes) -> Call:
        sent = hostile.GREETING + peer.Headers(1, fields).wire() + peer.Data(1, peer.grpc(request), end=True).wire()
        answer = peer.Settings().wire() + peer.Ack().wire() + hostile.answer(1, message)
        return Call(CRI, sent, _cri_whole, (answer,), peer.grpc(message))

    def of_docker(request: bytes, status: str, body: bytes) -> Call:
        return Call(DOCKER, request, _docker_whole, _docker_answers(status, body), body.strip())

    return {
        "cri": of_cri(peer.VERSION, b"", b"\x0a\x010"),
        "cri-held": of_cri(peer.CREATE, cri.create_request("pod"), created),
        "docker": of_docker(docker.request("ping"), "200 OK", b"OK"),
        "docker-held": of_docker(docker.create_request("pod"), "201 Created", body),
    }


class BrokenRuntime:
    """Answers each connection's first request, and closes; ``answer`` determines the answer."""

    def __init__(self, path: Path, call: Call) -> None:
        self.answer = call.answers[0]
        self._path = path
        self._whole = call.whole

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["BrokenRuntime"]:
        async with StreamServer(self._path, self._serve):
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b""
        with suppress(OSError):
            while not self._whole(data) and (more := await reader.read(AT_ONCE_BYTES)):
                data += more
            if self._whole(data):
                writer.write(self.answer)
                await writer.drain()
        writer.close()


async def ask(path: Path, request: bytes) -> bytes:
    """Send a request on a connection of its own; return all that comes until the end."""
    loop, got = asyncio.get_running_loop(), bytearray()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, str(path))
        with suppress(OSError):
            await loop.sock_sendall(sock, request)
            while data := await loop.sock_recv(sock, AT_ONCE_BYTES):
                got += data
    return bytes(got)


@pytest.mark.parametrize("name", ["cri", "cri-held", "docker", "docker-held"])
async def test_broken_answer_costs_its_own_call_only(name: str, tmp_path: Path) -> None:
    """The client gets those of the runtime's own bytes that came through, then the end; the next call is answered."""
    call = calls()[name]
    proxy = call.front.process(tmp_path)  # its end finds tracebacks and errors in the log
    async with BrokenRuntime(proxy.runtime, call).serving() as runtime, proxy:
        process = Process(proxy.pid)
        for number in range(MUTATIONS.now):
            runtime.answer = call.answer(number)
            came = await asyncio.wait_for(ask(proxy.socket, call.request), 20)
            if call.front is DOCKER:  # in CRI mode frames are decoded: tests/cri/conversations.py
                assert runtime.answer.startswith(came), (number, runtime.answer, came)
            if number % 10 == 0:
                runtime.answer = call.answers[0]
                assert call.good in await asyncio.wait_for(ask(proxy.socket, call.request), 20)
            if number == 10:
                before = process.descriptors()
        await until(lambda: process.descriptors() <= before + 2, "nothing is left of them")


# ---- the runtime of the other mode


@pytest.mark.parametrize(("other", "spoken"), [(DOCKER, "HTTP/1"), (CRI, "HTTP/2")], ids=["docker", "cri"])
async def test_runtime_of_the_other_mode_leads_to_the_flag(tmp_path: Path, other: Front, spoken: str) -> None:
    front = CRI if other is DOCKER else DOCKER
    line = f"the runtime broke the protocol: .*; it speaks {spoken}: is --backend-runtime-mode right\\?\n"
    async with (
        other.runtime(str(tmp_path / "runtime.sock")),
        front.process(tmp_path) as proxy,
        front.sent(proxy.socket),
    ):
        await until(lambda: bool(re.search(line, proxy.output())), "it is logged", proxy.output)
