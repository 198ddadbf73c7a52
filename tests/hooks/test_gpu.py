"""gpu: every case of the device-allocated annotation, HAMi-core's share, and what cannot be read."""

import argparse
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hookpoints import BY_NAME
from runtimeproxy.model import ContainerInfo, HookRequest, PodInfo
from runtimeproxy_hooks.gpu import LIBRARY, Gpu
from runtimeproxy_hooks.koordinator import DEVICE_ALLOCATED, GPU_ISOLATION_PROVIDER
from runtimeproxy_hooks.sdk import ContainerContext, Malformed
from runtimeproxy_hooks.sdk.testing import Difference, HookTester
from tests.amounts import examples

CORE, MEMORY, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
OLD_CORE, OLD_MEMORY, OLD_RATIO = "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory", "kubernetes.io/gpu-memory-ratio"
HAMI = {GPU_ISOLATION_PROVIDER: "HAMi-core"}
HALF = {CORE: "50", MEMORY: "16Gi", RATIO: "50"}
LIMIT, SM_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
ONE = {"NVIDIA_VISIBLE_DEVICES": "0"}
SIXTEEN_GI = str(16 << 30)
SHARED = {**ONE, LIMIT: SIXTEEN_GI, SM_LIMIT: "50", "LD_PRELOAD": LIBRARY}


def allocated(value: Any) -> dict[str, str]:
    return {DEVICE_ALLOCATED: value if isinstance(value, str) else json.dumps(value)}


def gpu(**resources: Any) -> dict[str, Any]:
    return {"minor": 0, "id": "GPU-1", "resources": resources}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in HALF.items() if name != key}


@pytest.mark.parametrize(
    ("annotations", "set_variables"),
    [
        pytest.param({}, {}, id="no annotations"),
        pytest.param({"other": "{"}, {}, id="another annotation"),
        pytest.param(allocated(""), {}, id="empty text"),
        pytest.param(allocated("null"), {}, id="null"),
        pytest.param(allocated({}), {}, id="no devices"),
        pytest.param(allocated({"rdma": [{"minor": 1}], "fpga": [{"minor": 2}]}), {}, id="other devices only"),
        pytest.param(allocated({"gpu": None}), {}, id="gpu null"),
        pytest.param(allocated({"gpu": []}), {}, id="gpu list empty"),
        pytest.param(allocated({"GPU": [{"minor": 1}]}), {}, id="device types are keys of a map: exact"),
        pytest.param(allocated({"gpu": [{"minor": 1}]}), {"NVIDIA_VISIBLE_DEVICES": "1"}, id="resources missing"),
        pytest.param(allocated({"gpu": [gpu(**HALF)]}), ONE, id="minor 0, resources unused without the label"),
        pytest.param(
            allocated({"gpu": [{"minor": 3}, {"minor": 0}, {"minor": 11}]}),
            {"NVIDIA_VISIBLE_DEVICES": "3,0,11"},
            id="minors in the list's order",
        ),
        pytest.param(allocated({"gpu": [{"Minor": 5}]}), {"NVIDIA_VISIBLE_DEVICES": "5"}, id="key case"),
        pytest.param(
            allocated({"gpu": [{"MINOR": 5, "minor": 6}]}), {"NVIDIA_VISIBLE_DEVICES": "6"}, id="exact key first"
        ),
        pytest.param(
            allocated({"gpu": [{"minor": 0, "extension": {"vfs": [{"minor": -1, "busID": "0000:01:00.0"}]}}]}),
            ONE,
            id="extension unused",
        ),
    ],
)
def test_visible_devices_are_the_minors(annotations: dict[str, str], set_variables: dict[str, str]) -> None:
    changed = HookTester(Gpu()).pre_create_container(annotations=annotations)
    assert changed == Difference(env=set_variables)


@settings(max_examples=examples(50))
@given(st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_any_minors_come_back_in_order(minors: list[int]) -> None:
    devices = allocated({"gpu": [{"minor": minor} for minor in minors]})
    env = HookTester(Gpu()).pre_create_container(annotations=devices).env
    assert list(map(int, env["NVIDIA_VISIBLE_DEVICES"].split(","))) == minors


@pytest.mark.parametrize("container", ["main", "sidecar", "init", ""])
def test_every_container_has_the_devices(container: str) -> None:
    changed = HookTester(Gpu()).pre_create_container(
        annotations=allocated({"gpu": [gpu(**HALF)]}), labels=HAMI, container=container
    )
    assert changed == Difference(env=SHARED)


@pytest.mark.parametrize(
    ("resources", "set_variables"),
    [
        pytest.param(HALF, SHARED, id="numbers as text"),
        pytest.param({CORE: 50, MEMORY: 16 << 30, RATIO: 50}, SHARED, id="numbers as numbers"),
        pytest.param({**HALF, CORE: "5e1", MEMORY: "17179869184000m", RATIO: 5e1}, SHARED, id="exponents and milli"),
        pytest.param({**HALF, MEMORY: "1500m", CORE: 0.5}, {**SHARED, LIMIT: "2", SM_LIMIT: "1"}, id="rounded up"),
        pytest.param(without(CORE), {k: v for k, v in SHARED.items() if k != SM_LIMIT}, id="gpu-core absent"),
        pytest.param({**HALF, CORE: "0"}, {**SHARED, SM_LIMIT: "0"}, id="gpu-core 0 is not absent"),
        pytest.param({**HALF, RATIO: "99"}, SHARED, id="ratio 99"),
        pytest.param({**HALF, RATIO: "99.5"}, ONE, id="ratio rounded up to 100"),
        pytest.param({**HALF, RATIO: "100"}, ONE, id="ratio 100"),
        pytest.param({**HALF, RATIO: 100}, ONE, id="ratio 100 as a number"),
        pytest.param({**HALF, RATIO: "200"}, ONE, id="ratio above 100"),
        pytest.param({RATIO: 100}, ONE, id="a whole GPU needs no gpu-memory"),
        pytest.param({OLD_CORE: "50", OLD_MEMORY: "16Gi", OLD_RATIO: "50"}, SHARED, id="deprecated names"),
        pytest.param({**HALF, OLD_CORE: "1", OLD_MEMORY: "1", OLD_RATIO: "100"}, SHARED, id="new names win"),
        pytest.param({**without(CORE), OLD_CORE: 50}, SHARED, id="one deprecated name"),
        pytest.param({**HALF, MEMORY: None, OLD_MEMORY: "16Gi"}, SHARED, id="null is missing"),
    ],
)
def test_hami_core_is_told_the_share(resources: dict[str, Any], set_variables: dict[str, str]) -> None:
    annotations = allocated({"gpu": [gpu(**resources)]})
    tester = HookTester(Gpu())
    assert tester.pre_create_container(annotations=annotations, labels=HAMI) == Difference(env=set_variables)
    for provider in ("", "hami-core", "other"):  # the label's value is exact
        changed = tester.pre_create_container(annotations=annotations, labels={GPU_ISOLATION_PROVIDER: provider})
        assert changed == Difference(env=ONE)


def test_the_first_device_speaks_for_all() -> None:
    annotations = allocated({"gpu": [gpu(**HALF), {"minor": 7, "resources": {RATIO: "100"}}]})
    changed = HookTester(Gpu()).pre_create_container(annotations=annotations, labels=HAMI)
    assert changed.env == {**SHARED, "NVIDIA_VISIBLE_DEVICES": "0,7"}


def test_what_the_container_asks_for_is_overwritten_and_the_rest_stays() -> None:
    asked = {"NVIDIA_VISIBLE_DEVICES": "all", "LD_PRELOAD": "/mine.so", SM_LIMIT: "50", "PATH": "/bin"}
    changed = HookTester(Gpu()).pre_create_container(
        annotations=allocated({"gpu": [gpu(**HALF)]}), labels=HAMI, env=asked, resources={"cpu_shares": 2}
    )
    assert changed == Difference(env={**ONE, LIMIT: SIXTEEN_GI, "LD_PRELOAD": LIBRARY})


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        *(
            pytest.param(text, {}, id=f"bad JSON {text}")
            for text in ("{", "canary", "[]", "3", '"gpu"', "true", '{"gpu": [{"minor": NaN}]}')
        ),
        *(
            pytest.param({"gpu": found}, {}, id=f"gpu {found}")
            for found in (3, "0", {}, True, [None], ["canary"], [3], [[]], [{}])
        ),
        *(
            pytest.param({"gpu": [{"minor": minor}]}, {}, id=f"minor {minor!r}")
            for minor in (None, "0", "canary", 1.5, True, [], {}, 10**30)
        ),
        pytest.param({"gpu": [{"minor": 0}, {}]}, {}, id="the second has no minor"),
        pytest.param({"gpu": [{"minor": 0}]}, HAMI, id="resources missing"),
        *(
            pytest.param({"gpu": [{"minor": 0, "resources": found}]}, HAMI, id=f"resources {found!r}")
            for found in ([], "canary", 3, True, {})
        ),
        pytest.param({"gpu": [gpu(**without(RATIO))]}, HAMI, id="ratio missing"),
        pytest.param({"gpu": [gpu(**without(MEMORY))]}, HAMI, id="gpu-memory missing"),
        pytest.param({"gpu": [gpu(**{key.upper(): value for key, value in HALF.items()})]}, HAMI, id="name case"),
        *(
            pytest.param({"gpu": [gpu(**{**HALF, key: amount})]}, HAMI, id=f"{key} {amount!r}")
            for key in HALF
            for amount in ("canary", "", True, [], {"a": 1}, "1e30")
        ),
    ],
)
def test_what_cannot_be_read_sets_nothing_at_all(value: Any, labels: dict[str, str]) -> None:
    annotations = allocated(value)
    pod = PodInfo(name="pod", namespace="default", labels=labels, annotations=annotations)
    container = ContainerContext(BY_NAME["PreCreateContainer"], HookRequest(pod, ContainerInfo(envs={"A": "1"})))
    with pytest.raises(Malformed) as raised:
        Gpu().pre_create_container(container)
    assert dict(container.env) == {"A": "1"}
    assert "canary" not in str(raised.value)


def test_an_error_names_what_is_missing() -> None:
    with pytest.raises(Malformed, match=MEMORY):
        HookTester(Gpu()).pre_create_container(annotations=allocated({"gpu": [gpu(**without(MEMORY))]}), labels=HAMI)


def configured(*flags: str) -> Gpu:
    hook, parser = Gpu(), argparse.ArgumentParser()
    hook.add_arguments(parser)
    hook.configure(parser.parse_args(flags))
    return hook


@pytest.mark.parametrize(
    ("flags", "set_variables"),
    [
        ((), SHARED),
        (("--hami-core-library=/opt/hami.so",), {**SHARED, "LD_PRELOAD": "/opt/hami.so"}),
        (
            ("--hami-core-cache-dir=/usr/local/vgpu/",),
            {**SHARED, "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/u-1_main.cache"},
        ),
    ],
)
def test_flags_name_the_paths_in_the_container(flags: tuple[str, ...], set_variables: dict[str, str]) -> None:
    tester, devices = HookTester(configured(*flags)), allocated({"gpu": [gpu(**HALF)]})
    assert tester.pre_create_container(annotations=devices, labels=HAMI, uid="u-1").env == set_variables
    whole = allocated({"gpu": [gpu(**{RATIO: 100})]})
    assert tester.pre_create_container(annotations=whole, labels=HAMI, uid="u-1").env == ONE


@pytest.mark.parametrize("flag", ["--hami-core-library", "--hami-core-cache-dir"])
def test_a_path_must_be_absolute(flag: str) -> None:
    with pytest.raises(ValueError, match=f"{flag} must be an absolute path"):
        configured(f"{flag}=vgpu")


def test_it_is_registered_for_creates_only() -> None:
    assert [point.name for point in Gpu().points] == ["PreCreateContainer"]
