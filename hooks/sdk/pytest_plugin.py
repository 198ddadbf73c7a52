"""The fixture ``hook_tester`` for tests of hooks.

Owns the fixture's name.
Must not know: what the tester does. pytest loads this module in every run, also where no hook is tested, so the tester
is imported when a test asks for it.
Invariant: loading it imports nothing that a test of something else would have to wait for.
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
