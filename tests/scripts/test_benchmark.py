"""The bench's arithmetic: h2load's log is read right, ratios are taken within a round, a missed limit is named."""

from pathlib import Path

import pytest

from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import cases, h2load, limits, measure, memory, programs, report
from scripts.benchmark.cases import CASES, CREATE, DIRECT, HOOKED, LIST, PIPE, PROXY, SMALL
from scripts.benchmark.h2load import Run
from scripts.benchmark.measure import Figures, Round
from scripts.benchmark.memory import Resident
from scripts.demonstration.processes import DemoError
from tests.fakes import cri_pb2

MIB = 1 << 20
LOG = "1000000\t200\t300\n1000300\t200\t100\n1000400\t200\t600\n"
GOOD_RESIDENT = Resident(10, 40 * MIB, 41 * MIB, 41 * MIB, ())


def figures(p50: float, cpu: float | None = None) -> Figures:
    return Figures(p50, 2 * p50, 1e6 / p50, cpu)


def a_round(small_p50: float = 100.0, list_cpu: float = 100.0, hooked_p50: float = 100.0) -> Round:
    """Make a round in which every figure is 100 but for the given ones of the proxy."""
    measured = {(case, way): figures(100.0, None if way == DIRECT else 100.0) for case in CASES for way in case.ways}
    measured[SMALL, PROXY] = figures(small_p50, 100.0)
    measured[LIST, PROXY] = figures(100.0, list_cpu)
    measured[CREATE, HOOKED] = figures(hooked_p50, 100.0)
    return measured


def test_a_log_is_read() -> None:
    run = h2load.read_log(LOG, 3)
    assert run == Run((300, 100, 600), 0.001)
    assert run.calls_per_second == pytest.approx(3000)


@pytest.mark.parametrize(
    ("text", "calls", "says"),
    [
        (LOG, 4, "3 requests of 4, 3 of them"),
        (LOG.replace("200\t100", "-1\t100"), 3, "3 requests of 3, 2 of them"),
        (LOG.replace("200\t100", "503\t100"), 3, "3 requests of 3, 2 of them"),
        ("", 1, "0 requests of 1"),
    ],
)
def test_a_run_with_a_failed_request_is_no_measurement(text: str, calls: int, says: str) -> None:
    with pytest.raises(DemoError, match=says):
        h2load.read_log(text, calls)


@pytest.mark.parametrize(
    ("microseconds", "percent", "expected"),
    [
        ((7,), 50, 7),
        ((3, 1, 2), 50, 2),
        ((4, 3, 1, 2), 50, 2),
        (tuple(range(1, 101)), 99, 99),
        (tuple(range(1, 201)), 99, 198),
        ((5, 9), 99, 9),
    ],
)
def test_percentiles_are_by_nearest_rank(microseconds: tuple[int, ...], percent: float, expected: int) -> None:
    assert Run(microseconds, 1.0).percentile(percent) == expected


def test_portions_add_up() -> None:
    assert Run((1, 2), 0.5) + Run((3,), 0.25) == Run((1, 2, 3), 0.75)


@pytest.mark.parametrize("case", CASES)
def test_h2load_is_told_the_whole_case(case: cases.Case) -> None:
    command = h2load.command(case, Path("/run/x.sock"), Path("/body"), Path("/log"), 1000)
    assert f"--max-concurrent-streams={case.concurrency}" in command
    assert "--base-uri=unix:/run/x.sock" in command
    assert "--header=grpc-timeout: 120S" in command
    assert command[-1] == f"http://localhost/runtime.v1.RuntimeService/{case.method}"


def test_a_body_is_one_framed_message() -> None:
    request = cases.create("pod-1", cases.pod())
    framed = cases.framed(request)
    assert framed[0] == 0
    assert int.from_bytes(framed[1:5], "big") == len(framed) - 5
    assert cri_pb2.CreateContainerRequest.FromString(framed[5:]) == request


def test_the_servers_must_have_counted_what_was_sent() -> None:
    sent = {(DIRECT, "Version"): 5, (PROXY, "Version"): 6, (PROXY, CREATE.method): 7, (HOOKED, CREATE.method): 8}
    assert programs.expected_counts(sent) == {
        DIRECT: {"Version": 11, "CreateContainer": 15},
        programs.HOOKS: {"PreCreateContainer": 8},
    }


def test_the_median_of_the_rounds_decides() -> None:
    rounds = [a_round(small_p50=value) for value in (900.0, 120.0, 110.0, 124.0, 130.0)]
    verdict = limits.judge(rounds)[0]
    assert (verdict.median, verdict.best, verdict.kept) == (1.24, 1.10, True)
    rounds[1] = rounds[2] = a_round(small_p50=126.0)
    verdict = limits.judge(rounds)[0]
    assert (verdict.median, verdict.best, verdict.kept) == (1.26, 1.24, False)


@pytest.mark.parametrize(
    ("measured", "missed"),
    [
        (a_round(), []),
        (a_round(small_p50=126.0), ["small call (Version): p50, proxy to pipe"]),
        (a_round(list_cpu=131.0), ["list of 200 (1 MiB): cpu, proxy to pipe"]),
        (a_round(hooked_p50=221.0), ["held create: p50, proxy+hook to direct"]),
    ],
)
def test_a_missed_ratio_is_named(measured: Round, missed: list[str]) -> None:
    assert [verdict.name for verdict in limits.judge([measured]) if not verdict.kept] == missed


@pytest.mark.parametrize(
    ("resident", "passed", "missed"),
    [
        (GOOD_RESIDENT, True, []),
        (Resident(10, 70 * MIB, 70 * MIB, 70 * MIB, ()), True, ["70.0 MiB resident, the limit is below 70"]),
        (Resident(10, 40 * MIB, 40 * MIB, 41 * MIB, ()), True, ["grew by 1.00 MiB, the limit is below 1"]),
        (Resident(10, MIB, MIB, MIB, ("grpcio",)), True, ["the idle proxy has loaded grpcio"]),
        (GOOD_RESIDENT, False, ["a list of 16 MiB did not pass unchanged"]),
    ],
)
def test_a_missed_limit_of_the_resident_proxy_is_named(resident: Resident, passed: bool, missed: list[str]) -> None:
    assert limits.missed_by(resident, passed) == missed


def test_the_table_has_ratios_where_there_is_something_to_compare_with(capsys: pytest.CaptureFixture[str]) -> None:
    report.show_figures([a_round(small_p50=150.0), a_round(small_p50=170.0)])
    printed = capsys.readouterr().out.splitlines()
    small = next(line for line in printed if line.startswith(f"{SMALL.name}  ") and f" {PROXY} " in line)
    assert small.split()[-7:] == ["160", "320", "6275", "100.0", "1.60", "1.60", "1.00"]
    direct = next(line for line in printed if line.startswith(CREATE.name) and f" {DIRECT} " in line)
    assert direct.split()[-4:] == ["-", "1.00", "-", "-"]


@pytest.mark.parametrize(("check", "rounds"), [(True, 5), (False, 1)])
def test_limits_are_judged_only_with_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: bool, rounds: int
) -> None:
    slow = [a_round(small_p50=126.0) for _ in range(rounds)]
    monkeypatch.setattr(measure, "one_round", lambda share: slow.pop())
    monkeypatch.setattr(memory, "resident", lambda share: GOOD_RESIDENT)
    monkeypatch.setattr(memory, "huge_list_passes", lambda: True)
    missed = benchmark.bench(check, 1.0)
    assert missed == (["small call (Version): p50, proxy to pipe is 1.26, the limit is 1.25"] if check else [])
    assert not slow
    assert ("MISSED" in capsys.readouterr().out) is check


def test_every_limit_is_of_a_way_that_its_case_takes() -> None:
    for limit in limits.LIMITS:
        assert {limit.way, limit.base} <= set(limit.case.ways)
        assert limit.ratio(a_round()) == 1.0
    assert {limit.base for limit in limits.LIMITS if limit.case is not CREATE} == {PIPE}
