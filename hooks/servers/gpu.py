"""gpu: give a container the GPUs of its pod, and its share of one, from Koordinator's device-allocated annotation.

Invariant: all variables are set or none. An annotation that cannot be read raises Malformed. koordlet does the same
with bad JSON, but sets NVIDIA_VISIBLE_DEVICES if only the share cannot be read. With failure-policy Fail this hook is
safer: no container runs on a shared GPU without limits. With Ignore it is less safe: the container starts with the
NVIDIA_VISIBLE_DEVICES of the image or the pod, "all" in CUDA images, so with other pods' GPUs, too. Register this hook
with Fail.

The hook protocol has no mounts. The pod itself must mount the paths that koordlet mounts through NRI: HAMi-core's
library at the path in LD_PRELOAD, the lock directory /tmp/vgpulock, and a directory for the monitor's cache at the path
in its variable. LD_PRELOAD of a missing file limits nothing.
"""

import argparse
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from ..lib.koordinator import (
    DEVICE_ALLOCATED,
    GPU_CORE,
    GPU_ISOLATION_PROVIDER,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    Objects,
    entry,
    member,
    quantity,
    read_json,
)
from ..sdk import ContainerContext, Hook, Malformed, main

HAMI_CORE = "HAMi-core"
LIBRARY = "/usr/local/vgpu/libvgpu.so"
FULL_PERCENT = 100
"""Percentage of a GPU's memory from which the GPU is not shared, so that no limit is set."""

_ANNOTATION = f"annotation {DEVICE_ALLOCATED}"
_DOMAIN, _OLD_DOMAIN = "koordinator.sh/", "kubernetes.io/"


class Gpu(Hook):
    """Set NVIDIA_VISIBLE_DEVICES in every container of a pod with GPUs, and HAMi-core's limits on request of the pod.

    ``cache_dir`` is where HAMi-core keeps the files for its vGPU monitor, "" for none. Source of the rules: koordlet's
    GPUEnvInject.
    """

    def __init__(self, library: str = LIBRARY, cache_dir: str = "") -> None:
        self._library = library
        self._cache_dir = cache_dir

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--hami-core-library", metavar="PATH", default=LIBRARY, help="library to preload (default %(default)s)"
        )
        parser.add_argument(
            "--hami-core-cache-dir",
            metavar="DIR",
            default="",
            help="directory of the vGPU monitor's cache (default off)",
        )

    def configure(self, arguments: argparse.Namespace) -> None:
        """Set the paths from the flags. Raises ValueError for a path that is not absolute."""
        self._library = _absolute("--hami-core-library", arguments.hami_core_library)
        cache_dir = arguments.hami_core_cache_dir
        self._cache_dir = cache_dir and _absolute("--hami-core-cache-dir", cache_dir)

    def pre_create_container(self, container: ContainerContext) -> None:
        """Set the variables. Raises Malformed before any is set."""
        devices = entry(read_json(container.pod.annotations, DEVICE_ALLOCATED, dict), "gpu", Objects)
        if not devices:
            return
        minors = [member(device, "minor", int) for device in devices]
        if None in minors:  # koordlet reads a missing one as 0, which may be another pod's GPU
            raise Malformed(_ANNOTATION, "each gpu needs its minor number")
        variables = {"NVIDIA_VISIBLE_DEVICES": ",".join(map(str, minors))}
        if container.pod.labels.get(GPU_ISOLATION_PROVIDER) == HAMI_CORE:
            # The first device counts for all, as in koordlet: a share is of one GPU, or the same of each.
            variables |= self._share(container, member(devices[0], "resources", dict, {}))
        for name, value in variables.items():
            container.env[name] = value

    def _share(self, container: ContainerContext, resources: Mapping[str, Any]) -> dict[str, str]:
        """Return HAMi-core's variables; none for an unshared GPU."""
        if _needed(resources, GPU_MEMORY_RATIO) >= FULL_PERCENT:
            return {}
        variables = {"CUDA_DEVICE_MEMORY_LIMIT": str(_needed(resources, GPU_MEMORY)), "LD_PRELOAD": self._library}
        core = _amount(resources, GPU_CORE)
        if core is not None:
            variables["CUDA_DEVICE_SM_LIMIT"] = str(core)
        if self._cache_dir:
            cache = PurePosixPath(self._cache_dir, f"{container.pod.uid}_{container.name}.cache")
            variables["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(cache)
        return variables


def _absolute(flag: str, path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{flag} must be an absolute path, as containers see it")
    return path


def _needed(resources: Mapping[str, Any], name: str) -> int:
    amount = _amount(resources, name)
    if amount is None:
        raise Malformed(_ANNOTATION, f"for {HAMI_CORE} the first gpu needs {name} among its resources")
    return amount


def _amount(resources: Mapping[str, Any], name: str) -> int | None:
    """Return an amount by its name or its deprecated name, rounded up; None without both."""
    for key in (name, name.replace(_DOMAIN, _OLD_DOMAIN)):
        value = entry(resources, key, (str, int, float))
        if value is not None:
            return quantity(value, f"{key} in {_ANNOTATION}")
    return None


if __name__ == "__main__":
    main(Gpu())
