"""The fields that a runtime does not use, by its name, its version and the call; and the part that it uses."""

from collections.abc import Mapping
from typing import Any

import pytest

from runtimeproxy.model import no_effect
from runtimeproxy.model.fields import Adjustment
from runtimeproxy.model.hookpoints import Operation

UPDATE = Operation.UPDATE_CONTAINER_RESOURCES
UNIFIED = "resources.unified"


VERSIONS = [("1.35.9", True), ("v1.9", True), ("1.36.0-dev", False), ("2.0", False), ("", False), ("main", False)]


@pytest.mark.parametrize(("version", "ignored"), VERSIONS)
def test_field_has_effect_from_version(version: str, ignored: bool) -> None:
    """Also in a version or a runtime that is unknown."""
    assert (UNIFIED in no_effect.of_runtime("cri-o", version)[UPDATE]) is ignored
    assert no_effect.of_runtime("fake", version) == {}


MEMORY, SWAP = "memory_limit_in_bytes", "memory_swap_limit_in_bytes"
SENT: dict[str, Any] = {"annotations": {"a": "1"}, "cgroup_parent": "/x", "resources": {"cpu_shares": 2}}
USED: list[tuple[set[str], Mapping[str, Any], Mapping[str, Any]]] = [
    (set(), SENT, {}),
    ({"annotations"}, SENT, {"annotations": {}}),
    ({"cgroup_parent"}, SENT, {"cgroup_parent": None}),
    ({"resources.cpu_shares"}, SENT, {"resources": {}}),
    ({UNIFIED}, {"resources": {"unified": {"a": "1"}, "cpu_shares": 2}}, {"resources": {"cpu_shares": 2}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 9}}, {"resources": {}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 9, MEMORY: 5}}, {"resources": {SWAP: 5, MEMORY: 5}}),
    ({f"resources.{SWAP}"}, {"resources": {SWAP: 5, MEMORY: 5}}, {}),
]


@pytest.mark.parametrize(("ignored", "sent", "differs"), USED)
def test_used_part_lacks_fields_without_effect(
    ignored: set[str], sent: Mapping[str, Any], differs: Mapping[str, Any]
) -> None:
    used, lost = no_effect.used(Adjustment(**sent), frozenset(ignored))
    assert used == Adjustment(**{**sent, **differs})
    assert lost == (ignored if differs else set())
