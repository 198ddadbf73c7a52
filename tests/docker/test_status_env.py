"""Which envs of an inspected container are its own, and which dockerd added of the image."""

import time
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


def test_many_envs_over_an_images_take_no_time() -> None:
    begun = time.thread_time()
    assert len(status._own_env([f"A{n}=own" for n in range(5_000)], [f"A{n}=shipped" for n in range(5_000)])) == 5_000
    assert time.thread_time() - begun < 1, "for each one all others would take ten"
