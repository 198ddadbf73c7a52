"""The versions of the proxy and of what it runs on.

No library is imported: versions are read from the metadata of the installed packages.
"""

import os
import platform

VERSION = "0.2.0"

BUILD = "BUILD"
"""Name of the package's file that scripts/build writes: a line each for commit and date."""

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
"""The libraries of the proxy and its hook servers."""


def versions() -> dict[str, str | None]:
    """Return the versions by name; None if not installed or unknown."""
    build = _build()
    own = {"runtimeproxy": VERSION, "commit": build.get("commit"), "date": build.get("date")}
    return own | {"python": platform.python_version(), "linux": os.uname().release} | _libraries()


def version_text(program: str) -> str:
    """Return what a program's ``--version`` prints: its version and build, and what it runs on."""
    build = ", ".join(f"{name} {value}" for name, value in _build().items())
    libraries = (f"{name} {version}" for name, version in _libraries().items() if version is not None)
    first = f"{program} {VERSION}{f' ({build})' if build else ''}"
    return "\n".join([first, ", ".join([f"Python {platform.python_version()}", *libraries])])


def _libraries() -> dict[str, str | None]:
    return {name: _installed(name) for name in LIBRARIES}


def _installed(name: str) -> str | None:
    from importlib import metadata  # heavy, and the daemon needs VERSION alone

    return next((distribution.version for distribution in metadata.distributions(name=name)), None)


def _build() -> dict[str, str]:
    """Return commit and date of a build by scripts/build, else the commit that pip recorded (PEP 610)."""
    import json
    from importlib import metadata, resources

    file = resources.files("runtimeproxy") / BUILD
    if file.is_file():
        return dict(line.split(": ", 1) for line in file.read_text().splitlines())
    for distribution in metadata.distributions(name="runtimeproxy"):
        metadata_record = json.loads(distribution.read_text("direct_url.json") or "{}")
        if "vcs_info" in metadata_record:
            return {"commit": str(metadata_record["vcs_info"]["commit_id"])}
    return {}
