"""The interface between fronts and core: a call's default behaviour, and properties that are read once."""

import pytest

from runtimeproxy.core.call import DONE, NOT_DONE, UNANSWERED, HeldCall, Reply, Unreadable, read_once
from runtimeproxy.core.store import Store
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.model import merge
from runtimeproxy.model.fields import NO_ADJUSTMENT, Subject
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.events import About
from tests.fakes.calls import SUBJECT, FakeCall


def test_unreadable_message_is_no_fault_of_the_proxy() -> None:
    """The lifecycle treats it by the plugins' policy, so it must not be a subclass of the proxy's own errors."""
    assert not issubclass(Unreadable, RuntimeProxyError)


@pytest.mark.parametrize(
    ("reply", "failed"),
    [
        (DONE, False),
        (UNANSWERED, False),
        (NOT_DONE, True),
        (Reply(agreed=False, no_op=True), False),
    ],
)
def test_a_call_failed_where_the_runtime_says_so(reply: Reply, failed: bool) -> None:
    assert reply.failed is failed


POD_NAMES = ("CreateContainer", "ab12-1", "", "web", "p1")


@pytest.mark.parametrize(
    ("found", "name", "about"),
    [
        (None, "", About("CreateContainer", "ab12-1")),
        (Subject(SUBJECT.pod), "/web", About(*POD_NAMES)),
        (SUBJECT, "/web/main", About(*POD_NAMES, "main", "c1")),
    ],
)
def test_log_lines_and_events_name_what_was_found(found: Subject | None, name: str, about: About) -> None:
    call = FakeCall(Operation.CREATE_CONTAINER)
    call.call_id, call.found = "ab12-1", found
    assert (call.subject_name, call.about()) == (name, about)


class Message:
    """A message whose id is read once, successfully or not."""

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


def test_left_out_fields_are_noted_and_reported() -> None:
    call, reported = FakeCall(Operation.CREATE_CONTAINER), list[tuple[object, ...]]()
    call.call_id = "ab12-1"
    call.leave_out((), "Docker", lambda *values: reported.append(values))
    call.leave_out(("annotations", "unified"), "Docker", lambda *values: reported.append(values))
    assert reported == [("CreateContainer", ("annotations", "unified"), "Docker", "ab12-1")]
    kinds = frozenset({"annotations", "resources.unified"})
    assert call.no_effect == (("left out: Docker cannot set it", kinds),)


def test_readable_message_is_read_once() -> None:
    message, other = Message(readable=True), Message(readable=True)
    assert (message.id, message.id, message.reads, other.reads) == ("c1", "c1", 1, 0)
    message.id = "c1-whole"
    assert (message.id, message.reads) == ("c1-whole", 1)
    assert vars(Message)["id"].__doc__ == "Return the id."


def test_unreadable_message_is_not_tried_again() -> None:
    message = Message(readable=False)
    for _ in range(3):
        with pytest.raises(Unreadable, match="broken") as caught:
            _ = message.id
    assert message.reads == 1
    assert caught.value.__context__ is None, "nothing keeps the frames of the first time"


Plain = type("Plain", (HeldCall,), dict.fromkeys(HeldCall.__abstractmethods__))
"""A front's call with nothing but the abstract methods."""


async def test_call_changes_nothing_by_itself() -> None:
    call = Plain()
    assert call.hook_request(SUBJECT) == merge.hook_view(SUBJECT)
    assert await call.prepare(SUBJECT, NO_ADJUSTMENT) == {}
    assert call.outcome(SUBJECT, NO_ADJUSTMENT, DONE) is SUBJECT
    assert call.unedited(Store())
    assert not call.may_be_repeated()
    assert (await call.settle(), await call.read_made(Store(), SUBJECT)) == (UNANSWERED, None)
    assert await call.life("c1") is None
    assert (call.deadline, call.prepares, call.already_sent, call.number, call.state_unknown) == (
        None,
        False,
        False,
        0,
        False,
    )


def test_front_that_forgets_a_step_is_refused() -> None:
    forgetful = type("Forgetful", (Plain,), {"answer": HeldCall.answer})
    with pytest.raises(TypeError, match="answer"):
        forgetful()
