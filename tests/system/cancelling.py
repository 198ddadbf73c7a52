"""Calls whose clients leave at a chosen moment, and the hook server and runtimes that hold a call until then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import grpc

from tests.docker.client import Client, request
from tests.fakes import cri_pb2
from tests.fakes.dockerd_received import Injection, Received
from tests.fakes.dockerd_routes import PING, Match
from tests.fakes.dockerd_service import Service
from tests.fakes.dockerd_wire import Exchange, Reader
from tests.fakes.hookanswers import HookCall
from tests.fakes.runtime import Context, _Handlers
from tests.fakes.server import grpc_server
from tests.system.cri_front import METHODS, CriRuntime
from tests.system.docker_front import DockerRuntime
from tests.system.h2client import PREFIX_BYTES, Answer, H2Client

MARK = "x-trial"
"""The metadata key that names a call to the fake CRI runtime; for the fake dockerd it is the query's ``trial``."""
REACH_SECONDS = 20.0


class Moment(Enum):
    """When the client leaves, and the place of the call at that time."""

    PART = "a part of the request is sent", ""
    SENT = "the request is sent", ""
    ASKED = "the hook server works", "hook"
    ALLOWED = "the hook server has just answered", "hook"
    WORKING = "the runtime works", "runtime"
    CARRIED_OUT = "the runtime has carried it out", "reply"
    ANSWERED = "the runtime has just answered", "reply"
    TOLD = "the Post hook runs", "post"

    @property
    def place(self) -> str:
        return self.value[1]


PLACES = ("hook", "runtime", "reply", "post")
"""The places of a call: at the runtime it stays before it is carried out, and before the answer."""
_JUST_LEFT = frozenset({Moment.ALLOWED, Moment.ANSWERED})
MOMENTS = {
    "create": tuple(moment for moment in Moment if moment is not Moment.TOLD),
    "start": tuple(Moment),
    "list": (Moment.PART, Moment.SENT, Moment.WORKING, Moment.CARRIED_OUT, Moment.ANSWERED),
}
"""The moments of the calls of each verb: a create has no Post hook, and a list is not held."""


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class Place:
    """Where a call stays until the gate is open; ``saw`` is when a cancel ended its stay."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    visits: int = 0
    staying: int = 0
    saw: float | None = None

    async def stay(self) -> None:
        self.visits += 1
        self.staying += 1
        self.came.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.saw = now()
            raise
        finally:
            self.staying -= 1


@dataclass(eq=False)
class Trial:
    """One call; ``name`` is its container's, ``container_id`` the id of a start's container.

    ``share`` is the sent part of a partial request. The client leaves ``pause_seconds`` after the moment begins.
    ``goes_on``: the CRI runtime carries it out although it saw the cancel. ``heard``: the runtime knows of it, CRI's
    from its headers, dockerd from its connection.
    """

    name: str
    verb: str
    moment: Moment
    share: float
    pause_seconds: float
    goes_on: bool
    container_id: str = ""
    places: dict[str, Place] = field(default_factory=lambda: {name: Place() for name in PLACES})
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    left_at: float | None = None
    runtime_saw: float | None = None
    runtime_done: bool = False

    def __post_init__(self) -> None:
        at = self.moment.place
        self.pass_by(*(PLACES[: PLACES.index(at)] if at else ()), *(() if at == "post" else ("post",)))

    def pass_by(self, *places: str) -> None:
        for name in places:
            self.places[name].gate.set()

    @property
    def over(self) -> bool:
        """Return whether no hook server or runtime works on the call."""
        return not any(place.staying for place in self.places.values()) and self.runtime_done == self.heard.is_set()

    async def reach(self) -> None:
        """Wait for the moment. Raises TimeoutError."""
        at = self.moment.place
        async with asyncio.timeout(REACH_SECONDS):
            if self.moment is not Moment.SENT:
                await self.heard.wait()
            if at:
                await self.places[at].came.wait()
        if self.moment in _JUST_LEFT:
            self.pass_by(at)
        if self.pause_seconds:
            await asyncio.sleep(self.pause_seconds)


Trials = dict[str, Trial]
"""The calls that hook server and runtime should hold, by name; all others are answered at once."""


async def at_hook_server(trials: Trials, call: HookCall) -> bytes:
    """Answer a container's hook call once its gate is open: nothing changes."""
    trial = trials.get(call.request.container_meta.name)
    if trial is not None:
        await trial.places["post" if call.point.name.startswith("Post") else "hook"].stay()
    return b""


# ---- the CRI front


class CriTrials(CriRuntime):
    """A fake CRI runtime that knows of a call from its headers on."""

    def __init__(self, socket_path: str, trials: Trials) -> None:
        super().__init__(socket_path, keep_received=0)
        self._trials = trials

    async def start(self) -> None:
        self._server = await grpc_server(self.socket_path, _CriHandlers(self, self._trials))

    def started(self, container_id: str) -> bool:
        return self.state.containers[container_id].state == cri_pb2.CONTAINER_RUNNING


class _CriHandlers(_Handlers):
    """Streams the requests of trials, so that their handler runs before they are complete."""

    def __init__(self, runtime: CriTrials, trials: Trials) -> None:
        super().__init__(runtime)
        self._state = runtime.state
        self._trials = trials

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        trial = self._trials.get(str(dict(details.invocation_metadata).get(MARK)))
        if trial is None:
            return super().service(details)
        return grpc.stream_unary_rpc_method_handler(self._kept(trial, details.method.rpartition("/")[2]))

    def _kept(self, trial: Trial, method: str) -> Any:
        async def kept(messages: AsyncIterator[bytes], context: Context) -> bytes:
            trial.heard.set()
            message = b""
            try:
                message = await _first(messages)
                await trial.places["runtime"].stay()
                reply = self._state.answer("v1", method, message)
                await trial.places["reply"].stay()
                return reply
            except asyncio.CancelledError:
                trial.runtime_saw = now()
                if trial.goes_on and trial.places["runtime"].saw is not None:
                    self._state.answer("v1", method, message)
                raise
            finally:
                trial.runtime_done = True

        return kept


async def _first(messages: AsyncIterator[bytes]) -> bytes:
    """Return the first message; if none comes the cancel ends this."""
    async for message in messages:
        return message
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


# ---- the Docker front


class DockerTrials(DockerRuntime):
    """A fake dockerd that knows of a call from its connection on, on which the client has made a request before."""

    def __init__(self, socket_path: str, trials: Trials) -> None:
        super().__init__(socket_path, keep_received=0)
        self._service = _DockerService(self)
        self._trials = trials
        self._of_connection: dict[int, Trial] = {}

    def trial(self, received: Received) -> Trial | None:
        return self._trials.get(received.head.query.get("trial", ""))

    def record(self, received: Received) -> None:
        super().record(received)
        trial = self.trial(received)
        if trial is not None and not trial.heard.is_set():
            trial.heard.set()
            self._of_connection[received.connection] = trial

    def connection_ended(self, connection: int) -> None:
        trial = self._of_connection.pop(connection, None)
        if trial is not None:
            trial.runtime_saw = now()
            trial.runtime_done = True
            trial.pass_by("runtime", "reply")

    def started(self, container_id: str) -> bool:
        return self.state.containers[container_id].running


class _DockerService(Service):
    """Holds the calls of trials at their places."""

    def __init__(self, dockerd: DockerTrials) -> None:
        super().__init__(dockerd)
        self._of = dockerd

    async def serve(self, reader: Reader, writer: asyncio.StreamWriter, connection: int) -> None:
        watch = asyncio.create_task(self._watch(reader, connection))
        try:
            await super().serve(reader, writer, connection)
        finally:
            watch.cancel()
            self._of.connection_ended(connection)

    async def _watch(self, reader: Reader, connection: int) -> None:
        await reader.ended.wait()
        self._of.connection_ended(connection)

    async def _answer(self, exchange: Exchange, found: Match, injection: Injection | None) -> None:
        trial = self._of.trial(exchange.received)
        if trial is not None and found.route is not PING:
            write = exchange.write

            async def late(*pieces: bytes) -> None:
                if not trial.places["reply"].visits:
                    await trial.places["reply"].stay()
                await write(*pieces)

            exchange.write = late  # type: ignore[method-assign]
            await trial.places["runtime"].stay()
        await super()._answer(exchange, found, injection)


# ---- clients that make one call and leave it


class CriLine:
    """A stream: on a connection that is closed with it, or on one that others share, where it is reset."""

    def __init__(self, client: H2Client, shared: bool) -> None:
        self._client = client
        self._shared = shared
        self._stream = 0
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def send(self, trial: Trial, message: bytes) -> None:
        path = f"/runtime.v1.RuntimeService/{METHODS[trial.verb]}"
        if not self._shared:
            await self._client.__aenter__()
        part = int(trial.share * (PREFIX_BYTES + len(message))) if trial.moment is Moment.PART else None
        self._stream, self._answer = await self._client.open(path, message, [(MARK, trial.name)], part)

    async def leave(self) -> None:
        if not self._shared:
            await self._client.__aexit__(None, None, None)
        elif not self._answer.done():
            self._client.reset(self._stream)
        self._answer.cancel()

    @property
    def answered(self) -> bool:
        return self._answer.done()


class DockerLine:
    """A connection on which a request was made before, as dockershim keeps its connections."""

    answered = False

    def __init__(self, socket: Path) -> None:
        self._socket = str(socket)
        self.client: Client

    async def send(self, trial: Trial, message: bytes) -> None:
        self.client = await Client.connect(self._socket)
        self.client.send(request("GET", f"/_ping?trial={trial.name}"))
        await self.client.answer("GET")
        head, _, rest = message.partition(b" HTTP/1.1")
        mark = b"%btrial=%b HTTP/1.1" % (b"&" if b"?" in head else b"?", trial.name.encode())
        data = head + mark + rest
        self.client.send(data[: 1 + int(trial.share * (len(data) - 1))] if trial.moment is Moment.PART else data)

    async def leave(self) -> None:
        self.client.abort()


Line = CriLine | DockerLine
