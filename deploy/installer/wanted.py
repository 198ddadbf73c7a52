"""What the chart requests: the file wanted.json of its ConfigMap.

Owns the file's keys.
Must not know: how any of it is done.
Invariant: what is wanted is whole, or Refused is raised.
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
class Wanted:
    """What a node of the pool is to be like. ``config`` are keys of the proxy's configuration file; none leave it."""

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
        """Return a text that is another one where a node would be made otherwise."""
        how = {key: value for key, value in asdict(self).items() if key not in ("parallel", "pool")}
        return sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:12]


def read(path: Path) -> Wanted:
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
        return Wanted(**{field: content[key] for key, field in keys.items()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{path} is not what the chart writes ({type(error).__name__})"
        raise Refused(f"{why}: take chart and image of one version") from None
