"""The hook server under test: its hook points, and the outcomes of calls.

Invariant: a call ends in an outcome or in Late by its deadline; outcomes can be compared, whatever texts they contain.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.fields import HookAnswer, HookRequest
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint, Stage
from runtimeproxy.relay.dial import dial
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, UnaryClient
from runtimeproxy.wire import grpc
from runtimeproxy_hooks.tools import client as hook_client
from runtimeproxy_hooks.tools import request

FAILED_PRECONDITION = 9
NO_STATUS = -1
"""Stands for a status if there is none: the server is away, or broke the protocol."""


@dataclass(frozen=True, slots=True)
class Status:
    """A failure in place of an answer; ``words`` describe it and are ignored when outcomes are compared."""

    code: int
    words: str = field(compare=False)


Outcome = HookAnswer | Status

PLAIN = frozenset({grpc.OK, grpc.PERMISSION_DENIED})
"""The good outcomes of a request that a kubelet could have caused: an answer, or a refusal by policy."""
ODD = PLAIN | {grpc.INVALID_ARGUMENT, FAILED_PRECONDITION, grpc.UNIMPLEMENTED}
"""The good outcomes of a request that lacks what every pod has: also a status that says so. UNKNOWN and INTERNAL, the
statuses of a handler that crashed, are not among them, nor is a broken connection."""
NO_SUCH_METHOD = frozenset({grpc.UNIMPLEMENTED})
"""The good outcome of a call of a method that does not exist."""


class Broken(Exception):
    """A rule is broken; the text says how."""


class Skipped(Exception):
    """A rule cannot be checked; the text says why."""


class Late(Exception):
    """A call had no answer in time; the text names the hook point."""


def code(outcome: Outcome) -> int:
    """Return the gRPC status code of an outcome, 0 (OK) for an answer."""
    return grpc.OK if isinstance(outcome, HookAnswer) else outcome.code


def expect(outcome: Outcome, good: frozenset[int], after: str = "") -> None:
    """Raise Broken unless an outcome is an answer or a good code; ``after`` says what came before the call."""
    if isinstance(outcome, Status) and outcome.code not in good:
        raise Broken(f"{after}: {outcome.words}" if after else outcome.words)


class TriedServer:
    """A hook server under test; ``probe`` must be called before the other methods and ``plain`` are used."""

    def __init__(
        self,
        endpoint: str,
        given: HookRequest,
        points: Sequence[HookPoint] = (),
        timeout_seconds: float = hook_client.DEFAULT_TIMEOUT_SECONDS,
        restart_command: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.given = given
        self.named = tuple(points)
        """The hook points that the server must serve; the others are tried, too, if it serves none of these."""
        self.timeout_seconds = timeout_seconds
        self.restart_command = restart_command
        self.plain: dict[HookPoint, Outcome] = {}
        """The outcome of the plain request by hook point; hook points without an answer in time are missing."""
        self.late: list[str] = []
        """The calls that had no answer in time."""
        self._bodies = {point: request.encoded(point, given) for point in self.named or HOOK_POINTS}
        self._others: dict[HookPoint, bytes] = {}
        for point in HOOK_POINTS:
            if point not in self._bodies:
                with suppress(ConfigError):  # the plain request may lack what this point needs
                    self._others[point] = request.encoded(point, given)

    async def probe(self) -> None:
        """Send the plain request to every hook point. Raises HookCallFailed if nothing listens at the socket."""
        try:
            (await dial(self.endpoint, self.timeout_seconds)).close()
        except OSError as error:
            failure = CallFailed(grpc.UNAVAILABLE, error.strerror or "it takes no connection", Kind.UNREACHABLE)
            raise hook_client.HookCallFailed(self.endpoint, "verify", failure) from None
        await self._ask_plain(self._bodies)
        if not self.served:
            self._bodies |= self._others
            await self._ask_plain(self._others)

    async def _ask_plain(self, points: Iterable[HookPoint]) -> None:
        for point in points:
            try:
                async with self.connection() as client:
                    self.plain[point] = await self.ask(client, point)
            except Late:
                self.late.append(f"{point.name} (a plain request)")

    @property
    def served(self) -> tuple[HookPoint, ...]:
        """Return the hook points that the server serves, whether it answers there well or not."""
        return tuple(p for p in self._bodies if p not in self.plain or code(self.plain[p]) != grpc.UNIMPLEMENTED)

    @property
    def sound(self) -> tuple[HookPoint, ...]:
        """Return the hook points where a plain request is answered or refused: the other rules are checked there."""
        return tuple(point for point, outcome in self.plain.items() if code(outcome) in PLAIN)

    def connection(self) -> AbstractAsyncContextManager[UnaryClient]:
        """Return a context manager with a client on a connection of its own."""
        return hook_client.connection(self.endpoint)

    def body(self, point: HookPoint) -> bytes:
        """Return the encoded plain request."""
        return self._bodies[point]

    def told(self, point: HookPoint) -> HookRequest:
        """Return the plain request as the hook server reads it."""
        return request.at_point(point, self.given)

    async def ask(self, client: UnaryClient, point: HookPoint, body: bytes | None = None) -> Outcome:
        """Call a hook point, by default with the plain request. Raises Late. An answer at a Post point counts as an
        empty one: the proxy ignores its content."""
        try:
            message = self._bodies[point] if body is None else body
            answer = await hook_client.ask(client, point, message, self.timeout_seconds)
        except CallFailed as failure:
            return self.outcome(failure, point.name)
        return answer if point.stage is Stage.PRE else HookAnswer()

    def outcome(self, failure: CallFailed, name: str) -> Status:
        """Return the outcome of a failed call. Raises Late if it ended at its deadline."""
        if failure.kind is Kind.DEADLINE:
            raise Late(name)
        return Status(failure.code if failure.kind is Kind.STATUS else NO_STATUS, hook_client.words(failure))
