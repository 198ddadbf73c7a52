"""Where requests begin and end, compared with h11 on whole connections; slow and huge heads (fault matrix X2)."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.wire.http1 import Rule
from tests.amounts import Amount, examples
from tests.docker.client import Client, request
from tests.docker.followed import Connection, follow, mutations
from tests.docker.forms import FORMS, TARGETS, Form, stream
from tests.fakes.dockerd import FakeDockerd
from tests.system.proxy import ProxyInside, ProxyProcess
from tests.wire.http1_forms import head
from tests.wire.test_http1_oracle import BODY, NOISE, READ_BY_H11, SOME_LINES, WIDE, spoiled

pytestmark = pytest.mark.slow


class Asked(NamedTuple):
    """A request as a parser finds it; Transfer-Encoding in lower case, as h11 returns it."""

    method: str
    target: str
    fields: tuple[tuple[str, str], ...]
    body: bytes


def by_h11(data: bytes) -> tuple[list[Asked], str]:
    """Read a connection with h11, answering each request once complete; return the requests and how it ends.

    The end is "" if the connection stays open.
    """
    peer, asked = h11.Connection(h11.SERVER, max_incomplete_event_size=WIDE), list[Asked]()
    peer.receive_data(data)
    try:
        while isinstance(begun := peer.next_event(), h11.Request):
            asked.append(_asked(begun))
            while isinstance(part := peer.next_event(), h11.Data):
                asked[-1] = asked[-1]._replace(body=asked[-1].body + bytes(part.data))
            if not isinstance(part, h11.EndOfMessage):
                break
            peer.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
            peer.send(h11.EndOfMessage())
            if peer.our_state is h11.MUST_CLOSE:
                return asked, "closed"
            peer.start_next_cycle()
    except h11.RemoteProtocolError:
        return asked, "refused"
    return asked, ""


def _asked(request: h11.Request) -> Asked:
    fields = [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in request.headers]
    return Asked(bytes(request.method).decode(), bytes(request.target).decode("latin-1"), tuple(fields), b"")


def ours(connection: Connection) -> list[Asked]:
    asked = []
    for top, body in connection.followed():
        fields = ((name, value.lower() if name == "transfer-encoding" else value) for name, value in top.fields)
        asked.append(Asked(top.method, top.target, tuple(fields), body))
    return asked


def compare(data: bytes, sizes: Sequence[int] = ()) -> None:
    """Read with both parsers; check that the requests are equal, up to one that is refused by a rule of the list."""
    read = follow(data, sizes)
    passed = b"".join(read.to_daemon)
    if not data.startswith(passed):  # h11 refuses the empty lines that were left out
        data = passed
    (theirs, end), mine = by_h11(data), ours(read)
    whole = mine[:-1] if read.inside else mine
    assert whole[: len(theirs)] == theirs[: len(whole)]
    if end == "closed":
        return
    if len(theirs) < len(mine):
        assert not mine[len(theirs)].target.isascii(), "h11 refuses a head that we accept"
    elif read.rule is None:
        assert end == "" or read.cut(data), "h11 need not see the end of a head to refuse it"
        assert len(theirs) == len(mine)
    else:  # h11's own limit is high here
        assert end == "refused" or data is passed or read.rule in READ_BY_H11 | {Rule.HEAD_BYTES, Rule.FIELDS}


REQUEST_LINES = ["GET / HTTP/1.1", "POST /a%20b?c HTTP/1.1", "POST / HTTP/1.0", "OPTIONS * HTTP/1.1"]
REQUEST_LINES += ["GET http://h/ HTTP/1.1", "GET / HTTP/1.2", "GET /% HTTP/1.1", "GET /\xe9 HTTP/1.1"]
REQUEST_LINES += ["GET  / HTTP/1.1", "\r\nGET / HTTP/1.1", "GET /"]
SIZES = st.lists(st.integers(1, 40) | st.integers(1, 400), max_size=30)
REQUESTS = st.builds(
    lambda first, lines, body: head(first, "Host: h", *lines) + body, st.sampled_from(REQUEST_LINES), SOME_LINES, BODY
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name[:60])
def test_form_is_followed_as_h11_reads_it_or_is_on_the_list(form: Form) -> None:
    for target in TARGETS:
        compare(stream(form, target))


@settings(max_examples=examples(1000))
@given(st.lists(REQUESTS, min_size=1, max_size=4).map(b"".join), NOISE, SIZES)
def test_generated_connections(data: bytes, noise: list[tuple[int, bytes]], sizes: list[int]) -> None:
    compare(spoiled(data, noise), sizes)


@settings(max_examples=examples(500))
@given(mutations(), SIZES)
def test_changed_forms(data: bytes, sizes: list[int]) -> None:
    compare(data, sizes)


TWO_BREACHES = b"\0GET / HTTP/1.1\r\nHost:\n\r\n"


@settings(max_examples=examples())
@given(mutations(), SIZES)
@example(TWO_BREACHES, [1])
@example(TWO_BREACHES, [len(TWO_BREACHES) - 3])
def test_any_cut_gives_the_same_requests(data: bytes, sizes: list[int]) -> None:
    """Of a body that breaks a rule as much has passed as came in earlier pieces."""
    whole, cut = follow(data), follow(data, sizes)
    assert (cut.rule, cut.inside) == (whole.rule, whole.inside)
    assert [one.head for one in cut.followed()] == [one.head for one in whole.followed()]
    broken = -1 if whole.inside else None
    assert cut.followed()[:broken] == whole.followed()[:broken]


SLOW_CONNECTIONS = Amount(50, 1000)
PING = request("GET", "/_ping")


async def test_heads_that_come_byte_by_byte_disturb_nobody(tmp_path: Path) -> None:
    """After each byte of all slow connections a ping is answered; in the end the slow requests are answered, too."""
    proxy = ProxyInside(tmp_path, backend_runtime_mode="Docker")
    async with FakeDockerd(str(proxy.runtime)), proxy:
        quick = await Client.connect(str(proxy.socket))
        slow = [await Client.connect(str(proxy.socket)) for _ in range(SLOW_CONNECTIONS.now)]
        for octet in PING:
            for client in slow:
                client.send(bytes((octet,)))
            assert (await quick.ask("GET", "/_ping")).body == b"OK"
        for client in slow:
            assert (await client.answer("GET")).body == b"OK"
        for client in (quick, *slow):
            await client.close()


HUGE_HEAD_BYTES = 10 << 20
MEMORY_BYTES = 6 << 20


async def test_huge_head_is_refused_in_constant_memory(tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path, backend_runtime_mode="Docker")
    async with FakeDockerd(str(proxy.runtime)), proxy:
        client = await Client.connect(str(proxy.socket))
        assert (await client.ask("GET", "/_ping")).body == b"OK"
        await client.close()
        before = peak_bytes(proxy.pid)
        for _ in range(5):
            client = await Client.connect(str(proxy.socket))
            client.send(PING.removesuffix(b"\r\n") + b"X: " + b"x" * HUGE_HEAD_BYTES)
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (431, "close")
            assert await client.ended() == b""
            await client.close()
        assert peak_bytes(proxy.pid) - before < MEMORY_BYTES


def peak_bytes(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
