"""The runtime is not there yet, is killed, and comes back: the proxy listens all the time.

That is relay-rules A12, fault matrix B2.
"""

import asyncio
import time
from itertools import count
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.engines import docker_cli
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import hookanswers
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_received import Injection
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Failed, Front
from tests.system.proxy import ProxyProcess, answers, until
from tests.system.times import in_time, judged, limit

pytestmark = pytest.mark.slow

DIAL_SECONDS = 0.050
GOOD_SECONDS = 0.100
RETURNS = Amount(1, 100)
STARTS = Amount(3, 100)
LISTENS_SECONDS = 1.0


async def test_it_listens_within_a_second_of_its_start_though_there_is_no_runtime(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
    took = [await _seconds_to_listen(proxy, number) for number in range(1, STARTS.now + 1)]
    assert judged(took) < limit(took, LISTENS_SECONDS), took


async def _seconds_to_listen(proxy: ProxyProcess, number: int) -> float:
    """Start a proxy, for the first time or once more, and end it; return the seconds until somebody could connect."""
    begun = time.monotonic()
    proxy.launch()
    try:
        await until(lambda: proxy.ended or answers(proxy.socket), "somebody can connect")
        took = time.monotonic() - begun
        await asyncio.to_thread(proxy.wait_until_it_listens, number)
        await asyncio.to_thread(proxy.stop)
    finally:
        if not proxy.ended:
            proxy.kill()
    return took


@pytest.mark.parametrize("wrong", ["nothing", "a plain file"])
async def test_a_path_without_a_runtime_is_told_before_any_client_comes(
    front: Front, tmp_path: Path, wrong: str
) -> None:
    proxy = front.process(tmp_path)
    away = f"container runtime at {proxy.runtime} is not reachable"
    if wrong == "a plain file":
        proxy.runtime.touch()
    async with proxy:
        await until(lambda: away in proxy.output(), "that nobody is there is told", proxy.output)
        assert proxy.output().index("listening on ") < proxy.output().index(away)
        proxy.runtime.unlink(missing_ok=True)
        async with front.runtime(str(proxy.runtime)), front.caller(proxy.socket) as caller:
            await caller.act("ping")
            await caller.act("ping")
            told = f"container runtime at {proxy.runtime} is reachable again"
            await until(lambda: told in proxy.output(), "that it is there again is told", proxy.output)
    assert proxy.output().count(told) == 1


async def test_a_client_that_dials_gets_its_answer_within_100_ms_of_the_runtimes_start(
    front: Front, tmp_path: Path
) -> None:
    folders = (tmp_path / str(number) for number in count())

    async def first_answer() -> list[float]:
        return [await _first_good_answer(front, next(folders))]

    await in_time(GOOD_SECONDS, RETURNS, first_answer)


async def _first_good_answer(front: Front, folder: Path) -> float:
    """Return the seconds from the moment that the runtime listens to the client's first good answer."""
    async with front.process(folder) as proxy:
        dialling = asyncio.create_task(_dial_until_answered(front, proxy.socket))
        await asyncio.sleep(4 * DIAL_SECONDS)
        assert not dialling.done()
        assert not proxy.ended
        async with front.runtime(str(proxy.runtime)):
            await until(lambda: answers(proxy.runtime), "the runtime listens")
            begun = time.monotonic()
            answered = await asyncio.wait_for(dialling, 20)
    return answered - begun


async def _dial_until_answered(front: Front, socket: Path) -> float:
    while True:
        next_dial = time.monotonic() + DIAL_SECONDS
        try:
            async with front.sent(socket) as answer:
                await answer
            return time.monotonic()
        except ConnectionError:
            await asyncio.sleep(next_dial - time.monotonic())


@pytest.mark.parametrize(
    ("front", "held"), [(CRI, False), (CRI, True), (DOCKER, False)], ids=["cri", "cri-held", "docker"]
)
async def test_a_runtime_that_is_killed_fails_its_calls_and_is_found_again(
    front: Front, tmp_path: Path, held: bool
) -> None:
    """Its socket vanishes with every connection in the middle of a call; ``held``: while the hook server is asked.

    A call that is held in Docker mode outlives that (relay-rules B9): see the next test.
    """
    proxy = front.process(tmp_path)
    runtime = front.runtime(str(tmp_path / "inner.sock"))
    hooks = HookServer(str(tmp_path / "hooks.sock"))
    proxy.register("slow.json", hooks.socket_path, ["PreCreateContainer"], timeout="10s")
    async with runtime, hooks, proxy:
        relay = FaultRelay(str(proxy.runtime), runtime.socket_path)
        await relay.start()
        async with front.caller(proxy.socket) as caller:
            pod_id = await caller.run_pod()
            if held:
                hooks.default = hookanswers.hang()
                waiting: asyncio.Future[object] = asyncio.ensure_future(caller.create(pod_id))
                await hooks.wait_for_calls("PreCreateContainer")
            else:
                stream = await caller.chat()
                await stream.say(b"hello")
                assert await stream.hear() == b"hello"
                waiting = asyncio.ensure_future(stream.hear())
            await relay.stop()
            with pytest.raises(Failed) as raised:
                await waiting
            assert raised.value.status == front.lost
            if held:
                await until(lambda: hooks.calls[0].cancelled, "the hook call has ended")
        assert answers(proxy.socket)
        async with FaultRelay(str(proxy.runtime), runtime.socket_path), front.caller(proxy.socket) as caller:
            assert await caller.pod_status(pod_id) == pod_id


@pytest.mark.engine
async def test_the_docker_cli_repeats_what_is_safe_to_repeat_where_dockerd_dies(tmp_path: Path) -> None:
    """The connection's end says so; with a 502 ``docker images`` would fail though the next dockerd answers."""
    async with FakeDockerd(str(tmp_path / "runtime.sock")) as dockerd, DOCKER.process(tmp_path) as proxy:
        for route in ("GET /images/json", "POST /containers/create"):
            dockerd.inject(route, Injection(cut_after_bytes=0, times=1))
        listed = await asyncio.to_thread(docker_cli.run, str(proxy.socket), "images", "--quiet")
        assert listed.exit_code == 0, listed
        created = await asyncio.to_thread(docker_cli.run, str(proxy.socket), "create", BUSYBOX_IMAGE)
        assert created.exit_code == 1, created
        assert b"EOF" in created.stderr
    cli = [received.route for received in dockerd.received if received.target.startswith("/v")]
    assert [cli.count(route) for route in ("GET /images/json", "POST /containers/create")] == [2, 1]


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_call_that_is_held_while_dockerd_is_killed_goes_to_the_next_one(
    tmp_path: Path, comes_back: bool
) -> None:
    gate = asyncio.Event()

    async def behind(call: hookanswers.HookCall) -> bytes:
        await gate.wait()
        return b""

    proxy = DOCKER.inside(tmp_path)
    runtime = DOCKER.runtime(str(tmp_path / "inner.sock"))
    hooks = HookServer(str(tmp_path / "hooks.sock"), default=behind)
    proxy.register("slow.json", hooks.socket_path, ["PreCreateContainer"], timeout="10s")
    async with runtime, hooks, proxy, DOCKER.caller(proxy.socket) as caller:
        relay = FaultRelay(str(proxy.runtime), runtime.socket_path)
        await relay.start()
        waiting = asyncio.ensure_future(caller.create(await caller.run_pod()))
        await hooks.wait_for_calls("PreCreateContainer")
        await relay.stop()
        if comes_back:
            await relay.start()
        gate.set()
        if comes_back:
            assert await waiting in runtime.container_ids()
            await relay.stop()
        else:
            with pytest.raises(Failed, match="502: runtimeproxy: "):
                await waiting
    assert len(runtime.asked("create")) == int(comes_back)
