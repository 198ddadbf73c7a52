"""The count of what held requests keep, and who gives up where there is no room for all."""

from collections.abc import Iterable, Iterator
from typing import Any

from runtimeproxy.heldbytes import NO_ROOM, PROCESS_LIMIT, HeldBytes

LIMIT = 100


class Request:
    """A request that comes piece by piece."""

    def __init__(self, held_bytes: HeldBytes) -> None:
        self._held_bytes = held_bytes
        self.size = 0
        self.problem = ""

    def takes(self, length: int) -> bool:
        """Take a piece; more is to come."""
        self.size += length
        has_room = self._held_bytes.add(self, length)
        if has_room:
            self._held_bytes.comes(self, self.size)
        return has_room

    def give_up(self, problem: str) -> None:
        self.problem = problem

    def ends(self) -> None:
        self._held_bytes.free(self, self.size)


def requests(number: int) -> tuple[HeldBytes, list[Request]]:
    held_bytes = HeldBytes(LIMIT)
    return held_bytes, [Request(held_bytes) for _ in range(number)]


def test_the_limit_is_that_of_the_rules() -> None:
    assert HeldBytes().limit == PROCESS_LIMIT == 64 << 20


def test_what_came_counts_until_the_end() -> None:
    held_bytes, (one, other) = requests(2)
    assert one.takes(10)
    assert other.takes(20)
    assert one.takes(5)
    held_bytes.whole(one)
    assert held_bytes.count == 35
    one.ends()
    other.ends()
    assert held_bytes.count == 0
    assert not held_bytes._coming


def test_nobody_gives_up_while_there_is_room() -> None:
    _, (one, other) = requests(2)
    assert one.takes(50)
    assert other.takes(25)
    assert (one.problem, other.problem) == ("", "")


def test_the_longest_that_is_still_coming_gives_up_for_the_others() -> None:
    held_bytes, (whole, longest, longer, shorter, last) = requests(5)
    whole.takes(20)
    held_bytes.whole(whole)
    longest.takes(34)
    longer.takes(18)
    assert shorter.takes(4)
    assert [each.problem for each in (whole, longest, longer, shorter)] == ["", NO_ROOM, "", ""]
    assert held_bytes.count == 76, "it counts until it has left"
    assert shorter.takes(11)
    assert longer.problem == "", "there is room again as soon as one has given up"
    held_bytes.whole(whole)
    longest.ends()
    assert last.takes(23)
    assert [each.problem for each in (longer, shorter, last)] == [NO_ROOM, "", ""]
    for each in (whole, longer, shorter, last):
        each.ends()
    assert (held_bytes.count, held_bytes._leaving, held_bytes._coming) == (0, 0, {})
    assert not any(held_bytes._by_length)


def test_nobody_gives_up_for_one_of_twice_its_length() -> None:
    _, (short, long) = requests(2)
    short.takes(30)
    assert long.takes(60)
    assert (short.problem, long.problem) == ("", "")
    assert not long.takes(11)
    assert (short.problem, long.problem) == ("", "")


def test_what_has_given_up_counts_for_the_limit_until_it_has_left() -> None:
    _, (stalled, late) = requests(2)
    stalled.takes(70)
    assert late.takes(30)
    assert stalled.problem == NO_ROOM
    assert not late.takes(1)
    stalled.ends()
    assert late.takes(0)


def test_thousands_that_stall_cost_no_piece_more_than_a_few_do() -> None:
    held_bytes = HeldBytes(PROCESS_LIMIT)
    held_bytes.count = PROCESS_LIMIT - PROCESS_LIMIT // 4
    stalled = [Request(held_bytes) for _ in range(10_000)]
    for each in stalled:
        held_bytes.comes(each, 1)
    longest = Request(held_bytes)
    looks = Looks(held_bytes._by_length)
    held_bytes._by_length = looks
    for _ in range(100):
        assert longest.takes(1_000)
    assert looks.seen <= 100 * (len(looks) + 2)
    assert not any(each.problem for each in stalled)


class Looks(list[dict[Any, None]]):
    """Counts what is looked at of requests by their lengths."""

    def __init__(self, levels: Iterable[dict[Any, None]]) -> None:
        super().__init__(Looked(self, level) for level in levels)
        self.seen = 0


class Looked(dict[Any, None]):
    """One length."""

    def __init__(self, looks: Looks, level: dict[Any, None]) -> None:
        super().__init__(level)
        self._looks = looks

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self._looks.seen += 1
            yield each


def test_the_longest_itself_may_have_the_last_quarter() -> None:
    _, (one, other) = requests(2)
    other.takes(10)
    assert one.takes(90)
    assert not one.takes(1)
    assert (one.problem, other.problem) == ("", "")


def test_there_is_no_room_at_all_beside_what_is_whole() -> None:
    held_bytes, (whole, late) = requests(2)
    assert whole.takes(LIMIT)
    held_bytes.whole(whole)
    assert not late.takes(1)
    whole.ends()
    assert late.takes(1)
