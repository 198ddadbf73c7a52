"""Random conversations: bytes that can pass do not wait, holds keep the order, the cache changes nothing.

They prove fault matrix X2, and relay-rules B2, B3 and B7 for any sizes of reads.
"""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.docker.exchange import Action, DockerHeld, Known, may_upgrade
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http1
from tests.amounts import examples
from tests.docker import messages as m
from tests.docker.messages import CONTINUE, OK, PING, START, answer, head, request
from tests.docker.peer import Play
from tests.docker.test_exchange_routes import API


@dataclass
class Sample:
    """A request and its answer; ``raw`` has the bytes that each side sends once the connection is a tunnel."""

    sent: bytes
    replied: bytes
    may_tunnel: bool = False
    raw: tuple[bytes, bytes] = (b"", b"")

    @property
    def head_length(self) -> int:
        return self.sent.index(b"\r\n\r\n") + 4


FIELDS = st.lists(st.sampled_from(["X-Registry-Auth: e30=", "accept:  */*", "User-Agent: curl", "X-A:"]), max_size=3)
BODY = st.binary(max_size=60) | st.sampled_from([PING, START, b"0\r\n\r\n", OK, b"x" * 3000])
CHUNKS = st.builds(
    lambda parts, trailers: m.chunks(*parts, trailers=tuple(trailers)),
    st.lists(BODY.filter(bool), max_size=4),
    st.lists(st.sampled_from(["Sum: 1", "Content-Sum: 9"]), max_size=2),
)
INTERIM = st.sampled_from([b"", b"", m.EARLY, CONTINUE, m.EARLY + CONTINUE])
ROUTES = st.sampled_from([row for row in API if row[0] != "HEAD" and not may_upgrade(*row)])
HELD = st.sampled_from([("POST", f"/containers/{path}") for path in ("create", "{ref}/start", "{ref}/stop")])
REFERENCES = st.sampled_from([m.ID, m.ID[:12], "web-0.main_1", "a%2Fb", "127.0.0.1:5000/pause:1", "%C3%A9"])
QUERIES = st.sampled_from(["", "", "?", "?a=b&a=c", "?%zz", "?name=k8s_POD_w_d_u_0"])
PREFIXES = st.sampled_from(["/v1.41", "", "/v1.24", "/v1.100"])


@st.composite
def requests(draw: st.DrawFn, rows: st.SearchStrategy[tuple[str, str]] = ROUTES) -> bytes:
    """Return a request on one of the routes, with a body in one of the framings, or without one."""
    method, path = draw(rows)
    target = draw(PREFIXES) + path.replace("{ref}", draw(REFERENCES)) + draw(QUERIES)
    fields, framing = draw(FIELDS), draw(st.sampled_from(["none", "sized", "chunked"]))
    if framing == "sized":
        return request(method, target, *fields, *draw(st.sampled_from([(), (m.EXPECT,)])), body=draw(BODY))
    return (
        request(method, target, *fields, m.CHUNKED) + draw(CHUNKS)
        if framing == "chunked"
        else request(method, target, *fields)
    )


OLD = st.just(head("GET /_ping HTTP/1.0", "Connection: keep-alive"))
REQUESTS = st.sampled_from([PING, PING, m.INFO]) | requests() | requests() | OLD
REPLIES = (
    st.sampled_from([OK, OK, m.NOT_FOUND, m.NO_CONTENT, answer(304, "Content-Length: 7", body=None)])
    | st.builds(lambda fields, body: answer(200, *fields, body=body), FIELDS, BODY)
    | st.builds(lambda content: answer(200, m.CHUNKED, body=None) + content, CHUNKS)
)
USUAL = st.builds(lambda sent, interim, reply: Sample(sent, interim + reply), REQUESTS, INTERIM, REPLIES)
OF_HEAD = st.sampled_from([answer(200, "Content-Length: 9", body=None), answer(404, m.CHUNKED, body=None)]).map(
    lambda reply: Sample(request("HEAD", "/_ping"), reply)
)
MAY_TUNNEL = st.sampled_from([m.ATTACH, m.EXEC, request("GET", "/nowhere", *m.UPGRADE)])
FAILED_UPGRADE = st.builds(lambda sent, reply: Sample(sent, reply, may_tunnel=True), MAY_TUNNEL, REPLIES)

RAW = BODY | st.just(b"GET / nonsense\n\0")
UNFRAMED = st.sampled_from([answer(200, body=None), answer(404, m.CLOSE, body=None), head("HTTP/1.0 200 OK")])
SWITCHES = UNFRAMED | st.just(head("HTTP/1.1 101 UPGRADED", *m.UPGRADE))
UPGRADED = st.builds(
    lambda sent, interim, reply, raw: Sample(sent, interim + reply, may_tunnel=True, raw=raw),
    *(MAY_TUNNEL, INTERIM, SWITCHES, st.tuples(RAW, RAW)),
)
ENDLESS = st.builds(lambda sent, reply, body: Sample(sent, reply, raw=(b"", body)), REQUESTS, UNFRAMED, RAW)
LAST = st.builds(lambda sent: Sample(sent, answer(200, m.CLOSE, body=b"last")), REQUESTS)
CONVERSATIONS = st.builds(
    lambda samples, last: [*samples, *last],
    st.lists(USUAL | USUAL | OF_HEAD | FAILED_UPGRADE, max_size=5),
    st.lists(UPGRADED | ENDLESS | LAST, max_size=1),
)
LENGTHS = st.integers(1, 60) | st.integers(1, 4000)
Sizes = list[tuple[bool, int]]
SIZES = st.lists(st.tuples(st.booleans(), LENGTHS), max_size=25)
"""Which side sends next, the client or the daemon, and how many bytes."""


@dataclass
class Conversation:
    """A conversation that is played part by part, and the bytes that must have been sent on by then."""

    samples: list[Sample]
    play: Play = field(default_factory=lambda: Play(holds=()))
    of_client: int = 0
    of_daemon: int = 0
    """How many bytes each side has sent."""

    def __post_init__(self) -> None:
        self.sent = b"".join(sample.sent + sample.raw[0] for sample in self.samples)
        self.replied = b"".join(sample.replied + sample.raw[1] for sample in self.samples)
        self.to_client = self.to_daemon = b""

    def step(self, client: bool, size: int) -> None:
        """Send up to ``size`` bytes of one side, of the daemon only answers to requests it has; check both sides."""
        if client:
            part = self.sent[self.of_client : self.of_client + size]
            self.of_client += len(part)
            self.play.client.sends(part)
        else:
            part = self.replied[self.of_daemon : min(self.of_daemon + size, self.answerable())]
            self.of_daemon += len(part)
            self.play.daemon.sends(part)
        self.to_daemon += self.play.daemon.got()
        self.to_client += self.play.client.got()
        assert self.to_daemon == self.sent[: self.passed_to_daemon()]
        assert self.to_client == self.replied[: self.passed_to_client()]

    def finish(self) -> None:
        """Send the rest of both sides, and check that each got all of it."""
        while self.of_client < len(self.sent) or self.of_daemon < len(self.replied):
            self.step(True, len(self.sent))
            self.step(False, len(self.replied))
        assert (self.to_client, self.to_daemon) == (self.replied, self.sent)

    def answerable(self) -> int:
        """Return how many bytes the daemon may have sent: it answers requests of which it has the head."""
        start = length = 0
        for sample in self.samples:
            if self.passed_to_daemon() < start + sample.head_length:
                break
            start += len(sample.sent) + len(sample.raw[0])
            length += len(sample.replied) + len(sample.raw[1])
        return length

    def passed_to_daemon(self) -> int:
        """Return how many bytes must have passed: all but an incomplete head, and what waits for a possible upgrade."""
        start = answered = 0
        for sample in self.samples:
            end, answered = start + len(sample.sent), answered + len(sample.replied)
            if self.of_client < start + sample.head_length:
                return min(start, self.of_client)
            if sample.may_tunnel and self.of_daemon < answered:
                return min(self.of_client, end)
            start, answered = end + len(sample.raw[0]), answered + len(sample.raw[1])
        return self.of_client

    def passed_to_client(self) -> int:
        """Return how many bytes must have passed to the client: all but an incomplete head."""
        start = 0
        for sample in self.samples:
            rest = sample.replied
            while rest:
                length = rest.index(b"\r\n\r\n") + 4
                if self.of_daemon < start + length:
                    return min(start, self.of_daemon)
                interim = rest.startswith((b"HTTP/1.1 100", b"HTTP/1.1 103"))
                start += length if interim else len(rest)
                rest = rest[length:] if interim else b""
            start += len(sample.raw[1])
        return self.of_daemon


@settings(max_examples=examples(200))
@given(CONVERSATIONS, SIZES, st.booleans())
def test_bytes_that_are_not_held_pass_immediately(samples: list[Sample], sizes: Sizes, shared: bool) -> None:
    conversation = Conversation(samples, Play(holds=(), shared=shared))
    for client, size in sizes:
        conversation.step(client, size)
    conversation.finish()


@settings(max_examples=examples(100))
@given(CONVERSATIONS, st.integers(0, 5000))
def test_eof_passes_after_everything_before_it(samples: list[Sample], cut: int) -> None:
    conversation = Conversation(samples)
    conversation.step(True, cut)
    play = conversation.play
    play.client_ends()
    if conversation.passed_to_daemon() == min(cut, len(conversation.sent)):
        assert play.daemon.ended, "nothing waits"
    while conversation.of_daemon < conversation.answerable():
        conversation.step(False, len(conversation.replied))
    assert play.daemon.ended


@settings(max_examples=examples(100))
@given(st.lists(USUAL | OF_HEAD, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=12))
def test_cache_never_changes_what_is_sent(samples: list[Sample], order: list[int]) -> None:
    """Each message comes in one read, as the cache needs it, and in random order, so that some repeat."""
    drawn = [samples[number % len(samples)] for number in order]
    known = Known()
    assert sent_for(drawn, known) == sent_for(drawn, known) == sent_for(drawn, Known(longest=-1))


def sent_for(samples: list[Sample], known: Known) -> list[tuple[bytes, bytes]]:
    """Return what is sent after each step: two pipelined requests where there are two, then their answers."""
    play, outs = Play(holds=(), known=known), []
    for at in range(0, len(samples), 2):
        pair = samples[at : at + 2]
        steps = [(play.client, sample.sent) for sample in pair] + [(play.daemon, sample.replied) for sample in pair]
        for side, data in steps:
            side.sends(data)
            outs.append((play.client.got(), play.daemon.got()))
    return outs


Ends = list[tuple[str, bool]]
ENDS = st.lists(st.tuples(st.sampled_from(["passes", "changes", "is refused"]), st.booleans()), min_size=6, max_size=6)
"""How a held call ends, and whether within the read that completes it."""
TO_HOLD = st.builds(Sample, st.sampled_from([m.CREATE, START, m.STOP]) | requests(HELD), REPLIES)
CHANGED = b'{"changed":1}'
REFUSED = http1.response(500, "no", close=False)


class Daemon:
    """Answers complete requests in order, and checks what it is sent; held calls end as given."""

    def __init__(self, samples: list[Sample], ends: Ends, shared: bool) -> None:
        self.play = Play(holds=[Action.CREATE, Action.START], shared=shared)
        self.play.on_held = self._on_held
        self.unanswered = [replace(sample) for sample in samples]
        self._ends = iter(ends)
        self._waiting: list[tuple[DockerHeld, str]] = []
        self._received = b""
        self.expected = b""
        """The bytes that the client must have got in the end."""

    def _on_held(self, call: DockerHeld) -> None:
        end, within_the_read = next(self._ends)
        if within_the_read:
            call.is_plain = True
            self._end(call, end)
        else:
            self._waiting.append((call, end))

    def _end(self, call: DockerHeld, end: str) -> None:
        """Release, change or refuse a call, all requests before which are answered."""
        if end == "is refused":
            self.unanswered.pop(0)
            self.expected += REFUSED
            assert call.send_refusal(500, "no")
            return
        if end == "changes":
            self.unanswered[0].sent = http1.with_length(call.head.raw, len(CHANGED)) + CHANGED
        assert call.send_request(CHANGED if end == "changes" else None)

    def work(self) -> bool:
        """Answer a complete request, or continue one held call; return whether there was anything to do."""
        self._received += self.play.daemon.got()
        if self.unanswered and self._received.startswith(self.unanswered[0].sent):
            sample = self.unanswered.pop(0)
            self._received = self._received[len(sample.sent) :]
            self.expected += sample.replied
            self.play.daemon.sends(sample.replied)
            for call in self.play.settled_calls:
                call.answer()
            return True
        if self._waiting:
            self._end(*self._waiting.pop())
            return True
        assert not self._received or self.unanswered[0].sent.startswith(self._received)
        return False


@settings(max_examples=examples(200))
@given(
    st.lists(USUAL | OF_HEAD | FAILED_UPGRADE | TO_HOLD, min_size=1, max_size=6),
    *(ENDS, st.lists(LENGTHS, max_size=20), st.booleans(), st.booleans()),
)
def test_holds_keep_the_order(samples: list[Sample], ends: Ends, sizes: list[int], busy: bool, shared: bool) -> None:
    """``busy``: the daemon answers only after the client has sent everything."""
    sent = b"".join(sample.sent for sample in samples)
    daemon = Daemon(samples, ends, shared)
    at = 0
    for size in [*sizes, len(sent)]:
        daemon.play.client.sends(sent[at : at + size])
        at += size
        while not busy and daemon.work():
            pass
    daemon.play.client_ends()
    while daemon.work():
        pass
    assert not daemon.unanswered
    # For a held request 100 Continue comes either from the proxy or from the daemon.
    assert daemon.play.client.got().replace(CONTINUE, b"") == daemon.expected.replace(CONTINUE, b"")
    assert daemon.play.daemon.ended
    assert daemon.play.memory.count == 0


Changes = list[tuple[float, bytes]]
OCTETS = st.sampled_from([b"", b"\n", b"\r", b"\0", b" ", b"9", b"g"])
CHANGES = st.lists(st.tuples(st.floats(0, 1), OCTETS), max_size=3)


def changed(data: bytes, changes: Changes) -> bytes:
    """Replace bytes at these fractions of the length."""
    for share, octets in changes:
        at = int(share * len(data))
        data = data[:at] + octets + data[at + 1 :]
    return data


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(CONVERSATIONS, CHANGES, CHANGES, SIZES, st.booleans())
def test_broken_bytes_pass_in_order_or_are_refused(
    samples: list[Sample], of_client: Changes, of_daemon: Changes, sizes: Sizes, shared: bool
) -> None:
    conversation, play = Conversation(samples), Play(holds=(), shared=shared)
    sent, replied = changed(conversation.sent, of_client), changed(conversation.replied, of_daemon)
    to_daemon = to_client = b""
    at = {True: 0, False: 0}
    for client, size in [*sizes, (True, len(sent)), (False, len(replied))]:
        side, data = (play.client, sent) if client else (play.daemon, replied)
        part = data[at[client] : at[client] + size]
        at[client] += size
        try:
            side.sends(part)
        except WireError:
            assert not client, "a client is answered"
            break
        finally:
            to_daemon, to_client = to_daemon + play.daemon.got(), to_client + play.client.got()
    assert sent.startswith(to_daemon)
    ours = to_client.rfind(b"HTTP/1.1 ", 0, to_client.rfind(b'{"message": "runtimeproxy: '))
    passed = to_client if ours < 0 else to_client[:ours]
    assert replied.startswith(to_client) or (ours >= 0 and replied.startswith(passed) and m.error(to_client[ours:])[1])
