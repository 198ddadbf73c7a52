"""A real Prometheus scrapes proxies through the exporter: every query of rules and dashboards returns data."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml

from runtimeproxy.hookapi import api_pb2
from tests.deploy.files import ALERTS, queries, rule_files, selectors
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.fronts import Caller, Failed
from tests.system.proxy import ROOT, WAIT_SECONDS, ProxyProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

INTERVAL_SECONDS = 1
EVER = 60.0
"""Seconds that a query may take to have data: a rate needs two scrapes, a rule of a rule two evaluations more."""


def setting(value: str) -> hookanswers.Answer:
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs={"A": value}))


REFUSING = hookanswers.status(grpc.StatusCode.PERMISSION_DENIED)
SERVERS: list[tuple[str, str, hookanswers.Answer | None, str]] = [
    ("10-loses", "PreCreateContainer", setting("x"), "Ignore"),
    ("20-wins", "PreCreateContainer", setting("y"), "Ignore"),
    ("30-open", "PreCreateContainer", None, "Ignore"),
    ("40-closed", "PreUpdateContainerResources", None, "Fail"),
    ("50-refuses", "PreStartContainer", REFUSING, "Ignore"),
]
"""Name, hook point, answer (None: nothing listens), policy: together they cause all that is counted of hook servers."""


async def keep_calling(caller: Caller) -> None:
    """Let pods and containers come and go; the start is refused, the update fails closed."""
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
        await asyncio.sleep(0.05)  # a little load, and time for the others on this machine


@asynccontextmanager
async def program(*command: str, **more: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program; end it after the block."""
    process = await asyncio.create_subprocess_exec(*command, **{"stderr": subprocess.PIPE, **more})
    try:
        yield process
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def exporter(endpoint: Path) -> AsyncIterator[str]:
    """Run the exporter; yield its address."""
    command = [sys.executable, "-m", "runtimeproxy", "export", "--listen=127.0.0.1:0", f"--metrics-endpoint={endpoint}"]
    async with program(*command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        yield line.partition("listening on http://")[2].split()[0]


class Prometheus:
    """A client of Prometheus' API."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._url = f"http://127.0.0.1:{port}/"
        self._session = session

    async def ready(self) -> bool:
        try:
            async with self._session.get(f"{self._url}-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def data(self, what: str, **query: str) -> Any:
        async with self._session.get(f"{self._url}api/v1/{what}", params=query) as answer:
            notified = await answer.json()
            assert notified["status"] == "success", notified
            return notified["data"]

    async def has(self, query: str) -> bool:
        return bool((await self.data("query", query=query))["result"])


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """Run Debian's Prometheus with the rules, all intervals short, until it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": f"{INTERVAL_SECONDS}s", "evaluation_interval": f"{INTERVAL_SECONDS}s"},
        "rule_files": [str(path) for path in rule_files(folder, INTERVAL_SECONDS)],
        "scrape_configs": [{"job_name": "runtimeproxy", "static_configs": [{"targets": [target]}]}],
    }
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    flags = [
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    async with program("prometheus", *flags, "--log.level=error", cwd=folder), aiohttp.ClientSession() as session:
        running = Prometheus(port, session)
        async with asyncio.timeout(WAIT_SECONDS):
            while not await running.ready():
                await asyncio.sleep(0.05)
        yield running


@asynccontextmanager
async def scraped(folder: Path) -> AsyncIterator[tuple[Prometheus, str]]:
    """Run all of it under a little load; yield Prometheus and the target's address."""
    metrics_socket = folder / "metrics" / "metrics.sock"
    proxy: ProxyProcess = CRI.process(folder, metrics_endpoint=str(metrics_socket), log_level="info")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(CRI.runtime(str(proxy.runtime)))
        for name, point, answer, policy in SERVERS:
            path = folder / f"{name}.sock"
            if answer is not None:
                await stack.enter_async_context(HookServer(str(path), default=answer, keep_calls=False))
            proxy.register(f"{name}.json", path, [point], policy=policy)
        await stack.enter_async_context(proxy)
        caller = await stack.enter_async_context(CRI.caller(proxy.socket))
        target = await stack.enter_async_context(exporter(metrics_socket))
        running = await stack.enter_async_context(prometheus(folder, target))
        load = asyncio.create_task(keep_calling(caller))
        try:
            yield running, target
            assert not load.done(), load.exception()
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)


def queried(target: str) -> dict[str, str]:
    """Return the queries by their places; of an alert, which has no data unless it fires, what it selects."""
    found: dict[str, str] = {}
    for place, query in queries():
        if place in ALERTS:
            found |= {f"{place}: {each}": f"last_over_time({each}[5m])" for each in selectors(query)}
        else:
            found[place] = query.replace("$__rate_interval", "1m").replace("$instance", target)
    return found


async def test_every_query_has_data_and_the_right_alerts_fire(tmp_path: Path) -> None:
    async with scraped(tmp_path) as (running, target):
        without = queried(target)
        with suppress(TimeoutError):
            async with asyncio.timeout(EVER):
                while without:
                    without = {place: query for place, query in without.items() if not await running.has(query)}
                    await asyncio.sleep(INTERVAL_SECONDS / 2)
        assert without == {}
        alerts = {alert["labels"]["alertname"]: alert for alert in (await running.data("alerts"))["alerts"]}
    firing = {name.removeprefix("RuntimeProxy") for name, alert in alerts.items() if alert["state"] == "firing"}
    assert {"FailingOpen", "RefusedByPolicy", "Conflict"} <= firing
    assert not {"Down", "NotReady", "RuntimeAway", "InvalidFile", "ManyVersions"} & firing
    texts = [alert["annotations"]["summary"] for alert in alerts.values()]
    assert not [text for text in texts if "error" in text.lower() or "<no value>" in text]
