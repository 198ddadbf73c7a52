"""The fake of the proxy that an exporter calls."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.exporting import FakeProxy


@pytest.fixture
async def upstream(tmp_path: Path) -> AsyncIterator[FakeProxy]:
    async with FakeProxy(tmp_path / "proxy.sock") as fake:
        yield fake
