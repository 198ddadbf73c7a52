"""The channel: questions and answers in any order, in small turns of the loop; bounds, errors, a peer that is gone."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runtimeproxy.admin import channel
from runtimeproxy.admin.channel import Answers, Channel, Part, Query, Refused
from tests.admin.site import echo, told
from tests.patience import until


@asynccontextmanager
async def both_ends(queries: Mapping[str, Query]) -> AsyncIterator[Channel]:
    ours, theirs = socket.socketpair()
    asking = await Channel.over(theirs)
    tasks = [asyncio.create_task(Answers(queries).serve(ours)), asyncio.create_task(asking.run())]
    yield asking
    tasks[0].cancel()
    await asyncio.wait(tasks)


async def slowly(arguments: Mapping[str, Any]) -> AsyncIterator[Part]:
    for number in range(3):
        await asyncio.sleep(0)
        yield {"numbers": [number]}


def refusing(arguments: Mapping[str, Any]) -> Iterator[Part]:
    yield {"first": 1}
    raise Refused(404, "there are a and b")


def failing(arguments: Mapping[str, Any]) -> Iterator[Part]:
    raise ValueError("canary")
    yield {}


def too_long(arguments: Mapping[str, Any]) -> Iterator[Part]:
    yield {"text": "n" * channel.PART_BYTES}


QUERIES: dict[str, Query] = {
    "echo": echo,
    "joined": told({"rows": [1], "next": 5}, {}, {"rows": [2, 3], "next": None}),
    "none": told(),
    "slowly": slowly,
    "refusing": refusing,
    "failing": failing,
    "too_long": too_long,
}
ANSWERS: list[tuple[str, dict[str, Any], object]] = [
    ("echo", {"pod": "a\n\ud800"}, {"asked": {"pod": "a\n\ud800"}}),
    ("joined", {}, {"rows": [1, 2, 3], "next": None}),
    ("none", {}, {}),
    ("slowly", {}, {"numbers": [0, 1, 2]}),
    ("refusing", {}, (404, "there are a and b")),
    ("failing", {}, (500, "failing: an error in the proxy; see its log")),
    ("too_long", {}, (500, "too_long: an error in the proxy; see its log")),
    ("unknown", {}, (404, "the proxy does not answer unknown")),
]


async def answer_of(asked: Awaitable[Part]) -> object:
    try:
        return await asked
    except Refused as refused:
        return refused.status, refused.text


@pytest.mark.parametrize(("name", "arguments", "expected"), ANSWERS)
async def test_question_has_its_answer(name: str, arguments: dict[str, Any], expected: object) -> None:
    async with both_ends(QUERIES) as asking:
        assert await answer_of(asking.ask(name, arguments)) == expected


async def test_questions_at_once_have_each_its_own_answer() -> None:
    asked = ANSWERS * 20
    async with both_ends(QUERIES) as asking:
        found = await asyncio.gather(*(answer_of(asking.ask(name, arguments)) for name, arguments, _ in asked))
    assert found == [expected for *_, expected in asked]


async def test_one_turn_of_the_loop_makes_one_part_whoever_asks() -> None:
    made, worst = 0, 0

    def parts(arguments: Mapping[str, Any]) -> Iterator[Part]:
        nonlocal made
        for _ in range(30):
            made += 1
            yield {}

    def turn() -> None:
        nonlocal made, worst
        worst, made = max(worst, made), 0
        asyncio.get_running_loop().call_soon(turn)

    async with both_ends({"parts": parts}) as asking:
        turn()
        await asyncio.gather(*(asking.ask("parts", {}) for _ in range(10)))
    assert worst == 1


async def test_answer_that_does_not_come_is_503_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = asyncio.Event()

    async def hanging(arguments: Mapping[str, Any]) -> AsyncIterator[Part]:
        await hangs.wait()
        yield {}

    async with both_ends({"hanging": hanging, "echo": echo}) as asking:
        late = asyncio.create_task(answer_of(asking.ask("hanging", {}, 0.05)))
        assert await asking.ask("echo", {}) == {"asked": {}}
        assert await late == (503, "the proxy did not answer within 0.05 s: its event loop hangs")
        hangs.set()  # an answer that nobody waits for is passed over
        assert await asking.ask("echo", {}) == {"asked": {}}


async def test_server_that_does_not_read_stops_its_answers_only() -> None:
    made = 0

    def endless(arguments: Mapping[str, Any]) -> Iterator[Part]:
        nonlocal made
        while True:
            made += 1
            yield {"text": "n" * 10_000}

    ours, theirs = socket.socketpair()
    answering = asyncio.create_task(Answers({"endless": endless}).serve(ours))
    with theirs:
        theirs.sendall(b'{"n":1,"ask":"endless","with":{}}\n' * 3)
        before = -1
        while made != before:
            before = made
            for _ in range(50):
                await asyncio.sleep(0)
        assert 0 < made * 10_000 < 2 << 20
    await answering


@pytest.mark.parametrize("octets", [b"no json\n", b"n" * (channel.QUESTION_BYTES + 1), b"", b"[]\n", b'{"n":1}\n'])
async def test_question_without_its_form_ends_the_channel(octets: bytes) -> None:
    ours, theirs = socket.socketpair()
    answering = asyncio.create_task(Answers({}).serve(ours))
    theirs.setblocking(False)
    with theirs:
        await asyncio.get_running_loop().sock_sendall(theirs, octets)
        theirs.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(answering, 20)


async def test_more_questions_than_there_is_room_for_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "QUESTIONS", 2)
    going, most, gate = 0, 0, asyncio.Event()

    async def counted(arguments: Mapping[str, Any]) -> AsyncIterator[Part]:
        nonlocal going, most
        going += 1
        most = max(most, going)
        await gate.wait()
        going -= 1
        yield {}

    async with both_ends({"counted": counted}) as asking:
        asked = [asyncio.create_task(asking.ask("counted", {})) for _ in range(5)]
        await until(lambda: going == 2)
        gate.set()
        await asyncio.gather(*asked)
    assert most == 2


async def test_lines_are_json_on_the_wire() -> None:
    ours, theirs = socket.socketpair()
    answering = asyncio.create_task(Answers({"echo": echo}).serve(ours))
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    writer.write(b'{"n":7,"ask":"echo","with":{"a":1}}\n')
    lines = [json.loads(await reader.readline()) for _ in range(2)]
    assert lines == [{"n": 7, "part": {"asked": {"a": 1}}}, {"n": 7, "end": {}}]
    writer.close()
    await answering
