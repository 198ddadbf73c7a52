"""A version that cannot start, again and again while its socket is kept: clients wait, and the next one answers them.

That is fault matrix P9.
"""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from tests.amounts import CRASH_SECONDS
from tests.docker import client as docker_client
from tests.system.fronts import Front, Runtime
from tests.system.proxy import PROGRAM
from tests.system.supervising import handed_over

pytestmark = pytest.mark.slow

LACKING = """
import sys
from runtimeproxy.cli import main
sys.modules["uvloop"] = None
sys.exit(main())
"""
"""The program without one of its libraries."""
RESTART_SECONDS = 0.1
"""RestartSec= of the unit."""
PAUSE_SECONDS = 0.2
ANSWER_SECONDS = 60.0


async def test_crash_loop_refuses_nobody_and_the_next_version_answers(
    front: Front, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_client, "PATIENCE_SECONDS", CRASH_SECONDS.now + ANSWER_SECONDS)
    tmp_path.chmod(0o700)
    with handed_over(tmp_path / "proxy.sock") as handed:
        good = front.process(tmp_path, **handed)
        program = [*handed["program"][: -len(PROGRAM)], sys.executable, "-c", LACKING, "run"]
        broken = front.process(tmp_path, **{**handed, "program": program})

        async def client() -> None:
            """Connect at once, and wait for the answer."""
            async with front.sent(good.socket) as answer:
                await asyncio.wait_for(answer, CRASH_SECONDS.now + ANSWER_SECONDS)

        begun, clients, ends = time.monotonic(), [], 0
        while ends < 2 or time.monotonic() < begun + CRASH_SECONDS.now:
            broken.launch()
            while not broken.ended:
                clients.append(asyncio.ensure_future(client()))
                await asyncio.sleep(PAUSE_SECONDS)
            assert broken.process is not None
            broken.check(broken.process.wait(), expected=1)
            ends += 1
            await asyncio.sleep(RESTART_SECONDS)
        assert not any(each.done() for each in clients), "the next version must answer them"
        assert broken.output().count("error: the library uvloop cannot be loaded") == ends
        async with good:
            await asyncio.gather(*clients)
