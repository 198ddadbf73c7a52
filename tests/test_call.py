"""Tests of what fronts and core say to each other: the states of a held call, and what a reply claims."""

import inspect
from dataclasses import FrozenInstanceError

import pytest

from runtimeproxy import records
from runtimeproxy.call import DONE, UNANSWERED, Call, CallState, Reply, Unreadable, read_once
from runtimeproxy.errors import HookError, RuntimeProxyError
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import NO_ADJUSTMENT, Adjustment, Subject
from runtimeproxy.store import Store
from tests.fakes.calls import SUBJECT


def test_a_call_is_held_released_refused_or_ended() -> None:
    assert [state.name for state in CallState] == ["HOLDING", "RELEASED", "REFUSED", "ENDED"]


@pytest.mark.parametrize("agreed", [True, False])
def test_a_reply_is_an_answer_without_a_body_unless_told_otherwise(agreed: bool) -> None:
    assert Reply(agreed) == Reply(agreed=agreed, message=b"", answered=True)


def test_a_reply_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Reply(True).agreed = False  # type: ignore[misc]


def test_a_message_that_cannot_be_read_is_no_fault_of_the_proxy() -> None:
    # The lifecycle answers it by the plugins' policy: a handler of the proxy's own errors must not take it.
    assert not issubclass(Unreadable, RuntimeProxyError)
    assert str(Unreadable("the request holds two ids")) == "the request holds two ids"


def test_only_what_waits_for_the_runtime_or_a_hook_is_awaited() -> None:
    members = {name: member for name, member in vars(Call).items() if inspect.isfunction(member) and name[0] != "_"}
    awaited = {name for name, member in members.items() if inspect.iscoroutinefunction(member)}
    assert awaited == {"read_subject", "prepare", "settle"}
    assert "Awaitable" in str(inspect.signature(Call.release).return_annotation)
    assert set(members) - awaited == {
        "order_key",
        "subject",
        "hook_request",
        "unedited",
        "release",
        "refuse",
        "outcome",
        "answer",
        "over",
    }


class Message:
    """A message that is read once, whatever comes of it."""

    def __init__(self, readable: bool) -> None:
        self.reads = 0
        self._readable = readable

    @read_once
    def id(self) -> str:
        """Return the id."""
        self.reads += 1
        if not self._readable:
            raise Unreadable("broken")
        return "c1"


def test_what_can_be_read_is_read_once() -> None:
    message = Message(readable=True)
    assert [message.id, message.id] == ["c1", "c1"]
    assert message.reads == 1
    message.id = "c1-whole"
    assert (message.id, message.reads) == ("c1-whole", 1)
    assert Message(readable=True).reads == 0


def test_what_cannot_be_read_is_not_tried_again() -> None:
    message = Message(readable=False)
    for _ in range(3):
        with pytest.raises(Unreadable, match="broken") as caught:
            _ = message.id
    assert message.reads == 1
    assert caught.value.__context__ is None, "nothing keeps the frames of the first time"


def test_its_docstring_is_that_of_what_reads() -> None:
    assert vars(Message)["id"].__doc__ == "Return the id."


class Plain(Call):
    """A call that does only what each has to."""

    operation = Operation.STOP_CONTAINER
    concerned = ()

    def order_key(self) -> str:
        return "c1"

    def subject(self, store: Store) -> Subject | None:
        return SUBJECT

    async def read_subject(self, store: Store) -> Subject | None:
        return SUBJECT

    async def release(self, subject: Subject | None, adjustment: Adjustment) -> Reply:
        return DONE

    def refuse(self, error: HookError) -> None:
        raise error

    def answer(self, reply: Reply) -> None:
        assert reply is DONE

    def over(self) -> None:
        pass


async def test_what_a_call_does_that_changes_nothing() -> None:
    call, store = Plain(), Store()
    assert call.hook_request(SUBJECT) == records.told(SUBJECT)
    assert await call.prepare(SUBJECT, NO_ADJUSTMENT) == {}
    assert call.outcome(SUBJECT, NO_ADJUSTMENT, DONE) is SUBJECT
    assert call.unedited(store)
    assert await call.settle() == UNANSWERED
    assert (call.deadline, call.prepares, call.has_left, call.number, call.unsure) == (None, False, False, 0, False)


def test_a_front_that_forgets_a_step_is_refused() -> None:
    class Forgetful(Plain):
        answer = Call.answer

    with pytest.raises(TypeError, match="answer"):
        Forgetful()
