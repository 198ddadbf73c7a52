"""The versions of Docker Engine: how a daemon describes itself, and how its answers differ from an API version on.

20.10 is the base; a change holds for the API version that a request names, not for the daemon's newest. All removed or
changed fields are covered; of added ones there is one example. Sources: moby's api/docs/CHANGELOG.md,
daemon/server/router/{container,image,system}, daemon/server/middleware.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fakes.dockerd_received import Header
from tests.fakes.dockerd_structs import Struct, version_number

INSPECT, IMAGE, EVENT = "inspect", "image", "event"
"""The answers that differ: a container's inspect, an image's, an event."""
ALL = (1, 0)
"""Stands for a change that holds for every API version."""


@dataclass(frozen=True, slots=True)
class Change:
    """How an answer differs from API version ``since`` on."""

    answer: str
    since: tuple[int, ...]
    apply: Callable[[Struct], Struct]


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    version: str
    api: str
    minimum: str
    ping: Sequence[Header]
    """The headers of a ping's reply that describe the daemon."""
    changes: Sequence[Change] = ()
    negotiates: bool = False
    """True if the type of GET /events follows the client's Accept."""

    def shown(self, answer: str, api: str, struct: Struct) -> Struct:
        """Return an answer in the form for a request of an API version."""
        version = version_number(api)
        for change in self.changes:
            if change.answer == answer and change.since <= version:
                struct = change.apply(struct)
        return struct

    def event_type(self, accept: str) -> str:
        """Return the Content-Type of GET /events."""
        lines = self.negotiates and ("application/x-ndjson" in accept or "*/*" in accept)
        return "application/x-ndjson" if lines else "application/json"


# ---- what changed

_SNAPSHOTTER = "overlayfs"
_MANIFEST = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:" + "1" * 64, "size": 1}


def _without(struct: Struct, *names: str) -> Struct:
    return {key: value for key, value in struct.items() if key not in names}


def _on_unified_hierarchy(inspected: Struct) -> Struct:
    """Show the defaults of a create as they are on cgroup v2, and the default network by its name."""
    host = dict(inspected["HostConfig"])
    host["CgroupnsMode"] = "private" if host["CgroupnsMode"] == "host" else host["CgroupnsMode"]
    host["NetworkMode"] = "bridge" if host["NetworkMode"] == "default" else host["NetworkMode"]
    return {**inspected, "HostConfig": host}


def _on_snapshotter(inspected: Struct) -> Struct:
    return {**inspected, "Driver": _SNAPSHOTTER, "GraphDriver": {"Data": None, "Name": _SNAPSHOTTER}}


def _with_manifest(inspected: Struct) -> Struct:
    return {**inspected, "ImageManifestDescriptor": _MANIFEST}


def _without_old_parts(inspected: Struct) -> Struct:
    config = inspected["Config"] if inspected["Config"]["OnBuild"] else _without(inspected["Config"], "OnBuild")
    more = {"Config": config, "Storage": {"RootFS": {"Snapshot": {"Name": _SNAPSHOTTER}}}}
    return {**_without(inspected, "GraphDriver"), **more, "NetworkSettings": {"Networks": {}}}


def _without_empty_config(image: Struct) -> Struct:
    """Leave out empty fields; an empty Config is null."""
    config = {key: value for key, value in image["Config"].items() if value}
    return {**_without(image, "Parent"), "Config": config or None}


def _without_old_names(event: Struct) -> Struct:
    return _without(event, "status", "id", "from")


_SINCE_20 = (Change(INSPECT, ALL, _on_unified_hierarchy),)
_SINCE_28 = (
    Change(INSPECT, ALL, _on_snapshotter),
    Change(INSPECT, (1, 48), _with_manifest),
    Change(INSPECT, (1, 52), _without_old_parts),
    Change(IMAGE, (1, 52), _without_empty_config),
    Change(EVENT, (1, 52), _without_old_names),
)
_BUILDKIT = (("Builder-Version", "2"), ("Swarm", "inactive"))

ENGINE_20 = Engine("20.10", "20.10.24", "1.41", "1.12", ())
ENGINE_28 = Engine("28", "28.5.1", "1.51", "1.24", _BUILDKIT, _SINCE_20)
ENGINE_29 = Engine("29", "29.0.0", "1.52", "1.44", _BUILDKIT, (*_SINCE_20, *_SINCE_28), negotiates=True)

ENGINES = (ENGINE_20, ENGINE_28, ENGINE_29)
