"""Another implementation of HTTP/2 makes 10,000 calls, in scripts/soak 100,000: nghttp2's h2load."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.amounts import CALLS_OF_A_CLIENT
from tests.fakes.runtime import FakeRuntime
from tests.system.proxy import ProxyProcess

CALLS = CALLS_OF_A_CLIENT.now
METHOD = "/runtime.v1.RuntimeService/Version"


@pytest.mark.slow
@pytest.mark.tool("h2load")
async def test_each_call_of_h2load_reaches_the_runtime_once(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(bytes(5))
    headers = ["--header=content-type: application/grpc", "--header=te: trailers"]
    size = [f"--requests={CALLS}", "--clients=1", "--max-concurrent-streams=20", f"--data={body}"]
    async with FakeRuntime(str(tmp_path / "runtime.sock"), keep_received=0) as runtime:
        async with ProxyProcess(tmp_path) as proxy:
            command = ["h2load", *size, *headers, f"--base-uri=unix:{proxy.socket}", f"http://localhost{METHOD}"]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=300)
        assert runtime.counts == {METHOD: CALLS}
    assert f"{CALLS} succeeded, 0 failed" in done.stdout, done.stdout + done.stderr
