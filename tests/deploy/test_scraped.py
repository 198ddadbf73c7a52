"""A real Prometheus scrapes proxies through the exporter: every query of rules and dashboards returns data."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml

from runtimeproxy.hookapi import api_pb2
from tests.deploy.files import ALERTS, RULES, queries, selectors
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CRI, Caller, Failed
from tests.system.proxy import ROOT, ProxyProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

QUERY_SECONDS = 60.0
"""Timeout until a query has data: a rate needs two scrapes, a rule of a rule two more evaluations."""


def setting(value: str) -> hookanswers.Answer:
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs={"A": value}))


SERVERS: list[tuple[str, str, hookanswers.Answer | None, str]] = [
    ("10-loses", "PreCreateContainer", setting("x"), "Ignore"),
    ("20-wins", "PreCreateContainer", setting("y"), "Ignore"),
    ("30-open", "PreCreateContainer", None, "Ignore"),
    ("40-closed", "PreUpdateContainerResources", None, "Fail"),
    ("50-refuses", "PreStartContainer", hookanswers.status(grpc.StatusCode.PERMISSION_DENIED), "Ignore"),
]
"""Name, hook point, answer (None: no listener), policy: together they cause every counter of hook servers."""


async def keep_calling(caller: Caller) -> None:
    """Create and remove pods and containers; the start is refused, the update fails closed."""
    while True:
        pod = await caller.run_pod()
        container = await caller.create(pod)
        with suppress(Failed):
            await caller.act("start", container)
        with suppress(Failed):
            await caller.update(container)
        for verb, subject in (("ping", ""), ("stop", container), ("remove", container)):
            await caller.act(verb, subject)
        await caller.act("stop_pod", pod)
        await caller.act("remove_pod", pod)
        await asyncio.sleep(0.05)  # little load on this machine


@asynccontextmanager
async def program(*command: str, **more: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program; end it after the block."""
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, **more)
    try:
        yield process
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Callable[..., Any]]:
    """Run Debian's Prometheus with the rules and intervals of a second; yield a function that queries its API."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for rules in RULES:
        (folder / rules.name).write_text(re.sub(r"interval: \w+", "interval: 1s", rules.read_text()))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [rules.name for rules in RULES],
        "scrape_configs": [{"job_name": "runtimeproxy", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    flags = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    async with (
        program("prometheus", "--log.level=error", *flags, cwd=folder),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def query(resource: str, **params: str) -> Any:
            async with session.get(f"/api/v1/{resource}", params=params) as answer:
                reported = await answer.json()
                assert reported["status"] == "success", reported
                return reported["data"]

        yield query


def queried(target: str) -> dict[str, str]:
    """Return the queries by location; for an alert, which has no data unless it fires, its selectors."""
    found: dict[str, str] = {}
    for place, query in queries():
        if place in ALERTS:
            found |= {f"{place}: {selector}": f"last_over_time({selector}[5m])" for selector in selectors(query)}
        else:
            found[place] = query.replace("$__rate_interval", "1m").replace("$instance", target)
    return found


async def test_every_query_has_data_and_right_alerts_fire(tmp_path: Path) -> None:
    endpoint = tmp_path / "metrics" / "metrics.sock"
    proxy: ProxyProcess = CRI.process(tmp_path, metrics_endpoint=str(endpoint), log_level="info")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(CRI.runtime(str(proxy.runtime)))
        for name, hook_point, answer, policy in SERVERS:
            path = tmp_path / f"{name}.sock"
            if answer is not None:
                await stack.enter_async_context(HookServer(str(path), default=answer, keep_calls=False))
            proxy.register(f"{name}.json", path, [hook_point], policy=policy)
        await stack.enter_async_context(proxy)
        caller = await stack.enter_async_context(CRI.caller(proxy.socket))
        command = ["runtimeproxy", "export", "--listen=127.0.0.1:0", f"--metrics-endpoint={endpoint}"]
        started = program(sys.executable, "-m", *command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
        errors = (await stack.enter_async_context(started)).stderr
        assert errors is not None
        target = (await errors.readline()).decode().partition("listening on http://")[2].split()[0]
        query = await stack.enter_async_context(prometheus(tmp_path, target))
        load, without = asyncio.create_task(keep_calling(caller)), queried(target)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(QUERY_SECONDS):
                    while without:
                        await asyncio.sleep(0.5)
                        with suppress(aiohttp.ClientConnectionError):  # while Prometheus starts
                            results = {
                                place: (await query("query", query=each))["result"] for place, each in without.items()
                            }
                            without = {place: each for place, each in without.items() if not results[place]}
            assert without == {}
            alerts = {alert["labels"]["alertname"]: alert for alert in (await query("alerts"))["alerts"]}
            assert not load.done(), load.exception()
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
    firing = {name.removeprefix("RuntimeProxy") for name, alert in alerts.items() if alert["state"] == "firing"}
    assert {"FailingOpen", "RefusedByPolicy", "Conflict"} <= firing
    assert not {"Down", "NotReady", "RuntimeAway", "InvalidFile", "ManyVersions"} & firing
    texts = [alert["annotations"]["summary"] for alert in alerts.values()]
    assert not [text for text in texts if "error" in text.lower() or "<no value>" in text]
