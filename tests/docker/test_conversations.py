"""Random conversations: bytes that can pass do not wait, holds keep the order, the cache of messages changes nothing.

That is fault matrix X2.
"""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.docker.exchange import Action, DockerHeld, Known, may_upgrade
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http1
from tests.amounts import examples
from tests.docker.messages import CHUNKED, CLOSE, EXPECT, ID, UPGRADE, answer, chunks, error, head, request
from tests.docker.peer import Play
from tests.docker.replies import CONTINUE, NOT_FOUND, OK
from tests.docker.requests import ATTACH, CREATE, EXEC, INFO, PING, START, STOP
from tests.docker.test_exchange_routes import API

pytestmark = pytest.mark.slow

EARLY = head("HTTP/1.1 103 Early Hints")


@dataclass
class Turn:
    """A request and its answer; ``behind`` has the bytes that each side sends once the connection is a tunnel."""

    sent: bytes
    replied: bytes
    may_tunnel: bool = False
    behind: tuple[bytes, bytes] = (b"", b"")

    @property
    def head_length(self) -> int:
        """Return the length of the request's head."""
        return self.sent.index(b"\r\n\r\n") + 4


FIELDS = st.lists(st.sampled_from(["X-Registry-Auth: e30=", "accept:  */*", "User-Agent: curl", "X-A:"]), max_size=3)
BODY = st.binary(max_size=60) | st.sampled_from([PING, START, b"0\r\n\r\n", OK, b"x" * 3000])
PIECES = st.lists(BODY.filter(bool), max_size=4).map(tuple)
TRAILERS = st.lists(st.sampled_from(["Sum: 1", "Content-Sum: 9"]), max_size=2).map(tuple)
INTERIM = st.sampled_from([b"", b"", EARLY, CONTINUE, EARLY + CONTINUE])
ASKED = st.sampled_from([(method, path) for method, path in API if method != "HEAD" and not may_upgrade(method, path)])
HELD = st.sampled_from([("POST", f"/containers/{path}") for path in ("create", "{ref}/start", "{ref}/stop")])
REFERENCES = st.sampled_from([ID, ID[:12], "web-0.main_1", "a%2Fb", "127.0.0.1:5000/pause:1", "%C3%A9"])
QUERIES = st.sampled_from(["", "", "?", "?a=b&a=c", "?%zz", "?name=k8s_POD_w_d_u_0"])
PREFIXES = st.sampled_from(["/v1.41", "", "/v1.24", "/v1.100"])


@st.composite
def asked(draw: st.DrawFn, rows: st.SearchStrategy[tuple[str, str]] = ASKED) -> bytes:
    """Return a request on one of the routes, with a body in one of the framings, or without one."""
    method, path = draw(rows)
    target = draw(PREFIXES) + path.replace("{ref}", draw(REFERENCES)) + draw(QUERIES)
    fields, framing = draw(FIELDS), draw(st.sampled_from(["none", "sized", "chunked"]))
    if framing == "sized":
        return request(method, target, *fields, *draw(st.sampled_from([(), (EXPECT,)])), body=draw(BODY))
    if framing == "chunked":
        return request(method, target, *fields, CHUNKED) + chunks(*draw(PIECES), trailers=draw(TRAILERS))
    return request(method, target, *fields)


OLD = st.just(head("GET /_ping HTTP/1.0", "Connection: keep-alive"))
REQUESTS = st.sampled_from([PING, PING, INFO]) | asked() | asked() | OLD
TO_HOLD = st.sampled_from([CREATE, START, STOP]) | asked(HELD)
REPLIES = (
    st.sampled_from([OK, OK, NOT_FOUND, answer(204, body=None), answer(304, "Content-Length: 7", body=None)])
    | st.builds(lambda fields, body: answer(200, *fields, body=body), FIELDS, BODY)
    | st.builds(
        lambda pieces, trailers: answer(200, CHUNKED, body=None) + chunks(*pieces, trailers=trailers), PIECES, TRAILERS
    )
)
USUAL = st.builds(lambda sent, early, reply: Turn(sent, early + reply), REQUESTS, INTERIM, REPLIES)
OF_HEAD = st.builds(
    lambda reply: Turn(request("HEAD", "/_ping"), reply),
    st.sampled_from([answer(200, "Content-Length: 9", body=None), answer(404, CHUNKED, body=None)]),
)
MAY_TUNNEL = st.sampled_from([ATTACH, EXEC, request("GET", "/nowhere", *UPGRADE)])
FAILED_UPGRADE = st.builds(lambda sent, reply: Turn(sent, reply, may_tunnel=True), MAY_TUNNEL, REPLIES)
TURNS = st.lists(USUAL | USUAL | OF_HEAD | FAILED_UPGRADE, max_size=5)

RAW = BODY | st.just(b"GET / nonsense\n\0")
UNFRAMED = st.sampled_from([answer(200, body=None), answer(404, CLOSE, body=None), head("HTTP/1.0 200 OK")])
SWITCHES = UNFRAMED | st.just(head("HTTP/1.1 101 UPGRADED", *UPGRADE))
UPGRADED = st.builds(
    lambda sent, early, reply, behind: Turn(sent, early + reply, may_tunnel=True, behind=behind),
    MAY_TUNNEL,
    INTERIM,
    SWITCHES,
    st.tuples(RAW, RAW),
)
ENDLESS = st.builds(lambda sent, reply, body: Turn(sent, reply, behind=(b"", body)), REQUESTS, UNFRAMED, RAW)
LAST = st.builds(lambda sent: Turn(sent, answer(200, CLOSE, body=b"last")), REQUESTS)
CONVERSATIONS = st.builds(lambda turns, last: [*turns, *last], TURNS, st.lists(UPGRADED | ENDLESS | LAST, max_size=1))
LENGTHS = st.integers(1, 60) | st.integers(1, 4000)
Sizes = list[tuple[bool, int]]
SIZES = st.lists(st.tuples(st.booleans(), LENGTHS), max_size=25)
"""Who sends next, the client or the daemon, and how many bytes."""


@dataclass
class Conversation:
    """A conversation that is played piece by piece, and the bytes that must have gone out by then."""

    turns: list[Turn]
    play: Play = field(default_factory=lambda: Play(holds=()))
    of_client: int = 0
    of_daemon: int = 0
    """How many bytes each side has sent."""

    def __post_init__(self) -> None:
        self.sent = b"".join(turn.sent + turn.behind[0] for turn in self.turns)
        self.replied = b"".join(turn.replied + turn.behind[1] for turn in self.turns)
        self.to_client = self.to_daemon = b""

    def step(self, client: bool, size: int) -> None:
        """Send up to ``size`` bytes of one side, of the daemon only answers to requests it has; check both sides."""
        if client:
            piece = self.sent[self.of_client : self.of_client + size]
            self.of_client += len(piece)
            side = self.play.client
        else:
            piece = self.replied[self.of_daemon : min(self.of_daemon + size, self._asked_for())]
            self.of_daemon += len(piece)
            side = self.play.daemon
        side.sends(piece)
        self.to_daemon += self.play.daemon.got()
        self.to_client += self.play.client.got()
        assert self.to_daemon == self.sent[: self._gone_to_daemon()]
        assert self.to_client == self.replied[: self._gone_to_client()]

    def finish(self) -> None:
        """Send the rest of both sides, and check that each got all of the other's."""
        while self.of_client < len(self.sent) or self.of_daemon < len(self.replied):
            self.step(True, len(self.sent))
            self.step(False, len(self.replied))
        assert (self.to_client, self.to_daemon) == (self.replied, self.sent)

    def _asked_for(self) -> int:
        """Return how many bytes the daemon may have sent: it answers requests of which it has the head."""
        start = asked = 0
        for turn in self.turns:
            if self._gone_to_daemon() < start + turn.head_length:
                break
            start += len(turn.sent) + len(turn.behind[0])
            asked += len(turn.replied) + len(turn.behind[1])
        return asked

    def _gone_to_daemon(self) -> int:
        """Return how many bytes must have gone to the daemon.

        These are all but an incomplete head, and what waits for the answer to a possible upgrade.
        """
        start = answered = 0
        for turn in self.turns:
            end, answered = start + len(turn.sent), answered + len(turn.replied)
            if self.of_client < start + turn.head_length:
                return min(start, self.of_client)
            if turn.may_tunnel and self.of_daemon < answered:
                return min(self.of_client, end)
            start, answered = end + len(turn.behind[0]), answered + len(turn.behind[1])
        return self.of_client

    def _gone_to_client(self) -> int:
        """Return how many bytes must have gone to the client: all but an incomplete head."""
        start = 0
        for turn in self.turns:
            rest = turn.replied
            while rest:
                length = rest.index(b"\r\n\r\n") + 4
                if self.of_daemon < start + length:
                    return min(start, self.of_daemon)
                interim = rest.startswith((b"HTTP/1.1 100", b"HTTP/1.1 103"))
                start += length if interim else len(rest)
                rest = rest[length:] if interim else b""
            start += len(turn.behind[1])
        return self.of_daemon


@settings(max_examples=examples(300))
@given(CONVERSATIONS, SIZES, st.booleans())
def test_what_is_not_held_leaves_at_once(turns: list[Turn], sizes: Sizes, shared: bool) -> None:
    conversation = Conversation(turns)
    conversation.play.shared = shared
    for client, size in sizes:
        conversation.step(client, size)
    conversation.finish()


@settings(max_examples=examples(100))
@given(CONVERSATIONS, st.integers(0, 5000))
def test_eof_passes_behind_everything_before_it(turns: list[Turn], cut: int) -> None:
    conversation = Conversation(turns)
    conversation.step(True, cut)
    play = conversation.play
    play.client_ends()
    if conversation._gone_to_daemon() == min(cut, len(conversation.sent)):
        assert play.daemon.ended, "nothing waits"
    while conversation.of_daemon < conversation._asked_for():
        conversation.step(False, len(conversation.replied))
    assert play.daemon.ended


@settings(max_examples=examples(100))
@given(st.lists(USUAL | OF_HEAD, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=12))
def test_memory_never_changes_what_goes_out(turns: list[Turn], order: list[int]) -> None:
    """Each message comes in one piece, as the cache needs it, and in random order, so that some repeat."""
    drawn = [turns[number % len(turns)] for number in order]
    known = Known()
    assert told(drawn, known) == told(drawn, known) == told(drawn, Known(longest=-1))


def told(turns: list[Turn], known: Known) -> list[tuple[bytes, bytes]]:
    """Return what goes out after each step: two requests at once where there are two, then their answers."""
    play, outs = Play(holds=(), known=known), []
    for at in range(0, len(turns), 2):
        for turn in turns[at : at + 2]:
            play.client.sends(turn.sent)
            outs.append((play.client.got(), play.daemon.got()))
        for turn in turns[at : at + 2]:
            play.daemon.sends(turn.replied)
            outs.append((play.client.got(), play.daemon.got()))
    return outs


Fates = list[tuple[str, bool]]
FATES = st.lists(st.tuples(st.sampled_from(["passes", "changes", "is refused"]), st.booleans()), min_size=6, max_size=6)
"""What happens to a held call, and whether within the event that reports it."""
HELD_TURNS = st.lists(USUAL | OF_HEAD | FAILED_UPGRADE | st.builds(Turn, TO_HOLD, REPLIES), min_size=1, max_size=6)
CHANGED = b'{"changed":1}'
REFUSED = http1.response(500, "no", close=False)


class Daemon:
    """Answers complete requests in order, and checks what it is sent; held calls are ended by their fates."""

    def __init__(self, turns: list[Turn], fates: Fates) -> None:
        self.play = Play(holds=[Action.CREATE, Action.START])
        self.play.at_once = self._at_once
        self.left = [replace(turn) for turn in turns]
        """The requests that are not answered yet."""
        self._fates = iter(fates)
        self._waiting: list[tuple[DockerHeld, str]] = []
        self._came = b""
        self.expected = b""
        """The bytes that the client must have got in the end."""

    def _at_once(self, call: DockerHeld) -> None:
        fate, at_once = next(self._fates)
        if at_once:
            call.is_plain = True
            self._meet(call, fate)
        else:
            self._waiting.append((call, fate))

    def _meet(self, call: DockerHeld, fate: str) -> None:
        """Release, change or refuse a call by its fate; its turn has come, so all calls before it are answered."""
        turn = self.left[0]
        if fate == "is refused":
            self.left.pop(0)
            self.expected += REFUSED
            assert call.send_refusal(500, "no")
            return
        assert call.head is not None
        if fate == "changes":
            turn.sent = http1.with_length(call.head.raw, len(CHANGED)) + CHANGED
        assert call.send_request(CHANGED if fate == "changes" else None)

    def work(self) -> bool:
        """Answer a complete request, and continue one held call; return whether there was anything to do."""
        self._came += self.play.daemon.got()
        if self.left and self._came.startswith(self.left[0].sent):
            turn = self.left.pop(0)
            self._came = self._came[len(turn.sent) :]
            self.expected += turn.replied
            self.play.daemon.sends(turn.replied)
            for call in self.play.settled_calls:
                call.answer()
            return True
        if self._waiting:
            self._meet(*self._waiting.pop())
            return True
        assert not self._came or self.left[0].sent.startswith(self._came)
        return False


@settings(max_examples=examples(300))
@given(HELD_TURNS, FATES, st.lists(LENGTHS, max_size=20), st.booleans(), st.booleans())
def test_holds_keep_the_order(turns: list[Turn], fates: Fates, sizes: list[int], busy: bool, shared: bool) -> None:
    """``busy``: the daemon answers only after the client has sent everything."""
    sent = b"".join(turn.sent for turn in turns)
    daemon = Daemon(turns, fates)
    daemon.play.shared = shared
    at = 0
    for size in [*sizes, len(sent)]:
        daemon.play.client.sends(sent[at : at + size])
        at += size
        while not busy and daemon.work():
            pass
    daemon.play.client_ends()
    while daemon.work():
        pass
    assert not daemon.left
    # For a held request 100 Continue comes either from the proxy or from the daemon.
    assert daemon.play.client.got().replace(CONTINUE, b"") == daemon.expected.replace(CONTINUE, b"")
    assert daemon.play.daemon.ended
    assert daemon.play.budget.count == 0


Changes = list[tuple[float, bytes]]
OCTETS = st.sampled_from([b"", b"\n", b"\r", b"\0", b" ", b"9", b"g"])
CHANGES = st.lists(st.tuples(st.floats(0, 1), OCTETS), max_size=3)


def changed(data: bytes, changes: Changes) -> bytes:
    """Replace bytes at these fractions of the length."""
    for share, octets in changes:
        at = int(share * len(data))
        data = data[:at] + octets + data[at + 1 :]
    return data


@settings(max_examples=examples(300))
@given(CONVERSATIONS, CHANGES, CHANGES, SIZES, st.booleans())
def test_what_is_broken_is_never_out_of_order(
    turns: list[Turn], of_client: Changes, of_daemon: Changes, sizes: Sizes, shared: bool
) -> None:
    """They pass, or are refused."""
    conversation = Conversation(turns)
    conversation.play.shared = shared
    sent, replied = changed(conversation.sent, of_client), changed(conversation.replied, of_daemon)
    play, at = conversation.play, {True: 0, False: 0}
    to_daemon = to_client = b""
    for client, size in [*sizes, (True, len(sent)), (False, len(replied))]:
        side, data = (play.client, sent) if client else (play.daemon, replied)
        piece = data[at[client] : at[client] + size]
        at[client] += size
        try:
            side.sends(piece)
        except WireError:
            assert not client, "a client is answered"
            break
        finally:
            to_daemon, to_client = to_daemon + play.daemon.got(), to_client + play.client.got()
    assert sent.startswith(to_daemon)
    assert replied.startswith(to_client) or _ends_with_our_answer(replied, to_client)


def _ends_with_our_answer(replied: bytes, got: bytes) -> bool:
    ours = got.rfind(b"HTTP/1.1 ", 0, got.rfind(b'{"message": "runtimeproxy: '))
    return ours >= 0 and replied.startswith(got[:ours]) and error(got[ours:])[1]
