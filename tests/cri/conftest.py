"""Tests on a fake node run in virtual time."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.fakes.clock import VirtualLoop
from tests.fakes.node import Node


def pytest_asyncio_loop_factories(item: pytest.Function) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"loop": VirtualLoop if "node" in item.fixturenames else asyncio.new_event_loop}


@pytest.fixture
async def node() -> Node:
    return Node()
