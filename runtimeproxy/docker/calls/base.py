"""The base class of Docker's held calls; ``creates`` and ``references`` have its subclasses.

Owns how a held request is released and refused, and what the calls of all connections share.
Must not know: heads, chunks, connections, hook servers, what a body means.
Invariant: an unchanged request is released as exactly the bytes that came.
"""

from asyncio import AbstractEventLoop
from dataclasses import dataclass

from runtimeproxy.core.call import Call, CallState, Reply, Unreadable
from runtimeproxy.docker.backend import Backend
from runtimeproxy.docker.exchange import HeldExchange
from runtimeproxy.docker.lookup import Lookup
from runtimeproxy.docker.sync import EventFollower
from runtimeproxy.errors import HookError, WireError
from runtimeproxy.eventloop.fiber import Pending
from runtimeproxy.model import hookpoints
from runtimeproxy.model.hookpoints import HookPoint, Operation
from runtimeproxy.model.values import Adjustment, Subject
from runtimeproxy.observe.metrics import Metrics

ERROR_STATUS = 500


@dataclass(frozen=True, slots=True)
class Daemon:
    """What the calls of all connections share."""

    backend: Backend
    lookup: Lookup
    events: EventFollower
    metrics: Metrics
    loop: AbstractEventLoop


def body_of(exchange: HeldExchange) -> bytes:
    """Return the body of a request that is still held. Raises Unreadable."""
    try:
        return exchange.body()
    except WireError as error:
        raise Unreadable(str(error)) from None


class DockerCall(Call):
    """A held call; each subclass reads one kind of request."""

    def __init__(self, exchange: HeldExchange, daemon: Daemon, operation: Operation) -> None:
        self.operation = operation
        self.hook_points: tuple[HookPoint, ...] = hookpoints.CONCERNED[operation]
        self._exchange = exchange
        self._daemon = daemon
        self.already_sent = exchange.state is CallState.RELEASED
        self._reply: Pending[Reply] = Pending(loop=daemon.loop)
        if exchange.reply is None:
            exchange.on_reply = self._take_reply
        else:
            self._take_reply()

    def _take_reply(self) -> None:
        if not self._reply.done() and self._exchange.reply is not None:
            self._reply.set_result(self._exchange.reply)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Return the body to release; None if nothing changes."""
        return None

    def release(self, subject: Subject | None, adjustment: Adjustment) -> Pending[Reply]:
        """Edit the request and send it on; the result becomes the daemon's answer."""
        self.send(None if subject is None else self.edited(subject, adjustment))
        return self._reply

    def send(self, body: bytes | None) -> bool:
        """Send the request on, as it came if ``body`` is None; return False if it is no longer held."""
        return self._exchange.release(body)

    def refuse(self, error: HookError) -> None:
        """Answer the client with status 500 and a message that names plugin, hook point and reason."""
        self._exchange.refuse(ERROR_STATUS, f"runtimeproxy: {self.operation.value} refused: {error}")

    def answer(self, reply: Reply) -> None:
        """Send the client the daemon's own answer, which was held back."""
        self._exchange.answer()

    def release_buffers(self) -> None:
        """Do nothing: calls with a body have no Post hooks, so their buffers are freed with the answer."""

    def leave_out(self, names: tuple[str, ...]) -> None:
        """Report the fields that a hook server set and that Docker's API cannot carry."""
        kinds = frozenset(name if name == "annotations" else f"resources.{name}" for name in names)
        self.no_effect += (("left out: Docker cannot set it", kinds),)
        self._daemon.metrics.left_out(self.operation.value, names, by="Docker", call=self.call_id)
