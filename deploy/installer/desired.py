"""The state that the chart requests: the file wanted.json of its ConfigMap.

Owns the file's keys.
Must not know: the steps that reach it.
Invariant: a desired state has every key, or Refused is raised.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from .errors import Refused

INSTALL, UNINSTALL = "install", "uninstall"


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The desired state of a node. ``config`` are keys of the proxy's configuration file; if empty, it is kept."""

    action: str
    pool: str
    sha256: str
    configure_kubelet: bool
    healthz_port: int
    allow_downgrade: bool
    parallel: int
    config: Mapping[str, Any]
    metrics_group_id: int

    @property
    def fingerprint(self) -> str:
        """Return a digest of the values that change a node."""
        values = {key: value for key, value in asdict(self).items() if key not in ("parallel", "pool")}
        return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def read(path: Path) -> DesiredState:
    """Read the file. Raises Refused."""
    keys = {
        "action": "action",
        "pool": "pool",
        "sha256": "sha256",
        "configureKubelet": "configure_kubelet",
        "healthzPort": "healthz_port",
        "allowDowngrade": "allow_downgrade",
        "parallel": "parallel",
        "config": "config",
        "metricsGroupId": "metrics_group_id",
    }
    try:
        content = json.loads(path.read_bytes())
        return DesiredState(**{field: content[key] for key, field in keys.items()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{path} is not what the chart writes ({type(error).__name__})"
        raise Refused(f"{reason}: use chart and image of the same version") from None
