"""Registration files as hook servers write them (hook-api, "Registration files")."""

import json
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
    (directory / f".{name}.new").write_text(content)
    return (directory / f".{name}.new").rename(directory / name)


def write_as_koordlet(directory: Path, endpoint: str, points: Sequence[str]) -> None:
    """Write koordlet.json as koordlet does: truncated, then written in place, with tabs, the points in any order."""
    entry = json.loads(text(endpoint, sorted([*points, KOORDLET_EXTRA_HOOK_POINT])))
    with (directory / "koordlet.json").open("w") as file:
        file.flush()  # the file is empty now, and a reader may see that
        file.write(json.dumps(entry, indent="\t"))
