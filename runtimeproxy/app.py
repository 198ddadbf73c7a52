"""Build the whole program from its parts: the only module that knows all of them.

Invariant: the socket listens before any slow step of the start can fail; at the end it is removed only if this process
made it.
"""

import asyncio
import ctypes
import gc
import logging
import os
import platform
import resource
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Protocol

import uvloop

from runtimeproxy.admin import queries
from runtimeproxy.admin.log_level import LogLevel
from runtimeproxy.admin.queries import Sources
from runtimeproxy.admin.server import Server
from runtimeproxy.core.dispatcher import Dispatcher
from runtimeproxy.core.lifecycle import Lifecycle
from runtimeproxy.core.originals_file import File, Originals, owner, path_of
from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import Sync
from runtimeproxy.errors import ConfigError
from runtimeproxy.observe import logs
from runtimeproxy.observe.logs import UNLIMITED
from runtimeproxy.observe.loop_watchdog import LoopWatchdog
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.observe.systemd import SystemdNotifier
from runtimeproxy.plugins.client import HookClient
from runtimeproxy.plugins.disabling import mask_file
from runtimeproxy.plugins.manager import Manager
from runtimeproxy.plugins.reach import Reach
from runtimeproxy.relay.acceptor import Acceptor
from runtimeproxy.relay.drain import Unfinished
from runtimeproxy.relay.listener import ADMIN, MAIN, METRICS, Listener, inherited, listen
from runtimeproxy.settings.config import Config, Mode
from runtimeproxy.settings.version import VERSION

log = logging.getLogger(__name__)

GAUGE_SECONDS = 1.0
FIGURES_PER_ITERATION = 50
"""How many metrics are logged in one iteration of the event loop: a millisecond or two."""
GARBAGE_OBJECTS = 2_000
"""How many new objects trigger a garbage collection of the youngest generation: about what a hundred ended connections
leave, some hundred KiB. Python's default of 700 would trigger one every one to ten calls."""
LONG_BLOCK_BYTES = 1 << 20
"""Threshold in bytes from which glibc maps a memory block by itself; calls that clients make often need less."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameter numbers of mallopt(3)."""


def run(config: Config) -> int:
    """Run the proxy until SIGTERM or SIGINT; return the exit code. Raises ConfigError if it cannot listen."""
    listeners = inherited(os.environ)
    try:
        _listen(config, listeners)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # requests hold secrets (fault matrix X4)
        _check_dials_itself(config, listeners.values())
        uvloop.run(_serve(config, listeners))
    finally:
        for listener in listeners.values():
            listener.close()
    return 0


def _listen(config: Config, listeners: dict[str, Listener]) -> None:
    """Add the sockets that were not handed over. Only root may use the admin socket, whatever --socket-mode is."""
    if MAIN not in listeners:
        listeners[MAIN] = listen(config.listen_endpoint, mode=config.socket_mode, group=config.socket_group)
    if ADMIN not in listeners and config.admin_endpoint:
        listeners[ADMIN] = listen(config.admin_endpoint, flag="--admin-endpoint")
    if METRICS not in listeners and config.metrics_endpoint:
        listeners[METRICS] = listen(
            config.metrics_endpoint,
            mode=0o600 if config.metrics_group is None else 0o660,
            group=config.metrics_group,
            flag="--metrics-endpoint",
            group_flag="--metrics-group",
        )


def _check_dials_itself(config: Config, listeners: Iterable[Listener]) -> None:
    """Raise ConfigError if a remote endpoint is one of the proxy's own sockets, however its path is spelt. Otherwise
    each connection would open another one to the proxy itself."""
    ours = {_file_id(listener.path): listener.path for listener in listeners}
    for flag, path in (
        ("--remote-runtime-service-endpoint", config.runtime_endpoint),
        ("--remote-image-service-endpoint", config.image_endpoint),
    ):
        if (file_id := _file_id(path)) is not None and file_id in ours:
            fault = f"{flag} ({path}) is the socket that the proxy itself listens on ({ours[file_id]})"
            raise ConfigError(f"{fault}: change it, or --koord-runtimeproxy-endpoint or the socket unit")


def _file_id(path: str) -> tuple[int, int] | None:
    """Return the device and inode that a path leads to, following links; None if nothing is there yet."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: the abstract address of a socket unit begins with NUL
        return None
    return status.st_dev, status.st_ino


def _log_listening(config: Config, listener: Listener) -> None:
    log.info("listening on %s for the runtime at %s", listener.path, config.runtime_endpoint)
    if listener.handed_over and _file_id(config.listen_endpoint) != _file_id(listener.path):
        log.warning(
            "the socket was handed over (LISTEN_FDS): the proxy does not listen on --koord-runtimeproxy-endpoint=%s",
            config.listen_endpoint,
        )


async def _serve(config: Config, listeners: Mapping[str, Listener]) -> None:
    listener = listeners[MAIN]
    loop = asyncio.get_running_loop()
    has_path = os.path.isabs(listener.path)  # an abstract socket that was handed over has no path
    proxy = Proxy(replace(config, listen_endpoint=listener.path) if has_path else config, loop)
    systemd = SystemdNotifier(os.environ, proxy.status)
    signals = Signals(loop, proxy.metrics)
    await proxy.start()
    acceptor = Acceptor(loop, listener.socket, proxy.front.accept)
    acceptor.start()
    watch = LoopWatchdog(loop, proxy.metrics)
    methods = queries.methods(_sources(config, proxy, listener, watch, LogLevel(loop, config.log_level)))
    part_lock = asyncio.Lock()
    servers = [
        Server(loop, listeners[name].socket, methods, part_lock, private=name == ADMIN)
        for name in (ADMIN, METRICS)
        if name in listeners
    ]
    for server in servers:
        server.start()
    systemd.ready(loop)
    _log_listening(config, listener)
    proxy.front.inspect()
    _tune_memory()
    watch.start()
    try:
        await signals.first.wait()
        log.info("%s: stopping; one more signal ends it immediately", signals.name)
        systemd.stopping()
        await proxy.finish_answers(config.drain_timeout_seconds, signals.again)
        if listener.withdraw():
            acceptor.accept()  # clients that have connected already are served; no new ones can connect
        else:
            acceptor.stop()  # clients wait in the socket's backlog for the next process
        await proxy.stop(config.drain_timeout_seconds, signals.again)
    finally:
        acceptor.stop()
        for server in servers:
            await server.stop()
        watch.stop()
        systemd.leave()


def _sources(
    config: Config, proxy: "Proxy", listener: Listener, watchdog: LoopWatchdog, log_level: LogLevel
) -> Sources:
    """Return what the methods of the control protocol read."""
    return Sources(
        mode=config.mode.value,
        settings=config.settings,
        metrics=proxy.metrics,
        store=proxy.store,
        manager=proxy.manager,
        reach=proxy.reach,
        sync=proxy.front.sync,
        watchdog=watchdog,
        log_level=log_level,
        draining=lambda: proxy.draining,
        listening_fault=listener.fault,
        runtime_fault=proxy.front.backend_fault,
        clock=asyncio.get_running_loop().time,
    )


class Front(Protocol):
    """Interface through which the program uses a front."""

    sync: Sync
    """Reads the runtime's state."""

    @property
    def connections(self) -> Sized:
        """The clients' connections that are open."""

    def accept(self, client: socket.socket) -> None:
        """Called for each client connection that was accepted; the front owns the socket from then on."""

    async def start(self) -> None:
        """Called once before the first client: begin the background work."""

    def inspect(self) -> None:
        """Called once the socket listens: log if nothing listens at the runtime's path."""

    def backend_fault(self) -> str:
        """Called for /readyz: return why the runtime accepts no connection now, "" if it does."""

    def unfinished(self) -> Unfinished:
        """Called regularly: return the calls and streams that have not ended."""

    async def finish_answers(self, seconds: float, at_once: asyncio.Event) -> None:
        """Called at shutdown, while clients are accepted: return when begun answers and tunnels have ended, after
        ``seconds``, or when ``at_once`` is set."""

    async def drain(self, seconds: float, at_once: asyncio.Event | None = None) -> None:
        """Called after that: finish the calls in progress, then close the clients' connections. Return after
        ``seconds`` at most, or when ``at_once`` is set."""

    async def close(self) -> None:
        """Called after the drain: end the background work."""


class Signals:
    """Handle the process's signals.

    ``first`` is set by the first SIGTERM or SIGINT, ``again`` by each later one. SIGUSR1 logs the metrics. SIGHUP and
    SIGUSR2 only log a line: a habit of other daemons must not end the node's runtime.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics) -> None:
        self.first = asyncio.Event()
        self.again = asyncio.Event()
        self.name = ""
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number)
        for number in (signal.SIGHUP, signal.SIGUSR2):
            loop.add_signal_handler(number, self._log_idle, number.name)
        loop.add_signal_handler(signal.SIGUSR1, lambda: self._log_figures(iter(metrics.figures())))

    def _log_idle(self, name: str) -> None:
        log.info("%s: registration files are read as they change, and flags at the start only", name, extra=UNLIMITED)

    def _log_figures(self, figures: Iterator[str]) -> None:
        """Log the metrics, FIGURES_PER_ITERATION at a time: calls do not wait for all of them."""
        chunk = list(islice(figures, FIGURES_PER_ITERATION))
        for figure in chunk:
            log.info("%s", figure, extra=UNLIMITED)
        if chunk:
            self._loop.call_soon(self._log_figures, figures)

    def _received(self, number: signal.Signals) -> None:
        if self.first.is_set():
            self.again.set()
        self.name = self.name or number.name
        self.first.set()


class Proxy:
    """All parts that serve the listener's connections."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self.metrics = Metrics(time.monotonic, config.mode.value.lower())
        self.store = Store()
        self.originals = Originals(_originals_file(config), self.store, self.metrics)
        self.manager = Manager(
            config.hookserver_config_dir,
            timeout_seconds=config.hook_timeout_seconds,
            metrics=self.metrics,
            client_factory=partial(HookClient, max_answer_bytes=config.hook_answer_bytes),
            mask=mask_file(config.state_dir, config.listen_endpoint) if config.state_dir else None,
        )
        dispatcher = Dispatcher(self.manager, self.metrics, loop.time, config.hook_budget_seconds)
        skip_label = (config.skip_label_key, config.skip_label_value)
        self.lifecycle = Lifecycle(self.store, dispatcher, self.metrics, skip_label, loop.time)
        self.front = self._front(config, loop)
        self.reach = Reach(loop, lambda: self.manager.plugins, self.metrics)
        self.draining = False
        self._loop = loop
        self._gauges: asyncio.TimerHandle | None = None

    def _front(self, config: Config, loop: asyncio.AbstractEventLoop) -> Front:
        """Return the front of the configured mode; the other mode's modules are never imported."""
        if config.mode is Mode.DOCKER:
            from runtimeproxy.docker.front import DockerFront as DockerFront

            return DockerFront(config.runtime_endpoint, self.lifecycle, self.manager, self.metrics, loop)
        from runtimeproxy.cri.front import CriFront as CriFront

        return CriFront(
            config.runtime_endpoint, config.image_endpoint, self.lifecycle, self.manager, self.metrics, loop
        )

    async def start(self) -> None:
        """Load the original values and the registration files: hook servers are called from the first call on."""
        await self.originals.start()
        await self.manager.start()
        await self.front.start()
        self.reach.start()
        self.metrics.gauge("build_info", 1, VERSION, platform.python_version())
        self.metrics.gauge("draining", 0)
        self._measure(self.metrics.clock())

    def _measure(self, due: float) -> None:
        """Set the gauges, and observe how late the event loop runs this timer."""
        self.metrics.observe("loop_lag_seconds", max(self.metrics.clock() - due, 0.0))
        held, oldest = self.lifecycle.holds()
        self.metrics.gauge("held_calls", held)
        self.metrics.gauge("held_oldest_seconds", oldest)
        pods, containers = self.store.counts()
        self.metrics.gauge("store_pods", pods)
        self.metrics.gauge("store_containers", containers)
        self.metrics.gauge("connections_open", len(self.front.connections))
        self.metrics.set_counter("log_lines_dropped", logs.dropped())
        self.manager.measure()
        self._gauges = self._loop.call_later(GAUGE_SECONDS, self._measure, self.metrics.clock() + GAUGE_SECONDS)

    def status(self) -> str:
        """Return the state in one line, for ``systemctl status``."""
        if self.draining:
            work = self.front.unfinished()
            return f"draining: {_counted(work.calls, 'call')}, {_counted(work.answers + work.streams, 'stream')}"
        state = "waiting for the runtime" if self.metrics.events.runtime_is_lost else "serving"
        disabled = f", {len(self.manager.disabled)} disabled" if self.manager.disabled else ""
        return f"{state}, {_counted(len(self.manager.plugins), 'hook server')}{disabled}"

    async def finish_answers(self, seconds: float, at_once: asyncio.Event) -> None:
        """Serve until begun answers and tunnels have ended, for ``seconds`` at most, or until ``at_once`` is set."""
        self.draining = True
        self.metrics.gauge("draining", 1)
        await self.front.finish_answers(seconds, at_once)

    async def stop(self, seconds: float, at_once: asyncio.Event | None = None) -> None:
        """Finish the calls in progress, then stop everything.

        The drain lasts ``seconds`` at most and ends early when ``at_once`` is set. The parts that serve calls stop
        after it: first the queries of unanswered calls, then the front that sends them.
        """
        self.draining = True
        self.metrics.gauge("draining", 1)
        await self.front.drain(seconds, at_once)
        await self.lifecycle.open_calls.stop()
        await self.front.close()
        self.reach.stop()
        await self.manager.stop()
        await self.originals.stop()
        if self._gauges is not None:
            self._gauges.cancel()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _originals_file(config: Config) -> File | None:
    """Return the file for the kubelet's original values; None if the configuration turns it off."""
    path = path_of(config.originals_dir, config.listen_endpoint)
    return None if path is None else File(path, owner(config.mode.value, config.runtime_endpoint))


def _tune_memory() -> None:
    """Exempt the objects made at start-up from garbage collection, and collect rarely: calls are paused less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    _return_long_blocks()


def _return_long_blocks() -> None:
    """Make glibc allocate long blocks with mmap, so that each returns to the kernel as soon as it is freed.

    By default glibc raises the mmap threshold once the first such block is freed. It then keeps that memory
    permanently, in blocks that are too small for the next long message.
    """
    with suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LONG_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * LONG_BLOCK_BYTES)  # else the heap would grow and shrink with every read
