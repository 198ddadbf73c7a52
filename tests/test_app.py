"""What the program shows of its state: the status line of systemd, and the socket that it listens on."""

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy import app
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay.drain import Unfinished


def test_status_line_has_state() -> None:
    """docs/operation.rst describes it."""
    front, manager = SimpleNamespace(unfinished=Unfinished), SimpleNamespace(plugins=["a", "b", "c"], disabled={})
    proxy: Any = SimpleNamespace(front=front, manager=manager, metrics=Metrics(time.monotonic), draining=False)
    assert app.Proxy.status(proxy) == "serving, 3 hook servers"
    manager.plugins, manager.disabled = ["a"], {"b": "", "c": ""}
    proxy.metrics.events.runtime_lost("a test", "unreachable")
    assert app.Proxy.status(proxy) == "waiting for the runtime, 1 hook server, 2 disabled"
    proxy.draining, front.unfinished = True, lambda: Unfinished(calls=1, answers=2, streams=3)
    assert app.Proxy.status(proxy) == "draining: 1 call, 5 streams"


def test_handed_over_socket_at_another_path_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    handed_over, configured = tmp_path / "handed-over.sock", tmp_path / "configured.sock"
    handed_over.touch()
    listener: Any = SimpleNamespace(path=str(handed_over), handed_over=True)
    config: Any = SimpleNamespace(runtime_endpoint="/runtime.sock", listen_endpoint=str(configured))
    app._log_listening(config, listener)
    configured.symlink_to(handed_over)
    app._log_listening(config, listener)
    listening = f"listening on {handed_over} for the runtime at /runtime.sock"
    unused = "the socket was handed over (LISTEN_FDS): the proxy does not listen on --koord-runtimeproxy-endpoint"
    assert caplog.messages == [listening, f"{unused}={configured}", listening]
