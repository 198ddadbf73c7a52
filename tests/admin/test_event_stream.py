"""The stream of events: none lost or twice, one poll for all followers, gaps told, slow and gone clients."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin import event_stream, server
from runtimeproxy.admin.channel import Part
from runtimeproxy.admin.event_stream import matches
from tests.admin.site import Site, answer, request
from tests.patience import until


class Ring:
    """The daemon's events, of which it keeps the last ``kept``; ``asked`` counts the questions."""

    def __init__(self, kept: int = 10_000, text: str = "") -> None:
        self.last = 0
        self.asked = 0
        self._kept = kept
        self._text = text

    def add(self, count: int = 1) -> None:
        self.last += count

    def query(self, arguments: Mapping[str, Any]) -> Iterator[Part]:
        self.asked += 1
        since, limit = arguments["since"], arguments["limit"]
        if since > self.last:
            since = 0
        first = max(self.last - self._kept + 1, 1)
        found: list[dict[str, Any]] = []
        if since + 1 < first:
            found = [{"kind": "gap", "from": since + 1, "to": first - 1}]
            since = first - 1
        numbers = range(since + 1, min(since + limit, self.last) + 1)
        found += [
            {"number": number, "kind": "edited" if number % 2 else "slow", "text": self._text} for number in numbers
        ]
        yield {"events": found}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(event_stream, "AT_ONCE", 7)
    monkeypatch.setattr(event_stream, "WINDOW", 20)


def site(folder: Path, ring: Ring) -> Site:
    return Site(folder, {"events": ring.query})


ONCE = [
    ("/events", [*range(1, 31)]),
    ("/events?since=25", [26, 27, 28, 29, 30]),
    ("/events?since=30", []),
    ("/events?since=31", [*range(1, 31)]),
    ("/events?since=5&limit=9", [*range(6, 15)]),
    ("/events?since=20&kind=slow", [22, 24, 26, 28, 30]),
    ("/events?kind=slow&limit=2", [2, 4]),
    ("/events?pod=a", []),
    ("/events?limit=4&follow=1", [1, 2, 3, 4]),
]


@pytest.mark.parametrize(("target", "numbers"), ONCE)
async def test_kept_events_are_lines_of_json(tmp_path: Path, target: str, numbers: list[int]) -> None:
    ring = Ring()
    ring.add(30)
    async with site(tmp_path, ring) as found:
        status, fields, text = answer(await found.send(request(target, "GET")))
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert (status, fields["Content-Type"]) == (200, "application/x-ndjson")
    assert [line["number"] for line in lines] == numbers


async def test_gap_is_told_whatever_is_wanted(tmp_path: Path) -> None:
    ring = Ring(kept=3)
    ring.add(30)
    async with site(tmp_path, ring) as found:
        text = (await found.ask("/events?since=2&pod=a"))[1]
    assert [line for line in text.splitlines() if line.startswith("{")] == ['{"kind":"gap","from":3,"to":27}']


class Follower:
    """A client that follows, and keeps the numbers of what came."""

    def __init__(self, site: Site, since: int) -> None:
        self.numbers: list[int] = []
        self._client = site.connect()
        self._task = asyncio.create_task(self._run(since))

    async def _run(self, since: int) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._client)
        try:
            writer.write(request(f"/events?since={since}&follow=1"))
            async for line in reader:
                if line.startswith(b"{"):
                    self.numbers.append(json.loads(line)["number"])
        finally:
            writer.transport.abort()

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def test_each_follower_gets_each_event_once_wherever_it_begins(tmp_path: Path) -> None:
    ring, followers = Ring(), list[Follower]()
    async with site(tmp_path, ring) as found:
        for at in range(60):
            ring.add(at % 5)
            if at % 10 == 0:
                followers.append(Follower(found, max(ring.last - at, 0)))
            await asyncio.sleep(0.002)
        await until(lambda: all(follower.numbers[-1:] == [ring.last] for follower in followers))
        for follower in followers:
            await follower.leave()
    for follower in followers:
        assert follower.numbers == [*range(follower.numbers[0], ring.last + 1)]


async def test_one_poll_feeds_all_followers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring, polls = Ring(), list[int]()
    poll = event_stream.Events._poll

    async def counted(events: event_stream.Events) -> None:
        await poll(events)
        polls.append(ring.last)

    monkeypatch.setattr(event_stream.Events, "_poll", counted)
    async with site(tmp_path, ring) as found:
        ring.add()
        followers = [Follower(found, 0) for _ in range(10)]
        await until(lambda: all(follower.numbers == [1] for follower in followers))
        settled = len(polls) + 3  # until then each asks by itself whether that is the newest event
        await until(lambda: len(polls) >= settled)
        before = ring.asked - len(polls)
        for _ in range(20):
            ring.add()
            await until(lambda: all(follower.numbers[-1] == ring.last for follower in followers))
        assert ring.asked - len(polls) <= before + 1, "no more than the poll that is under way"
        for follower in followers:
            await follower.leave()


async def test_numbers_begin_anew_behind_a_start_of_the_daemon(tmp_path: Path) -> None:
    ring = Ring()
    ring.add(9)
    async with site(tmp_path, ring) as found:
        follower = Follower(found, 8)
        await until(lambda: follower.numbers == [9])
        ring.last = 2
        await until(lambda: follower.numbers == [9, 1, 2])
        await follower.leave()


async def test_follower_that_does_not_read_is_closed_and_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "WRITE_SECONDS", 0.1)
    ring, most = Ring(text="n" * 1000), 0
    async with site(tmp_path, ring) as found:
        with found.connect() as client:
            await asyncio.get_running_loop().sock_sendall(client, request("/events?follow=1"))
            await until(lambda: found.room.open)
            (connection,) = found.room.open
            while found.room.open:
                ring.add()
                most = max(most, connection.transport.get_write_buffer_size())
                await asyncio.sleep(0)
        assert 0 < most <= 70_000


async def test_follower_that_left_is_forgotten_and_its_place_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FOLLOWERS", 2)
    ring = Ring()
    ring.add()
    async with site(tmp_path, ring) as found:
        for _ in range(3):
            followers = [Follower(found, 0) for _ in range(2)]
            await until(lambda there=followers: all(follower.numbers for follower in there))  # type: ignore[misc]
            status, text = await found.ask("/events?follow=1")
            assert (status, "2 clients follow already" in text) == (503, True)
            assert (await found.ask("/events"))[0] == 200
            for follower in followers:
                await follower.leave()
            await until(lambda: not found.room.open)


EVENT = {
    "kind": "edited",
    "pod": "web-0",
    "namespace": "shop",
    "podId": "abc1",
    "containerId": "def2",
    "hookServer": "",
    "fields": [{"field": "cpu", "hookServer": "batch"}, {"field": "envs.A", "hookServer": "gpu"}],
}
WANTED = [
    ({}, True),
    ({"pod": "web-0"}, True),
    ({"pod": "shop/web-0"}, True),
    ({"pod": "abc"}, True),
    ({"pod": "def2"}, True),
    ({"pod": "other/web-0"}, False),
    ({"pod": "web"}, False),
    ({"pod": "bc1"}, False),
    ({"hookServer": "gpu"}, True),
    ({"hookServer": "g"}, False),
    ({"hookServer": "gpu.json"}, True),
    ({"kind": "edited", "hookServer": "batch", "pod": "shop/web-0"}, True),
    ({"kind": "refused", "hookServer": "batch"}, False),
]


@pytest.mark.parametrize(("wanted", "found"), WANTED)
def test_filters_select_by_pod_hook_server_and_kind(wanted: dict[str, str], found: bool) -> None:
    assert matches(EVENT, wanted) == found
    assert not matches({"kind": "drain"}, wanted) or not wanted
