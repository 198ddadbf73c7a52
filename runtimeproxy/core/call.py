"""The interface of a held call, between a front and the core, and the memory of all held requests (relay-rules A4).

Only a call's first transition out of HOLDING counts (relay-rules C1).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from runtimeproxy.core.store import Store
from runtimeproxy.errors import HookError
from runtimeproxy.model import fields, merge
from runtimeproxy.model.fields import NO_ADJUSTMENT, Adjustment, ContainerRecord, HookRequest, PodRecord, Subject
from runtimeproxy.model.hookpoints import HookPoint, Operation
from runtimeproxy.observe.events import About, CallTimes

PROCESS_LIMIT = 64 * 2**20
"""Bytes of held requests in the whole process."""
NO_ROOM = "too many bytes are held in the whole process"


class MemoryBudget:
    def __init__(self, limit: int = PROCESS_LIMIT) -> None:
        self.limit = limit
        self.count = 0

    def add(self, length: int) -> bool:
        """Return False if the limit is exceeded."""
        self.count += length
        return self.count <= self.limit

    def credit(self, length: int) -> None:
        """Subtract bytes that are no longer buffered; ``wire.http2`` calls it once it has sent the DATA."""
        self.count -= length


MESSAGE_LIMIT = 16 * 2**20
"""Largest request that is held, in bytes: containerd and the kubelet allow 16 MiB."""
FIELDS_LIMIT = 1 << 17
"""Largest number of fields of a decoded request, since each becomes a Python object; in JSON strings, commas and
opening brackets count. The environment variables that Kubernetes sets for 5,000 services stay below it."""
TOO_MANY_FIELDS = f"request with more than {FIELDS_LIMIT} fields"

UPDATE_SECONDS = 10.0
"""Seconds for the extra update of PreStartContainer where the caller gave no deadline."""


class CallState(Enum):
    HOLDING = "holding"
    RELEASED = "released"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Reply:
    """The runtime's answer to a call: ``agreed`` as hook-api defines it; ``message`` is its body where one was read.

    ``answered`` is False if the call ended without the runtime's answer (cancel, deadline, lost connection).
    ``removed``: the runtime no longer has the call's subject; only ``HeldCall.settle`` sets it. ``no_op``: no failure
    although the runtime did not agree: the work was already done, or the request could not be sent.
    """

    agreed: bool
    message: bytes = b""
    answered: bool = True
    removed: bool = False
    no_op: bool = False

    @property
    def failed(self) -> bool:
        return self.answered and not self.agreed and not self.no_op


UNANSWERED = Reply(agreed=False, answered=False)

# Results of ``HeldCall.settle``, in addition to UNANSWERED.
DONE = Reply(agreed=True)
REMOVED = Reply(agreed=True, removed=True)
"""The call's subject no longer exists: runtimes agree to a stop and a remove of such a subject."""
NOT_DONE = Reply(agreed=False)
"""The runtime has not carried the call out and never will."""


class Life(NamedTuple):
    """Whether a container was ever started, and whether it runs. An ended container was started and does not run."""

    started: bool
    running: bool


class Unreadable(Exception):
    """The held message cannot be read; the text has the reason, without values."""


_T = TypeVar("_T")


class _UnreadableText(str):
    """The text of an Unreadable: the exception would keep the frames that it passed through alive."""


class read_once(Generic[_T]):  # a decorator, as property is
    """A property that caches the result of its first read, or its Unreadable: decoding a long message is slow."""

    def __init__(self, read: Callable[[Any], _T]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._retained_as = f"_{name} as read"

    def __get__(self, instance: object, owner: object = None) -> _T:
        attributes = instance.__dict__
        retained = attributes.get(self._retained_as, self)
        if retained is self:
            try:
                retained = self._read(instance)
            except Unreadable as error:
                retained = _UnreadableText(str(error))
            attributes[self._retained_as] = retained
        if isinstance(retained, _UnreadableText):
            raise Unreadable(str(retained))
        return retained  # type: ignore[no-any-return]

    def __set__(self, instance: object, value: _T) -> None:
        instance.__dict__[self._retained_as] = value


class HeldCall(ABC):
    """One intercepted call: its request waits for the hook servers, its reply for the Store and the Post hooks."""

    state = CallState.HOLDING
    reply: Reply | None = None
    """The runtime's complete reply, UNANSWERED if it will not send one; None until then."""
    operation: Operation
    """What the call does; where that depends on its subject, ``read_subject`` sets it."""
    hook_points: tuple[HookPoint, ...]
    """The hook points that need the call's subject."""
    deadline: float | None = None
    """The caller's deadline on the event loop's clock, in seconds; None if it gave none."""
    removes_containers: bool = False
    """True if the runtime ends and removes the containers of a pod together with it."""
    prepares: bool = False
    """True if ``prepare`` may have to change the runtime's state before the release."""
    must_reread_created: bool = False
    """True if a create's answer requires ``read_made``, since the create ``may_be_repeated``."""
    already_sent: bool = False
    """True if the front has already sent the request unchanged, because no hook server was to be called."""
    number: int = 0
    """Position of the call in the order in which requests were released to the runtime."""
    call_id: str = ""
    """The id in log lines and events; "" until the call starts."""
    times: CallTimes
    adjustment: Adjustment = NO_ADJUSTMENT
    """What the Pre hooks changed of the request that was released."""
    last_subject: Subject | None = None
    """The subject as it was last found, for log lines and events."""
    no_effect: tuple[tuple[str, frozenset[str]], ...] = ()
    """Why fields that hook servers set have no effect, and these fields by their kinds (``fields.kind_of``)."""
    end: HookPoint | None = None
    """The hook point of the subject's end, if this call removes the subject and a hook server is not yet notified."""
    ended: Sequence[ContainerRecord] = ()
    """The containers removed with their pod of whose end a hook server is not yet notified."""
    state_unknown: bool = False
    """True once the subject's state in the runtime is uncertain: its record is dropped, and re-read when needed."""
    missing_fields: Collection[str] = ()
    """The fields of the adjustment, as in its ``owners``, that the runtime does not have although it agreed."""

    @property
    def subject_name(self) -> str:
        """Return the subject's name for log lines (``HookRequest.name``); "" if unknown."""
        return "" if self.last_subject is None else merge.hook_view(self.last_subject).name

    def about(self) -> About:
        names: tuple[str, ...] = ()
        if self.last_subject is not None:
            pod, container = self.last_subject.pod.effective, self.last_subject.container
            names = (pod.namespace, pod.name, pod.id)
            if container is not None:
                names += (container.effective.name, container.effective.id)
        return About(self.operation.value, self.call_id, *names)

    @abstractmethod
    def order_key(self) -> str:
        """Return the id or name by which calls of a subject keep their order (relay-rules C6). Raises Unreadable."""

    @abstractmethod
    def subject(self, store: Store) -> Subject | None:
        """Return the subject, from the request and the Store; None if the Store does not have it. Raises Unreadable."""

    @abstractmethod
    async def read_subject(self, store: Store) -> Subject | None:
        """Read the call's subject from the runtime; None if that does not have it either. Raises BackendError,
        Unreadable."""

    hook_request: Callable[[Subject], HookRequest] = staticmethod(merge.hook_view)

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, fields.ResourceValue]:
        """Change at the runtime what has to be changed before the release, as in PreStartContainer's extra update.
        Returns the resources that were set. Raises BackendError if the runtime rejects the change; if its outcome is
        unknown, ``state_unknown`` is set."""
        return {}

    def note_unsupported(self, names: Sequence[str], by: str, report: Callable[..., None]) -> None:
        """Note the fields that a hook server set and that ``by``, the API of the request, cannot set; ``report`` is
        ``Metrics.count_unsettable_fields``."""
        if names:
            kinds = frozenset(name if name == "annotations" else f"resources.{name}" for name in names)
            self.no_effect += ((f"left out: {by} cannot set it", kinds),)
            report(self.operation.value, names, by, self.call_id)

    def may_be_repeated(self) -> bool:
        """Return whether the runtime may answer a create with what a create of an earlier process made."""
        return False

    def unedited(self, store: Store) -> bool:
        """Return whether the Store changes nothing in the request if no hook is called, without decoding it."""
        return True

    @abstractmethod
    def release(self, subject: Subject | None, adjustment: Adjustment) -> None:
        """Edit the held request and send it on, unless the call is no longer held. The connection calls
        ``Lifecycle.proceed`` once the call has its ``reply``."""

    @abstractmethod
    def refuse(self, error: HookError) -> None:
        """Answer the client in the runtime's place; the runtime never gets the request."""

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Return the subject as it is after the runtime agreed, with the id that the runtime gave. Raises Unreadable if
        the reply lacks what is needed."""
        return subject

    async def read_made(self, store: Store, made: Subject) -> PodRecord | ContainerRecord | None:
        """Read from the runtime what a create's answer names; a record that the Store has takes precedence. None if the
        runtime does not have it. Raises BackendError, Unreadable."""
        return None

    @abstractmethod
    def answer(self) -> None:
        """Pass the runtime's own bytes to the client; may be called more than once."""

    @abstractmethod
    def release_buffers(self) -> None:
        """Drop all that is buffered of the request."""

    async def life(self, container_id: str) -> Life | None:
        """Read from the runtime whether a container was started and runs; None if the runtime does not have it. Raises
        BackendError, Unreadable."""
        return None

    async def settle(self) -> Reply:
        """Query the outcome of a start, a stop or a remove that the runtime has not answered (relay-rules C3). Returns
        the answer to expect by now: UNANSWERED if the runtime has not carried it out yet. Raises BackendError,
        Unreadable."""
        return UNANSWERED
