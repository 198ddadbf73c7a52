"""Which envs of an inspected container are its own, and which dockerd added of the image."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.docker import status


def merged(own: Sequence[str], shipped: Sequence[str]) -> list[str]:
    """Add what dockerd does of the image: all of it to nothing, else the first of each key that is new."""
    if not own:
        return list(shipped)
    known, result = {entry.partition("=")[0] for entry in own}, list(own)
    for entry in shipped:
        if (key := entry.partition("=")[0]) not in known:
            known.add(key)
            result.append(entry)
    return result


ENTRIES = st.lists(st.builds("".join, st.tuples(st.sampled_from("ABCD"), st.sampled_from(["", "=", "=1"]))), max_size=6)


@given(ENTRIES, ENTRIES, st.booleans())
def test_the_fewest_that_give_the_list_are_the_containers_own(
    own: list[str], shipped: list[str], of_this_image: bool
) -> None:
    found = merged(own, shipped) if of_this_image else own
    possible = [found[:end] for end in range(len(found) + 1) if merged(found[:end], shipped) == found]
    expected = possible[0] if possible else [entry for entry in found if entry not in shipped]
    assert status._own_env(found, shipped) == expected


class Looked(str):
    """An entry that counts how often its key is looked at."""

    times = 0

    def partition(self, separator: str) -> tuple[str, str, str]:
        Looked.times += 1
        return super().partition(separator)


def test_each_of_many_envs_over_an_images_is_looked_at_a_few_times() -> None:
    own, shipped = ([Looked(f"A{number}={whose}") for number in range(1_000)] for whose in ("own", "shipped"))
    assert status._own_env(own, shipped) == own
    assert Looked.times < 10 * (len(own) + len(shipped))
