"""How much is read of a peer at a time: little of what takes long, much of what passes."""

import pytest

from runtimeproxy.relay.pace import BYTE_SECONDS, FEWEST_BYTES, FIRST_BYTES, LONG_SECONDS, STEP, Pace

MOST = 120 * 1024
QUICK = LONG_SECONDS / 100


SIZE = 16 * 1024


def long(size: int) -> float:
    return LONG_SECONDS + size * BYTE_SECONDS


def sized(size: int) -> Pace:
    pace = Pace(MOST)
    pace.size = size
    return pace


def grown() -> Pace:
    pace = Pace(MOST)
    pace.grow(MOST)
    return pace


def test_a_new_peer_is_given_more_as_it_costs_little() -> None:
    pace = Pace(MOST)
    sizes = []
    while not sizes or sizes[-1] < MOST:
        sizes.append(pace.size)
        pace.took(pace.size, QUICK)
    assert sizes == [FIRST_BYTES, FIRST_BYTES * STEP, FIRST_BYTES * STEP**2, FIRST_BYTES * STEP**3, MOST]


def test_a_read_that_got_less_than_it_could_says_nothing() -> None:
    pace = Pace(MOST)
    pace.took(FIRST_BYTES - 1, QUICK)
    assert pace.size == FIRST_BYTES


@pytest.mark.parametrize(("times", "follows"), [(1.6, SIZE / 3.2), (1e6, SIZE / STEP)])
def test_behind_a_long_read_follows_one_of_half_the_time_but_not_far_below_it(times: float, follows: float) -> None:
    pace = sized(SIZE)
    pace.took(SIZE, times * long(SIZE))
    assert pace.size == follows


def test_a_short_read_that_took_long_makes_no_more_than_a_step() -> None:
    pace = grown()
    pace.took(1, 1.0)
    assert pace.size == MOST // STEP


def test_the_reads_of_who_costs_most_have_a_size_still() -> None:
    pace = Pace(MOST)
    for _ in range(10):
        pace.took(pace.size, 1.0)
    assert pace.size == FEWEST_BYTES


@pytest.mark.parametrize(("share", "times"), [(0.9, 1), (0.6, 1), (0.4, 2), (0.3, 2), (0.2, STEP)])
def test_a_read_grows_so_that_the_next_is_not_long(share: float, times: int) -> None:
    pace = sized(SIZE)
    pace.took(SIZE, share * long(SIZE))
    assert pace.size == min(SIZE * times, MOST)


@pytest.mark.parametrize("nanoseconds_a_byte", [0.5, 2, 5, 50, 150, 300])
@pytest.mark.parametrize("begin", [Pace(MOST), grown()], ids=["new", "grown"])
def test_a_flood_of_any_cost_is_soon_read_in_short_turns_and_as_much_at_a_time_as_that_allows(
    nanoseconds_a_byte: float, begin: Pace
) -> None:
    pace = sized(begin.size)
    seconds = []
    for _ in range(100):
        seconds.append(pace.size * nanoseconds_a_byte * 1e-9)
        pace.took(pace.size, seconds[-1])
    assert max(seconds[5:]) <= long(pace.size)
    assert pace.size == MOST or seconds[-1] >= LONG_SECONDS / 4


def test_copying_alone_is_never_long() -> None:
    pace = grown()
    pace.took(MOST, LONG_SECONDS + MOST * BYTE_SECONDS)
    assert pace.size == MOST
