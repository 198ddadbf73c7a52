"""Every method of both CRI versions, with random messages, several calls at once, split anywhere, arrives unchanged.

That is without a hook server and with one that changes nothing; one that changes something changes only the fields that
it names.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from zlib import decompress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.cri.routes import HELD, VERSIONS
from runtimeproxy.model.fields import Adjustment, HookAnswer, Resources, named
from runtimeproxy.model.hookpoints import Operation
from tests.amounts import examples
from tests.cri import conversations as talk
from tests.cri import rest
from tests.cri.messages import METHODS, ODD, Method
from tests.fakes.node import REPLIES, REQUESTS, wire
from tests.fakes.plugins import NOTHING

HELD_METHODS = tuple(method for method in METHODS if method.path in HELD)
OFTEN_HELD = METHODS + HELD_METHODS * 2
"""Methods to draw from, of which about half are held."""
SHORT = 300
"""Most bytes of each side for a conversation to be cut at every place."""


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Disable warnings of messages that cannot be read: there are thousands."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_table_has_every_method() -> None:
    paths = {method.path for method in METHODS}
    assert len(paths) == len(METHODS) == 43 + 29
    assert set(HELD) - paths == {b"/runtime.v1alpha2.RuntimeService/UpdatePodSandboxResources"}
    held = [f"/runtime.{version}.RuntimeService/{one.value}".encode() for version in VERSIONS for one in Operation]
    assert set(HELD) == {*held}


@pytest.mark.parametrize("behaviour", [None, NOTHING])
def test_each_method_passes(behaviour: HookAnswer | None) -> None:
    each = [talk.plain_call(method, *messages_of(method.name)) for method in METHODS]
    with closing(talk.Core(behaviour)) as core:
        stage = talk.Stage(talk.Conversation(each, orders=([4, 2, 3, 1, 0] * 20, [3, 0, 2, 4, 1] * 20)), core)
        stage.run([(who, 1_000, 0.0) for who in "crc" * 10])
        stage.check()
    assert bool(core.node.plugins.queried) == bool(behaviour)


def messages_of(name: str) -> tuple[bytes, bytes]:
    """Return a request and an answer: real ones where the method is held."""
    for operation, message in REQUESTS.items():
        if operation.value == name:
            reply = REPLIES.get(operation)
            return wire(message), b"" if reply is None else wire(reply)
    return b"".join(ODD), b"".join(reversed(ODD))


RESOURCES = Resources(cpu_quota=-1, unified={"a": "4"}, cpuset_cpus="2")
CHANGES = HookAnswer({"app": "l"}, {"a": "2"}, {"A": "3"}, "/hooked", RESOURCES)
# A whole echo can clear the cpusets, too (hook-api, "What an answer means").
NAMED = Adjustment(
    CHANGES.labels, CHANGES.annotations, CHANGES.envs, CHANGES.cgroup_parent, {"cpuset_mems": "", **named(RESOURCES)}
)
IN = {"RunPodSandbox": rest.in_pod, "CreateContainer": rest.in_create, "UpdateContainerResources": rest.in_update}
CHANGEABLE = tuple(method for method in METHODS if method.name in IN)


def only_named_fields_differ(call: talk.Call, sent: talk.Half, arrived: talk.Half) -> None:
    if arrived != sent:
        assert others(arrived) == others(sent)
        rest.assert_rest_is_untouched(body(sent), body(arrived), IN[call.method.name](NAMED))


def others(half: talk.Half) -> tuple[list[tuple[int, bytes]], bool]:
    """Return all of one side of a stream but its body."""
    parts, ended = half
    return [part for part in parts if part[0] != talk.DATA], ended


def body(half: talk.Half) -> bytes:
    [octets] = [octets for kind, octets in half[0] if kind == talk.DATA]
    compressed, length, message = octets[0], int.from_bytes(octets[1:5], "big"), octets[5:]
    assert length == len(message)
    return decompress(message, wbits=31) if compressed else message


@pytest.mark.parametrize("method", CHANGEABLE, ids=repr)
def test_answer_changes_a_call_on_the_wire(method: Method) -> None:
    def check(call: talk.Call, sent: talk.Half, arrived: talk.Half) -> None:
        assert arrived != sent
        only_named_fields_differ(call, sent, arrived)

    with closing(talk.Core(CHANGES)) as core:
        stage = talk.Stage(talk.Conversation([talk.plain_call(method, *messages_of(method.name))]), core)
        stage.run([])
        stage.check(check)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(talk.conversations(OFTEN_HELD), talk.STEPS, st.sampled_from((0.0, 0.0, 0.5)))
def test_what_no_hook_names_is_as_sent(conversation: talk.Conversation, steps: list[talk.Step], delay: float) -> None:
    for behaviour, same in ((None, talk.equal), (NOTHING, talk.equal), (CHANGES, only_named_fields_differ)):
        with closing(talk.Core(behaviour, delay)) as core:
            stage = talk.Stage(conversation, core)
            stage.run(steps)
            stage.check(same)
            if behaviour is None or conversation.held:  # else no hook server would be called
                cut_everywhere(conversation, core, same)
            assert core.node.metrics.total("internal_errors") == 0
            failures = [labels for name, labels in core.node.metrics.counters if name == "hook_failures"]
            assert not any("bad_answer" in labels for labels in failures)


def cut_everywhere(conversation: talk.Conversation, core: talk.Core, same: talk.Compare) -> None:
    length = max(len(conversation.sent), len(conversation.replied))
    for place in range(1, length if length <= SHORT else 0):
        stage = talk.Stage(conversation, core)
        stage.cut(place)
        stage.check(same)
