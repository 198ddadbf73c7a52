"""The text for Prometheus: all series of the table, equal to the daemon's own figures, shared for a moment."""

import asyncio
import gc
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from runtimeproxy.admin import exposition
from runtimeproxy.admin.channel import Refused
from runtimeproxy.admin.exposition import Exposition, Process
from runtimeproxy.admin.snapshot import series
from runtimeproxy.observe.metric_table import ROWS, Kind
from runtimeproxy.observe.metrics import Metrics


def snapshot(metrics: Metrics) -> dict[str, Any]:
    """Return the series as they come over the channel."""
    body: dict[str, Any] = {}
    for part in json.loads(json.dumps(list(series(metrics)))):
        for key, value in part.items():
            body[key] = [*body.get(key, []), *value] if isinstance(value, list) else value
    return body


def filled(runtime: str = "containerd") -> Metrics:
    """Return metrics that have two series of each row with labels, and one of the others."""
    metrics, value = Metrics(lambda: 0.0, runtime), itertools.count(1)
    for row in ROWS:
        for text in ("a", 'b"\\\n') if row.given else ("",):
            labels = [text] * len(row.given)
            match row.kind:
                case Kind.COUNTER:
                    metrics.counted_elsewhere(row.name, next(value), *labels)
                case Kind.GAUGE:
                    metrics.gauge(row.name, next(value) / 8, *labels)
                case Kind.HISTOGRAM:
                    for seconds in (0.0001, 0.3, 20.0):
                        metrics.observe(row.name, seconds, *labels)
    return metrics


def asking(metrics: Metrics) -> Callable[[], Any]:
    async def ask() -> dict[str, Any]:
        return snapshot(metrics)

    return ask


async def test_text_has_the_same_series_as_sigusr1_tells() -> None:
    metrics = filled()
    text = (await Exposition(asking(metrics), os.getpid()).text()).decode()

    def samples(lines: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(lines)
            for sample in family.samples
            if not sample.name.startswith("process_")
        }

    assert samples(text) == samples("\n".join(metrics.figures()) + "\n")
    assert 'runtime="containerd"' in text


async def test_each_row_has_its_help_and_kind_once() -> None:
    lines = (await Exposition(asking(filled()), os.getpid()).text()).decode().splitlines()
    for row in ROWS:
        assert lines.count(f"# TYPE {row.shown} {row.kind.value}") == 1
        assert lines.count(f"# HELP {row.shown} {row.help}") == 1


async def test_process_is_the_one_that_is_told() -> None:
    text = (await Exposition(asking(filled()), os.getppid()).text()).decode()
    families = {family.name: family.samples[0].value for family in text_string_to_metric_families(text)}
    with open(f"/proc/{os.getppid()}/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert families["process_resident_memory_bytes"] == pytest.approx(resident, rel=0.2)
    assert {"process_cpu_seconds", "process_open_fds", "process_max_fds"} <= families.keys()


def test_process_is_told_where_proc_has_nothing_but_processes(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to("/proc/self")
    (usual, hidden) = (
        {family.name: family.samples[0].value for family in collector.collect()}
        for collector in (ProcessCollector(registry=None), Process(proc=str(tmp_path), registry=None))
    )
    assert hidden.keys() == usual.keys()
    assert hidden["process_start_time_seconds"] == pytest.approx(usual["process_start_time_seconds"], abs=5)


async def test_daemon_that_is_gone_leaves_the_process_out() -> None:
    assert b"process_" not in await Exposition(asking(filled()), 2**22 + 1).text()


async def test_requests_of_a_moment_share_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def ask() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return snapshot(filled())

    shown = Exposition(ask, os.getpid())
    texts = await asyncio.gather(*(shown.text() for _ in range(50)))
    assert (asked, len({id(text) for text in texts})) == (1, 1)
    monkeypatch.setattr(exposition, "FRESH_SECONDS", -1.0)
    await shown.text()
    assert asked == 2


async def test_failure_after_all_have_gone_is_no_line_of_the_log() -> None:
    """The loop would tell of an error that nobody has seen when the task is dropped."""
    told, loop = list[object](), asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    hanging = asyncio.Event()

    async def ask() -> dict[str, Any]:
        await hanging.wait()
        raise Refused(503, "it hangs")

    shown = Exposition(ask, os.getpid())
    request = asyncio.create_task(shown.text())
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait({request})
    hanging.set()
    assert shown._made is not None
    await asyncio.wait({shown._made})
    del shown, request
    gc.collect()
    assert told == []


async def test_failure_is_each_requests_own_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [Refused(503, "it hangs"), snapshot(filled())]

    async def ask() -> dict[str, Any]:
        found = answers.pop(0)
        if isinstance(found, Refused):
            raise found
        return found

    shown = Exposition(ask, os.getpid())
    with pytest.raises(Refused, match="it hangs"):
        await shown.text()
    assert b"runtimeproxy_held_calls" in await shown.text()
