"""The client of one hook server (hook-api, first table and "Failures").

Invariant: whatever the hook server does, a call ends in an answer or a HookError by its deadline. The hook server's own
text is only in the error for the caller (``said``), never in a log line.
"""

import asyncio

from runtimeproxy.errors import HookError, Reason, WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.model.values import HookAnswer, HookRequest
from runtimeproxy.relay.dial import UntrustedSocket, dial_trusted
from runtimeproxy.rpc.connection import (
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

_REASONS = {
    Kind.UNREACHABLE: Reason.UNREACHABLE,
    Kind.DEADLINE: Reason.DEADLINE,
    Kind.BROKEN: Reason.BROKEN_ANSWER,
    Kind.STATUS: Reason.ERROR_STATUS,
}


class HookClient:
    """Asks the hook server of ``plugin`` at ``endpoint``; an answer longer than the limit is a failure."""

    def __init__(self, plugin: str, endpoint: str, max_answer_bytes: int = MAX_REPLY_BYTES) -> None:
        self.plugin = plugin
        self.abandoned = False
        """Whether no more calls are made: the hook server was disabled."""
        self._unary = UnaryClient(endpoint, max_reply_bytes=max_answer_bytes, dialler=dial_trusted)
        self.peer = self._unary.peer
        self.absence = self._unary.absence
        self._in_flight = 0
        self._closed = False

    async def call(
        self, point: HookPoint, request: HookRequest, timeout_seconds: float, peer: Peer | None = None
    ) -> HookAnswer:
        """Ask the hook server; ``peer`` is what was found at its socket just now. Raises HookError."""
        self._in_flight += 1
        loop = asyncio.get_running_loop()
        half_time = loop.time() + timeout_seconds / 2
        try:
            body = codec.encode(point, request)
            return codec.decode(point, await self._unary.call(codec.PATHS[point.name], body, timeout_seconds, peer))
        except Shortage as shortage:
            raise HookError(self.plugin, point.name, Reason.INTERNAL, shortage.text) from None
        except TooLong as failure:
            text = f"{failure.text}; let it answer less, or raise --hook-answer-limit"
            raise HookError(self.plugin, point.name, Reason.BAD_ANSWER, text) from None
        except Unprocessed:
            text = "the server refused every try until the time was over"
            raise HookError(self.plugin, point.name, Reason.DEADLINE, text) from None
        except CallFailed as failure:
            if self.abandoned:
                raise HookError(self.plugin, point.name, Reason.DISABLED, "it was disabled meanwhile") from None
            raise self._error(point, failure, loop.time() < half_time) from None
        except UntrustedSocket as error:
            raise HookError(self.plugin, point.name, Reason.UNTRUSTED_SOCKET, str(error)) from None
        except WireError as error:
            raise HookError(self.plugin, point.name, Reason.BAD_ANSWER, str(error)) from None
        except ValueError:
            text = "the request cannot be put into a hook message"
            raise HookError(self.plugin, point.name, Reason.INTERNAL, text) from None
        finally:
            self._in_flight -= 1
            if self._closed:
                await self._close_if_idle()

    def _error(self, point: HookPoint, failure: CallFailed, soon: bool) -> HookError:
        """Return the HookError for a failed call. A DEADLINE_EXCEEDED that came ``soon`` is treated like other error
        statuses: the server's own work was late, perhaps for one pod. The gRPC client limits the text's length."""
        if failure.kind is not Kind.STATUS and not (failure.kind is Kind.DEADLINE and soon):
            return HookError(self.plugin, point.name, _REASONS[failure.kind], failure.text)
        if failure.code == grpc.PERMISSION_DENIED:
            return HookError(self.plugin, point.name, Reason.REFUSED, said=failure.text)
        if failure.code == grpc.UNIMPLEMENTED:
            text = "the server does not serve this hook point; take it out of the registration, or update the server"
            return HookError(self.plugin, point.name, Reason.UNIMPLEMENTED, text)
        status = f"gRPC status {failure.code}"
        return HookError(self.plugin, point.name, Reason.ERROR_STATUS, status, said=failure.text)

    def abandon(self) -> None:
        """End the calls in flight, and make no more: each fails with the reason DISABLED. Their callers go on inside
        this call, but for those that wait for a connection: they do within 0.2 s."""
        self.abandoned = True
        self._unary.abandon()

    async def close(self) -> None:
        """Close the connection as soon as no call is in flight; a call that comes later is still made."""
        self._closed = True
        await self._close_if_idle()

    async def _close_if_idle(self) -> None:
        if self._closed and not self._in_flight:
            await self._unary.close()
