"""The versions of the proxy and of what it runs on.

Owns the list of what is told.
Must not know: anything of a running proxy.
Invariant: nothing of it is imported, its version is read from the installed package's metadata.
"""

import json
import os
import platform
from importlib import metadata

from runtimeproxy.version import VERSION

LIBRARIES = (
    "aiohttp",
    "asyncinotify",
    "click",
    "grpcio",
    "hpack",
    "prometheus-client",
    "protobuf",
    "pyyaml",
    "rich",
    "uvloop",
)
"""What the proxy and its hook servers run on."""


def versions() -> dict[str, str | None]:
    """Return the versions by name; None for what is not installed or not known."""
    own = {"runtimeproxy": VERSION, "commit": _commit(), "python": platform.python_version()}
    return own | {"linux": os.uname().release} | {name: _installed(name) for name in LIBRARIES}


def _installed(name: str) -> str | None:
    return next((distribution.version for distribution in metadata.distributions(name=name)), None)


def _commit() -> str | None:
    """Return the commit that pip noted when it installed the package (PEP 610)."""
    for distribution in metadata.distributions(name="runtimeproxy"):
        noted = json.loads(distribution.read_text("direct_url.json") or "{}")
        if "vcs_info" in noted:
            return str(noted["vcs_info"]["commit_id"])
    return None
