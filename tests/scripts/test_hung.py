"""The soak's small calls beside creates whose hook server hangs, or that the runtime does not answer."""

import asyncio
import os
import signal
from types import ModuleType

import pytest

from scripts.benchmark.cases import CRI, DOCKER
from scripts.soaking import beside, hung, slow
from scripts.soaking.gate import Gate

SHARE = 0.002


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("mode", [CRI, DOCKER])
@pytest.mark.parametrize("module", [hung, slow], ids=["hung", "slow"])
def test_a_small_part_of_it(module: ModuleType, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURNS", 2)
    monkeypatch.setattr(beside, "HOLD_SECONDS", 0.3)
    found = module.measure(mode, SHARE)
    assert [each.case for each in found] == list(beside.CASES[mode])
    for each in found:
        assert (
            len(each.here.microseconds) == len(each.elsewhere.microseconds) == 2 * int(module.CALLS[each.case] * SHARE)
        )
        assert each.ratio > 0


async def passes(gate: Gate) -> bool:
    """Tell whether the gate lets a call pass."""
    try:
        await asyncio.wait_for(gate.passed(), 0.02)
    except TimeoutError:
        return False
    return True


async def test_a_gate_is_shut_and_opened_by_signals() -> None:
    gate = Gate()
    assert await passes(gate)
    async with asyncio.timeout(20):
        with beside.signalled(os.getpid(), signal.SIGUSR1, signal.SIGUSR2):
            while await passes(gate):
                pass
            waiting = asyncio.ensure_future(gate.passed())
        await waiting
