"""One node for the tests of a file: its boot and its engines take seconds."""

import os
from collections.abc import Iterator

import pytest

from tests.amounts import SHARE_VARIABLE
from tests.machines.machine import Machine
from tests.machines.node import node

collect_ignore = [] if SHARE_VARIABLE in os.environ else ["test_watchdog.py"]
"""It builds the release and works for minutes: scripts/soak alone runs it."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield a node on which the proxy runs."""
    with node(tmp_path_factory.mktemp("node") / "machine") as machine:
        yield machine
