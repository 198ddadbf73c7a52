"""Random conversations in which holds keep the order: fault matrix X2, and relay-rules B2, B3 and B7."""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.docker.exchange import Action, DockerHeld
from runtimeproxy.wire import http1
from tests.amounts import examples
from tests.docker import messages as m
from tests.docker.messages import CONTINUE, OK, PING, START, answer, head, request
from tests.docker.peer import Play


@dataclass
class Sample:
    """A request and its answer."""

    sent: bytes
    replied: bytes


LONG = b"x" * 3000
CHUNKS = m.chunks(b"{", PING, LONG, trailers=("Sum: 1",))
REQUESTS = st.sampled_from(
    [
        *(PING, m.INFO, request("DELETE", "/images/x"), head("GET /_ping HTTP/1.0", "Connection: keep-alive")),
        *(request("POST", "/images/load", *fields, body=body) for fields in ((), (m.EXPECT,)) for body in (b"", LONG)),
        *(request("POST", "/build", m.CHUNKED) + body for body in (CHUNKS, b"0\r\n\r\n")),
    ]
)
BODY = st.sampled_from([b"", PING, START, b"0\r\n\r\n", OK, LONG])
INTERIM = st.sampled_from([b"", b"", m.EARLY, CONTINUE, m.EARLY + CONTINUE])
REPLIES = st.sampled_from([OK, m.NOT_FOUND, m.NO_CONTENT, answer(304, "Content-Length: 7", body=None)])
REPLIES |= BODY.map(lambda body: answer(200, "X-A:", body=body)) | st.just(answer(200, m.CHUNKED, body=None) + CHUNKS)
USUAL = st.builds(lambda sent, interim, reply: Sample(sent, interim + reply), REQUESTS, INTERIM, REPLIES)
OF_HEAD = st.sampled_from([answer(200, "Content-Length: 9", body=None), answer(404, m.CHUNKED, body=None)]).map(
    lambda reply: Sample(request("HEAD", "/_ping"), reply)
)
MAY_TUNNEL = st.sampled_from([m.ATTACH, m.EXEC, request("GET", "/nowhere", *m.UPGRADE)])
FAILED_UPGRADE = st.builds(Sample, MAY_TUNNEL, REPLIES)

LENGTHS = st.integers(1, 60) | st.integers(1, 4000)
Ends = list[tuple[str, bool]]
ENDS = st.lists(st.tuples(st.sampled_from(["passes", "changes", "is refused"]), st.booleans()), min_size=6, max_size=6)
"""How a held call ends, and whether within the read that completes it."""
TO_HOLD = st.builds(Sample, st.sampled_from([m.CREATE, START, m.STOP]), REPLIES)
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
