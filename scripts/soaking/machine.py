"""The machine in words: what a reader needs to compare figures, and nothing that names it."""

import os
import platform
import re

GIB = 1 << 30


def describe() -> str:
    """Describe this machine and how busy it is."""
    return in_words(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        kernel=platform.release(),
        system=platform.freedesktop_os_release()["PRETTY_NAME"],
        python=platform.python_version(),
        load=os.getloadavg()[0],
    )


def in_words(cores: int, memory_bytes: int, kernel: str, system: str, python: str, load: float) -> str:
    """Put the machine in words; of the kernel's release only the version, as what follows may name a provider."""
    version = re.match(r"[\d.]*\d|", kernel)
    assert version is not None  # the pattern matches the empty text
    return (
        f"{cores} cores, {memory_bytes / GIB:.0f} GiB of memory, Linux {version[0] or '(unknown)'}, {system}, "
        f"Python {python}; load average {load:.1f} at the start"
    )
