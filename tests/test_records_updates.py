"""What updates make of a record over time: whose a field is, and that a hook that scales never scales twice."""

from dataclasses import replace

import pytest

from runtimeproxy import records
from runtimeproxy.merge import difference
from runtimeproxy.model import (
    NO_ADJUSTMENT,
    Adjustment,
    HookAnswer,
    Resources,
    ResourceValue,
    Subject,
)
from runtimeproxy.records import AskedUpdate, SaidUpdate
from tests.test_records import ASKED, CONTAINER, HALVED, subject

BY_ONE = {"resources.cpu_shares": "one", "resources.cpuset_cpus": "one"}
SET_BY_ONE = Adjustment(resources={"cpu_shares": 512, "cpuset_cpus": "7", "unified": {"a": "1"}}, owners=BY_ONE)


def owned() -> Subject:
    """Return a container that hook server "one" set something of."""
    return records.created_container(subject(), SET_BY_ONE, "c1")


@pytest.mark.parametrize(
    ("confirmers", "taken_back"),
    [({"two"}, {}), ({"one"}, {"cpu_shares": 1024}), ({"one", "two"}, {"cpu_shares": 1024})],
)
def test_who_repeats_what_was_sent_takes_back_only_what_it_set(
    confirmers: set[str], taken_back: dict[str, ResourceValue]
) -> None:
    repeated = Adjustment(
        confirmed=frozenset({"cpu_shares"}), confirmers=frozenset(("cpu_shares", name) for name in confirmers)
    )
    assert records.differing(owned(), AskedUpdate("c1", None), repeated) == taken_back


def test_the_owners_of_what_a_container_has_follow_what_is_set() -> None:
    def owners(made: Subject) -> dict[str, str]:
        return dict(records.container_of(made).owners)

    assert owners(owned()) == {"cpu_shares": "one", "cpuset_cpus": "one"}
    by_two = Adjustment(resources={"cpuset_cpus": "6"}, owners={"resources.cpuset_cpus": "two"})
    started = records.prepared(owned(), {"cpuset_cpus": "6"}, by_two)
    assert owners(started) == {"cpu_shares": "one", "cpuset_cpus": "two"}
    of_kubelet = SaidUpdate(AskedUpdate("c1", Resources(cpuset_cpus="1")))
    assert owners(records.updated(started, of_kubelet, NO_ADJUSTMENT)) == {"cpu_shares": "one"}
    taken_back = SaidUpdate(AskedUpdate("c1", None), {"cpu_shares": 1024})
    assert owners(records.updated(started, taken_back, NO_ADJUSTMENT)) == {"cpuset_cpus": "two"}


def test_an_update_keeps_the_kubelets_values_and_the_runtimes_apart() -> None:
    known = subject(effective=HALVED)
    asked = AskedUpdate("c1", Resources(cpu_shares=800, cpuset_cpus="0-1"), {"n": "2"})
    said = SaidUpdate(asked, {"cpu_shares": 400, "cpuset_cpus": ""}, {"hook": "3"})
    made = records.updated(known, said, Adjustment())
    assert made.pod is known.pod
    container = records.container_of(made)
    assert container.original == replace(
        CONTAINER, resources=replace(ASKED, cpu_shares=800, cpuset_cpus="0-1"), annotations={"a": "1", "n": "2"}
    )
    # "" was released in the place of the request's "0-1": in CRI that is "not set", so the runtime's stays.
    assert container.effective == replace(
        CONTAINER, resources=replace(ASKED, cpu_shares=400), annotations={"a": "1", "n": "2", "hook": "3"}
    )


def test_a_hook_that_scales_never_scales_twice() -> None:
    known = subject()
    for asked in (Resources(cpu_shares=1024), Resources(memory_limit_in_bytes=5), None, Resources(cpu_shares=1024)):
        update = AskedUpdate("c1", asked)
        told = records.told_of_update(known, update)
        assert told.container is not None
        assert told.container.resources is not None
        half = replace(told.container.resources, cpu_shares=told.container.resources.cpu_shares // 2)
        adjustment = difference(told, HookAnswer(resources=half))
        said = SaidUpdate(update, records.differing(known, update, adjustment))
        known = records.updated(known, said, adjustment)
        resources = records.container_of(known).effective.resources
        assert resources is not None
        assert resources.cpu_shares == 512
