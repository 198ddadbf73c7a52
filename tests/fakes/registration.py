"""Registration files as hook servers write them (hook-api, "Registration files")."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

ALL_POINTS = (
    *("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PostStartContainer"),
    *("PreUpdateContainerResources", "PostStopContainer", "PostStopPodSandbox"),
)
KOORDLET_EXTRA_HOOK_POINT = "PreRemoveRunPodSandbox"
"""koordlet lists it although the protocol has no such call."""


def text(endpoint: str, points: Sequence[str] = ALL_POINTS, policy: str = "Ignore", **more: str) -> str:
    """Return the content of a registration file; ``more`` adds keys, with - for _."""
    entry = {"remote-endpoint": endpoint, "failure-policy": policy, "runtime-hooks": list(points)}
    return json.dumps(entry | {key.replace("_", "-"): value for key, value in more.items()})


def write(directory: Path, name: str, content: str) -> Path:
    """Write a temporary file and rename it into place: a reader sees all of it or nothing."""
    target = directory / name
    sibling = directory / f".{name}.new"
    sibling.write_text(content)
    os.replace(sibling, target)
    return target


def write_as_koordlet(directory: Path, endpoint: str, points: Sequence[str]) -> Path:
    """Write koordlet.json as koordlet does: truncated, then written in place, with tabs, the points in random order."""
    shuffled = [*points, KOORDLET_EXTRA_HOOK_POINT]
    random.Random(0).shuffle(shuffled)
    entry = {"remote-endpoint": endpoint, "failure-policy": "Ignore", "runtime-hooks": shuffled}
    target = directory / "koordlet.json"
    with target.open("w") as file:
        file.flush()  # the file is empty now, and a reader may see that
        file.write(json.dumps(entry, indent="\t"))
    return target
