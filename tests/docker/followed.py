"""The requests that the proxy's parser reads from a client's bytes, or why it refuses them; no proxy runs."""

import re
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any

from hypothesis import strategies as st

from runtimeproxy.core.call import MemoryBudget
from runtimeproxy.docker.exchange import Exchange, MessageCaches, Shared
from runtimeproxy.docker.parsers import Requests
from runtimeproxy.wire.http1 import BadMessage, Rule
from tests.docker.forms import FORMS, SECRET, TARGETS, stream

PARTS = [b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b";", b",", b"\0", b"0", b"5", b"+", b"-", b"/", b"%", b"\x0b"]
PARTS += [b"\xe9", b"\r\n\r\n", b"\r\n ", b"\r\nX: y", b"0\r\n\r\n", b"Content-Length: 5\r\n", b"Content-Length:0\r\n"]
PARTS += [b"chunked", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"]
PARTS += [b"Host: i\r\n", SECRET]
"""Bytes that make a request ambiguous in another place, or when repeated."""

_SHORT = [form for form in FORMS if len(form.data) < 2000]
PROXY_PREFIX = b"runtimeproxy: "


class Connection:
    """Receives the output of ``Requests``; nothing is held, and each request is answered."""

    tunnel = refused = finished = unfinished = False
    """``unfinished``: it was refused inside a body, so an answer of the daemon may have begun then."""
    rule: Rule | None = None

    def __init__(self) -> None:
        self.to_daemon: list[bytes] = []
        self.exchanges = self.pending = list[Exchange]()
        self.shared = Shared(MemoryBudget(), MessageCaches(), {}, lambda route: False, bool)

    def cut(self, data: bytes) -> bool:
        """Return whether the last bytes were only the beginning of a head, which is not passed on."""
        return self.rule is None and len(b"".join(self.to_daemon)) < len(data)

    @property
    def targets(self) -> list[str]:
        return [exchange.head.target for exchange in self.exchanges if exchange.head is not None]

    def handle_http2(self) -> bool:
        return True

    def refuse_unreadable(self, error: BadMessage, unfinished: Exchange | None) -> None:
        self.rule, self.unfinished = error.rule, unfinished is not None


def follow(data: bytes, sizes: Iterable[int] = ()) -> Connection:
    connection: Any = Connection()
    requests = Requests(connection)
    offsets = [offset for offset in accumulate(sizes, initial=0) if offset < len(data)]
    for start, end in pairwise([*offsets, len(data)]):
        requests.feed(data[start:end])
        count = 0
        while len(connection.exchanges) > count and connection.rule is None:
            count = len(connection.exchanges)
            requests.answered(connection.exchanges[-1])
    return connection


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    changed = stream(draw(st.sampled_from(_SHORT)), draw(st.sampled_from(TARGETS)))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, min(len(changed), 300)))
        added, removed = draw(st.just(b"") | st.sampled_from(PARTS)), draw(st.integers(0, 3))
        changed = changed[:position] + added + changed[position + removed :]
    return changed


def answers(raw: bytes) -> list[bytes]:
    """Return the final answers in a daemon's bytes, with the same Date in all."""
    parts = re.split(rb"(?=HTTP/1\.[01] [0-9]{3} )", re.sub(rb"Date: [^\r]*", b"Date: now", raw))
    return [part for part in parts if part not in (b"", b"HTTP/1.1 100 Continue\r\n\r\n")]


def check_refused(read: Connection, direct: list[bytes], through: list[bytes]) -> None:
    """Check that the proxy's answer comes last; it is absent if the daemon closed before, or its answer has begun."""
    rule = read.rule
    assert rule is not None
    if through and PROXY_PREFIX in through[-1]:
        *through, proxy_answer = through
        assert PROXY_PREFIX + rule.text.encode() in proxy_answer
        assert int(proxy_answer[9:12]) == rule.status
        assert b"\r\nConnection: close\r\n" in proxy_answer
    elif not read.unfinished:
        assert through == direct
    assert through == direct[: len(through)]
