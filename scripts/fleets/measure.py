"""Measure what a node costs: a proxy and its exporter while they are scraped, a restart, and a Prometheus.

Owns how each figure of measured.json is measured.
Must not know: how many nodes there are, what the figures are used for.
Invariant: a figure is found on real processes; what is made up are the nodes beside the first one, and its pods.
"""

import asyncio
import gzip
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from scripts.figures import MIB
from scripts.soaking.results import machine
from tests.deploy.files import rule_files
from tests.deploy.test_scraped import exporter, keep_calling, program
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.proxy import ProxyProcess
from tests.system.supervising import handed_over

Figures = dict[str, Any]

DIST = Path("dist")
HOOK_SERVERS = 3
LOAD_SECONDS = 10.0
SCRAPES = 40
APART_SECONDS = 0.3
"""More than for how long one answer serves all who ask."""
RESTARTS = 5
NODES = (20, 80)
"""The growth from the first to the second is what a node costs Prometheus."""
SCRAPED_SECONDS = 125.0
"""At a scrape a second: longer than the 120 samples of a chunk, of which each series has one in memory."""
TICKS = os.sysconf("SC_CLK_TCK")


async def measure() -> Figures:
    """Return all figures."""
    at = {"day": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine()}
    with tempfile.TemporaryDirectory(prefix="rp-fleet-") as folder:
        found, text = await node(Path(folder))
        found |= package(Path(folder))
    few, many = [await prometheus(text, nodes) for nodes in NODES]
    series = many["series"] - few["series"]
    found["prometheus"] = {
        "nodes": list(NODES),
        "resident bytes of a series": round((many["resident"] - few["resident"]) / series),
        "live bytes of a series": round((many["live"] - few["live"]) / series),
        "CPU microseconds of a sample": round(1e6 * (many["cpu"] - few["cpu"]) / (many["samples"] - few["samples"]), 2),
    }
    return at | found


async def node(folder: Path) -> tuple[Figures, str]:
    """Return the figures of a node, and the text of a scrape: a proxy with three hook servers that served pods."""
    endpoint = folder / "metrics" / "metrics.sock"
    with handed_over(folder / "given.sock") as handed:
        proxy: ProxyProcess = CRI.process(folder, metrics_endpoint=str(endpoint), log_level="info", **handed)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(CRI.runtime(str(proxy.runtime)))
            for number in range(HOOK_SERVERS):
                path = folder / f"{number}.sock"
                await stack.enter_async_context(HookServer(str(path), default=hookanswers.echo(), keep_calls=False))
                proxy.register(f"{number}.json", path)
            await stack.enter_async_context(proxy)
            proxy.socket = folder / "given.sock"
            caller = await stack.enter_async_context(CRI.caller(proxy.socket))
            target = await stack.enter_async_context(exporter(endpoint))
            load = asyncio.create_task(keep_calling(caller))
            await asyncio.sleep(LOAD_SECONDS)
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            found, text = await scraped(proxy.pid, target)
            found["seconds of a restart"] = round(
                sorted([await restarted(proxy) for _ in range(RESTARTS)])[RESTARTS // 2], 2
            )
    return found, text


def package(folder: Path) -> Figures:
    """Return the figures of the Debian package, which scripts/build has made before."""
    (file,) = DIST.glob("*.deb")
    begun = time.monotonic()
    subprocess.run(["dpkg-deb", "--extract", file, folder / "unpacked"], check=True)
    seconds = time.monotonic() - begun
    return {"MiB of the package": round(file.stat().st_size / MIB, 1), "seconds to unpack": round(seconds, 1)}


async def scraped(daemon: int, target: str) -> tuple[Figures, str]:
    """Scrape a node; return its figures, and the last text."""
    async with aiohttp.ClientSession() as session:

        async def scrape() -> str:
            async with session.get(f"http://{target}/metrics") as answer:
                return await answer.text()

        text = await scrape()
        processes = {"proxy": daemon, "exporter": _listener(target)}
        before = {name: _cpu(pid) for name, pid in processes.items()}
        for _ in range(SCRAPES):
            await asyncio.sleep(APART_SECONDS)
            text = await scrape()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {
        "series of a node": len(lines),
        "bytes of a scrape": len(text.encode()),
        "bytes of a scrape, gzip": len(gzip.compress(text.encode(), 6)),
        "MiB of memory": {name: round(_memory(pid) / MIB, 1) for name, pid in processes.items()},
        "CPU ms of a scrape": {
            name: round(1000 * (_cpu(pid) - before[name]) / SCRAPES, 2) for name, pid in processes.items()
        },
    }, text


async def restarted(proxy: ProxyProcess) -> float:
    """Restart a proxy whose listener is held; return the seconds from SIGTERM to the first answer of the next one."""
    begun = time.monotonic()
    await asyncio.to_thread(proxy.stop)
    await asyncio.to_thread(proxy.launch)
    async with CRI.caller(proxy.socket) as caller:
        await caller.act("ping")
    return time.monotonic() - begun


def _listener(target: str) -> int:
    """Return the process that listens on a port of this machine: its socket's number is in /proc/net/tcp."""
    port = int(target.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = [row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"]
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == f"socket:[{inode}]":
                return int(link.parts[2])
        except OSError:
            continue  # it has ended
    raise ValueError(f"nobody listens on {target}")


def _cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has had, by the scheduler's count."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def _memory(pid: int) -> int:
    """Return a process's share of memory in bytes (PSS): pages that several have count in parts."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


# ---- Prometheus


async def prometheus(text: str, nodes: int) -> Mapping[str, float]:
    """Let Debian's Prometheus scrape so many nodes each second, all rules included; return what it took."""
    with tempfile.TemporaryDirectory(prefix="rp-fleet-") as made:
        folder = Path(made)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        async with many_nodes(text, nodes) as target:
            targets = [
                {"targets": [target], "labels": {"__metrics_path__": f"/{number}", "instance": f"node-{number}"}}
                for number in range(nodes)
            ]
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1m"},
                "rule_files": [str(path) for path in rule_files(folder, 60)],
                "scrape_configs": [{"job_name": "runtimeproxy", "static_configs": targets}],
            }
            (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
            command = [
                *("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
            ]
            async with program(*command, cwd=folder) as process, aiohttp.ClientSession() as session:
                await asyncio.sleep(SCRAPED_SECONDS)
                return await _of_prometheus(session, f"http://127.0.0.1:{port}", process.pid)


async def _of_prometheus(session: aiohttp.ClientSession, url: str, pid: int) -> Mapping[str, float]:
    async def metrics() -> dict[str, float]:
        async with session.get(f"{url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if line and not line.startswith("#")}

    at_work = await metrics()
    async with session.get(f"{url}/debug/pprof/heap?gc=1") as answer:
        await answer.read()  # behind a collection the heap has what is in use alone
    clean = await metrics()
    return {
        "series": at_work["prometheus_tsdb_head_series"],
        "samples": at_work['prometheus_tsdb_head_samples_appended_total{type="float"}'],
        "cpu": at_work["process_cpu_seconds_total"],
        "resident": float(re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) * 1024,
        "live": clean["go_memstats_heap_alloc_bytes"],
    }


@asynccontextmanager
async def many_nodes(text: str, nodes: int) -> AsyncIterator[str]:
    """Serve a node's text at /0, /1 and so on, each counter higher each time; yield the address."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines()]
    counts = ("_total", "_count", "_bucket", "_sum")
    growing = [not name.startswith("#") and name.partition("{")[0].endswith(counts) for name, _ in lines]
    seen: dict[str, int] = {}

    async def answer(request: web.Request) -> web.Response:
        seen[request.path] = more = seen.get(request.path, 0) + 1
        body = "\n".join(
            f"{name} {float(value) + more}" if grows else f"{name} {value}"
            for (name, value), grows in zip(lines, growing, strict=True)
        )
        return web.Response(text=f"{body}\n", content_type="text/plain")

    app = web.Application()
    app.router.add_get("/{node}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
