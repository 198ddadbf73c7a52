"""Tests of reading dockershim's names of pods and containers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.docker.names import DockerName, parse

UID = "6f1c2b60-8a55-4c0a-9d2e-3b1f0a6c7d10"

NAMES = [
    (f"k8s_POD_web-0_default_{UID}_0", DockerName("POD", "web-0", "default", UID, 0)),
    (f"k8s_app_web-0_default_{UID}_12", DockerName("app", "web-0", "default", UID, 12)),
    ("k8s_a_b.c_d_e_4294967295", DockerName("a", "b.c", "d", "e", 2**32 - 1)),
]


@pytest.mark.parametrize(("name", "parts"), NAMES)
def test_name_as_it_is_asked_for_and_as_inspect_shows_it(name: str, parts: DockerName) -> None:
    assert parse(name) == parse("/" + name) == parts


@pytest.mark.parametrize(("name", "parts"), NAMES)
def test_name_with_the_suffix_after_a_conflict(name: str, parts: DockerName) -> None:
    assert parse(f"{name}_0a1b2c3d") == parse(f"/{name}_0a1b2c3d") == parts


@pytest.mark.parametrize("name", [name for name, _ in NAMES])
def test_parts_make_the_name(name: str) -> None:
    parts = parse(name)
    assert parts is not None
    assert f"k8s_{parts.container}_{parts.pod}_{parts.namespace}_{parts.uid}_{parts.attempt}" == name


OTHER_NAMES = ["", "/", "web", "k8s", "K8S_a_b_c_d_0", "x_a_b_c_d_0", "//k8s_a_b_c_d_0", "/parent/k8s_a_b_c_d_0"]
OTHER_NAMES += ["k8s_a_b_c_0", "k8s_a_b_c_d_0_e_f", "k8s_a_b_c_d_0_", "k8s__b_c_d_0", "k8s_a_b_c_d_", "k8s_a_b_c_d_x"]
OTHER_NAMES += ["k8s_a_b_c_d_-1", "k8s_a_b_c_d_+1", "k8s_a_b_c_d_1.0", "k8s_a_b_c_d_٣", "k8s_a_b_c_d_4294967296"]
OTHER_NAMES += ["k8s_a_b_c_d_" + "9" * 5000, "k8s_a_b_c_d_0\n"]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names(name: str) -> None:
    assert parse(name) is None


@given(st.lists(st.text(st.sampled_from("k8s_/0a"), max_size=4), max_size=8))
def test_no_text_raises(parts: list[str]) -> None:
    name = "k8s_" + "_".join(parts)
    found = parse(name)
    assert found is None or name.startswith(f"k8s_{found.container}_{found.pod}_{found.namespace}_{found.uid}_")
