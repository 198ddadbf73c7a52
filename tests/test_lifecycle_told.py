"""What the log says of a call that the runtime refuses: the hook servers' part in it."""

from dataclasses import replace

import pytest

from runtimeproxy.call import UNANSWERED, Reply
from runtimeproxy.dispatcher import FIELDS_SHOWN
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import ContainerRecord, HookAnswer, Resources, Subject
from tests.fakes.calls import AGREED, CONTAINER, SUBJECT, FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core

CREATE, START, STOP = Operation.CREATE_CONTAINER, Operation.START_CONTAINER, Operation.STOP_CONTAINER
REFUSED, FAULTLESS = Reply(agreed=False), Reply(agreed=False, faultless=True)
CANARY = "canary-4711"
HOOKED = Subject(
    SUBJECT.pod,
    ContainerRecord(CONTAINER, replace(CONTAINER, envs={"A": CANARY}, resources=Resources(cpuset_cpus="77"))),
)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of refused calls."""
    assert CANARY not in caplog.text
    return [line.partition(" failed in the runtime; hook servers had set ")[2] for line in caplog.messages]


@pytest.mark.parametrize(("reply", "told"), [(REFUSED, True), (AGREED, False), (UNANSWERED, False), (FAULTLESS, False)])
@virtual_time
async def test_what_hook_servers_set_is_named_with_them(
    reply: Reply, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    core = Core()
    core.plugins.add("a", HookAnswer(envs={"A": CANARY}))
    core.plugins.add("b", HookAnswer(resources=Resources(cpuset_cpus="77")))
    await core.run(FakeCall(CREATE, reply=reply, fates=[UNANSWERED]))
    assert said(caplog) == (["envs.A (a), resources.cpuset_cpus (b)"] if told else [])
    assert not told or caplog.messages[0].startswith("CreateContainer of /web/main failed")


@virtual_time
async def test_what_nobody_changed_is_the_runtimes_own_affair(caplog: pytest.LogCaptureFixture) -> None:
    core = Core()
    core.plugins.add("a", HookAnswer())
    await core.run(FakeCall(CREATE, reply=REFUSED))
    assert said(caplog) == []


@pytest.mark.parametrize(("operation", "told"), [(START, True), (STOP, False)])
@virtual_time
async def test_a_start_shows_what_the_create_was_given(
    operation: Operation, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    core = Core()
    await core.run(FakeCall(operation, HOOKED, reply=REFUSED))
    earlier = "envs.A (at an earlier call), resources.cpuset_cpus (at an earlier call)"
    assert said(caplog) == ([earlier] if told else [])


@virtual_time
async def test_a_line_names_so_many_fields_at_the_most(caplog: pytest.LogCaptureFixture) -> None:
    core = Core()
    core.plugins.add("a", HookAnswer(envs={f"E{number:03d}": CANARY for number in range(FIELDS_SHOWN + 5)}))
    await core.run(FakeCall(CREATE, reply=REFUSED))
    (line,) = said(caplog)
    assert line.count("(a)") == FIELDS_SHOWN
    assert line.endswith(", 5 more")
