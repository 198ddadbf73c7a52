"""A call for tests of the lifecycle: a front of one call, with a slow runtime (relay-rules C1)."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from runtimeproxy.core.call import CallState, HeldCall, Life, Reply
from runtimeproxy.core.store import Store
from runtimeproxy.errors import HookError
from runtimeproxy.model import fields, hookpoints
from runtimeproxy.model.fields import ResourceValue
from runtimeproxy.model.hookpoints import Operation

AGREED = Reply(agreed=True, message=b"yes")
POD = fields.PodInfo(id="p1", name="web", labels={"app": "shop"})
CONTAINER = fields.ContainerInfo(id="c1", pod_id="p1", name="main")
SUBJECT = fields.Subject(fields.PodRecord(POD, POD), fields.ContainerRecord(CONTAINER, CONTAINER))


Value = TypeVar("Value")


def _value(given: Value | Exception) -> Value:
    if isinstance(given, Exception):
        raise given
    return given


@dataclass(eq=False)
class FakeCall(HeldCall):
    """A held call; its fields determine its behaviour."""

    operation: Operation
    known: fields.Subject | None = SUBJECT  # from the request and the Store
    known_error: Exception | None = None
    read: fields.Subject | Exception | None = None  # the runtime's report of an unknown subject
    made: fields.ContainerRecord | Exception | None = None  # the runtime's report of a created container
    repeats: bool = False  # whether its answer may name a container from a create of an earlier process
    full_key: str = ""  # the ``key`` after the preparation, if it is unknown before
    key: str | Exception = "c1"
    deadline: float | None = None
    reply: Reply | None = AGREED  # ``runtime_seconds`` after its release
    runtime_seconds: float = 1.0
    read_seconds: float = 0.0
    prepares: bool = True
    prepare_seconds: float = 0.0
    prepare_error: Exception | None = None
    prepare_unsure: bool = False  # whether a failed preparation may have had an effect
    untouched: bool = True  # whether the message needs no value of the Store
    edit_error: Exception | None = None
    outcome_error: Exception | None = None
    lives: Life | Exception | None = None  # the runtime's report of each container's state
    outcomes: list[Reply | Exception] = field(default_factory=list)
    """The runtime's answers each time the outcome of the call is queried; the last one is repeated."""
    state: CallState = CallState.HOLDING
    steps: list[tuple[float, str]] = field(default_factory=list)
    released_with: tuple[fields.Subject | None, fields.Adjustment] | None = None
    refused_with: HookError | None = None
    changed_by: fields.Adjustment | None = None  # what was passed to ``outcome``
    answered: bool = False
    over_at: float | None = None
    notified: Callable[[], None] = lambda: None  # called when it is answered
    proceed: Callable[["FakeCall"], None] = lambda call: None  # called when it has its reply

    def __post_init__(self) -> None:
        self.hook_points = hookpoints.CONCERNED[self.operation]
        self.already_sent = self.state is CallState.RELEASED
        self._given, self.reply = self.reply, None

    def _step(self, name: str) -> None:
        self.steps.append((asyncio.get_running_loop().time(), name))

    def order_key(self) -> str:
        return _value(self.key)

    def subject(self, store: Store) -> fields.Subject | None:
        if self.known_error is not None:
            raise self.known_error
        if self.known is not None and self.known.container is not None:
            return replace(self.known, container=store.container("c1") or self.known.container)
        return self.known

    async def read_subject(self, store: Store) -> fields.Subject | None:
        self._step("read")
        await asyncio.sleep(self.read_seconds)
        self.key = self.full_key or self.key
        return _value(self.read)

    def hook_request(self, subject: fields.Subject) -> fields.HookRequest:
        container = None if subject.container is None else subject.container.effective
        return fields.HookRequest(subject.pod.effective, container)

    async def prepare(self, subject: fields.Subject, adjustment: fields.Adjustment) -> Mapping[str, ResourceValue]:
        self._step("prepare")
        try:
            await asyncio.sleep(self.prepare_seconds)
            if self.prepare_error is not None:
                raise self.prepare_error
        except BaseException:
            self.state_unknown |= self.prepare_unsure
            raise
        return adjustment.resources if self.operation is Operation.START_CONTAINER else {}

    def unedited(self, store: Store) -> bool:
        return self.untouched

    def may_be_repeated(self) -> bool:
        return self.repeats

    def release(self, subject: fields.Subject | None, adjustment: fields.Adjustment) -> None:
        if subject is not None and self.edit_error is not None:
            raise self.edit_error
        self._step("release")
        self.state = CallState.RELEASED
        self.released_with = (subject, adjustment)
        asyncio.get_running_loop().call_later(self.runtime_seconds, self._settle)

    def _settle(self) -> None:
        self.reply = self._given
        self.proceed(self)

    def refuse(self, error: HookError) -> None:
        self._step("refuse")
        self.state = CallState.REFUSED
        self.refused_with = error

    def outcome(self, subject: fields.Subject, adjustment: fields.Adjustment, reply: Reply) -> fields.Subject:
        if self.outcome_error is not None:
            raise self.outcome_error
        self.changed_by = adjustment
        if subject.container is None:
            return subject
        before = subject.container.effective
        envs, annotations = {**before.envs, **adjustment.envs}, {**before.annotations, **adjustment.annotations}
        effective = replace(before, envs=envs, annotations=annotations)
        return fields.Subject(subject.pod, fields.ContainerRecord(subject.container.original, effective))

    async def read_made(self, store: Store, made: fields.Subject) -> fields.ContainerRecord | None:
        self._step("read")
        await asyncio.sleep(self.read_seconds)
        return _value(self.made)

    def answer(self) -> None:
        assert self.reply is not None
        assert self.over_at is None
        if not self.answered:
            self._step("answer")
            self.notified()
        self.answered = True

    def release_buffers(self) -> None:
        assert self.answered
        self.over_at = asyncio.get_running_loop().time()

    async def life(self, container_id: str) -> Life | None:
        await asyncio.sleep(self.read_seconds)
        return _value(self.lives)

    async def settle(self) -> Reply:
        self._step("settle")
        await asyncio.sleep(self.read_seconds)
        return _value(self.outcomes[0] if len(self.outcomes) == 1 else self.outcomes.pop(0))
