"""The engines' requirements: root, and Debian, whose packages scripts/install installs."""

import os
import platform


def why_no_engine() -> str:
    """Return why no container runtime can run on this machine; "" if scripts/install can provide everything."""
    if os.geteuid() != 0:
        return "not root, and a container runtime needs root"
    return "" if _is_debian() else "not on Debian, where the runtimes' packages are known"


def _is_debian() -> bool:
    try:
        return platform.freedesktop_os_release()["ID"] == "debian"
    except OSError:
        return False
