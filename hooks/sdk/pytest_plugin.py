"""The fixture ``hook_tester`` for tests of hooks.

Invariant: loading it imports nothing that would slow down other tests.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import HookTester


@pytest.fixture(scope="session")
def hook_tester() -> "type[HookTester]":
    """Return the class HookTester: ``hook_tester(MyHook()).pre_create_container(...)``."""
    from .testing import HookTester

    return HookTester
