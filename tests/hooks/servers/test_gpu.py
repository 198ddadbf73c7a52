"""gpu: every case of the device-allocated annotation, and HAMi-core's share."""

from typing import Any

import pytest

from runtimeproxy_hooks.lib.koordinator import DEVICE_ALLOCATED, GPU_ISOLATION_PROVIDER
from runtimeproxy_hooks.sdk.testing import Difference, HookTester
from runtimeproxy_hooks.servers.gpu import LIBRARY, Gpu
from tests.hooks.nodes import annotation, configured, rows

CORE, MEMORY, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
OLD_CORE, OLD_MEMORY, OLD_RATIO = "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory", "kubernetes.io/gpu-memory-ratio"
HAMI = {GPU_ISOLATION_PROVIDER: "HAMi-core"}
HALF = {CORE: "50", MEMORY: "16Gi", RATIO: "50"}
LIMIT, SM_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"


def allocated(value: Any) -> dict[str, str]:
    return annotation(DEVICE_ALLOCATED, value)


def gpus(*devices: Any) -> dict[str, str]:
    return allocated({"gpu": list(devices)})


def gpu(**resources: Any) -> dict[str, Any]:
    return {"minor": 0, "id": "GPU-1", "resources": resources}


def without(key: str, entries: dict[str, Any] = HALF) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name != key}


def visible(minors: str) -> dict[str, str]:
    return {"NVIDIA_VISIBLE_DEVICES": minors}


ONE = visible("0")
SHARED = {**ONE, LIMIT: str(16 << 30), SM_LIMIT: "50", "LD_PRELOAD": LIBRARY}
VISIBLE = [
    ("no annotations", {}, {}),
    ("no GPU", allocated({"rdma": [{"minor": 1}], "gpu": None}), {}),
    ("gpu list empty", gpus(), {}),
    ("device types are keys of a map: exact", allocated({"GPU": [{"minor": 1}]}), {}),
    ("minor 0, resources unused without the label", gpus(gpu(**HALF)), ONE),
    ("minors in the list's order", gpus({"minor": 3}, {"minor": 0}, {"minor": 11}), visible("3,0,11")),
    ("key case", gpus({"Minor": 5, "extension": {"vfs": [{"minor": -1}]}}), visible("5")),
]


@pytest.mark.parametrize(("annotations", "env"), rows(VISIBLE))
def test_visible_devices_are_the_minors(annotations: dict[str, str], env: dict[str, str]) -> None:
    assert HookTester(Gpu()).pre_create_container(annotations=annotations) == Difference(env=env)


SHARES = [
    ("numbers as numbers", {CORE: 50, MEMORY: 16 << 30, RATIO: 5e1}, SHARED),
    ("rounded up", {**HALF, MEMORY: "1500m", CORE: 0.5}, {**SHARED, LIMIT: "2", SM_LIMIT: "1"}),
    ("gpu-core absent", without(CORE), without(SM_LIMIT, SHARED)),
    ("gpu-core 0 is not absent", {**HALF, CORE: "0"}, {**SHARED, SM_LIMIT: "0"}),
    ("ratio 99", {**HALF, RATIO: "99"}, SHARED),
    ("ratio rounded up to 100", {**HALF, RATIO: "99.5"}, ONE),
    ("a whole GPU needs no gpu-memory", {RATIO: 100}, ONE),
    ("deprecated names", {OLD_CORE: "50", OLD_MEMORY: "16Gi", OLD_RATIO: "50"}, SHARED),
    ("new names override", {**HALF, OLD_CORE: "1", OLD_MEMORY: "1", OLD_RATIO: "100"}, SHARED),
    ("null is missing", {**HALF, MEMORY: None, OLD_MEMORY: "16Gi"}, SHARED),
]


@pytest.mark.parametrize(("resources", "env"), rows(SHARES))
def test_hami_core_gets_the_share(resources: dict[str, Any], env: dict[str, str]) -> None:
    tester, annotations = HookTester(Gpu()), gpus(gpu(**resources))
    assert tester.pre_create_container(annotations=annotations, labels=HAMI) == Difference(env=env)
    for provider in ("", "hami-core", "a"):  # the label's value must match exactly
        changed = tester.pre_create_container(annotations=annotations, labels={GPU_ISOLATION_PROVIDER: provider})
        assert changed == Difference(env=ONE)


def test_first_device_determines_the_share() -> None:
    env = {**visible("all"), "LD_PRELOAD": "/mine.so", SM_LIMIT: "50", "PATH": "/bin"}
    annotations = gpus(gpu(**HALF), {"minor": 7, "resources": {RATIO: "100"}})
    call: dict[str, Any] = {"annotations": annotations, "labels": HAMI, "env": env, "container": "sidecar"}
    changed = HookTester(Gpu()).pre_create_container(**call)
    assert changed == Difference(env=without(SM_LIMIT, {**SHARED, **visible("0,7")}))


FLAGS = [
    ("--hami-core-library=/h.so", {"LD_PRELOAD": "/h.so"}),
    ("--hami-core-cache-dir=/v/", {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/v/u-1_main.cache"}),
]


@pytest.mark.parametrize(("flag", "more"), FLAGS)
def test_flags_name_absolute_paths_in_the_container(flag: str, more: dict[str, str]) -> None:
    tester = HookTester(configured(Gpu(), flag))
    for resources, env in ((HALF, {**SHARED, **more}), ({RATIO: 100}, ONE)):
        changed = tester.pre_create_container(annotations=gpus(gpu(**resources)), labels=HAMI, uid="u-1")
        assert changed.env == env
    name = flag.partition("=")[0]
    with pytest.raises(ValueError, match=f"{name} must be an absolute path"):
        configured(Gpu(), f"{name}=vgpu")
