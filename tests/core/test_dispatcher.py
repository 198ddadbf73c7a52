"""The dispatcher calls all plugins in order, within the budget, and applies policies and breakers to failures.

Of any answer, only the bad parts are dropped; all others are applied (fault matrix H5).
"""

import asyncio
import logging
from itertools import product
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.core.dispatcher import ENDED, OK
from runtimeproxy.errors import HookError, Reason, WireError
from runtimeproxy.hookapi import api_pb2, codec
from runtimeproxy.model import fields
from runtimeproxy.model.fields import Adjustment, HookAnswer, HookRequest, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.model.hookpoints import BY_NAME, HookPoint, SubjectKind
from runtimeproxy.model.merge import by_field
from runtimeproxy.plugins.client import FAILURES_IN_A_ROW, OPEN_SECONDS, BreakerState
from runtimeproxy.plugins.registration import FailurePolicy
from runtimeproxy.relay.rpc.connection import Peer
from tests.amounts import examples
from tests.fakes.calls import FakeCall
from tests.fakes.clock import virtual_time
from tests.fakes.core import Core
from tests.fakes.plugins import FAIL, IGNORE, NOTHING, ONE_PEER, Behaviour, FakeClient
from tests.merge_cases import BAD_FIELDS, BAD_PATHS, GOOD_FIELDS
from tests.observe.events import shown_of

pytestmark = virtual_time

CREATE, START, STOPPED = (BY_NAME[name] for name in ("PreCreateContainer", "PreStartContainer", "PostStopContainer"))
CONTAINER = fields.ContainerInfo("c1", name="main", resources=Resources(cpu_shares=1024), envs={"A": "1"})
REQUEST = HookRequest(PodInfo("p1", "web", namespace="n"), CONTAINER)
CANARY = "canary-4711"
Log = pytest.LogCaptureFixture
FAILURES = (Reason.UNREACHABLE, Reason.DEADLINE, Reason.BROKEN_ANSWER, Reason.ERROR_STATUS, Reason.UNIMPLEMENTED)
GPU = {"NVIDIA_VISIBLE_DEVICES": "0"}
SHARES = HookAnswer(resources=Resources(cpu_shares=5))
BAD_QUOTA = HookAnswer(envs=GPU, resources=Resources(cpu_period=100_000, cpu_quota=-7, cpu_shares=5))


class Desk(Core):
    async def before(self, request: HookRequest = REQUEST, seconds: float = 10.0) -> Adjustment:
        call, container = FakeCall(CREATE.operation), request.container
        record = container and fields.ContainerRecord(container, container)
        call.last_subject = Subject(PodRecord(request.pod, request.pod), record)
        return await self.dispatcher.before(call, CREATE, request, self.now + seconds)

    def counted(self, plugin: str, reason: Reason, hook_point: HookPoint = CREATE) -> tuple[int, int]:
        """Return the numbers of failures and of failures that fail open."""
        labels = {"hook_server": plugin, "hook": hook_point.name, "reason": reason.value}
        return self.metrics.counted("hook_failures", **labels), self.metrics.counted("hook_fail_open", **labels)

    @property
    def totals(self) -> tuple[int, int, int]:
        total = self.metrics.total
        return total("hook_calls", code="ok"), total("hook_failures"), total("hook_fail_open")


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_plugin_gets_changes_of_earlier_plugins(desk: Desk, caplog: Log) -> None:
    desk.plugins.add("a", HookAnswer(envs={"A": "2", "B": "3"}))
    desk.plugins.add("b")
    desk.plugins.add("c", SHARES)
    adjustment = await desk.before()
    assert desk.plugins.notified() == [("a", CREATE.name), ("b", CREATE.name), ("c", CREATE.name)]
    first, second, third = (queried.request for queried in desk.plugins.queried)
    assert (first is REQUEST, second) == (True, third)
    assert second.container is not None
    assert (second.container.envs, second.container.resources) == ({"A": "2", "B": "3"}, CONTAINER.resources)
    owners = {"envs.A": "a", "envs.B": "a", "resources.cpu_shares": "c"}
    assert adjustment == Adjustment(envs={"A": "2", "B": "3"}, resources={"cpu_shares": 5}, owners=owners)
    assert (desk.totals, desk.metrics.total("hook_conflicts")) == ((3, 0, 0), 0)
    assert desk.metrics.total("values_normalised") == 0
    desk.plugins.add("n", HookAnswer(resources=Resources(cpuset_mems="0,,1", cpu_quota=5)))
    desk.plugins.add("d", HookAnswer(envs={"A": CANARY}))
    with caplog.at_level(logging.DEBUG):
        adjustment = await desk.before()
    assert adjustment.envs == {"A": CANARY, "B": "3"}, "the later plugin wins"
    normalised = {labels: n for (name, labels), n in desk.metrics.counters.items() if name == "values_normalised"}
    assert normalised == {("n", "resources.cpuset_mems"): 1, ("n", "resources.cpu_quota"): 1}
    assert adjustment.conflicts == (fields.Conflict("envs.A", "a", "d"),)
    assert desk.metrics.counted("hook_conflicts", hook_server="a", hook=CREATE.name) == 1
    assert "hook servers a and d set the same field at PreCreateContainer: the later one wins" in caplog.text
    assert CANARY not in caplog.text


async def test_later_plugins_are_called_after_failure_under_ignore(desk: Desk) -> None:
    desk.plugins.add("a", SHARES)
    for reason in FAILURES:
        desk.plugins.add(reason.value, reason)
    desk.plugins.add("c", HookAnswer(envs={"C": "1"}))
    adjustment = await desk.before()
    assert (adjustment.resources, adjustment.envs) == ({"cpu_shares": 5}, {"C": "1"})
    assert [desk.counted(reason.value, reason) for reason in FAILURES] == [(1, 1)] * len(FAILURES)
    assert desk.totals == (2, len(FAILURES), len(FAILURES))


REFUSALS = [*((reason, FAIL) for reason in (*FAILURES, Reason.REFUSED)), (Reason.REFUSED, IGNORE)]


@pytest.mark.parametrize(("reason", "policy"), REFUSALS)
async def test_call_is_refused_under_fail_or_by_refusal(desk: Desk, reason: Reason, policy: FailurePolicy) -> None:
    desk.plugins.add("a", reason, policy=policy)
    desk.plugins.add("b")
    with pytest.raises(HookError) as caught:
        await desk.before()
    assert (caught.value.plugin, caught.value.hook, caught.value.reason) == ("a", CREATE.name, reason)
    assert desk.plugins.notified() == [("a", CREATE.name)]
    assert desk.counted("a", reason) == (1, 0)
    assert desk.metrics.total("hook_refusals", hook_server="a") == (reason is Reason.REFUSED)
    closed = desk.metrics.total("hook_fail_closed", hook_server="a", reason=reason.value)
    assert closed == (reason is not Reason.REFUSED)


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_call_continues_without_disabled_plugin(desk: Desk, policy: FailurePolicy, caplog: Log) -> None:
    desk.plugins.add("a", Reason.DISABLED, policy=policy)
    desk.plugins.add("b", SHARES)
    assert (await desk.before()).owners == {"resources.cpu_shares": "b"}
    assert desk.counted("a", Reason.DISABLED) == (1, 1)
    assert desk.metrics.total("hook_fail_closed") == 0
    assert caplog.messages == [
        f"hook server 'a' at PreCreateContainer: disabled: as reported (policy {policy.value}), for {REQUEST.name}"
    ]


async def test_refusal_text_is_returned_but_not_logged(desk: Desk, caplog: Log) -> None:
    desk.plugins.add("a", HookError("a", CREATE.name, Reason.REFUSED, "status", peer_text=f"not with {CANARY}"))
    with caplog.at_level(logging.DEBUG), pytest.raises(HookError, match=f"status: not with {CANARY}"):
        await desk.before()
    assert "hook server 'a' at PreCreateContainer: refused: status (policy Ignore)" in caplog.text
    assert CANARY not in caplog.text
    for detail, text in product(("", "2s are over"), ("", "PASSWORD=secret")):
        error = HookError("koordlet", CREATE.name, Reason.DEADLINE, detail, text)
        assert error.logged == f"hook server 'koordlet' at PreCreateContainer: deadline{detail and ': '}{detail}"
        assert str(error) == f"{error.logged}{text and ': '}{text}"


async def test_policy_applies_when_budget_is_used_up(desk: Desk) -> None:
    desk.plugins.add("a", SHARES)
    assert await desk.before(seconds=0.0) is fields.NO_ADJUSTMENT
    assert desk.counted("a", Reason.DEADLINE) == (1, 1)
    desk.plugins.add("b", SHARES, policy=FAIL)
    with pytest.raises(HookError, match=r"'b' at PreCreateContainer: deadline: .*--hook-budget"):
        await desk.before(seconds=0.0)
    assert (desk.plugins.notified(), desk.counted("b", Reason.DEADLINE)) == ([], (1, 0))


async def test_post_hooks_call_every_plugin_after_failures(desk: Desk) -> None:
    desk.plugins.add("a", Reason.UNREACHABLE, policy=FAIL)
    desk.plugins.add("b", Reason.REFUSED, policy=FAIL)
    desk.plugins.add("c", HookAnswer(envs={"": "not even checked"}))
    await desk.dispatcher.after("", STOPPED, REQUEST, desk.now + 10)
    assert desk.plugins.notified() == [(name, STOPPED.name) for name in "abc"]
    assert all(queried.request is REQUEST for queried in desk.plugins.queried)
    assert desk.counted("a", Reason.UNREACHABLE, STOPPED) == desk.counted("b", Reason.REFUSED, STOPPED) == (1, 0)
    assert desk.totals == (1, 2, 0)


async def test_failure_is_logged_with_its_subject(desk: Desk, caplog: Log) -> None:
    """A failure before the calls counts for every plugin of the hook point."""
    desk.plugins.add("a", Reason.UNREACHABLE)
    await desk.before()
    await desk.before(HookRequest(PodInfo("p2", "other", namespace="n")))
    assert len({vars(record)["kind"] for record in caplog.records}) == 2, "neither is left out for the other's sake"
    desk.plugins.add("b")
    desk.plugins.add("other", policy=FAIL, points=(START.name,))
    desk.dispatcher.apply_policies(FakeCall(CREATE.operation), (CREATE,), Reason.UNREADABLE, "why")
    subjects = [line.partition(", for ")[2] for line in caplog.messages]
    assert subjects == ["n/web/main", "n/other", "one unknown", "one unknown"]
    assert desk.counted("a", Reason.UNREADABLE) == desk.counted("b", Reason.UNREADABLE) == (1, 1)
    assert desk.totals == (0, 4, 4)


BAD_FIELD = "'a' at PreCreateContainer: bad_answer: resources.cpu_quota: must be -1 (unlimited), 0 (not set) or "


async def test_bad_field_is_left_out_and_logged_once(desk: Desk, caplog: Log) -> None:
    client = desk.plugins.add("a", BAD_QUOTA)
    desk.plugins.add("b")
    adjustment = await desk.before()
    assert (adjustment.envs, adjustment.resources) == (GPU, {"cpu_shares": 5})
    seen = desk.plugins.queried[1].request.container
    assert seen is not None
    assert (seen.envs, seen.resources) == ({"A": "1", **GPU}, Resources(cpu_shares=5))
    used = "left out, the rest of its answer is used (policy Ignore), for n/web/main; this is logged once for this"
    assert caplog.messages == [f"hook server {BAD_FIELD}at least 1000 microseconds: {used} field"]
    assert caplog.records[0].levelname == "WARNING"
    await desk.before()
    client.behaviour = HookAnswer(cgroup_parent=CANARY, resources=Resources(cpu_quota=-8))
    await desk.before()
    assert [line.split(": ")[2] for line in caplog.messages] == ["resources.cpu_quota", "cgroup_parent"]
    assert len({vars(record)["kind"] for record in caplog.records}) == 2
    assert CANARY not in caplog.text
    assert desk.counted("a", Reason.BAD_ANSWER) == (3, 3)
    desk.plugins.plugins.clear()
    desk.plugins.add("a", BAD_QUOTA)  # its registration was changed
    await desk.before()
    assert len(caplog.messages) == 3


async def test_bad_field_refuses_every_call_under_fail(desk: Desk, caplog: Log) -> None:
    """It never opens the breaker."""
    desk.plugins.add("a", BAD_QUOTA, policy=FAIL)
    desk.plugins.add("b")
    for times in range(1, 8):
        with pytest.raises(HookError) as raised:
            await desk.before()
        assert BAD_FIELD in str(raised.value)
        assert desk.counted("a", Reason.BAD_ANSWER) == (times, 0)
        assert BAD_FIELD in caplog.messages[-1]
        assert caplog.messages[-1].endswith("(policy Fail), for n/web/main")
    assert (desk.metrics.total("hook_bad_fields"), len(caplog.messages)) == (7, 7)
    assert [queried.plugin for queried in desk.plugins.queried] == ["a"] * 7


class Client(FakeClient):
    async def call(self, *args: Any, **more: Any) -> HookAnswer:
        assert args[3] == self.there
        return await super().call(*args, **more)


class Guarded(Core):
    """The core with one plugin; its attempts are made directly."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client("a", NOTHING, self.plugins.queried)
        self.plugins.add("a", client=self.client)
        (self.plugin,) = self.plugins.plugins

    async def attempt(self, hook_point: HookPoint = CREATE, seconds: float = 1.0) -> HookAnswer:
        return await self.dispatcher.attempt(self.plugin, hook_point, REQUEST, self.now + seconds)

    async def run_hook(
        self, reason: Reason | None = None, *, hook_point: HookPoint = CREATE, seconds: float = 10.0
    ) -> Reason | None:
        """Make an attempt with this result; return why the plugin was not called, None if it was."""
        self.client.behaviour, calls = reason or NOTHING, len(self.plugins.queried)
        try:
            await self.attempt(hook_point, seconds)
        except HookError as error:
            return error.reason if calls == len(self.plugins.queried) else None
        return None

    async def open(self) -> None:
        for _ in range(FAILURES_IN_A_ROW):
            assert await self.run_hook(Reason.DEADLINE) is None
        assert self.plugin.breaker.state is BreakerState.OPEN

    @property
    def breaker(self) -> tuple[float | None, int]:
        openings = self.metrics.counted("hook_breaker_openings", hook_server="a")
        return self.metrics.gauges.get(("hook_breaker_open", ("a",))), openings


@pytest.fixture
def guarded(caplog: Log) -> Guarded:
    caplog.set_level(logging.DEBUG, logger="runtimeproxy")
    return Guarded()


OPENS = [(10.0, 2.0, Reason.DEADLINE), (10.0, 0.7, Reason.DEADLINE), (1.0, 1.0, Reason.DEADLINE)]
OPENS += [(1.0, 0.4, Reason.DEADLINE), (10.0, 0.1, Reason.BROKEN_ANSWER)]
STAYS = [(10.0, 0.6, Reason.DEADLINE), (1.0, 0.3, Reason.DEADLINE), (10.0, 2.0, Reason.DISABLED)]


@pytest.mark.parametrize(("budget", "left", "reason"), [*OPENS, *STAYS])
async def test_deadline_is_failure_if_third_of_time_is_left(
    guarded: Guarded, budget: float, left: float, reason: Reason
) -> None:
    """A short deadline or earlier plugins may leave a healthy server less; the first of several has about half."""
    guarded.dispatcher.budget_seconds = budget
    for _ in range(FAILURES_IN_A_ROW):
        assert await guarded.run_hook(reason, seconds=left) is None
    opens = (budget, left, reason) in OPENS
    assert guarded.plugin.breaker.state is (BreakerState.OPEN if opens else BreakerState.CLOSED)


CODES: list[tuple[Behaviour, str]] = [(NOTHING, OK), (TimeoutError(), ENDED)]
CODES += [(reason, reason.value) for reason in (Reason.DEADLINE, Reason.REFUSED)]


@pytest.mark.parametrize(("behaviour", "code"), CODES, ids=str)
async def test_attempt_is_counted_by_result_and_duration(guarded: Guarded, behaviour: Behaviour, code: str) -> None:
    guarded.client.behaviour, guarded.client.delay_seconds = behaviour, 0.25
    await asyncio.gather(guarded.attempt(), return_exceptions=True)
    assert guarded.metrics.counted("hook_calls", hook_server="a", hook=CREATE.name, code=code) == 1
    assert guarded.metrics.total("hook_calls") == 1
    assert guarded.metrics.histograms["hook_call_duration_seconds", ("a",)].sum == 0.25


async def test_breaker_changes_are_logged_counted_and_events(guarded: Guarded, caplog: Log) -> None:
    await guarded.run_hook()
    assert guarded.breaker == (None, 0)
    await guarded.open()
    assert guarded.breaker == (1.0, 1)
    for _ in range(10):
        assert await guarded.run_hook() is Reason.BREAKER_OPEN
    await asyncio.sleep(OPEN_SECONDS)
    assert (await guarded.run_hook(), await guarded.run_hook(), guarded.breaker) == (None, None, (0.0, 1))
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        ("WARNING", "hook server a keeps failing: calls suspended for 30 s"),
        ("INFO", "hook server a recovered: calls resumed"),
    ]
    assert {vars(line)["kind"] for line in caplog.records} == {"a"}
    shown = [
        [event[key] for key in ("kind", "reason", "hookServer", "hook")] for event in shown_of(guarded.metrics.events)
    ]
    assert shown == [["breaker_open", "deadline", "a", CREATE.name], ["breaker_closed", "ok", "a", CREATE.name]]


async def test_refused_attempt_reports_time_of_next_trial(guarded: Guarded) -> None:
    await guarded.open()
    await asyncio.sleep(18)
    with pytest.raises(HookError, match=r"'a' at PreCreateContainer: breaker_open: it keeps .* tried again in 12 s"):
        await guarded.attempt()
    await asyncio.sleep(12)
    guarded.client.behaviour, guarded.client.delay_seconds = NOTHING, 0.5
    trial = asyncio.create_task(guarded.attempt())
    await asyncio.sleep(0.1)
    with pytest.raises(HookError, match="breaker_open: another call is trying it"):
        await guarded.attempt(START)
    assert guarded.plugin.breaker.state is BreakerState.HALF_OPEN
    await trial


async def test_cancelled_attempt_does_not_change_breaker(guarded: Guarded) -> None:
    """Nor does an attempt that ends with an exception."""
    await guarded.open()
    await asyncio.sleep(OPEN_SECONDS)
    for seconds in (1.0, 1.0, 0.0):
        guarded.client.behaviour, guarded.client.delay_seconds = KeyError(), seconds
        with pytest.raises((TimeoutError, KeyError)):
            await asyncio.wait_for(guarded.attempt(seconds=9.0), 0.1)
        assert guarded.plugin.breaker.state is BreakerState.HALF_OPEN
    assert guarded.metrics.counted("hook_calls", hook_server="a", hook=CREATE.name, code=ENDED) == 3
    assert (await guarded.run_hook(), guarded.plugin.breaker.state) == (None, BreakerState.CLOSED)


async def test_unserved_point_is_logged_once_and_not_called_again(guarded: Guarded, caplog: Log) -> None:
    """For any duration (fault matrix H8 requires 30 s) and any number of concurrent calls."""
    guarded.client.delay_seconds = 0.1
    await asyncio.gather(*(guarded.run_hook(Reason.UNIMPLEMENTED) for _ in range(2)))
    for _ in range(10):
        await asyncio.sleep(30)
        assert await guarded.run_hook() is Reason.UNIMPLEMENTED
        assert await guarded.run_hook(hook_point=START) is None
    assert caplog.messages == [
        "hook server a does not serve PreCreateContainer although its registration lists it: take it out of "
        "runtime-hooks, or update the server; it is called again after it reconnects"
    ]
    assert vars(caplog.records[0])["kind"] == "a PreCreateContainer"
    assert guarded.plugin.breaker.state is BreakerState.CLOSED


async def test_unserved_point_is_called_again_after_reconnect(guarded: Guarded, caplog: Log) -> None:
    await guarded.run_hook(Reason.UNIMPLEMENTED)
    for there in (Peer("socket", 2), Peer("another socket", 2), Peer("socket", 0), Peer(None, 0)):
        assert await guarded.run_hook() is Reason.UNIMPLEMENTED
        guarded.client.there = there
        assert await guarded.run_hook() is None
        guarded.client.there = ONE_PEER
    assert len(caplog.records) == 1
    guarded.client.there = Peer("socket", 0)
    for _ in range(3):
        assert await guarded.run_hook(Reason.UNIMPLEMENTED, hook_point=START) is None, "no connection stays"
    assert len(caplog.records) == 2
    guarded.client.there, guarded.client.delay_seconds = ONE_PEER, 0.1
    attempt = asyncio.create_task(guarded.run_hook(Reason.UNIMPLEMENTED, hook_point=START))
    await asyncio.sleep(0.05)
    guarded.client.there = Peer("another socket", 2)
    await attempt
    assert (len(caplog.records), await guarded.run_hook(hook_point=START)) == (2, None), "another server is there"


async def test_disabled_plugin_is_not_called_and_removed_not_logged(guarded: Guarded, caplog: Log) -> None:
    guarded.client.abandoned = True
    assert await guarded.run_hook(seconds=0) is Reason.DISABLED
    assert guarded.metrics.total("hook_calls") == 0
    guarded.client.abandoned = False
    guarded.plugins.plugins.clear()
    await guarded.open()
    assert (guarded.breaker[0], caplog.records) == (None, [])


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=4)
NAME = st.text(alphabet="abcXYZ_.-/", min_size=1, max_size=4).map("n".__add__)
PATH = NAME.filter(lambda name: ".." not in name.split("/")).map("/new/".__add__)
NO_NUL = st.tuples(NAME, TEXT.filter(lambda text: "\0" not in text))
NO_ENV = st.tuples(st.sampled_from(["", "=", "A=B", "A\0"]), TEXT) | st.tuples(NAME, TEXT.map("\0".__add__))
SIZE = st.integers(1, 2**62)
GOOD_AND_BAD: dict[str, tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    "envs": (NO_NUL, NO_ENV),
    **dict.fromkeys(("labels", "annotations", "unified"), (st.tuples(NAME, TEXT), st.tuples(st.just(""), TEXT))),
    "hugepage_limits": (st.tuples(NAME, SIZE), st.tuples(st.just(""), SIZE)),
    "cgroup_parent": (PATH, st.sampled_from(BAD_PATHS)),
    **{name: (st.sampled_from(good), st.sampled_from(BAD_FIELDS[name])) for name, good in GOOD_FIELDS.items()},
}
ANSWER_FIELDS = [
    st.tuples(st.just(name), values, st.just(good))
    for name, pair in GOOD_AND_BAD.items()
    for good, values in zip((True, False), pair, strict=True)
]
MAPS = {"envs", "labels", "annotations", "hugepage_limits", "unified"}
OF_CONTAINER = api_pb2.ContainerResourceHookResponse
MESSAGES = {BY_NAME["PreRunPodSandbox"]: api_pb2.PodSandboxHookResponse, CREATE: OF_CONTAINER, START: OF_CONTAINER}
ODD_FIELDS = [b"\x0a\x02\xff\xfe", b"\x1a\x02\xff\xfe", b"\x22\x06\x0a\x01E\x12\x01\xff", b"\x12\x05\x0dabcd"]
ODD_FIELDS += [b"\x18\x05", b"\x12\x02\x10\x05", b"\x0b", b"\x9a\x06\x03abc", b"\x80"]
"""Invalid entries, texts that are not UTF-8, other types, a bad quota, a group without an end, an unknown field."""
NUMBER, NO_DAMAGE = st.integers, ((), b"", 0)
CHANGES = st.lists(st.tuples(NUMBER(0, 200), NUMBER(0, 1), NUMBER(0, 255)), max_size=3)
DAMAGE = st.tuples(CHANGES, st.sampled_from([b"", *ODD_FIELDS]) | st.binary(max_size=60), st.just(0) | NUMBER(0, 50))
"""Changes of bytes (where, of how many, and the value), appended bytes, and how many are cut off."""
ANY_PARTS = st.lists(st.one_of(ANSWER_FIELDS), max_size=6, unique_by=lambda part: part[0])


def all_changes(hook_point: HookPoint, body: bytes) -> dict[str, Any] | None:
    """Return all changes of an answer as protobuf's own runtime parses it; None if it cannot."""
    message: Any = MESSAGES[hook_point]()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return None
    pod = hook_point.subject is SubjectKind.POD
    resources = message.resources if pod else message.container_resources
    maps = {
        "annotations": message.annotations if pod else message.container_annotations,
        **({"labels": message.labels} if pod else {"envs": message.container_envs}),
        "resources.unified": resources.unified,
        "resources.hugepage_limits": {entry.page_size: entry.limit for entry in resources.hugepage_limits},
    }
    set_values = {f"{name}.{key}": value for name, entries in maps.items() for key, value in entries.items()}
    set_values |= {f"resources.{field.name}": value for field, value in resources.ListFields() if not field.is_repeated}
    if parent := message.cgroup_parent if pod else message.pod_cgroup_parent:
        set_values["cgroup_parent"] = parent
    return set_values


TOGETHER = ({"cpu_period", "cpu_quota"}, {"memory_limit_in_bytes", "memory_swap_limit_in_bytes"})


@pytest.mark.slow
@settings(max_examples=examples(2000))
@given(st.sampled_from(list(MESSAGES)), ANY_PARTS, st.just(NO_DAMAGE) | DAMAGE)
async def test_all_valid_fields_of_any_answer_are_applied(hook_point: HookPoint, parts: list[Any], damage: Any) -> None:
    """Only the bad parts are dropped, by the codec, the validation or the merge, under policy Ignore."""
    values = {name: dict([value]) if name in MAPS else value for name, value, _ in parts}
    resources = {name: values.pop(name) for name in fields.RESOURCE_FIELDS if name in values}
    answer = HookAnswer(**values, resources=Resources(**resources) if resources else None)
    octets = bytearray(codec.encode_answer(hook_point, answer))
    for at, count, value in damage[0]:
        octets[at : at + count] = bytes([value])
    body = bytes((octets + damage[1])[: len(octets) + len(damage[1]) - damage[2]])

    def respond(request: HookRequest) -> HookAnswer:
        try:
            return codec.decode(hook_point, body)
        except WireError as error:
            raise HookError("a", hook_point.name, Reason.BAD_ANSWER, str(error)) from None

    desk, expected = Desk(), all_changes(hook_point, body)
    desk.plugins.add("a", respond)
    request = HookRequest(PodInfo(), fields.ContainerInfo() if hook_point.subject is SubjectKind.CONTAINER else None)
    adjustment = await desk.dispatcher.before(FakeCall(hook_point.operation), hook_point, request, 10.0)
    changes = by_field(adjustment)
    assert adjustment.owners == dict.fromkeys(changes, "a")
    failures, fails_open = desk.counted("a", Reason.BAD_ANSWER, hook_point)
    assert fails_open == failures == desk.metrics.total("hook_failures")
    if expected is None:
        assert (adjustment, failures) == (fields.NO_ADJUSTMENT, 1)
        return
    counted = {labels[1]: n for (name, labels), n in desk.metrics.counters.items() if name == "hook_bad_fields"}
    bad = {field.removeprefix("resources.") for field in counted}
    assert (set(counted.values()) <= {1}, failures) == (True, bool(bad)), "each once, together one failure"
    absent = "envs" if hook_point.subject is SubjectKind.POD else "labels"  # its message has no field for it
    assert damage is not NO_DAMAGE or bad == {name for name, _, good in parts if not good} - {absent}
    lost = bad | {name for group in TOGETHER if group & bad for name in group}
    for name, value in expected.items():
        field, _, key = name.removeprefix("resources.").partition(".")
        if field in MAPS:
            is_bad = not key or (field == "envs" and ("=" in key or "\0" in f"{key}{value}"))
            assert not is_bad or field in bad
        else:
            value = fields.normal_form(field, value) if field in fields.RESOURCE_FIELDS else value
            is_bad = field in lost or value == ""
        without_effect = hook_point is START and not name.startswith("resources.")
        assert changes.pop(name, None) == (None if is_bad or without_effect else value)
    assert not changes
