"""The soak's day of a node."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.benchmark.cases import CRI, DOCKER
from scripts.demonstration.processes import DemoError
from scripts.soaking import day, kubelets
from scripts.soaking.day import DAY_SECONDS
from scripts.soaking.endurance import FRONTS, RUNTIMES, Fake
from scripts.soaking.kubelets import EVENTS, KUBELETS, LINES, Kubelet
from scripts.soaking.lives import begin
from scripts.soaking.steps import STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "streams"), [(CRI, {EVENTS}), (DOCKER, {EVENTS, LINES})])
def test_a_small_part_of_it(mode: str, streams: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    share = DAY_SECONDS.usual / DAY_SECONDS.full
    found = day.measure(mode, share)
    assert found.calls == {"lists": 60, "statuses": 12, "probes": 180, "lifecycles": 1}
    assert found.heard.keys() == streams
    assert found.endured.after.known == 2 * day.PODS
    monkeypatch.setattr(day, "measure", lambda name, share: found)
    (step,) = [step for step in STEPS if step.name == f"day-{mode}"]
    assert step.run(share).failures == []


@pytest.fixture(params=[CRI, DOCKER])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def fake(mode: str, tmp_path: Path) -> AsyncIterator[Fake]:
    async with RUNTIMES[mode](str(tmp_path / "runtime.sock")) as runtime:
        yield runtime


@pytest.fixture
async def container_id(mode: str, fake: Fake) -> str:
    async with FRONTS[mode].caller(fake.socket_path) as caller:
        return (await begin(caller))[1]


@pytest.fixture
async def kubelet(mode: str, fake: Fake) -> AsyncIterator[Kubelet]:
    async with KUBELETS[mode](Path(fake.socket_path), fake) as made:
        yield made


async def test_what_is_not_there_is_no_good_answer(kubelet: Kubelet, container_id: str, fake: Fake) -> None:
    assert await kubelet.lists() == 1
    await kubelet.status()
    await kubelet.probe(container_id)
    for pod_id in fake.pod_ids():
        fake.vanish(pod_id)
    with pytest.raises(DemoError, match="no good answer"):
        await kubelet.lists()


async def test_a_probe_that_says_another_thing_is_no_good_answer(
    kubelet: Kubelet, container_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelets, "PROBE", ("echo", "no"))
    with pytest.raises(DemoError, match="no good answer"):
        await kubelet.probe(container_id)


async def test_what_is_told_must_be_heard(kubelet: Kubelet, container_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await kubelet.follow(container_id)
    kubelet.tell(container_id)
    await kubelet.all_heard()
    monkeypatch.setattr(kubelets, "PATIENCE_SECONDS", 0.1)
    kubelet.told[EVENTS] += 1
    with pytest.raises(TimeoutError):
        await kubelet.all_heard()


async def test_a_stream_that_ends_is_told_of(kubelet: Kubelet, container_id: str, fake: Fake) -> None:
    await kubelet.follow(container_id)
    kubelet.told[EVENTS] += 1
    await fake.stop()
    with pytest.raises(Exception, match=r"has ended|UNAVAILABLE|CANCELLED"):
        await kubelet.all_heard()


async def test_a_list_that_lacks_pods_ends_the_day(kubelet: Kubelet, container_id: str) -> None:
    with pytest.raises(DemoError, match="a list has 1 containers"):
        await asyncio.wait_for(day._list(kubelet), 10)
