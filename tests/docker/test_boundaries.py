"""Where requests begin and end however they are cut; slow and huge heads (fault matrix X2)."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.amounts import Amount, examples
from tests.docker.client import Client
from tests.docker.followed import follow, mutations
from tests.docker.messages import request
from tests.fakes.dockerd import FakeDockerd
from tests.system.proxy import ProxyInside, ProxyProcess

pytestmark = pytest.mark.slow


SIZES = st.lists(st.integers(1, 40) | st.integers(1, 400), max_size=30)


TWO_BREACHES = b"\0GET / HTTP/1.1\r\nHost:\n\r\n"


@settings(max_examples=examples())
@given(mutations(), SIZES)
@example(TWO_BREACHES, [1])
@example(TWO_BREACHES, [len(TWO_BREACHES) - 3])
def test_any_cut_gives_the_same_requests(data: bytes, sizes: list[int]) -> None:
    """Of a body that breaks a rule as much has passed as was received in earlier parts."""
    whole, cut = follow(data), follow(data, sizes)
    assert (cut.rule, cut.inside, cut.targets) == (whole.rule, whole.inside, whole.targets)
    passed, sure = b"".join(cut.to_daemon), b"".join(whole.to_daemon)
    assert passed.startswith(sure) if whole.inside else passed == sure


SLOW_CONNECTIONS = Amount(50, 1000)
PING = request("GET", "/_ping")


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


HUGE_HEAD_BYTES = 10 << 20
MEMORY_BYTES = 6 << 20


async def test_huge_head_is_refused_in_constant_memory(tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path, backend_runtime_mode="Docker")
    async with FakeDockerd(str(proxy.runtime)), proxy:
        client = await Client.connect(str(proxy.socket))
        assert (await client.fetch("GET", "/_ping")).body == b"OK"
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
