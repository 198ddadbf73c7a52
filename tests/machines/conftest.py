"""A node for the tests of a file: its boot and its engines take seconds."""

from collections.abc import Iterator

import pytest

from tests.machines.machine import Machine
from tests.machines.node import node


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield a node on which the proxy runs."""
    with node(tmp_path_factory.mktemp("node") / "machine") as machine:
        yield machine
