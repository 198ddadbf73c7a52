"""How a pair ends: a hang-up, another backend, the last answer (relay-rules B1, B9)."""

import asyncio
import contextlib
import socket

import pytest

from runtimeproxy.relay import pair
from tests.relay.paired import MIB, Rig

# ---- hang-up


async def test_client_that_hangs_up_ends_the_backend(watching: Rig) -> None:
    """Its EOF is none of a half-close: what it began is not taken for a request that was cut."""
    watching.client.send(b"last question")
    watching.client.close()
    await watching.until("closed")
    assert watching.flow.events == ["client gone", "closed"]
    assert watching.pair.client_ended
    assert await watching.read(watching.backend) == b"last question"
    assert await watching.read(watching.backend) == b""


@pytest.mark.parametrize("waits", [False, True], ids=["EOF passed", "EOF waits"])
async def test_client_that_half_closed_may_hang_up_later(watching: Rig, waits: bool) -> None:
    watching.flow.waits = waits
    watching.client.shutdown(socket.SHUT_WR)
    await watching.until("client ended")
    assert await watching.stays_open()
    watching.client.close()
    await watching.until("closed")
    assert watching.flow.events == ["client ended", "client gone", "closed"]


async def test_what_a_client_sent_before_it_hung_up_goes_to_a_slow_backend(watching: Rig) -> None:
    rig = watching
    sent = 0
    while not rig.pair._backend.waiting:
        with contextlib.suppress(BlockingIOError):
            sent += rig.client.send(b"z" * 16384)
        await asyncio.sleep(0)
    assert not rig.pair._backend.slow, "then the client would not be read, and nobody knew that it left"
    rig.client.close()
    await rig.until("client gone")
    assert await rig.stays_open(), "bytes wait"
    assert await rig.read_to_end(rig.backend) == sent
    await rig.until("closed")


async def to_nobody(sock: socket.socket) -> int:
    """Send until that fails; return how much was taken."""
    taken = 0
    async with asyncio.timeout(20):
        while True:
            try:
                taken += sock.send(b"y" * 1024)
            except BlockingIOError:
                pass
            except BrokenPipeError:
                return taken
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("bulk", [False, True], ids=["read", "passing"])
@pytest.mark.parametrize("stuck", ["paused", "read"])
async def test_backend_that_reads_nothing_learns_by_EPIPE_that_the_client_left(
    watching: Rig, stuck: str, bulk: bool
) -> None:
    """What the client sent before comes first, so nobody else can tell it; directly, it would know (EPIPE)."""
    rig = watching
    rig.flow.bulk = bulk
    sent = 0
    if stuck == "paused":
        sent = await rig.fill(rig.client)
    while not rig.pair._backend.waiting:
        with contextlib.suppress(BlockingIOError):
            sent += rig.client.send(b"z" * 16384)
        await asyncio.sleep(0)
    rig.client.close()
    assert await to_nobody(rig.backend) < MIB
    assert await rig.stays_open(), "the client's bytes wait"
    assert await rig.read_to_end(rig.backend) == sent
    await rig.until("closed")


async def test_backend_that_leaves_too_ends_what_it_does_not_take(watching: Rig) -> None:
    await watching.fill(watching.client)
    watching.client.close()
    await to_nobody(watching.backend)
    watching.backend.close()
    await watching.until("closed")


async def test_client_that_reads_no_more_may_send_on(watching: Rig) -> None:
    watching.client.shutdown(socket.SHUT_RD)
    await to_nobody(watching.backend)
    watching.client.send(b"question")
    assert await watching.read(watching.backend) == b"question"
    assert watching.flow.events == []
    watching.client.close()
    await watching.until("closed")


async def test_what_waits_for_a_client_that_leaves_is_refused_too(watching: Rig) -> None:
    await watching.fill(watching.client)
    await watching.fill(watching.backend)
    watching.client.close()
    await to_nobody(watching.backend)


async def test_without_a_watch_the_backend_is_read_on(rig: Rig) -> None:
    await rig.fill(rig.client)
    rig.client.close()
    for _ in range(64):
        assert rig.backend.send(b"y" * 1024) == 1024
        await asyncio.sleep(0.001)


async def test_without_a_watch_eof_is_all_that_is_known(rig: Rig) -> None:
    rig.client.close()
    await rig.until("client ended")
    assert await rig.stays_open()


# ---- another backend


async def test_another_backend_takes_the_place_of_one_that_ended(rig: Rig) -> None:
    rig.flow.keeps = True
    rig.backend.close()
    await rig.until("backend ended")
    rig.backend, near = socket.socketpair()
    rig.backend.setblocking(False)
    rig.pair.replace_backend(near)
    rig.client.send(b"question")
    assert await rig.read(rig.backend) == b"question"
    rig.backend.send(b"answer")
    assert await rig.read(rig.client) == b"answer"
    rig.flow.keeps = False
    rig.backend.close()
    assert await rig.read(rig.client) == b""
    await rig.until("closed")


async def test_client_that_waited_for_the_first_backend_is_read_for_the_second(rig: Rig) -> None:
    rig.flow.keeps = True
    await rig.fill(rig.client)
    rig.backend.shutdown(socket.SHUT_WR)
    await rig.until("backend ended")
    first, (rig.backend, near) = rig.backend, socket.socketpair()
    rig.backend.setblocking(False)
    rig.pair.replace_backend(near)
    assert (await rig.read(rig.backend)).startswith(b"z")
    first.close()


async def test_held_client_stays_held_with_another_backend(rig: Rig) -> None:
    rig.flow.keeps = True
    rig.pair.hold_client(True)
    rig.backend.close()
    await rig.until("backend ended")
    rig.backend, near = socket.socketpair()
    rig.pair.replace_backend(near)
    rig.client.send(b"later")
    await asyncio.sleep(0.02)
    rig.backend.setblocking(False)
    with pytest.raises(BlockingIOError):
        rig.backend.recv(9)


# ---- our last answer


async def test_behind_the_last_answer_the_client_sees_the_end_and_closes(rig: Rig) -> None:
    rig.flow.to_client.append(b"last answer")
    rig.pair.finish_client()
    assert await rig.read(rig.backend) == b""
    assert await rig.read(rig.client) == b"last answer"
    assert await rig.read(rig.client) == b""
    rig.client.send(b"still talking")
    assert await rig.stays_open()
    rig.client.shutdown(socket.SHUT_WR)
    await rig.until("closed")


async def test_slow_client_gets_the_last_answer_whole(rig: Rig) -> None:
    rig.client.shutdown(socket.SHUT_WR)
    await rig.until("client ended")
    rig.flow.to_client.append(b"z" * 4 * MIB)
    rig.pair.finish_client()
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.client) == 4 * MIB
    await rig.until("closed")


async def test_client_that_does_not_close_is_given_up_when_it_has_everything(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "LINGER_SECONDS", 0.01)
    rig.flow.to_client.append(b"z" * 4 * MIB)
    rig.pair.finish_client()
    rig.pair.linger()
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.client) == 4 * MIB
    await rig.until("closed")
    with pytest.raises(BrokenPipeError):
        rig.client.send(b"still talking")


async def test_held_client_may_talk_into_the_void_behind_the_last_answer(rig: Rig) -> None:
    """Else it never gets to read the answer."""
    await rig.fill(rig.client)
    rig.pair.hold_client(True)
    rig.pair.finish_client()
    await asyncio.get_running_loop().sock_sendall(rig.client, b"z" * MIB)
    rig.client.shutdown(socket.SHUT_WR)
    await rig.until("closed")


async def test_nothing_happens_behind_the_end(rig: Rig) -> None:
    rig.pair.close()
    rig.pair.close()
    rig.flow.to_client.append(b"late")
    rig.pair.client_done()
    rig.pair.half_close()
    rig.pair.backend_done()
    rig.pair.hold_client(False)
    assert rig.flow.events == ["closed"]
    assert await rig.read(rig.client) == b""


async def test_client_that_is_shut_loses_nothing_and_sends_no_more(rig: Rig) -> None:
    rig.flow.waits = True
    rig.client.send(b"sent before")
    rig.pair.shut_client()
    with pytest.raises(BrokenPipeError):
        rig.client.send(b"sent behind")
    assert await rig.read(rig.backend) == b"sent before"
    await rig.until("client ended")
    assert rig.pair.client_ended
    rig.backend.send(b"answer")
    assert await rig.read(rig.client) == b"answer"
    rig.pair.finish_client()
    assert await rig.read(rig.client) == b""
    assert "closed" in rig.flow.events


async def test_client_that_is_not_read_to_its_end_sees_the_answer_and_eof(rig: Rig) -> None:
    """The backend has answered early and closed: behind the answer comes no reset (relay-rules C8)."""
    rig.pair.hold_client(True)
    rig.client.send(b"z" * 100_000)
    rig.backend.send(b"no")
    rig.backend.close()
    await rig.until("closed")
    assert await rig.read_to_end(rig.client) == len(b"no")
