"""Docker's bodies edited at random, against what the daemon's checks and a simple model say.

An edited body differs in what was changed only: members keep their order, numbers their spelling (relay-rules B8).
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.docker.edit import edit_container, edit_pod, edit_update
from runtimeproxy.docker.resources import LABEL_PREFIX, RESOURCE_TABLE
from runtimeproxy.model import Adjustment, Resources, ResourceValue
from tests.amounts import examples

pytestmark = pytest.mark.slow

GIB = 2**30
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
MAPS = st.dictionaries(st.sampled_from(["a", "b", "annotation.a", "A"]), TEXTS, max_size=3)
ENVS = st.dictionaries(st.sampled_from(["A", "B", "C"]), TEXTS, max_size=3)
LIMITS = st.sampled_from([-1, 0, GIB, 2 * GIB, 3 * GIB])
CHANGES: st.SearchStrategy[dict[str, ResourceValue]] = st.fixed_dictionaries(
    {},
    optional={
        "cpu_shares": st.integers(0, 9),
        "cpu_period": st.just(100_000),
        "cpu_quota": st.sampled_from([-1, 1000]),
        "memory_limit_in_bytes": LIMITS,
        "memory_swap_limit_in_bytes": LIMITS,
        "oom_score_adj": st.integers(-9, 9),
        "cpuset_cpus": st.sampled_from(["", "0", "1-2"]),
        "unified": MAPS,
    },
)
HOSTS = st.fixed_dictionaries(
    {"Binds": st.none(), "Big": st.just(10**30), "Deep": st.just([{"Env": None}, 1e3])},
    optional={
        "CpuShares": st.integers(0, 9),
        "NanoCpus": st.integers(0, 1),
        "Memory": st.sampled_from([0, GIB, 2 * GIB]),
        "MemorySwap": LIMITS,
        "CpusetCpus": st.sampled_from(["", "0"]),
        "CgroupParent": st.sampled_from(["", "p"]),
    },
)
BODIES = st.fixed_dictionaries(
    {"Cmd": st.lists(TEXTS, max_size=2)},
    optional={
        "Labels": st.none() | MAPS,
        "Env": st.none() | st.lists(st.sampled_from(["A=1", "A", "B=2", "AA=3", "A=2"]), max_size=4),
        "HostConfig": st.none() | HOSTS,
    },
)


@settings(deadline=None, max_examples=examples(300))
@given(BODIES, MAPS, MAPS, ENVS, CHANGES, st.none() | st.sampled_from(["", "p", "q"]), st.sampled_from([None, 1]))
def test_any_create(
    body: dict[str, Any],
    labels: dict[str, str],
    annotations: dict[str, str],
    envs: dict[str, str],
    changes: dict[str, ResourceValue],
    parent: str | None,
    indent: int | None,
) -> None:
    adjustment = Adjustment(labels=labels, annotations=annotations, envs=envs, resources=changes)
    text = json.dumps(body, indent=indent).encode()
    as_labels = {LABEL_PREFIX + key: value for key, value in annotations.items()}
    for edit, new_labels, new_envs in ((edit_pod, {**labels, **as_labels}, {}), (edit_container, as_labels, envs)):
        result = edit(text, adjustment, parent)
        assert edit(result, Adjustment(labels, annotations, envs), parent) is result
        after = json.loads(result)
        assert (after.pop("Labels", None) or {}) == (body.get("Labels") or {}) | new_labels
        assert last_envs(after.pop("Env", None)) == last_envs(body.get("Env")) | new_envs
        check_host(body.get("HostConfig") or {}, after.pop("HostConfig", None) or {}, changes, parent)
        assert after == {"Cmd": body["Cmd"]}
        host = touched(changes) | ({"CgroupParent"} if parent is not None else set())
        changed = {"Labels": set(new_labels), "Env": set(new_envs), "HostConfig": host}
        assert untouched(result, changed) == untouched(text, changed)


class Members(list[tuple[str, Any]]):
    """The members of an object, in order."""


class Number(str):
    """A number as it is spelled."""


def touched(changes: Mapping[str, ResourceValue]) -> set[str]:
    """Return the members that resources may change: the daemon's rules move some along."""
    along = {"memory_limit_in_bytes": "MemorySwap", "cpu_quota": "NanoCpus", "cpu_period": "NanoCpus"}
    return {RESOURCE_TABLE[name] for name in changes if name in RESOURCE_TABLE} | {
        along.get(name, "") for name in changes
    }


def untouched(body: bytes, changed: Mapping[str, set[str]]) -> Members:
    """Return all members of a create but what was to be changed; what is empty without that is left out."""
    kept = Members()
    for name, value in json.loads(body, object_pairs_hook=Members, parse_int=Number, parse_float=Number):
        if name == "Env":
            value = [entry for entry in value or () if entry.partition("=")[0] not in changed[name]]
        elif name in changed:
            value = Members((key, inner) for key, inner in value or () if key not in changed[name])
        if value or name not in changed:
            kept.append((name, value))
    return kept


def last_envs(elements: list[str] | None) -> dict[str, str | None]:
    """Return what a list of envs says in the end; None = unset."""
    parts = [element.partition("=") for element in elements or []]
    return {key: value if equals else None for key, equals, value in parts}


def check_host(
    before: dict[str, Any], after: dict[str, Any], changes: dict[str, ResourceValue], parent: str | None
) -> None:
    """Compare all but the rules of memory, swap and NanoCpus, and these with what the daemon checks."""
    wanted = before | {RESOURCE_TABLE[name]: value for name, value in changes.items() if name in RESOURCE_TABLE}
    wanted |= {} if parent is None else {"CgroupParent": parent}
    ruled = {"Memory", "MemorySwap", "NanoCpus"}
    assert {k: v for k, v in after.items() if v and k not in ruled} == {
        k: v for k, v in wanted.items() if v and k not in ruled
    }
    memory, swap = after.get("Memory", 0), after.get("MemorySwap", 0)
    old_memory, old_swap = before.get("Memory", 0), before.get("MemorySwap", 0)
    assert memory == max(wanted.get("Memory", 0), 0)
    if "memory_swap_limit_in_bytes" in changes:
        assert swap == changes["memory_swap_limit_in_bytes"]
    elif "memory_limit_in_bytes" in changes:
        assert swap <= 0 or swap >= memory > 0
        assert (swap == memory) or old_swap != old_memory
    else:
        assert swap == old_swap
    assert not (after.get("NanoCpus") and {"cpu_quota", "cpu_period"} & changes.keys())


@settings(deadline=None, max_examples=examples(300))
@given(HOSTS, CHANGES, LIMITS.filter(lambda limit: limit >= 0), LIMITS)
def test_any_update(body: dict[str, Any], changes: dict[str, ResourceValue], memory: int, swap: int) -> None:
    held = Resources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=swap)
    text = json.dumps(body).encode()
    update = edit_update(text, changes, held)
    after = json.loads(update.body)
    for name in changes.keys() - update.resources.keys() - set(update.left_out):
        assert changes[name] in (0, "", -1)
        assert not getattr(held, name)
    for name in changes.keys() & update.resources.keys() & set(update.left_out):
        assert not update.resources[name]
        assert getattr(held, name)
    said = {RESOURCE_TABLE[name]: value for name, value in update.resources.items()}
    cleared = {"NanoCpus": 0} if {"CpuQuota", "CpuPeriod"} & said.keys() and body.get("NanoCpus") else {}
    assert after == body | said | cleared
    assert all(value or body[key] for key, value in said.items())
    assert list(after) == list(body) + [key for key in after if key not in body]
    if said.get("Memory") and "memory_swap_limit_in_bytes" not in changes:
        assert after["MemorySwap"] == -1 or after["MemorySwap"] >= after["Memory"]
