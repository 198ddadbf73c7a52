"""What comes out of the Docker front's reader is what went in: on every route, with every framing, in any split.

A held call that nobody changes passes so too; a changed one differs in what was changed (relay-rules B8).

That is fault matrix X2.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.call import CallState
from runtimeproxy.docker.edit import edit_container, edit_pod, edit_update
from runtimeproxy.docker.exchange import HeldExchange
from runtimeproxy.docker.resources import LABEL_PREFIX, RESOURCE_TABLE
from runtimeproxy.model import Adjustment, Resources, ResourceValue
from tests.amounts import examples
from tests.docker.api import TABLE, Conversation, conversations, held_conversations
from tests.docker.peer import CHUNKED, CREATED, EXPECT, ID, Play, chunks, head, nothing_held

pytestmark = pytest.mark.slow

STEPS = st.lists(st.tuples(st.sampled_from("ccddra"), st.integers(1, 60) | st.integers(1, 9000)), max_size=30)
"""Whose turn it is (client, daemon, release of a held call, answer to one), and how many bytes are sent."""


class Stage:
    """A conversation on a reader, step by step; the daemon answers what it has received, and nothing else."""

    def __init__(self, play: Play, conversation: Conversation) -> None:
        self.play = play
        self.conversation = conversation
        self._to_send, self._to_reply = conversation.sent, conversation.replied
        self.came, self.answered = b"", b""
        """What came out on the daemon's side and on the client's."""

    def run(self, steps: list[tuple[str, int]]) -> None:
        """Do the steps, then whatever is left to be done."""
        for turn, size in steps:
            self._step(turn, size)
        moved: tuple[int, ...] = ()
        while moved != self._moved:
            moved = self._moved
            for turn in "crda":
                self._step(turn, len(self.conversation.sent) + len(self.conversation.replied))

    @property
    def _moved(self) -> tuple[int, ...]:
        return len(self.came), len(self.answered), len(self._to_send), len(self._to_reply)

    def _step(self, turn: str, size: int) -> None:
        {"c": self._send, "d": self._reply, "r": self._release, "a": self._answer}[turn](size)
        self.came += self.play.daemon.got()
        self.answered += self.play.client.got()

    def _send(self, size: int) -> None:
        piece, self._to_send = self._to_send[:size], self._to_send[size:]
        if piece:
            self.play.client.sends(piece)

    def _reply(self, size: int) -> None:
        replied = self.conversation.replied
        at = len(replied) - len(self._to_reply)
        piece = replied[at : min(at + size, self.conversation.allowed(len(self.came)))]
        if piece:
            self._to_reply = self._to_reply[len(piece) :]
            self.play.daemon.sends(piece)

    def _release(self, size: int) -> None:
        for call in self.play.events.calls:
            if call.state is CallState.HOLDING:
                call.release(None)
                return

    def _answer(self, size: int) -> None:
        for call in self.play.events.settled_calls:
            call.answer()

    def check(self) -> None:
        """Check that all came as it was sent, and that both ends follow it."""
        assert self.came == self.conversation.sent
        assert self.answered == self.conversation.replied
        assert not self.play.events.refusals
        self.play.client_ends()
        assert self.play.daemon.ended
        assert not self.play.daemon_ends()


@settings(max_examples=examples(400))
@given(conversations(), STEPS, st.booleans())
def test_what_is_not_held_passes_as_it_came(
    conversation: Conversation, steps: list[tuple[str, int]], shared: bool
) -> None:
    """``shared``: what can pass from the buffer that it was read into does so."""
    stage = Stage(nothing_held(), conversation)
    stage.play.shared = shared
    stage.run(steps)
    stage.check()


@settings(max_examples=examples(200))
@given(held_conversations(), STEPS, st.booleans(), st.booleans(), st.booleans())
def test_what_is_held_passes_as_it_came_if_nobody_changes_it(
    conversation: Conversation,
    steps: list[tuple[str, int]],
    released_at_once: bool,
    answered_at_once: bool,
    shared: bool,
) -> None:
    stage = Stage(Play(), conversation)
    stage.play.shared = shared

    def at_once(call: HeldExchange) -> None:
        if answered_at_once:
            call.on_reply = call.answer
        if released_at_once:
            call.release(None)

    stage.play.events.at_once = at_once
    stage.run(steps)
    stage.check()


def test_the_table_has_every_route_of_the_api() -> None:
    assert len(TABLE) == len(set(TABLE)) == 122


# ---- changed calls

GIB = 1 << 30
NAMES = st.sampled_from(("a", "b.c/d", "app", "io.kubernetes.pod.uid", "A"))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
LIMITS = st.sampled_from((-1, 0, GIB, 2 * GIB, 3 * GIB))
CHANGES: st.SearchStrategy[dict[str, ResourceValue]] = st.fixed_dictionaries(
    {},
    optional={
        "cpu_shares": st.integers(0, 9),
        "cpu_period": st.just(100_000),
        "cpu_quota": st.sampled_from((-1, 1000)),
        "memory_limit_in_bytes": LIMITS,
        "memory_swap_limit_in_bytes": LIMITS,
        "oom_score_adj": st.integers(-9, 9),
        "cpuset_cpus": st.sampled_from(("", "0", "1-2")),
        "cpuset_mems": st.sampled_from(("", "0")),
    },
)
ADJUSTMENTS = st.builds(
    Adjustment,
    labels=st.dictionaries(NAMES, TEXTS, max_size=2),
    annotations=st.dictionaries(NAMES, TEXTS, max_size=2),
    envs=st.dictionaries(st.sampled_from(("A", "B", "HOME")), TEXTS, max_size=2),
    resources=CHANGES,
)
PARENTS = st.none() | st.sampled_from(("", "/kubepods/besteffort/pod1", "kubepods-pod1.slice"))

UNKNOWN = st.fixed_dictionaries(
    {}, optional={"New": st.integers(), "Ünï": TEXTS, "Deep": st.just([{"Env": None}, 1e3])}
)
HOSTS = st.fixed_dictionaries(
    {"Binds": st.none(), "ShmSize": st.just(1 << 70)},
    optional={
        "CpuShares": st.integers(0, 9),
        "NanoCpus": st.integers(0, 1),
        "Memory": st.sampled_from((0, GIB, 2 * GIB)),
        "MemorySwap": LIMITS,
        "CpusetCpus": st.sampled_from(("", "0")),
        "OomScoreAdj": st.just(-998),
        "CgroupParent": st.sampled_from(("", "/kubepods/pod0")),
    },
)
BODIES = st.builds(
    lambda fixed, optional, unknown: {**unknown, **fixed, **optional},
    st.fixed_dictionaries({"Image": TEXTS, "Cmd": st.lists(TEXTS, max_size=2)}),
    st.fixed_dictionaries(
        {},
        optional={
            "Labels": st.none() | st.dictionaries(NAMES, TEXTS, max_size=3),
            "Env": st.none() | st.lists(st.sampled_from(("A=1", "A", "B=2", "AA=3", "A=2", "=x")), max_size=4),
            "HostConfig": st.none() | HOSTS,
        },
    ),
    UNKNOWN,
)
INDENTS = st.sampled_from((None, 1, "\t"))
FRAMINGS = st.sampled_from(("sized", "chunked", "chunked with trailers"))


OF_MEMORY = {"memory_limit_in_bytes": {"MemorySwap"}, "cpu_quota": {"NanoCpus"}, "cpu_period": {"NanoCpus"}}
"""What the daemon's rules move along with a field."""

Pairs = list[tuple[str, Any]]


def parsed(body: bytes) -> Pairs:
    """Return a body with each object as its members in order, and numbers as they are spelled."""
    read = json.loads(body, object_pairs_hook=Members, parse_int=Number, parse_float=Number)
    assert isinstance(read, Members)
    return read


class Members(list[tuple[str, Any]]):
    """The members of an object."""


class Number(str):
    """A number's text."""


def touched(changes: Mapping[str, ResourceValue]) -> set[str]:
    """Return the members that resources may change."""
    keys = {RESOURCE_TABLE[name] for name in changes}
    return keys.union(*(OF_MEMORY.get(name, set()) for name in changes))


def rest_of_create(body: bytes, labels: set[str], envs: set[str], host: set[str]) -> Pairs:
    """Return all of a create but what was to be changed; what is empty without that is left out."""
    kept = Members()
    for name, value in parsed(body):
        if name == "Labels":
            value = Members((key, text) for key, text in value or () if key not in labels)
        elif name == "Env":
            value = [entry for entry in value or () if entry.partition("=")[0] not in envs]
        elif name == "HostConfig":
            value = Members((key, text) for key, text in value or () if key not in host)
        if value or name not in ("Labels", "Env", "HostConfig"):
            kept.append((name, value))
    return kept


FRAMING_LINES = (b"content-length", b"transfer-encoding", b"trailer")


def sent(target: str, body: bytes, framing: str) -> bytes:
    """Return a request with a body of JSON, framed as is said, with fields on all sides of the framing."""
    fields = [
        "Host: docker",
        "X-First: 1",
        "User-Agent: Docker-Client/28.2.2 (linux)",
        "Content-Type: application/json",
    ]
    if framing == "sized":
        fields.insert(2, f"content-LENGTH:  {len(body)}")
        return head(f"POST {target} HTTP/1.1", *fields, "X-Last:") + body
    fields.insert(1, CHUNKED)
    wire = chunks(body[:7], body[7:])
    if "trailers" in framing:
        fields.insert(4, "TRAILER: X-Sum")
        wire = wire.removesuffix(b"\r\n") + b"X-Sum: 1\r\n\r\n"
    return head(f"POST {target} HTTP/1.1", *fields, EXPECT) + wire


def changed(request: bytes, body: bytes, edited: bytes, sizes: list[int]) -> None:
    """Play a held call whose body is edited; check its head, and that it is untouched where nothing changes."""
    play = Play()
    play.client.sends_cut(request, sizes)
    assert play.daemon.got() == b""
    call = play.call
    assert call.body() == body
    call.release(None if edited is body else edited)
    came = play.daemon.got()
    if edited is body:
        assert came == request
        return
    (before, _, _), (after, _, released) = request.partition(b"\r\n\r\n"), came.partition(b"\r\n\r\n")
    assert released == edited
    assert other_lines(after) == other_lines(before)
    assert framing_lines(after) == [b"Content-Length: %d" % len(edited)]
    play.client.got()
    play.daemon.sends(CREATED)
    call.answer()
    assert play.client.got() == CREATED


def framing_lines(raw: bytes) -> list[bytes]:
    return [line for line in raw.split(b"\r\n") if line.partition(b":")[0].lower() in FRAMING_LINES]


def other_lines(raw: bytes) -> list[bytes]:
    return [line for line in raw.split(b"\r\n") if line.partition(b":")[0].lower() not in FRAMING_LINES]


@settings(max_examples=examples(200))
@given(BODIES, ADJUSTMENTS, PARENTS, st.booleans(), INDENTS, FRAMINGS, st.lists(st.integers(1, 90), max_size=9))
def test_a_changed_create_differs_in_what_was_changed(
    values: dict[str, Any],
    adjustment: Adjustment,
    parent: str | None,
    of_pod: bool,
    indent: str | int | None,
    framing: str,
    sizes: list[int],
) -> None:
    body = json.dumps(values, indent=indent, ensure_ascii=indent is None).encode()
    edited = (edit_pod if of_pod else edit_container)(body, adjustment, parent)
    changed(sent("/v1.41/containers/create?name=k8s_POD_w_d_u_0", body, framing), body, edited, sizes)
    labels = {LABEL_PREFIX + name for name in adjustment.annotations} | (set(adjustment.labels) if of_pod else set())
    envs = set() if of_pod else set(adjustment.envs)
    host = touched(adjustment.resources) | ({"CgroupParent"} if parent is not None else set())
    assert rest_of_create(edited, labels, envs, host) == rest_of_create(body, labels, envs, host)


@settings(max_examples=examples())
@given(HOSTS, UNKNOWN, CHANGES, LIMITS, LIMITS, INDENTS, FRAMINGS, st.lists(st.integers(1, 90), max_size=9))
def test_a_changed_update_differs_in_what_was_changed(
    values: dict[str, Any],
    unknown: dict[str, Any],
    changes: dict[str, ResourceValue],
    memory: int,
    swap: int,
    indent: str | int | None,
    framing: str,
    sizes: list[int],
) -> None:
    body = json.dumps({**unknown, **values}, indent=indent).encode()
    present = Resources(memory_limit_in_bytes=max(memory, 0), memory_swap_limit_in_bytes=swap)
    update = edit_update(body, changes, present)
    edited = body if update.body == body else update.body
    changed(sent(f"/containers/{ID}/update", body, framing), body, edited, sizes)
    may_change = touched(changes)
    rests = [[member for member in parsed(raw) if member[0] not in may_change] for raw in (body, edited)]
    assert rests[0] == rests[1]
