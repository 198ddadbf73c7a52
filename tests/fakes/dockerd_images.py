"""The images of the fake dockerd: names, ids, and the environment, labels and command that a container inherits.

An image is found by its full id, a prefix of it, or its name in any of Docker's spellings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes.dockerd_checks import Refused

RECORDED_IMAGES = ("127.0.0.1:5000/pause:1", "127.0.0.1:5000/busybox:1")
"""The images of the recorded requests of cri-dockerd."""

DEFAULT_IMAGES = (BUSYBOX_IMAGE, PAUSE_IMAGE, *RECORDED_IMAGES)
CREATED = "2026-01-01T00:00:00Z"


def familiar(reference: str) -> str:
    """Return a name as Docker shows it: without the default registry, with a tag."""
    for prefix in ("docker.io/library/", "docker.io/"):
        reference = reference.removeprefix(prefix)
    return reference if "@" in reference or ":" in reference.rpartition("/")[2] else f"{reference}:latest"


@dataclass(slots=True)
class Image:
    """An image; what it sets is merged into a container's config."""

    name: str
    env: list[str] = field(default_factory=lambda: ["PATH=/bin"])
    labels: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=lambda: ["/bin/sh"])

    @property
    def id(self) -> str:
        """Return the id, which follows from the name."""
        return "sha256:" + hashlib.sha256(self.name.encode()).hexdigest()

    def inherited(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a container's config with what this image adds to it."""
        own = config["Env"] or []
        named = {entry.partition("=")[0] for entry in own}
        more = [entry for entry in self.env if entry.partition("=")[0] not in named]
        command = config["Cmd"] if config["Cmd"] or config["Entrypoint"] else self.command
        labels = {**self.labels, **(config["Labels"] or {})}
        return {**config, "Env": [*own, *more], "Labels": labels, "Cmd": command}

    def inspect(self) -> dict[str, Any]:
        """Return what GET /images/{ref}/json answers."""
        config = {"Env": self.env, "Cmd": self.command, "Labels": self.labels or None, "Entrypoint": None}
        return {
            "Id": self.id,
            "RepoTags": [self.name],
            "RepoDigests": [],
            "Parent": "",
            "Created": CREATED,
            "Config": config,
            "Architecture": "amd64",
            "Os": "linux",
            "Size": 1 << 20,
            "RootFS": {"Type": "layers", "Layers": []},
        }

    def listed(self) -> dict[str, Any]:
        """Return what GET /images/json shows of it."""
        return {
            "Containers": -1,
            "Created": 1767225600,
            "Id": self.id,
            "Labels": self.labels or None,
            "ParentId": "",
            "RepoDigests": None,
            "RepoTags": [self.name],
            "SharedSize": -1,
            "Size": 1 << 20,
            "VirtualSize": 1 << 20,
        }


class Images:
    def __init__(self) -> None:
        self.by_name: dict[str, Image] = {}
        for name in DEFAULT_IMAGES:
            self.add(name)

    def add(
        self, reference: str, env: Sequence[str] = ("PATH=/bin",), labels: Mapping[str, str] | None = None
    ) -> Image:
        image = Image(familiar(reference), list(env), dict(labels or {}))
        self.by_name[image.name] = image
        return image

    def find(self, reference: str) -> Image:
        """Return the image.

        Raises Refused with status 404.
        """
        name = familiar(reference)
        if name in self.by_name:
            return self.by_name[name]
        digits = reference.removeprefix("sha256:")
        found = [image for image in self.by_name.values() if digits and image.id.startswith(f"sha256:{digits}")]
        if len(found) != 1:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such image: {name}")
        return found[0]

    def find_or_add(self, reference: str) -> Image:
        """Return the image, which is there then, as after a pull."""
        try:
            return self.find(reference)
        except Refused:
            return self.add(reference)
