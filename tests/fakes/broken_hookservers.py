"""Hook servers that each break one rule of ``runtimeproxy hook verify``, and good ones that break none.

Apart from its mistake a broken server answers as the good ones do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.fakes import hookanswers
from tests.fakes.faults import Connection, FaultRelay
from tests.fakes.hookanswers import Answer, HookCall, annotations, resources
from tests.fakes.hookserver import HookServer
from tests.fakes.server import grpc_server

Made = Callable[[str], AbstractAsyncContextManager[Any]]
"""Serves at a socket's path as long as its context is open."""

THINKS_SECONDS = 0.005
HOLDS_SECONDS = 0.03
"""Seconds that a call holds a lock: a cancel comes within it, whenever in 50 ms a busy machine begins the call."""
LOOK_SECONDS = 0.001
LATE_SECONDS = 1.5
"""A server that answers in time does so within so many seconds, on a busy machine."""
FEW_CALLS = 4
UNREADABLE = hookanswers.status(grpc.StatusCode.INVALID_ARGUMENT)
TOO_MUCH = hookanswers.status(grpc.StatusCode.RESOURCE_EXHAUSTED)
LOCKED = hookanswers.status(grpc.StatusCode.ABORTED, "locked")


@dataclass(frozen=True, slots=True)
class Tried:
    """A server, the rules that it breaks, and how long an answer may take."""

    made: Made
    breaks: frozenset[str]
    timeout_seconds: float = 10.0


def answering(answer: Answer) -> Made:
    return lambda path: HookServer(path, default=answer, keep_calls=False)


def breaking(rule: str, answer: Callable[[], Answer], timeout_seconds: float = 10.0) -> Tried:
    return Tried(lambda path: answering(answer())(path), frozenset({rule}), timeout_seconds)


def late(rule: str, answer: Callable[[], Answer]) -> Tried:
    return breaking(rule, answer, LATE_SECONDS)


async def crash(call: HookCall) -> bytes:
    """Raise, as a server does that relies on missing fields."""
    raise KeyError("pod_meta")


def where(wrong: Callable[[HookCall], object], answer: Answer, otherwise: Answer | None = None) -> Answer:
    """Return an answer that is wrong for some calls; the others get ``otherwise``, by default an echo."""

    async def choose(call: HookCall) -> bytes:
        return await (answer if wrong(call) else otherwise or hookanswers.echo())(call)

    return choose


def _lacks_pod(call: HookCall) -> bool:
    return bool(call.message) and not call.request.HasField("pod_meta")


def _lacks_parent(call: HookCall) -> bool:
    request = call.request
    return not (request.cgroup_parent if call.point.name == "PreRunPodSandbox" else request.pod_labels)


def _is_big(call: HookCall) -> bool:
    return len(call.message) > 512 * 1024


def _unknown(call: HookCall) -> int:
    return len(UnknownFieldSet(call.request))


def serves_few_at_once(beyond: Answer) -> Answer:
    """Return an answer that differs for calls that come while some others are being served."""
    serving = asyncio.Semaphore(FEW_CALLS)

    async def answer(call: HookCall) -> bytes:
        if serving.locked():
            return await beyond(call)
        async with serving:
            return await hookanswers.after(THINKS_SECONDS)(call)

    return answer


def mixes_pods_up() -> Answer:
    """Return an answer that keeps the request in a variable shared by all calls."""
    current: list[HookCall] = []

    async def answer(call: HookCall) -> bytes:
        current[:] = [call]
        await asyncio.sleep(THINKS_SECONDS)
        latest = current[0] if current[0].point is call.point else call
        return await hookanswers.echo()(latest)

    return answer


def forgets_a_number() -> Answer:
    """Return an answer that copies the resources field by field, without the newest field."""
    return hookanswers.echo(lambda response: resources(response).ClearField("oom_score_adj"))


def always_the_same() -> Answer:
    """Return an answer that sets a quota of half a CPU by the kernel's default period, which the kubelet sends, too."""

    async def answer(call: HookCall) -> bytes:
        response = hookanswers.RESPONSES[call.point.subject]()
        resources(response).cpu_period, resources(response).cpu_quota = 100_000, 50_000
        return response.SerializeToString()

    return answer


def forgets_entries() -> Answer:
    """Return an answer that repeats only one of the annotations sent, which is as good as none."""

    def forget(response: Any) -> None:
        for key in sorted(annotations(response))[1:]:
            del annotations(response)[key]

    return hookanswers.echo(forget)


def counts() -> Answer:
    answered: list[None] = []

    def count(response: Any) -> None:
        answered.append(None)
        annotations(response)["answered"] = str(len(answered))

    return hookanswers.echo(count)


def answers_unknown_fields() -> Answer:
    """Return an answer that changes if the request has an unknown field."""

    async def answer(call: HookCall) -> bytes:
        update = {"unknown": str(_unknown(call))}
        return await hookanswers.echo(lambda response: annotations(response).update(update))(call)

    return answer


def breaks_when_cancelled(then: Answer) -> Answer:
    """Return an answer that keeps a lock when a call is cancelled, and becomes ``then`` from that time on."""
    locked = asyncio.Event()

    async def answer(call: HookCall) -> bytes:
        if locked.is_set():
            return await then(call)
        try:
            await asyncio.sleep(HOLDS_SECONDS)
        except asyncio.CancelledError:
            locked.set()
            raise
        return await hookanswers.empty()(call)

    return answer


@asynccontextmanager
async def dies_of_an_empty_request(path: str) -> AsyncIterator[None]:
    """End as a process does that crashes at an empty request."""
    dying: set[asyncio.Task[None]] = set()
    server = HookServer(path, keep_calls=False)

    async def answer(call: HookCall) -> bytes:
        if not call.message:
            dying.add(asyncio.create_task(server.stop()))
            return await hookanswers.hang()(call)
        return await hookanswers.echo()(call)

    server.default = answer
    async with server:
        yield
        await asyncio.gather(*dying)


@asynccontextmanager
async def dies_of_a_broken_connection(path: str) -> AsyncIterator[None]:
    """End when a connection ends in the middle of a frame."""
    # Not by asyncio's own server: what that accepts at the moment of its end it neither serves nor closes.
    async with HookServer(path, default=hookanswers.echo(), faulty=True, keep_calls=False) as server:
        assert server.faults is not None
        dying = asyncio.create_task(_die_of_a_broken_connection(server.faults))
        yield
        dying.cancel()
        with suppress(asyncio.CancelledError):
            await dying


async def _die_of_a_broken_connection(relay: FaultRelay) -> None:
    while not any(_broken(connection) for connection in relay.connections):
        await asyncio.sleep(LOOK_SECONDS)
    await relay.stop()


def _broken(connection: Connection) -> bool:
    ended = connection.task is not None and connection.task.done()
    return ended and ends_inside_a_frame(connection.to_backend)


def ends_inside_a_frame(sent: bytearray) -> bool:
    """Return whether a client's bytes end inside a frame (RFC 9113, sections 3.4 and 4.1)."""
    at = 24
    while at < len(sent):
        at += 9 + int.from_bytes(sent[at : at + 3], "big")
    return at > len(sent) > 0


class _AnyMethod(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        async def answer(message: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def answers_any_method(path: str) -> AsyncIterator[None]:
    server = await grpc_server(path, _AnyMethod())
    try:
        yield
    finally:
        await server.stop(None)


BROKEN: dict[str, Tried] = {
    "serves no hook point": breaking("serves", hookanswers.BY_NAME["unimplemented"]),
    "fails": breaking("plain", hookanswers.BY_NAME["fail"]),
    "sets a bad value": breaking("values", lambda: hookanswers.koordlet(cpu_period=5)),
    "forgets a number of its echo": breaking("echo", forgets_a_number),
    "answers differently each time": breaking("same-answer", counts),
    "crashes on an empty request": breaking("empty", lambda: where(lambda call: not call.message, crash)),
    "dies of an empty request": Tried(dies_of_an_empty_request, frozenset({"empty"})),
    "crashes without metadata": breaking("missing", lambda: where(_lacks_pod, crash)),
    "refuses unknown fields": breaking("unknown-fields", lambda: where(_unknown, UNREADABLE, hookanswers.empty())),
    "answers unknown fields": breaking("unknown-fields", answers_unknown_fields),
    "answers any method": Tried(answers_any_method, frozenset({"unknown-method"})),
    "refuses big requests": breaking("big", lambda: where(_is_big, TOO_MUCH, hookanswers.empty())),
    "mixes pods up": breaking("concurrency", mixes_pods_up),
    "takes few calls at once": breaking("concurrency", lambda: serves_few_at_once(TOO_MUCH)),
    "is locked by a cancelled call": breaking("cancelled", lambda: breaks_when_cancelled(LOCKED)),
    "dies of a broken connection": Tried(dies_of_a_broken_connection, frozenset({"broken-connection"})),
    "hangs": breaking("deadline", hookanswers.hang, timeout_seconds=0.2),
    "hangs without a cgroup parent": late("deadline", lambda: where(_lacks_parent, hookanswers.hang())),
}
"""Servers by what is wrong with them."""

GOOD: dict[str, Made] = {
    "an empty answer": answering(hookanswers.empty()),
    "an echo": answering(hookanswers.echo()),
    "an echo of some entries": answering(forgets_entries()),
    "numbers of its own that may be those that are sent": answering(always_the_same()),
    "koordlet": answering(hookanswers.koordlet(cpu_quota=-1, cpuset_cpus="")),
    "a refusal": answering(hookanswers.BY_NAME["refuse"]()),
    "a slow one": answering(hookanswers.after(0.002, hookanswers.echo())),
}
"""Servers that keep every rule."""
