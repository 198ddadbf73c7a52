"""The count of what held requests keep, and who gives up where there is no room for all."""

from runtimeproxy.heldbytes import NO_ROOM, PROCESS_LIMIT, HeldBytes

LIMIT = 100


class Request:
    """A request that comes piece by piece."""

    def __init__(self, held_bytes: HeldBytes) -> None:
        self._held_bytes = held_bytes
        self.size = 0
        self.problem = ""

    def takes(self, length: int) -> bool:
        self.size += length
        return self._held_bytes.add(self, length)

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
    whole.takes(30)
    held_bytes.whole(whole)
    longest.takes(24)
    longer.takes(20)
    assert shorter.takes(2)
    assert [each.problem for each in (whole, longest, longer, shorter)] == ["", NO_ROOM, "", ""]
    assert held_bytes.count == 76, "it counts until it has left"
    assert shorter.takes(17)
    assert longer.problem == "", "there is room again as soon as one has given up"
    assert last.takes(7)
    assert [each.problem for each in (whole, longer, shorter, last)] == ["", NO_ROOM, "", ""]
    for each in (whole, longest, longer, shorter, last):
        each.ends()
    assert (held_bytes.count, held_bytes._coming, held_bytes._leaving) == (0, {}, {})


def test_what_has_given_up_counts_for_the_limit_until_it_has_left() -> None:
    _, (stalled, late) = requests(2)
    stalled.takes(70)
    assert late.takes(30)
    assert stalled.problem == NO_ROOM
    assert not late.takes(1)
    stalled.ends()
    assert late.takes(0)


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
