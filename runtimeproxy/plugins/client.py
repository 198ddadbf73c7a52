"""Call one hook server (hook-api, first table and "Failures"), and the breaker that suspends calls to a failing one.

Invariant: whatever the hook server does, a call ends in an answer or a HookError by its deadline. The hook server's own
text is only in the error for the caller (``peer_text``), never in a log line.
"""

import asyncio
from collections.abc import Hashable
from enum import Enum

from runtimeproxy.errors import HookError, Reason, WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import HookAnswer, HookRequest
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.relay.dial import UntrustedSocket, dial_trusted
from runtimeproxy.relay.rpc.connection import (
    MAX_REPLY_BYTES,
    CallFailed,
    Kind,
    Peer,
    Shortage,
    TooLong,
    UnaryClient,
    Unprocessed,
)
from runtimeproxy.wire import grpc

FAILURES_IN_A_ROW = 5
OPEN_SECONDS = 30.0
"""Seconds of the first opening; the n-th opening without a good answer in between lasts n times as long."""
LONGEST_SECONDS = 300.0

_COUNTED_FAILURES = frozenset({Reason.DEADLINE, Reason.BROKEN_ANSWER})
"""Failures that cost time or a connection, whatever the call was about."""
_CLOSING_RESULTS = frozenset({None, Reason.REFUSED, Reason.UNIMPLEMENTED, Reason.ERROR_STATUS, Reason.BAD_ANSWER})
"""Results that close the breaker: any answer, as the failure of one pod must not suspend the hooks of all others. Other
reasons change nothing: a missing socket costs no time, and the next call checks it again."""


class BreakerState(Enum):
    """CLOSED: all calls are admitted. OPEN: none. HALF_OPEN: one at a time, to probe the server."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Admits attempts and records their results; ``now`` is in seconds, always of the same clock."""

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.seconds = 0.0
        """Duration of the last opening in seconds."""
        self._until = 0.0
        self._failures = 0
        self._openings = 0
        self._is_probing = False
        self._server: Hashable = None
        self._generation = 0

    def admit(self, server: Hashable, now: float) -> int | None:
        """Return the number of an attempt; None if calls are suspended. ``server`` must stay equal as
        long as the same process has the socket: a new one is probed immediately. An attempt must be ended by
        ``end``."""
        if server != self._server:  # unless the breaker was closed, one call probes the new server first
            self._server, self._failures, self._openings = server, 0, 0
            self._set_state(BreakerState.CLOSED if self.state is BreakerState.CLOSED else BreakerState.HALF_OPEN)
        if self.state is BreakerState.OPEN and now >= self._until:
            self._set_state(BreakerState.HALF_OPEN)
        if self.state is BreakerState.OPEN or self._is_probing:
            return None
        self._is_probing = self.state is BreakerState.HALF_OPEN
        return self._generation

    def end(self, attempt: int, reason: Reason | None, now: float) -> None:
        """Record the result of an attempt: the reason of its failure, None for a good answer."""
        if attempt != self._generation:
            return
        self._is_probing = False
        if reason in _CLOSING_RESULTS:
            self._failures = self._openings = 0
            if self.state is not BreakerState.CLOSED:
                self._set_state(BreakerState.CLOSED)
        elif reason in _COUNTED_FAILURES:
            self._failures += 1
            if self.state is BreakerState.HALF_OPEN or self._failures == FAILURES_IN_A_ROW:
                self._openings += 1
                self.seconds = min(self._openings * OPEN_SECONDS, LONGEST_SECONDS)
                self._until = now + self.seconds
                self._set_state(BreakerState.OPEN)

    def remaining_seconds(self, now: float) -> float:
        return max(self._until - now, 0.0) if self.state is BreakerState.OPEN else 0.0

    def _set_state(self, state: BreakerState) -> None:
        self.state = state
        self._is_probing = False
        self._generation += 1


_REASONS = {
    Kind.UNREACHABLE: Reason.UNREACHABLE,
    Kind.DEADLINE: Reason.DEADLINE,
    Kind.BROKEN: Reason.BROKEN_ANSWER,
    Kind.STATUS: Reason.ERROR_STATUS,
}


class HookClient:
    """Calls the hook server of ``plugin`` at ``endpoint``; an answer longer than the limit is a failure."""

    def __init__(self, plugin: str, endpoint: str, max_answer_bytes: int = MAX_REPLY_BYTES) -> None:
        self.plugin = plugin
        self.abandoned = False
        self._unary = UnaryClient(endpoint, max_reply_bytes=max_answer_bytes, dialler=dial_trusted)
        self.peer = self._unary.peer
        self.absence = self._unary.absence
        self._in_flight = 0
        self._closed = False

    async def call(
        self, hook_point: HookPoint, request: HookRequest, timeout_seconds: float, peer: Peer | None = None
    ) -> HookAnswer:
        """Call the hook server; ``peer`` is the present peer at its socket. Raises HookError."""
        self._in_flight += 1
        loop = asyncio.get_running_loop()
        half_time = loop.time() + timeout_seconds / 2
        try:
            body = codec.encode(hook_point, request)
            reply = await self._unary.call(codec.PATHS[hook_point.name], body, timeout_seconds, peer)
            return codec.decode(hook_point, reply)
        except Shortage as shortage:
            reason, text = Reason.INTERNAL, shortage.text
        except TooLong as failure:
            reason, text = Reason.BAD_ANSWER, f"{failure.text}; let it answer less, or raise --hook-answer-limit"
        except Unprocessed:
            reason, text = Reason.DEADLINE, "the server refused every try until the time was over"
        except CallFailed as failure:
            if not self.abandoned:
                raise self._error(hook_point, failure, loop.time() < half_time) from None
            reason, text = Reason.DISABLED, "it was disabled meanwhile"
        except UntrustedSocket as error:
            reason, text = Reason.UNTRUSTED_SOCKET, str(error)
        except WireError as error:
            reason, text = Reason.BAD_ANSWER, str(error)
        except ValueError:
            reason, text = Reason.INTERNAL, "the request cannot be put into a hook message"
        finally:
            self._in_flight -= 1
            if self._closed and not self._in_flight:
                await self._unary.close()
        raise HookError(self.plugin, hook_point.name, reason, text)

    def _error(self, hook_point: HookPoint, failure: CallFailed, is_early: bool) -> HookError:
        """Return the HookError for a failed call. A DEADLINE_EXCEEDED that is early is treated like other error
        statuses: the server's own work was late, perhaps for one pod. The gRPC client limits the text's length."""
        if failure.kind is not Kind.STATUS and not (failure.kind is Kind.DEADLINE and is_early):
            return HookError(self.plugin, hook_point.name, _REASONS[failure.kind], failure.text)
        if failure.code == grpc.PERMISSION_DENIED:
            return HookError(self.plugin, hook_point.name, Reason.REFUSED, peer_text=failure.text)
        if failure.code == grpc.UNIMPLEMENTED:
            text = "the server does not serve this hook point; take it out of the registration, or update the server"
            return HookError(self.plugin, hook_point.name, Reason.UNIMPLEMENTED, text)
        status = f"gRPC status {failure.code}"
        return HookError(self.plugin, hook_point.name, Reason.ERROR_STATUS, status, peer_text=failure.text)

    def abandon(self) -> None:
        """End the calls in flight, and make no more: each fails with the reason DISABLED. Their callers continue inside
        this call; those that wait for a connection do within 0.2 s."""
        self.abandoned = True
        self._unary.abandon()

    async def close(self) -> None:
        """Close the connection as soon as no call is in flight; later calls are still made."""
        self._closed = True
        if not self._in_flight:
            await self._unary.close()
