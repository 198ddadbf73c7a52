"""The doctor on this machine: a real containerd, with a proxy before it."""

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from runtimeproxy.doctor import clients, table
from runtimeproxy.doctor.machine import Machine
from runtimeproxy.settings import config
from tests.doctor.conftest import PATIENCE_SECONDS
from tests.engines.cri import CriClient
from tests.system.proxy import ProxyProcess, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.containerd import Containerd

pytestmark = pytest.mark.engine
MANY = 50
"""More connections than the proxy has of any kind."""
EXPECTED = {"socket": "ok", "directory": "ok", "lock": "ok", "proxy": "ok", "runtime": "ok", "registrations": "ok"}


def test_real_containerd_and_proxy_are_well(containerd: "Containerd", tmp_path: "Path") -> None:
    flags = {"remote_runtime_service_endpoint": containerd.socket}
    with ProxyProcess(tmp_path, **flags) as proxy, CriClient(str(proxy.socket)) as through:
        through.pods()
        machine = Machine(config.load(proxy.flags(**flags), {}, None, "", str))
        found = {check.id: finding for check, finding in table.examine(machine, seconds=PATIENCE_SECONDS)}
        assert {name: found[name].verdict.value for name in EXPECTED} == EXPECTED, found
        assert f"pid {proxy.pid}" in found["lock"].why
        assert "containerd" in found["runtime"].why
        assert found["clients"].verdict.value == "ok"
        with ExitStack() as past:
            for _ in range(MANY):
                past.enter_context(socket.socket(socket.AF_UNIX)).connect(containerd.socket)
            wait_until(lambda: "go past the proxy" in why(machine), "connections past the proxy are told")


def why(machine: Machine) -> str:
    """Return what is found of the runtime's clients."""
    (finding,) = clients.past_the_proxy(machine)
    return finding.why
