"""What the engines ask of the machine: root, and Debian, whose packages scripts/install knows."""

import os
import platform


def why_no_engine() -> str:
    """Say why no container runtime can be asked of this machine; "" where scripts/install gave it all it needs."""
    if os.geteuid() != 0:
        return "not root, and a container runtime needs root"
    return "" if _is_debian() else "not on Debian, where the runtimes' packages are known"


def _is_debian() -> bool:
    try:
        return platform.freedesktop_os_release()["ID"] == "debian"
    except OSError:
        return False
