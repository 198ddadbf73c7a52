"""The boundaries of requests in any parts, compared with h11; slow and huge heads (fault matrix X2)."""

from pathlib import Path

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.wire.http1 import Rule
from tests.amounts import Amount, examples
from tests.docker.client import Client
from tests.docker.followed import follow, mutations
from tests.docker.forms import FORMS, TARGETS, Form, stream
from tests.docker.messages import request
from tests.fakes.dockerd import FakeDockerd
from tests.system.proxy import ProxyInside, ProxyProcess
from tests.wire.http1_forms import BODY, NOISE, READ_BY_H11, SOME_LINES, head, spoiled

pytestmark = pytest.mark.slow
SIZES = st.lists(st.integers(1, 40) | st.integers(1, 400), max_size=30)
TWO_BREACHES = b"\0GET / HTTP/1.1\r\nHost:\n\r\n"
SLOW_CONNECTIONS = Amount(50, 1000)
PING = request("GET", "/_ping")


def by_h11(data: bytes) -> tuple[list[tuple[str, str]], str]:
    """Return method and target of the requests that h11 reads, answering each, and how the connection ends, or ""."""
    peer, requests = h11.Connection(h11.SERVER, max_incomplete_event_size=8 << 20), list[tuple[str, str]]()
    peer.receive_data(data)
    try:
        while isinstance(request := peer.next_event(), h11.Request):
            requests.append((bytes(request.method).decode(), bytes(request.target).decode("latin-1")))
            while isinstance(part := peer.next_event(), h11.Data):
                pass
            if not isinstance(part, h11.EndOfMessage):
                break
            peer.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
            peer.send(h11.EndOfMessage())
            if peer.our_state is h11.MUST_CLOSE:
                return requests, "closed"
            peer.start_next_cycle()
    except h11.RemoteProtocolError:
        return requests, "refused"
    return requests, ""


def compare(data: bytes) -> None:
    """Read with both parsers; check that the requests are equal, up to a request that a rule of the list refuses."""
    read = follow(data)
    passed = b"".join(read.to_daemon)
    if not data.startswith(passed):  # h11 refuses the empty lines that were dropped
        data = passed
    expected, end = by_h11(data)
    heads = (exchange.head for exchange in read.exchanges)
    requests = [(head.method, head.target) for head in heads if head is not None]
    assert requests[: len(expected)] == expected[: len(requests)]
    if end == "closed":
        return
    if len(expected) < len(requests):
        assert not requests[len(expected)][1].isascii(), "h11 refuses a head that we accept"
    elif read.rule is None:
        assert end == "" or read.cut(data), "h11 need not see the end of a head to refuse it"
        assert len(expected) == len(requests)
    else:  # h11's own limit is high here
        assert end == "refused" or data is passed or read.rule in READ_BY_H11 | {Rule.HEAD_BYTES, Rule.FIELDS}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name[:60])
def test_form_is_followed_as_h11_reads_it_or_is_on_the_list(form: Form) -> None:
    for target in TARGETS:
        compare(stream(form, target))


FIRST = ["GET / HTTP/1.1", "POST /a%20b?c HTTP/1.1", "POST / HTTP/1.0", "OPTIONS * HTTP/1.1", "GET http://h/ HTTP/1.1"]
FIRST += ["GET / HTTP/1.2", "GET /% HTTP/1.1", "GET /\xe9 HTTP/1.1", "GET  / HTTP/1.1", "\r\nGET / HTTP/1.1", "GET /"]
HEADS = st.builds(lambda first, lines: head(first, "Host: h", *lines), st.sampled_from(FIRST), SOME_LINES)
REQUESTS = st.lists(st.builds(bytes.__add__, HEADS, BODY), min_size=1, max_size=4)


@settings(max_examples=examples(1000))
@given(st.builds(spoiled, REQUESTS.map(b"".join), NOISE))
def test_generated_connection_is_read_as_by_h11(data: bytes) -> None:
    compare(data)


@settings(max_examples=examples())
@given(mutations(), SIZES)
@example(TWO_BREACHES, [1])
@example(TWO_BREACHES, [len(TWO_BREACHES) - 3])
def test_any_cut_gives_same_requests_as_h11(data: bytes, sizes: list[int]) -> None:
    """Of a body that breaks a rule as much has passed as was received in earlier parts."""
    compare(data)
    whole, cut = follow(data), follow(data, sizes)
    assert (cut.rule, cut.unfinished, cut.targets) == (whole.rule, whole.unfinished, whole.targets)
    passed, minimum = b"".join(cut.to_daemon), b"".join(whole.to_daemon)
    assert passed.startswith(minimum) if whole.unfinished else passed == minimum


async def test_slow_heads_delay_no_other_client(tmp_path: Path) -> None:
    """After each byte of all slow connections a ping is answered; in the end the slow requests are answered, too."""
    proxy = ProxyInside(tmp_path, backend_runtime_mode="Docker")
    async with FakeDockerd(str(proxy.runtime)), proxy:
        quick = await Client.connect(str(proxy.socket))
        slow = [await Client.connect(str(proxy.socket)) for _ in range(SLOW_CONNECTIONS.now)]
        for octet in PING:
            for client in slow:
                client.send(bytes((octet,)))
            assert (await quick.fetch("GET", "/_ping")).body == b"OK"
        for client in slow:
            assert (await client.answer("GET")).body == b"OK"
        for client in (quick, *slow):
            await client.close()


async def test_huge_head_is_refused_in_constant_memory(tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path, backend_runtime_mode="Docker")
    async with FakeDockerd(str(proxy.runtime)), proxy:
        client = await Client.connect(str(proxy.socket))
        assert (await client.fetch("GET", "/_ping")).body == b"OK"
        before = peak_bytes(proxy.pid)
        for _ in range(5):
            await client.close()
            client = await Client.connect(str(proxy.socket))
            client.send(PING.removesuffix(b"\r\n") + b"X: " + b"x" * (10 << 20))
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"], await client.ended()) == (431, "close", b"")
        await client.close()
        assert peak_bytes(proxy.pid) - before < 6 << 20


def peak_bytes(pid: int) -> int:
    return 1024 * int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0])
