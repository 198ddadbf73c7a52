"""A process that has used all its file descriptors up (fault matrix P8).

What is open stays open; the limit is what it was afterwards.
"""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors() -> Iterator[None]:
    gc.collect()  # else what earlier tests left in cycles may give one back in the middle
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
