"""Hook servers that each break one rule of ``runtimeproxy hook verify``, and good ones.

Except for its fault, a broken server answers like the good ones.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import SubjectKind
from tests.fakes import hookanswers
from tests.fakes.hookanswers import Answer, HookCall, annotations, resources
from tests.fakes.hookserver import HookServer

Made = Callable[[str], AbstractAsyncContextManager[Any]]
"""Serves at a socket's path as long as its context is open."""

THINKS_SECONDS = 0.005
HOLDS_SECONDS = 0.03
"""Seconds that a call holds a lock. A cancel arrives in this time, even if a busy machine starts the call 50 ms
late."""
POLL_SECONDS = 0.001
LATE_SECONDS = 1.5
"""Seconds within which a good server answers on a busy machine."""
UNREADABLE = hookanswers.status(grpc.StatusCode.INVALID_ARGUMENT)
TOO_MUCH = hookanswers.status(grpc.StatusCode.RESOURCE_EXHAUSTED)
LOCKED = hookanswers.status(grpc.StatusCode.ABORTED, "locked")


@dataclass(frozen=True, slots=True)
class Tried:
    """A server, the rule that it breaks, and how long an answer may take."""

    made: Made
    breaks: str
    timeout_seconds: float = 10.0


def answering(answer: Answer) -> Made:
    return lambda path: HookServer(path, default=answer, keep_calls=False)


def breaking(rule: str, answer: Callable[[], Answer], timeout_seconds: float = 10.0) -> Tried:
    return Tried(lambda path: answering(answer())(path), rule, timeout_seconds)


async def crash(call: HookCall) -> bytes:
    """Raise, like a server that relies on missing fields."""
    raise KeyError("pod_meta")


def where(wrong: Callable[[HookCall], object], answer: Answer, otherwise: Answer | None = None) -> Answer:
    """Return an answer for some calls; all others get ``otherwise``, by default an echo."""

    async def choose(call: HookCall) -> bytes:
        return await (answer if wrong(call) else otherwise or hookanswers.echo())(call)

    return choose


def _lacks_parent(call: HookCall) -> bool:
    request = call.request
    return not (request.cgroup_parent if call.point.name == "PreRunPodSandbox" else request.pod_labels)


def mixes_pods_up() -> Answer:
    """Return an answer that keeps the request in a variable shared by all calls."""
    current: list[HookCall] = []

    async def answer(call: HookCall) -> bytes:
        current[:] = [call]
        await asyncio.sleep(THINKS_SECONDS)
        return await hookanswers.echo()(current[0] if current[0].point is call.point else call)

    return answer


def limits_concurrent_calls() -> Answer:
    serving = asyncio.Semaphore(4)

    async def answer(call: HookCall) -> bytes:
        if serving.locked():
            return await TOO_MUCH(call)
        async with serving:
            return await hookanswers.after(THINKS_SECONDS)(call)

    return answer


def always_the_same() -> Answer:
    """Return an answer that sets a quota of half a CPU of the kernel's default period, which the kubelet sends too."""
    numbers = api_pb2.LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000)
    of_pod = hookanswers.reply(api_pb2.PodSandboxHookResponse(resources=numbers))
    of_container = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_resources=numbers))
    return where(lambda call: call.point.subject is SubjectKind.POD, of_pod, of_container)


def counts() -> Answer:
    numbers = itertools.count(1)
    return hookanswers.echo(lambda response: annotations(response).update(answered=str(next(numbers))))


def breaks_when_cancelled() -> Answer:
    """Return an answer that keeps a lock when a call is cancelled."""
    locked = asyncio.Event()

    async def answer(call: HookCall) -> bytes:
        if locked.is_set():
            return await LOCKED(call)
        try:
            await asyncio.sleep(HOLDS_SECONDS)
        except asyncio.CancelledError:
            locked.set()
            raise
        return await hookanswers.empty()(call)

    return answer


@asynccontextmanager
async def dies_of_an_empty_request(path: str) -> AsyncIterator[None]:
    """End like a process that crashes at an empty request."""
    dying: set[asyncio.Task[None]] = set()
    server = HookServer(path, keep_calls=False)

    async def die(call: HookCall) -> bytes:
        dying.add(asyncio.create_task(server.stop()))
        return await hookanswers.hang()(call)

    server.default = where(lambda call: not call.message, die)
    async with server:
        yield
        await asyncio.gather(*dying)


@asynccontextmanager
async def dies_of_a_broken_connection(path: str) -> AsyncIterator[None]:
    """End when a connection ends in the middle of a frame."""
    # Not by asyncio's server: while it closes, it accepts connections that it neither serves nor closes.
    async with HookServer(path, default=hookanswers.echo(), faulty=True, keep_calls=False) as server:
        relay = server.faults
        assert relay is not None

        async def die() -> None:
            while not any(conn.task and conn.task.done() and is_cut(conn.to_backend) for conn in relay.connections):
                await asyncio.sleep(POLL_SECONDS)
            await relay.stop()

        dying = asyncio.create_task(die())
        yield
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)


def is_cut(sent: bytearray) -> bool:
    """Return whether a client's bytes end inside a frame (RFC 9113, sections 3.4 and 4.1)."""
    at = 24
    while at < len(sent):
        at += 9 + int.from_bytes(sent[at : at + 3], "big")
    return at > len(sent) > 0


class AnyMethod(HookServer):
    """Answers any method."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def answer(message: bytes, context: object) -> bytes:
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


BROKEN: dict[str, Tried] = {
    "serves no hook point": breaking("serves", hookanswers.BY_NAME["unimplemented"]),
    "fails": breaking("plain", hookanswers.BY_NAME["fail"]),
    "sets a bad value": breaking("values", lambda: hookanswers.koordlet(cpu_period=5)),
    "forgets a number of its echo": breaking(
        "echo", lambda: hookanswers.echo(lambda response: resources(response).ClearField("oom_score_adj"))
    ),
    "answers differently each time": breaking("same-answer", counts),
    "dies of an empty request": Tried(dies_of_an_empty_request, "empty"),
    "crashes without metadata": breaking(
        "missing", lambda: where(lambda call: call.message and not call.request.HasField("pod_meta"), crash)
    ),
    "refuses unknown fields": breaking(
        "unknown-fields",
        lambda: where(lambda call: bool(UnknownFieldSet(call.request)), UNREADABLE, hookanswers.empty()),
    ),
    "changes by unknown fields": breaking(
        "unknown-fields", lambda: where(lambda call: bool(UnknownFieldSet(call.request)), hookanswers.empty())
    ),
    "answers any method": Tried(AnyMethod, "unknown-method"),
    "refuses big requests": breaking("big", lambda: where(lambda call: len(call.message) > 512 * 1024, TOO_MUCH)),
    "mixes pods up": breaking("concurrency", mixes_pods_up),
    "takes few calls": breaking("concurrency", limits_concurrent_calls),
    "is locked by a cancelled call": breaking("cancelled", breaks_when_cancelled),
    "dies of a broken connection": Tried(dies_of_a_broken_connection, "broken-connection"),
    "hangs": breaking("deadline", hookanswers.hang, timeout_seconds=0.2),
    "hangs without a cgroup parent": breaking(
        "deadline", lambda: where(_lacks_parent, hookanswers.hang()), LATE_SECONDS
    ),
}
"""Broken servers by their fault."""

GOOD: dict[str, Made] = {
    "an empty answer": answering(hookanswers.empty()),
    "an echo": answering(hookanswers.echo()),
    "numbers of its own that may be those that are sent": answering(always_the_same()),
    "a refusal": answering(hookanswers.BY_NAME["refuse"]()),
}
"""Servers that pass every rule."""
