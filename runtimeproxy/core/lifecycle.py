"""The course of an intercepted call, the same for all fronts: find the subject, call the Pre hooks, release, commit,
call the Post hooks, answer.

Invariant: every call is answered. Each change that the runtime agreed to is committed, even if the client disconnects
(relay-rules C). If the runtime never answers, the proxy queries the outcome or re-reads the record (relay-rules C3).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from traceback import walk_tb
from typing import TypeVar

from runtimeproxy.core.call import CallState, HeldCall, Reply, Unreadable
from runtimeproxy.core.dispatcher import FAILED_IN_RUNTIME, MADE_EARLIER, Dispatcher, log_fields
from runtimeproxy.core.open_calls import KeyedQueue, OpenCalls
from runtimeproxy.core.store import Store
from runtimeproxy.errors import BackendError, HookError, Reason
from runtimeproxy.model import hookpoints, merge
from runtimeproxy.model.fields import NO_ADJUSTMENT, Adjustment, ContainerRecord, Subject, kind_of
from runtimeproxy.model.hookpoints import CONTAINER_END, HOOK_POINTS, UNRECORDED, HookPoint, Operation, Stage
from runtimeproxy.observe.events import CallTimes, EventKind
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay.eventloop import Deadlines, Fiber, Pending

log = logging.getLogger(__name__)

HOLD_GRACE_SECONDS = 1.0
"""A hold ends this many seconds after its budget at the latest (relay-rules C7)."""
UPDATE_GRACE_SECONDS = 0.5
"""PreStartContainer's extra update ends this many seconds after the budget. The hold lasts longer, so that the policies
of the plugins that set its values can be applied (relay-rules C9)."""
LOST_SECONDS = 1.0
"""Seconds from the end of an unanswered call to the next sync pass: by then the runtime has mostly completed it."""
SLOW_SECONDS = 1.0
"""A call that takes longer, the runtime's time included, is recorded as an event."""

_CREATES = frozenset({Operation.RUN_POD_SANDBOX, Operation.CREATE_CONTAINER})
_ENDS = hookpoints.REMOVES | {Operation.STOP_POD_SANDBOX}
"""These also report the end of containers and pods that had no stop of their own."""
_MAY_END = frozenset({Operation.RUN_POD_SANDBOX, Operation.START_CONTAINER, Operation.REMOVE_POD_SANDBOX})
"""After these a subject with the same id may end, again in a runtime that lost its state and reuses pod ids."""

T = TypeVar("T")


class Lifecycle:
    """Runs intercepted calls. Pods with ``skip_label`` get no hook calls."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        metrics: Metrics,
        skip_label: tuple[str, str],
        clock: Callable[[], float],
    ) -> None:
        self.store = store
        self.running: set[asyncio.Future[None]] = set()
        self.on_lost: Callable[[], object] = lambda: None
        """Called when the Store may lack what the runtime has, or still have what the runtime no longer has."""
        self.state_read = asyncio.Event()
        """Set unless a hook server is registered for which the runtime's state is still being read."""
        self.waits_for_state = True
        """False once a wait for ``state_read`` has expired, until the next list."""
        self.state_read.set()
        self._dispatcher = dispatcher
        self._registered = dispatcher.registered
        self.forget_stop = dispatcher.forget_stop
        """Note that a container was started again without a call."""
        self._metrics = metrics
        self._budget_seconds = dispatcher.budget_seconds
        self._skip_key, self._skip_value = skip_label
        self._clock = clock
        self._deadlines = Deadlines()
        self._queue = KeyedQueue(self._deadlines)
        self._holds: set[CallTimes] = set()
        self.open_calls = OpenCalls(metrics)

    def holds(self) -> tuple[int, float]:
        """Return how many calls are held, and the age of the oldest in seconds."""
        now = self._metrics.clock()
        return len(self._holds), max((now - times.held for times in self._holds), default=0.0)

    @property
    def hooked(self) -> bool:
        """Return whether any hook server is registered."""
        return self._registered(HOOK_POINTS)

    def start_and_stop_pass(self) -> bool:
        """Return whether a call that changes no record needs no hold: no hook server is registered, no call waits."""
        return not self.hooked and not self._queue.queues

    def proceed(self, call: HeldCall) -> Fiber[None] | None:
        """Start a call whose request is complete, or resume it once it has its reply. A call that starts runs
        immediately, as far as it gets without waiting; the returned fiber runs it, and cancelling that ends the call.
        """
        if call.reply is None or (call.already_sent and not call.call_id):  # the front may have its reply before that
            fiber: Fiber[None] = Fiber(loop=asyncio.get_running_loop())
            self.running.add(fiber)
            self.open_calls.under_way[call] = fiber
            fiber.start(self._run(call, fiber))
            return fiber
        runs, awaited = self.open_calls.under_way.get(call), self.open_calls.replies.pop(call, None)
        if runs is not None and call.state is CallState.ENDED:  # before its release
            runs.cancel()
        elif awaited is not None:
            awaited.set_result(call.reply)
        return None

    async def _run(self, call: HeldCall, fiber: Fiber[None]) -> None:
        times = call.times = self._metrics.call(call.operation.value)
        call.call_id = times.id
        subject: Subject | None = None
        try:
            # Find the subject and call the Pre hooks. Without a plugin, a change and an earlier call to wait for, the
            # call is released first and decoded while the runtime works.
            desired = self._registered(call.hook_points)
            call.must_reread_created = desired and call.may_be_repeated()
            passes = call.already_sent or (not desired and not self._queue.queues and call.unedited(self.store))
            if not passes:
                subject, call.adjustment = await self._hold(call, fiber)

            # Release. A request that cannot be edited continues unchanged, if the policies allow it (relay-rules C4).
            times.released, call.number = self._metrics.clock(), self.store.moment()
            try:
                call.release(subject, call.adjustment)
            except Exception as error:
                times.released = None
                self._apply_policies(call, subject, error)
                times.released, call.adjustment = self._metrics.clock(), NO_ADJUSTMENT
                call.release(None, NO_ADJUSTMENT)
            else:
                if passes:
                    subject = self._read(call)
            reply = call.reply
            if reply is None:
                awaited = self.open_calls.replies[call] = Pending(loop=fiber.get_loop())
                reply = await awaited
            times.answered = self._metrics.clock()

            # Commit, call the Post hooks, then answer. If there is no Post hook to call and no call to wait for, the
            # answer goes first: the commit follows before any other call is processed.
            try:
                alone = reply.agreed and not self._queue.queues
                if call.operation in _CREATES:  # the created subject may have to be read first
                    alone &= not (call.must_reread_created or self.open_calls.creates)
                if alone and subject is not None and not self._registered(hookpoints.POST[call.operation]):
                    call.answer()
                await self._act_on_answer(call, subject, reply)
            finally:
                call.answer()
                call.release_buffers()
            times.done = self._metrics.clock()
            times.outcome = "agreed" if reply.agreed else "failed" if reply.answered else "unsettled"
        except HookError as error:
            times.outcome = "refused"
            call.refuse(error)
        except asyncio.CancelledError:
            pass  # its frames would retain megabytes if a thousand calls are cancelled at the same time
        finally:
            self.running.discard(fiber)
            self.open_calls.end(call)
            if times.outcome:
                self._record_end(call)
            if call.state_unknown or self.store.watches:
                self._forget_uncertain(call)

    def _record_end(self, call: HeldCall) -> None:
        times = call.times
        times.operation = call.operation.value  # read_subject may have set it
        seconds = self._metrics.record_end(times)
        owners = {name: owner for name, owner in call.adjustment.owners.items() if name not in call.missing_fields}
        if times.outcome == "agreed" and owners:
            for owner, field in {(owner, kind_of(name)) for name, owner in owners.items()}:
                self._metrics.count("hook_fields_changed", owner, field)
            edited = owners
            for why, kinds in call.no_effect:
                unused = {name: owner for name, owner in edited.items() if kind_of(name) in kinds}
                edited = {name: owner for name, owner in edited.items() if name not in unused}
                if unused:
                    self._metrics.events.add(EventKind.NO_EFFECT, call.about(), fields=unused, text=why)
            if edited:
                self._metrics.events.add(EventKind.EDITED, call.about(), fields=edited, seconds=seconds)
        if sum(seconds) > SLOW_SECONDS:
            self._metrics.events.add(EventKind.SLOW, call.about(), reason=times.outcome, seconds=seconds)

    def _read(self, call: HeldCall) -> Subject | None:
        try:
            call.last_subject = call.subject(self.store)
            return call.last_subject
        except Exception as error:
            self._log_error(call.operation, call.call_id, error)
        return None

    async def _hold(self, call: HeldCall, fiber: Fiber[None]) -> tuple[Subject | None, Adjustment]:
        """Find the subject and call the Pre hooks (relay-rules C4, C6, C7)."""
        times = call.times
        self._holds.add(times)
        end = self._clock() + self._budget(call)
        backstop = self._deadlines.add(end + HOLD_GRACE_SECONDS, lambda: fiber.interrupt(TimeoutError()))
        subject: Subject | None = None
        ticket = None
        try:
            ticket = self._queue.enqueue(call.order_key())
            while True:
                if ticket.first is not None:
                    began = self._metrics.clock()
                    try:
                        await self._queue.wait(ticket, end - self._clock())
                    finally:
                        times.queued += self._metrics.clock() - began
                subject = call.subject(self.store) or subject
                if subject is None and self._registered(call.hook_points):
                    # For Post hooks alone, reading may use all of the hold's time.
                    seconds = end - self._clock() if self._registered(hookpoints.PRE[call.operation]) else None
                    subject = await self._in_task(call, partial(call.read_subject, self.store), seconds)
                call.last_subject = subject
                if call.order_key() == ticket.key:
                    break
                # The request named the subject in another way than other calls do: queue again under its id.
                self._queue.leave(ticket)
                ticket = self._queue.enqueue(call.order_key())
            if subject is None or subject.pod.effective.labels.get(self._skip_key) == self._skip_value:
                return subject, NO_ADJUSTMENT
            if call.operation in _ENDS:
                await self._find_ends(call, subject, end)
            hook_points = hookpoints.PRE[call.operation]
            if not self._registered(hook_points):
                return subject, NO_ADJUSTMENT
            began = self._metrics.clock()
            try:
                adjustment = await self._dispatcher.before(call, hook_points[0], call.hook_request(subject), end)
            finally:
                times.hooks = self._metrics.clock() - began
            if call.prepares and adjustment.resources:
                adjustment = await self._prepare(call, hook_points[0], subject, adjustment, end)
            return subject, adjustment
        except HookError:
            raise
        except Exception as error:
            self._apply_policies(call, subject, error)
            return subject, NO_ADJUSTMENT
        except asyncio.CancelledError:
            times.outcome = "ended"
            raise
        finally:
            if ticket is not None:
                self._queue.leave(ticket)
            backstop.late = None
            self._holds.discard(times)

    async def _in_task(self, call: HeldCall, query: Callable[[], Awaitable[T]], seconds: float | None) -> T:
        """Await ``query()``, which queries the runtime, in a task of its own, ``seconds`` at most. Raises TimeoutError.
        ``query`` is called in the task: if the call is cancelled before, a coroutine would never be awaited.
        """

        async def within() -> tuple[T, ...]:
            with suppress(TimeoutError):  # a task that ends with a TimeoutError forms a reference cycle with it
                async with asyncio.timeout(seconds):
                    return (await query(),)
            return ()

        began = self._metrics.clock()
        try:
            answer = await asyncio.get_running_loop().create_task(within())
        finally:
            call.times.querying += self._metrics.clock() - began
        if not answer:
            raise TimeoutError
        return answer[0]

    async def _find_ends(self, call: HeldCall, subject: Subject, end: float) -> None:
        """Set ``end`` and ``ended``, which are reported once the runtime has removed the subject. All containers of a
        pod have to be known, so after a start of the proxy this waits until the runtime's state is read."""
        pod_id, container = subject.pod.effective.id, subject.container
        if container is not None:
            if self._pending_ends((container,)) and await self._has_ended(call, container, end):
                call.end = CONTAINER_END
            return
        if self.waits_for_state and not self.state_read.is_set() and self._registered((CONTAINER_END,)):
            seconds = end - self._clock()
            try:
                await self._in_task(call, self.state_read.wait, seconds)
            except TimeoutError:
                self.waits_for_state = seconds < self._budget_seconds / 2  # a short wait shows nothing
        if call.operation is Operation.REMOVE_POD_SANDBOX:
            if self._dispatcher.has_pending_end(hookpoints.POD_END, pod_id):
                call.end = hookpoints.POD_END
            if call.removes_containers:
                pending = self._pending_ends(self.store.containers_of(pod_id))
                call.ended = [record for record in pending if await self._has_ended(call, record, end)]

    def _budget(self, call: HeldCall) -> float:
        """Return the seconds for hook calls: the budget, but at most half of the time left to the caller's deadline."""
        if call.deadline is None:
            return self._budget_seconds
        return max(min(self._budget_seconds, (call.deadline - self._clock()) / 2), 0.0)

    async def _prepare(
        self, call: HeldCall, hook_point: HookPoint, subject: Subject, adjustment: Adjustment, end: float
    ) -> Adjustment:
        """Prepare the runtime for an adjustment; a failure counts for the plugins that own it (relay-rules C9)."""
        try:
            until = end + UPDATE_GRACE_SECONDS
            resources = await self._in_task(call, partial(call.prepare, subject, adjustment), until - self._clock())
        except BackendError as error:
            why = str(error)
        except TimeoutError:
            why = "the runtime has not answered the extra update in time"
        else:
            if resources and not call.state_unknown:
                updated = merge.prepared(call.subject(self.store) or subject, resources, adjustment)
                self.store.commit(updated, call.number)
            return adjustment
        self._dispatcher.apply_owner_policies(call, hook_point, adjustment, why)
        return NO_ADJUSTMENT

    async def _act_on_answer(self, call: HeldCall, subject: Subject | None, reply: Reply) -> None:
        """Process the runtime's answer, or schedule queries for a missing one (relay-rules C3)."""
        try:
            if not reply.answered and call.operation in _CREATES:
                self.open_calls.add_create(call.order_key())
            if reply.failed:
                # A start fails for values of the create that the kernel does not accept.
                starts = subject is not None and call.operation is Operation.START_CONTAINER
                earlier = merge.hooked_fields(subject) if subject is not None and starts else {}
                owners, parts = {**earlier, **call.adjustment.owners}, self._metrics.parts(call.times)
                self._metrics.events.add(EventKind.FAILED, call.about(), fields=owners, seconds=parts)
                log_fields(FAILED_IN_RUNTIME, call, call.operation.value, owners)
            elif subject is None:
                return
            elif reply.agreed:
                await self._finish_agreed(call, subject, reply)
            elif not reply.answered:
                if call.end or call.ended or call.operation in UNRECORDED:
                    self.open_calls.add(call.order_key(), call, partial(self._finish_settled, call, subject))
                if call.operation not in UNRECORDED:  # the runtime may have carried it out, or not
                    if call.operation not in _CREATES:  # the proxy never received the id of a created subject
                        call.state_unknown = True
                    elif call.adjustment and call.operation is Operation.RUN_POD_SANDBOX:
                        self.store.remembers = False  # a value that is read of a pod may be a hook's
                    asyncio.get_running_loop().call_later(LOST_SECONDS, self.on_lost)
        except Exception as error:
            self._log_error(call.operation, call.call_id, error)

    async def _finish_agreed(self, call: HeldCall, subject: Subject, reply: Reply) -> None:
        ticket = self._queue.enqueue(call.order_key())
        try:
            if ticket.first is not None:
                # The budget is 0 once the caller's deadline has passed: nobody waits for the answer, so there is time
                # to keep the order.
                began = self._metrics.clock()
                await self._queue.wait(ticket, self._budget(call) or self._budget_seconds)
                call.times.queued += self._metrics.clock() - began
            # Other calls of the same container may have been committed since this one was held.
            present = call.subject(self.store)
            if present is not None and call.operation is Operation.UPDATE_CONTAINER_RESOURCES:
                # The update's fields are certain, whether other fields were re-read before or after it.
                call.state_unknown = False
            result = call.outcome(present or subject, call.adjustment, reply)
            if call.operation in _CREATES:
                result = await self._created_subject(call, result)
            call.last_subject, ended = result, call.ended
            subject_id = (result.container or result.pod).effective.id
            if call.operation is Operation.STOP_POD_SANDBOX:
                ended = self._pending_ends(self.store.containers_of(result.pod.effective.id))
            if call.operation in hookpoints.REMOVES or reply.removed:
                self.store.tombstone(subject_id)
            elif not call.state_unknown:
                self.store.commit(result, call.number)
            self.open_calls.drop_repeated(ticket.key, call.operation)
            hook_point, post_point = call.end, hookpoints.BY_CALL.get((call.operation, Stage.POST))
            if hook_point is None and post_point is not None and self._registered((post_point,)):
                hook_point = post_point
            is_skipped = result.pod.effective.labels.get(self._skip_key) == self._skip_value
            if (hook_point is not None or ended) and not is_skipped:
                await self._call_post_hooks(call, hook_point, result, ended)
            removes = call.operation is Operation.REMOVE_POD_SANDBOX
            stops = removes and self.open_calls.unsettled(Operation.STOP_POD_SANDBOX, ticket.key)  # answered after this
            if call.operation in _MAY_END and not stops:
                self._dispatcher.forget_stop(subject_id)
        finally:
            self._queue.leave(ticket)

    async def _created_subject(self, call: HeldCall, made: Subject) -> Subject:
        """Return the subject that a create's answer names. If an earlier create of the same name may have made it, read
        it from the runtime (relay-rules C3) and set ``call.lacking``; if that fails, the call is ``state_unknown``."""
        made_id = (made.container or made.pod).effective.id
        stored = self.store.pod(made_id) or self.store.container(made_id)
        if stored is None and not call.must_reread_created and call.order_key() not in self.open_calls.creates:
            return made
        self.store.forget(made_id)
        if made.renewed:
            self.store.commit(Subject(made.pod), call.number)
        call.missing_fields, record = call.adjustment.owners, None
        try:
            if self.hooked:
                seconds = self._budget(call) or self._budget_seconds
                with suppress(BackendError, TimeoutError, Unreadable):
                    record = await self._in_task(call, partial(call.read_made, self.store, made), seconds)
        finally:
            if record is None:
                call.state_unknown = True
                self.store.keep_originals(merge.without_parent(made), call.number)
        if record is None:
            return made
        subject = merge.as_reported(made, record)
        call.missing_fields = merge.missing_fields(made, subject)
        owners = {field: owner for field, owner in call.adjustment.owners.items() if field in call.missing_fields}
        log_fields(MADE_EARLIER, call, call.operation.value, owners)
        return subject

    async def _call_post_hooks(
        self, call: HeldCall, hook_point: HookPoint | None, subject: Subject, ended: Sequence[ContainerRecord]
    ) -> None:
        """Call the Post hooks, first for ended containers, each with the whole budget, also without a waiting client
        (relay-rules C2). The answer waits for them, at most half of the time until the caller's deadline."""
        now, times = self._clock(), call.times
        began, querying = self._metrics.clock(), times.querying
        timer = self._deadlines.add(now + self._budget(call), call.answer)
        try:
            if not call.ended:  # else _find_ends has found them
                end = now + self._budget_seconds
                ended = [container for container in ended if await self._has_ended(call, container, end)]
            for container in ended:
                ticket = self._queue.enqueue(container.effective.id)
                try:
                    await self._queue.wait(ticket, self._budget_seconds)
                    await self._after(CONTAINER_END, Subject(subject.pod, container), call.call_id)
                finally:
                    self._queue.leave(ticket)
            if hook_point is not None:
                await self._after(hook_point, subject, call.call_id)
        finally:
            timer.late = None
            times.post = self._metrics.clock() - began - (times.querying - querying)

    async def _after(self, hook_point: HookPoint, subject: Subject, call_id: str) -> None:
        end = self._clock() + self._budget_seconds
        await self._dispatcher.after(call_id, hook_point, merge.hook_view(subject), end)

    def _pending_ends(self, containers: Iterable[ContainerRecord]) -> list[ContainerRecord]:
        return [record for record in containers if self._dispatcher.has_pending_end(CONTAINER_END, record.effective.id)]

    async def _has_ended(self, call: HeldCall, container: ContainerRecord, end: float) -> bool:
        """Return whether a container was started, and has ended or is now removed. If the runtime does not answer by
        ``end``, a removed container counts as started: hook servers accept a repeated PostStopContainer. Any other may
        still run, and its remove reports it."""
        removes = call.operation in hookpoints.REMOVES
        try:
            life = await self._in_task(call, partial(call.life, container.effective.id), end - self._clock())
        except (BackendError, Unreadable, TimeoutError):
            return removes
        return life is None or (life.started and (removes or not life.running))

    def has_pending_end(self, container_id: str) -> bool:
        """Return whether a hook server is not yet notified of a container's end, and no stop under way reports it."""
        pending = self._dispatcher.has_pending_end(CONTAINER_END, container_id)
        return pending and not self.open_calls.running(Operation.STOP_CONTAINER, container_id)

    async def ended(self, container_id: str, read: Callable[[], Awaitable[Subject | None]]) -> None:
        """Call the hook servers for a container that ended without a call. ``read`` returns it, or None if it runs
        again. It is called once the outcome of each start is known; a later start waits."""
        while starts := self.open_calls.unsettled(Operation.START_CONTAINER, container_id):
            await asyncio.wait(starts)
        ticket = self._queue.enqueue(container_id)
        try:
            await self._queue.wait(ticket, self._budget_seconds)
            subject = await read()
            if subject is not None and subject.pod.effective.labels.get(self._skip_key) != self._skip_value:
                await self._after(CONTAINER_END, subject, "")
        except Exception as error:
            self._log_error(Operation.STOP_CONTAINER, "", error)
        finally:
            self._queue.leave(ticket)

    async def _finish_settled(self, call: HeldCall, subject: Subject, reply: Reply) -> None:
        """Process an outcome that a query has returned; meanwhile the call counts as under way again."""
        task = asyncio.current_task()
        assert task is not None
        self.open_calls.under_way[call] = task
        try:
            await self._act_on_answer(call, subject, reply)
        finally:
            self.open_calls.end(call)
        self._forget_uncertain(call)

    def _forget_uncertain(self, call: HeldCall) -> None:
        """Forget the record of a call's subject if its state is unknown, and invalidate current reads of it: they may
        be older than the call."""
        with suppress(Unreadable):
            key = call.order_key()
            self.store.invalidate(key)
            if call.state_unknown:
                self.store.forget(key)
                for open_call in self.open_calls.calls():  # they have the earlier state
                    with suppress(Unreadable):
                        open_call.state_unknown |= open_call.order_key() == key

    def _apply_policies(self, call: HeldCall, subject: Subject | None, error: Exception) -> None:
        """Apply the policies of the plugins that could not be called, because of an error before the release. Raises
        HookError if the call is refused for it."""
        match error:
            case Unreadable():
                self._log_error(call.operation, call.call_id, error)
                reason, detail = Reason.UNREADABLE, str(error)
            case BackendError():
                reason, detail = Reason.UNREADABLE, f"the runtime could not be queried: {error}"
            case TimeoutError():
                reason, detail = Reason.DEADLINE, "the hold took longer than its budget (--hook-budget)"
            case _:
                self._log_error(call.operation, call.call_id, error)
                reason, detail = Reason.INTERNAL, type(error).__name__
        self._dispatcher.apply_policies(call, hookpoints.PRE[call.operation], reason, detail)
        if subject is None:  # without a subject the Post hooks cannot be called either
            self._dispatcher.apply_policies(call, hookpoints.POST[call.operation], reason, detail)

    def _log_error(self, operation: Operation, call_id: str, error: Exception) -> None:
        """Count and log an error: an Unreadable by its text, which has no values, any other by its class and place. The
        log record must not keep the error alive, and with it the call."""
        name, extra = operation.value, {"call": call_id}
        if isinstance(error, Unreadable):
            self._metrics.count("calls_unreadable", name)
            log.warning("%s cannot be read: %s", name, str(error), extra=extra)
            return
        self._metrics.count("internal_errors", name)
        *_, (frame, line) = walk_tb(error.__traceback__)
        where = f"{frame.f_code.co_filename}:{line}"
        log.error("internal error in %s: %s at %s", name, type(error).__name__, where, extra=extra)
