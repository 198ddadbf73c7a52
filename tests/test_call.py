"""Tests of what fronts and core say to each other: the states of a held call, and what a reply claims."""

import inspect
from dataclasses import FrozenInstanceError

import pytest

from runtimeproxy.call import Call, CallState, Reply, Unreadable
from runtimeproxy.errors import RuntimeProxyError


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
