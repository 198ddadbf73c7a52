"""The soak's crowds, and its small calls beside lists of 16 MiB."""

from pathlib import Path

import pytest

from scripts.benchmark.cases import CRI, DIRECT, DOCKER, PROXY
from scripts.benchmark.h2load import H2load, Run
from scripts.soaking import big, crowd, steps
from scripts.soaking.crowd import (
    CONNECTIONS,
    CROWDS,
    DOCKER_CONNECTIONS,
    EXEC_SYNC,
    RATIO,
    STREAMS,
    Crowd,
    Crowded,
)


@pytest.mark.parametrize(("ratio", "verdict"), [(RATIO, "ok"), (RATIO + 0.1, "MISSED")])
def test_a_runtime_that_is_worse_alone_excuses_no_proxy(
    ratio: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowds = [Crowd(EXEC_SYNC, DIRECT, 1, 10 * RATIO), Crowd(EXEC_SYNC, PROXY, 1, ratio)]
    monkeypatch.setattr(crowd, "measure", lambda name, share: Crowded(crowds, (1,)))
    monkeypatch.setattr(big, "measure", lambda name, share: ())
    figure = steps.crowded(CRI, 1).figures[0]
    assert (figure.found, figure.limit, figure.verdict) == (f"{ratio:.1f} (directly 50.0)", "5.0", verdict)


def test_a_wait_is_counted_in_time_or_in_calls() -> None:
    run = Run((10, 20, 90, 30), 1.0, (2, 2, 3, 1))
    assert crowd._ratio(STREAMS, run) == 4.5
    assert crowd._ratio(DOCKER_CONNECTIONS, run) == 1.5


def test_the_figure_beside_lists_is_the_turns_median() -> None:
    assert Crowded((), (3, 100, 5)).p99_beside == 5


def test_streams_of_several_connections_are_shared_among_them() -> None:
    assert CONNECTIONS in crowd.CLIENTS
    load = crowd._Clients(CONNECTIONS, Path("socket"), Path("files"), (), lambda calls: ["/"], clients=100)
    assert isinstance(load, H2load)
    assert load._protocol(1_000) == ("--clients=100", "--max-concurrent-streams=10")


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("mode", [CRI, DOCKER])
def test_a_small_part_of_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "TURNS", 2)
    found = crowd.measure(mode, 0.01)
    assert [(made.case, made.way) for made in found.crowds] == [
        (case, way) for case in CROWDS[mode] for way in (DIRECT, PROXY)
    ]
    assert all(made.p99 > 0 and made.ratio >= 1 for made in found.crowds)
    assert len(found.beside) == 2
    assert found.p99_beside > 0
