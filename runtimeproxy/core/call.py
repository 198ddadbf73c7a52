"""What a front offers the core for one intercepted call.

Owns the protocol between a front (which holds the bytes) and the lifecycle (which asks the hook servers).
Must not know: HTTP, protobuf, JSON, a front.
Invariant: of HOLDING, RELEASED, REFUSED and ENDED only the first transition out of HOLDING counts (relay-rules C1).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from runtimeproxy.core.store import Store
from runtimeproxy.errors import HookError
from runtimeproxy.model import records
from runtimeproxy.model.hookpoints import HookPoint, Operation
from runtimeproxy.model.values import Adjustment, HookRequest, ResourceValue, Subject

MESSAGE_LIMIT = 16 * 2**20
"""Longest request that is held, in bytes: containerd and the kubelet allow 16 MiB."""
FIELDS_LIMIT = 1 << 17
"""Most fields of a request that is read, JSON's texts, commas and opening brackets counted: each becomes an object of
ours, and 16 MiB may hold millions. Not even the environment that the links to 5,000 services make has as many."""
TOO_MANY_FIELDS = f"request with more than {FIELDS_LIMIT} fields"


class CallState(Enum):
    """Where a held call stands."""

    HOLDING = "holding"
    RELEASED = "released"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Reply:
    """The runtime's answer: ``agreed`` as hook-api defines it; ``message`` is its body where one was read.

    ``answered`` is False if the call ended without the runtime's answer (cancel, deadline, lost connection). ``gone``:
    the runtime has what the call was about no more; only ``Call.settle`` says so. ``no_op``: it was not agreed to,
    and still nothing is wrong with it: it was done before, or the runtime could not be given it.
    """

    agreed: bool
    message: bytes = b""
    answered: bool = True
    gone: bool = False
    no_op: bool = False


UNANSWERED = Reply(agreed=False, answered=False)

# What ``Call.settle`` finds, beside UNANSWERED.
DONE = Reply(agreed=True)
GONE = Reply(agreed=True, gone=True)
"""There is nothing left that the call was about: runtimes agree to a stop and a remove of that."""
NOT_DONE = Reply(agreed=False)
"""The runtime has not done it, and never will."""


class Unreadable(Exception):
    """The held message cannot be read; the text says why, without values."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Why:
    """Why something cannot be read, in words: an exception would keep the frames that it came through."""

    text: str


class read_once(Generic[_T]):  # a decorator, as property is
    """A property that is read when it is first asked for, and never again: not where it cannot be read either.

    Who is about what is asked again and again while a call is under way, and reading a long message takes a while.
    """

    def __init__(self, read: Callable[[Any], _T]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._kept_as = f"_{name} as read"

    def __get__(self, instance: object, owner: object = None) -> _T:
        attributes = instance.__dict__
        kept = attributes.get(self._kept_as, self)
        if kept is self:
            try:
                kept = self._read(instance)
            except Unreadable as error:
                kept = _Why(str(error))
            attributes[self._kept_as] = kept
        if isinstance(kept, _Why):
            raise Unreadable(kept.text)
        return kept  # type: ignore[no-any-return]

    def __set__(self, instance: object, value: _T) -> None:
        instance.__dict__[self._kept_as] = value


class Call(ABC):
    """One intercepted call, held by its front."""

    operation: Operation
    """What it does; where only its subject tells, ``read_subject`` sets it."""
    hook_points: tuple[HookPoint, ...]
    """The hook points for whose sake its subject must be known."""
    deadline: float | None = None
    """Caller's deadline on the event loop's clock, in seconds; None if it gave none."""
    prepares: bool = False
    """True if something may have to be done at the runtime before its request is released."""
    already_sent: bool = False
    """True if its request has left already, as it came: its front knew that nobody was to be asked."""
    number: int = 0
    """Counts the calls in the order in which they left for the runtime."""
    state_unknown: bool = False
    """True once nobody knows what the runtime holds of its subject: no record of that is kept, it is read anew when it
    is needed."""

    @abstractmethod
    def order_key(self) -> str:
        """Name the container or pod whose calls keep their order (relay-rules C6).

        Raises Unreadable.
        """

    @abstractmethod
    def subject(self, store: Store) -> Subject | None:
        """Find what the call is about in the request and the Store; None if the Store does not know it.

        Raises Unreadable.
        """

    @abstractmethod
    async def read_subject(self, store: Store) -> Subject | None:
        """Ask the runtime what the call is about; None if the runtime does not know it either.

        Raises BackendError if the runtime cannot be asked, Unreadable if its answer cannot be read.
        """

    def hook_request(self, subject: Subject) -> HookRequest:
        """Return what the Pre hook is told: what is known now."""
        return records.hook_view(subject)

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, ResourceValue]:
        """Do what must be done at the runtime before the request is released (PreStartContainer's extra update).

        Returns the resources that it set. Raises BackendError if the runtime rejects it; if nobody knows whether it was
        done, the call is ``state_unknown`` from then on.
        """
        return {}

    def unedited(self, store: Store) -> bool:
        """Tell, without reading the message, that nothing in the Store changes it where no hook server is asked."""
        return True

    @abstractmethod
    def release(self, subject: Subject | None, adjustment: Adjustment) -> Awaitable[Reply]:
        """Edit the held request and send it on; the result is the runtime's answer, which stays held."""

    @abstractmethod
    def refuse(self, error: HookError) -> None:
        """Answer the client in the runtime's place; the runtime never sees the request."""

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Return the subject as it is now that the runtime agreed, with the id it gave.

        Raises Unreadable if the reply lacks what is needed.
        """
        return subject

    @abstractmethod
    def answer(self, reply: Reply) -> None:
        """Let the runtime's own bytes go to the client, if they have not gone."""

    @abstractmethod
    def release_buffers(self) -> None:
        """Keep nothing of the request any more: nobody looks at it."""

    async def settle(self) -> Reply:
        """Ask the runtime what became of a start or a stop that it has not answered (relay-rules C3).

        The result is what it would have answered by now: UNANSWERED if it has not done it, or not yet.
        Raises BackendError if the runtime cannot be asked, Unreadable if its answer cannot be read.
        """
        return UNANSWERED
