"""Random conversations: holds keep the order, and broken bytes pass in order or are refused.

They prove fault matrix X2, and relay-rules B2, B3 and B7 for any sizes of reads.
"""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.docker.exchange import Action, DockerHeld
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http1
from tests.amounts import examples
from tests.docker import messages as m
from tests.docker.messages import CONTINUE, OK, PING, START, answer, head, request
from tests.docker.peer import Play


@dataclass
class Sample:
    """A request and its answer; ``raw`` has the bytes that each side sends once the connection is a tunnel."""

    sent: bytes
    replied: bytes
    raw: tuple[bytes, bytes] = (b"", b"")


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

RAW = BODY | st.just(b"GET / nonsense\n\0")
UNFRAMED = st.sampled_from([answer(200, body=None), answer(404, m.CLOSE, body=None), head("HTTP/1.0 200 OK")])
UPGRADED = st.builds(Sample, MAY_TUNNEL, UNFRAMED | st.just(m.SWITCHING), st.tuples(RAW, RAW))
ENDLESS = st.builds(Sample, REQUESTS, UNFRAMED, st.tuples(st.just(b""), RAW))
LAST = st.builds(Sample, REQUESTS, st.just(answer(200, m.CLOSE, body=b"last")))
CONVERSATIONS = st.builds(
    lambda samples, last: [*samples, *last],
    st.lists(USUAL | USUAL | OF_HEAD | FAILED_UPGRADE, max_size=5),
    st.lists(UPGRADED | ENDLESS | LAST, max_size=1),
)
LENGTHS = st.integers(1, 60) | st.integers(1, 4000)
Sizes = list[tuple[bool, int]]
SIZES = st.lists(st.tuples(st.booleans(), LENGTHS), max_size=25)
"""Which side sends next, the client or the daemon, and how many bytes."""


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
    play = Play(holds=(), shared=shared)
    sent = changed(b"".join(sample.sent + sample.raw[0] for sample in samples), of_client)
    replied = changed(b"".join(sample.replied + sample.raw[1] for sample in samples), of_daemon)
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
