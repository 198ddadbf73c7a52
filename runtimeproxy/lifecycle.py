"""The straight line of an intercepted call, one for all fronts: hold, ask, release, commit, tell, answer.

Owns the order of these steps and what happens when one of them fails.
Must not know: HTTP, protobuf, JSON, a front.
Invariant: a call is answered whatever happens; what the runtime agreed to is committed even if the client has gone
(relay-rules C), and what it did without an answer is asked of it (``unsettled``).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from runtimeproxy import hookpoints, records
from runtimeproxy.call import Call, Reply, Unreadable
from runtimeproxy.dispatcher import Dispatcher
from runtimeproxy.errors import BackendError, HookError, Reason
from runtimeproxy.hookpoints import HOOK_POINTS, HookPoint, Operation, Stage
from runtimeproxy.model import NO_ADJUSTMENT, Adjustment, HookRequest, Subject
from runtimeproxy.store import Store
from runtimeproxy.telemetry import CallTimes, Recorder
from runtimeproxy.turns import Turns
from runtimeproxy.unsettled import Unsettled

log = logging.getLogger(__name__)

HOLD_GRACE_SECONDS = 1.0
"""A hold ends this long after its budget whatever happens (relay-rules C7)."""

UPDATE_GRACE_SECONDS = 0.5
"""PreStart's extra update ends this long after the budget, so that the hold is still there to judge who asked for it
(relay-rules C9)."""

_REMOVES = frozenset({Operation.REMOVE_CONTAINER, Operation.REMOVE_POD_SANDBOX})


@dataclass(frozen=True, slots=True)
class Limits:
    """``budget_seconds``: for all hook calls of one held call; pods with the label are never handed to hook servers."""

    budget_seconds: float
    skip_label: tuple[str, str]


class Lifecycle:
    """Runs intercepted calls."""

    def __init__(
        self, store: Store, dispatcher: Dispatcher, recorder: Recorder, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self.store = store
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._limits = limits
        self._clock = clock
        self._turns = Turns()
        self._holds: set[CallTimes] = set()
        self._under_way: set[Call] = set()
        self._unsettled = Unsettled(store, recorder, self._asked_again, self._forget)

    def holds(self) -> tuple[int, float]:
        """Return how many calls are held and the age of the oldest in seconds."""
        now = self._clock()
        return len(self._holds), max((now - times.held for times in self._holds), default=0.0)

    @property
    def hooked(self) -> bool:
        """Tell whether any hook server is registered: only for its sake the runtime is asked about what is unknown."""
        return self._dispatcher.registered(HOOK_POINTS)

    def under_way(self) -> set[str]:
        """Name what calls are about now: ids, and what names that which has no id yet."""
        keys = set()
        for call in self._under_way:
            with suppress(Unreadable):
                keys.add(call.order_key())
        return keys

    def _asked_again(self, key: str, operation: Operation) -> bool:
        """Tell whether a call that is under way asks for the same."""
        for call in self._under_way:
            with suppress(Unreadable):
                if (call.operation, call.order_key()) == (operation, key):
                    return True
        return False

    async def stop(self) -> None:
        """Ask the runtime no more about calls that it has not answered."""
        await self._unsettled.stop()

    async def run(self, call: Call) -> None:
        """Take one call from its hold to its answer; return too if it is cancelled, which ends it."""
        self._under_way.add(call)
        try:
            await self._run(call, self._recorder.call(call.operation.value))
        except asyncio.CancelledError:
            pass  # a task would keep it, with all frames: a thousand calls that are cancelled at once come to megabytes
        finally:
            self._under_way.discard(call)
            self._void(call)

    def _void(self, call: Call) -> None:
        """Forget what nobody is sure of any more, and tell who reads the runtime meanwhile: what it read of the call's
        subject may be older than the call."""
        if call.unsure or self.store.watched:
            with suppress(Unreadable):
                (self._forget if call.unsure else self.store.void)(call.order_key())

    def _forget(self, key: str) -> None:
        """Have a subject read anew; calls of it that are under way know it as it was."""
        self.store.forget(key)
        self._unsettled.unsure(key)
        for other in self._under_way:
            with suppress(Unreadable):
                other.unsure |= other.order_key() == key

    async def _run(self, call: Call, times: CallTimes) -> None:
        try:
            if call.has_left or self._nobody_asked(call):
                subject, adjustment, reply = await self._pass(call, times)
            else:
                subject, adjustment = await self._hold(call, times)
                adjustment, reply = await self._release(call, times, subject, adjustment)
        except HookError as error:
            times.outcome = "refused"
            self._recorder.count("calls_refused", operation=call.operation.value)
            call.refuse(error)
            return
        times.answered = self._clock()
        await self._finish(call, subject, adjustment, reply)
        times.done = self._clock()
        times.outcome = _outcome(reply)
        self._recorder.count("calls", operation=call.operation.value, outcome=times.outcome)

    # Where nobody is asked.

    def _nobody_asked(self, call: Call) -> bool:
        """Tell whether there is nobody to ask about a call, no earlier one to wait for, and nothing to put in."""
        wanted = self._dispatcher.registered(call.concerned)
        return not wanted and not len(self._turns) and call.unedited(self.store)

    async def _pass(self, call: Call, times: CallTimes) -> tuple[Subject | None, Adjustment, Reply]:
        """Release a call at once and read it while the runtime works."""
        times.released = self._clock()
        call.number = self.store.moment()
        reply = call.release(None, NO_ADJUSTMENT)
        return self._read(call), NO_ADJUSTMENT, await reply

    def _read(self, call: Call) -> Subject | None:
        try:
            return call.subject(self.store)
        except Unreadable as error:
            self._unreadable(call, error)
        except Exception as error:
            self._internal(call, error)
        return None

    # Before the release.

    async def _hold(self, call: Call, times: CallTimes) -> tuple[Subject | None, Adjustment]:
        """Count the call as held while its subject and its hooks are looked for."""
        self._holds.add(times)
        try:
            return await self._before(call)
        except asyncio.CancelledError:
            times.outcome = "ended"
            self._recorder.count("calls_ended", operation=call.operation.value)
            raise
        finally:
            self._holds.discard(times)

    async def _before(self, call: Call) -> tuple[Subject | None, Adjustment]:
        """Find the subject and ask the Pre hooks; failures become the policy's verdict (relay-rules C4, C7)."""
        seconds = self._budget(call)
        end = self._clock() + seconds
        subject: Subject | None = None
        try:
            async with asyncio.timeout(seconds + HOLD_GRACE_SECONDS):
                key = call.order_key()
                async with self._turns.turn(key, seconds):
                    subject = await self._subject(call, end)
                    if call.order_key() == key:
                        return subject, await self._adjustment(call, subject, end)
                # It was named in another way than others name it: its turn is among the calls of what that is.
                async with self._turns.turn(call.order_key(), end - self._clock()):
                    subject = call.subject(self.store) or subject
                    return subject, await self._adjustment(call, subject, end)
        except Unreadable as error:
            self._unreadable(call, error)
            self._failed(call, subject, Reason.UNREADABLE, str(error))
        except BackendError as error:
            self._failed(call, subject, Reason.UNREADABLE, f"the runtime could not be asked: {error}")
        except TimeoutError:
            self._failed(call, subject, Reason.DEADLINE, "the hold took longer than its budget (--hook-budget)")
        except HookError:
            raise
        except Exception as error:
            self._internal(call, error)
            self._failed(call, subject, Reason.INTERNAL, type(error).__name__)
        return subject, NO_ADJUSTMENT

    def _budget(self, call: Call) -> float:
        """Return the seconds for hooks: never more than half of what is left of the caller's deadline."""
        if call.deadline is None:
            return self._limits.budget_seconds
        return max(min(self._limits.budget_seconds, (call.deadline - self._clock()) / 2), 0.0)

    async def _subject(self, call: Call, end: float) -> Subject | None:
        """Look into the request and the Store, and ask the runtime only if a hook server wants to know."""
        subject = call.subject(self.store)
        if subject is not None:
            return subject
        if not self._dispatcher.registered(call.concerned):
            return None
        if self._asked_point(call, Stage.PRE) is None:
            return await call.read_subject(self.store)  # in all the hold's time, for those who are told of it later
        async with asyncio.timeout(end - self._clock()):
            return await call.read_subject(self.store)

    def _skipped(self, subject: Subject) -> bool:
        key, value = self._limits.skip_label
        return subject.pod.effective.labels.get(key) == value

    async def _adjustment(self, call: Call, subject: Subject | None, end: float) -> Adjustment:
        if subject is None or self._skipped(subject):
            return NO_ADJUSTMENT
        point = self._asked_point(call, Stage.PRE)
        if point is None:
            return NO_ADJUSTMENT
        adjustment = await self._dispatcher.before(point, call.hook_request(subject), end)
        return await self._prepared(call, point, subject, adjustment, end) if call.prepares else adjustment

    async def _prepared(
        self, call: Call, point: HookPoint, subject: Subject, adjustment: Adjustment, end: float
    ) -> Adjustment:
        """Have the runtime prepared for an adjustment; if that fails it is the failure of who asked for it (C9)."""
        try:
            async with asyncio.timeout(end + UPDATE_GRACE_SECONDS - self._clock()):
                held = await call.prepare(subject, adjustment)
        except BackendError as error:
            self._dispatcher.rejected(point, adjustment, str(error), records.told(subject).name)
        except TimeoutError:
            late = "the runtime has not answered the extra update in time"
            self._dispatcher.rejected(point, adjustment, late, records.told(subject).name)
        else:
            if held:
                self._commit(call, records.prepared(call.subject(self.store) or subject, held, adjustment))
            return adjustment
        return NO_ADJUSTMENT

    def _failed(self, call: Call, subject: Subject | None, reason: Reason, detail: str) -> None:
        """Let the plugins' policies judge a failure of the hold. Raises HookError if the call is to be refused."""
        if subject is None:  # then the Post hooks cannot be told of it either
            self._dispatcher.failed(hookpoints.find(call.operation, Stage.POST), reason, detail)
        name = records.told(subject).name if subject is not None else ""
        self._dispatcher.failed(hookpoints.find(call.operation, Stage.PRE), reason, detail, name)

    async def _release(
        self, call: Call, times: CallTimes, subject: Subject | None, adjustment: Adjustment
    ) -> tuple[Adjustment, Reply]:
        """Send the request on and wait; one that cannot be edited goes as it came if the policies let it (C4)."""
        times.released = self._clock()
        call.number = self.store.moment()
        try:
            return adjustment, await call.release(subject, adjustment)
        except Exception as error:
            times.released = None
            self._internal(call, error)
            self._failed(call, subject, Reason.INTERNAL, type(error).__name__)
        times.released = self._clock()
        return NO_ADJUSTMENT, await call.release(None, NO_ADJUSTMENT)

    # After the runtime's answer.

    async def _finish(self, call: Call, subject: Subject | None, adjustment: Adjustment, reply: Reply) -> None:
        try:
            if subject is not None:
                await self._follow(call, subject, adjustment, reply)
        finally:
            call.answer(reply)
            call.over()

    async def _follow(self, call: Call, subject: Subject, adjustment: Adjustment, reply: Reply) -> None:
        """Do what follows from an answer, or see to it that the lack of one is followed up (relay-rules C3)."""
        try:
            if reply.agreed:
                await self._after(call, subject, adjustment, reply)
            elif not reply.answered:
                self._unsettled.add(call.order_key(), call, partial(self._settled, call, subject, adjustment))
            elif not reply.faultless:
                self._tell_refused(call, subject, adjustment)
        except Unreadable as error:
            self._unreadable(call, error)
        except Exception as error:
            self._internal(call, error)

    async def _settled(self, call: Call, subject: Subject, adjustment: Adjustment, reply: Reply) -> None:
        """Do what follows from an answer that was found out later; until then the call is under way again.

        One that is cut off, since a later one says it all, leaves the record as that one made it.
        """
        self._under_way.add(call)
        try:
            await self._follow(call, subject, adjustment, reply)
        finally:
            self._under_way.discard(call)
        self._void(call)

    def _tell_refused(self, call: Call, subject: Subject, adjustment: Adjustment) -> None:
        """Have the log name the hook servers' part in what the runtime refused; a start shows what a create was given
        that the kernel does not take."""
        earlier = records.hooked(subject) if call.operation is Operation.START_CONTAINER else ()
        owners = {**dict.fromkeys(earlier, "at an earlier call"), **adjustment.owners}
        self._dispatcher.refused_with(call.operation.value, records.told(subject).name, owners)

    async def _after(self, call: Call, subject: Subject, adjustment: Adjustment, reply: Reply) -> None:
        """Commit, then tell the Post hooks."""
        key = call.order_key()
        # The budget is 0 once the caller's deadline has passed: nobody waits, so there is time for the order.
        async with self._turns.turn(key, self._budget(call) or self._limits.budget_seconds):
            # Other calls of the same container may have been committed since this one was held.
            present = call.subject(self.store)
            if present is not None and call.operation is Operation.UPDATE_CONTAINER_RESOURCES:
                call.unsure = False  # what it names holds, whether the rest was read anew before it was done or after
            known = call.outcome(present or subject, adjustment, reply)
            self._keep(call, known, reply)
            self._unsettled.answered(key, call)
            point = self._asked_point(call, Stage.POST)
            if point is not None and not self._skipped(known):
                await self._tell(call, point, known, reply)

    async def _tell(self, call: Call, point: HookPoint, known: Subject, reply: Reply) -> None:
        """Tell the Post hooks, who have the whole budget: what happened is told even if nobody waits (relay-rules C2).

        The answer waits for them until half of what its caller has left is over.
        """
        container = None if known.container is None else known.container.effective
        latest = asyncio.get_running_loop().call_later(self._budget(call), call.answer, reply)
        try:
            end = self._clock() + self._limits.budget_seconds
            await self._dispatcher.after(point, HookRequest(known.pod.effective, container), end)
        finally:
            latest.cancel()

    def _asked_point(self, call: Call, stage: Stage) -> HookPoint | None:
        """Return a call's hook point, if anybody is registered for it."""
        point = hookpoints.find(call.operation, stage)
        return point if point is not None and self._dispatcher.registered([point]) else None

    def _keep(self, call: Call, known: Subject, reply: Reply) -> None:
        """Keep the subject as it is now, until the runtime has it no more."""
        if call.operation in (Operation.RUN_POD_SANDBOX, Operation.REMOVE_POD_SANDBOX):
            self._dispatcher.forget_stop(known.pod.effective.id)
        if call.operation not in _REMOVES and not reply.gone:
            self._commit(call, known)
        elif known.container is None:
            self.store.bury_pod(known.pod.effective.id)
        else:
            self.store.bury(known.container.effective.id)

    def _commit(self, call: Call, known: Subject) -> None:
        if not call.unsure:
            self.store.commit(known, call.number)

    # What goes wrong.

    def _unreadable(self, call: Call, error: Unreadable) -> None:
        """Count a message of a peer that cannot be read; its text holds no values."""
        self._recorder.count("calls_unreadable", operation=call.operation.value)
        log.warning("%s cannot be read: %s", call.operation.value, str(error))  # a record must not keep the call

    def _internal(self, call: Call, error: Exception) -> None:
        """Count a fault of our own; its text may hold values, so only its class and place are logged."""
        self._recorder.count("internal_errors", operation=call.operation.value)
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else "unknown"
        log.error("internal error in %s: %s at %s", call.operation.value, type(error).__name__, where)


def _outcome(reply: Reply) -> str:
    if not reply.answered:
        return "unsettled"
    return "agreed" if reply.agreed else "failed"
