"""The doctor on this machine: a real containerd, with a proxy before it."""

import os
import socket
from typing import TYPE_CHECKING

import pytest

from runtimeproxy.cli.doctor import clients, table
from runtimeproxy.cli.doctor.machine import Machine
from runtimeproxy.settings import config
from tests.doctor.conftest import PATIENCE_SECONDS
from tests.doctor.made import verdicts
from tests.engines.cri import CriClient
from tests.system.proxy import ProxyProcess, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.containerd import Containerd

pytestmark = pytest.mark.engine
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
        with socket.socket(socket.AF_UNIX) as past:
            past.connect(containerd.socket)
            us = f"(pid {os.getpid()}) has 1 connection to {containerd.socket}, past the proxy"
            wait_until(
                lambda: us in str(list(clients.past_the_proxy(machine))),
                "our pid is reported",
                lambda: str(list(clients.past_the_proxy(machine))),
            )
            reasons = dict(verdicts(clients.past_the_proxy(machine)))
        assert reasons["warning"].endswith(us)
        assert f"(pid {proxy.pid}) has " in reasons["ok"]
