"""The shipped units do all their work under a real systemd, and make no refused system call.

A version that cannot start is fault matrix P9.
"""

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import trustme

from hooks.tools import new
from tests.amounts import CALLS_OF_THE_UNIT
from tests.docs import DOCS, tables
from tests.engines import cgroups, cri
from tests.machines.machine import CLIENTS, SERVICES, SOCKET, SOCKETS, UNITS, Machine, fit, machine, program

__all__ = ["machine"]
pytestmark = [pytest.mark.engine, pytest.mark.trees, pytest.mark.slow]

PROXY, FOLDER = "runtimeproxy.service", "/etc/runtimeproxy/exporter"
HOOKS = ("runtimeproxy-hooks@batchresource.service", r"runtimeproxy-hooks@gpu\x20oomscoreadj.service")
READS, ROUND = 89, 100
"""Read-only calls, and all of a pod with a container."""
PARENT = "/kubepods/besteffort/pod-of-units"
LABELS = {"koordinator.sh/qosClass": "BE"}
BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": str(64 << 20)}
SPEC = {"containers": {"main": {"requests": BATCH, "limits": BATCH}}}
ANNOTATIONS = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(SPEC),
    "scheduling.koordinator.sh/device-allocated": '{"gpu": [{"minor": 3, "resources": {}}]}',
}
SHARES = 512  # of 500 milli cores


@pytest.fixture(scope="module")
def node(machine: Machine) -> Iterator[Machine]:
    """Start the units in addition to the proxy's; at the end no call was refused and no unit restarted."""
    machine.run("systemctl", "enable", "--now", "runtimeproxy-export.service", *HOOKS)
    registrations = machine.path("/etc/runtime/hookserver.d")
    machine.until(lambda: len([*registrations.glob("*.json")]) == len(HOOKS), "the registrations of the hook servers")
    yield machine
    messages = machine.run("journalctl", "--no-pager", "--output=cat", "--unit=runtimeproxy*")
    assert not re.findall(r".*(?:status=31/SYS|exit code -31|core-dump|[Tt]raceback).*", messages)
    assert [machine.show(unit, "NRestarts") for unit in (PROXY, *HOOKS)] == ["0"] * 3


def serve(node: Machine, mode: str) -> str:
    """Make the proxy serve in a mode; return the host's path of its socket."""
    node.write("/etc/runtimeproxy/config.yaml", f"backend-runtime-mode: {mode}\n")
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", PROXY)
    node.until(lambda: node.run("runtimeproxy", "status", check=False).startswith("ready"), "the hook servers")
    return str(node.path(SOCKET))


@pytest.mark.parametrize("mode", CLIENTS)
def test_pods_get_hook_values_across_engine_restart(node: Machine, mode: str) -> None:
    with CLIENTS[mode](serve(node, mode)) as client:
        for cycle in range(max(CALLS_OF_THE_UNIT.now // ROUND, 1)):
            live(node, client, f"turn-{cycle}")
        engine = {"Containerd": "containerd.service", "Docker": "docker.service"}[mode]
        node.run("systemctl", "restart", engine)
        node.until(lambda: answers(client), f"an answer after the restart of {engine}")
        live(node, client, "after-the-restart")
    node.until(lambda: node.show(PROXY, "StatusText").startswith("serving, "), "the status")


def live(node: Machine, client: Any, name: str) -> None:
    """Create a pod with a container that hook servers change, read it, and remove it: 100 calls."""
    parent, tops = f"{PARENT}-{name}", [cgroups.ROOT] if cgroups.is_v2() else cgroups.ROOT.iterdir()
    for group in [top / node.name for top in tops]:
        for part in parent.strip("/").split("/"):  # as a kubelet does before it runs the pod
            if cgroups.is_v2():
                (group / "cgroup.subtree_control").write_text("+cpu +memory +pids")
            group /= part
            group.mkdir(exist_ok=True)
    pod = cri.pod_config(name, name, cgroup_parent=parent, labels=LABELS, annotations=ANNOTATIONS)
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, cri.container_config("main"), pod)
    client.start(container_id)
    output = client.exec_sync(container_id, "cat", "/proc/1/environ", cgroups.inside_file("cpu_shares")).stdout
    assert b"NVIDIA_VISIBLE_DEVICES=3\0" in output
    assert cgroups.parse("cpu_shares", output.rpartition(b"\0")[2].decode()) == cgroups.expected("cpu_shares", SHARES)
    assert cgroups.read(f"/{node.name}{parent}", "cpu_shares") == cgroups.expected("cpu_shares", SHARES)
    for _ in range(READS):
        assert pod_id in [listed.id for listed in client.pods()]
    client.stop(container_id)
    client.remove(container_id)
    client.stop_pod(pod_id)
    client.remove_pod(pod_id)


def answers(client: Any) -> bool:
    try:
        client.pods()
    except Exception:  # of either client, while the engine starts
        return False
    return True


def test_admin_and_exporter_return_metrics_of_process(node: Machine) -> None:
    serve(node, "Containerd")
    metrics = node.run("curl", "--silent", "--max-time", "10", "http://127.0.0.1:9654/metrics")
    names = {*re.findall(r"^\w+", metrics, re.MULTILINE)}
    assert {"runtimeproxy_build_info", "process_start_time_seconds", "process_open_fds"} <= names
    rows = json.loads(node.run("sh", "-c", "runtimeproxy doctor --output=json 2>/dev/null || true"))
    assert [row["verdict"] for row in rows if row["check"] == "unit"] == ["ok"]


@contextmanager
def drop_in(node: Machine, text: str, unit: str = PROXY) -> Iterator[None]:
    """Add a drop-in to a unit for the block."""
    file = f"/run/systemd/system/{unit}.d/of-the-test.conf"
    node.write(file, f"[Service]\n{text}")
    node.run("systemctl", "daemon-reload")
    try:
        yield
    finally:
        node.run("rm", file)
        node.run("systemctl", "daemon-reload")


def test_exporter_serves_tls_with_lines_of_its_unit(node: Machine) -> None:
    """The unit's file has them as a comment."""
    unit, folder, authority = "runtimeproxy-export.service", node.path(FOLDER), trustme.CA()
    lines = "\n".join(re.findall("^#   (.*)", (UNITS / unit).read_text(), re.MULTILINE)).replace("10.0.0.1", "0.0.0.0")
    folder.mkdir(mode=0o700, parents=True)
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("prometheus")
    authority.cert_pem.write_to_path(folder / "client-ca.pem")
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")

    curl = f"curl --silent --max-time 10 --write-out %{{http_code}} --output /dev/null --cacert {FOLDER}/client-ca.pem"
    scrape = (*curl.split(), "https://127.0.0.1:9654/metrics")
    with drop_in(node, f"IPAddressDeny=\nIPAddressAllow=\nExecStart=\n{lines}\n", unit):
        node.run("systemctl", "restart", unit)
        credentials = ("--cert", f"{FOLDER}/client.pem")
        node.until(lambda: node.run(*scrape, *credentials, check=False) == "200", "a scrape with a certificate")
        assert node.run(*scrape, check=False) == "000"
    node.run("systemctl", "restart", unit)


def test_hanging_loop_is_restarted_while_clients_wait(node: Machine) -> None:
    with drop_in(node, "WatchdogSec=3s\n"):  # the usual time is for scripts/soak
        serve(node, "Containerd")
        node.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", PROXY)
        with cri.CriClient(str(node.path(SOCKET))) as client:
            assert client.version().runtime_name == "containerd"
        assert "Failed with result 'watchdog'" in node.journal(PROXY)
    serve(node, "Containerd")


MAIN = "from runtimeproxy.cli import koord_runtime_proxy as main; sys.exit(main())"
LACKING = f"ExecStart=\nExecStart=/usr/bin/our-python -c \"import sys; sys.modules['uvloop'] = None; {MAIN}\"\n"
"""The proxy without one of its libraries."""


def test_socket_outlives_crash_loop(node: Machine) -> None:
    serve(node, "Containerd")
    node.write("/usr/bin/our-python", program(), mode=0o755)
    with ThreadPoolExecutor() as threads, cri.CriClient(str(node.path(SOCKET))) as client:
        with drop_in(node, LACKING):
            node.run("systemctl", "restart", "--no-block", PROXY)
            node.until(lambda: int(node.show(PROXY, "NRestarts")) >= 3, "it cannot start")
            answer = threads.submit(client.version)
            assert node.show("runtimeproxy.socket", "ActiveState") == "active"
            assert "the library uvloop cannot be loaded" in node.journal(PROXY)
            assert not answer.done()
        assert answer.result().runtime_name == "containerd"
    status = re.compile(r"serving, \d+ hook servers?")
    node.until(lambda: status.fullmatch(node.show(PROXY, "StatusText")), "its state is reported")
    serve(node, "Containerd")


# ---- sandboxing

EXPOSED = {PROXY: 1.0, "runtimeproxy-hooks@x.service": 1.0, "runtimeproxy-export.service": 1.2}
"""Maximum exposure of each unit, of 10."""
REASONS = [(units, setting.strip("` \n")) for rows in tables(DOCS["security"], "Why") for units, setting, _ in rows]


def analysed(machine: Machine, unit: str) -> tuple[float, set[str]]:
    """Return a unit's exposure as systemd rates it, and the names of imperfect settings."""
    output = machine.run("systemd-analyze", "security", "--offline=true", "--no-pager", unit, check=False)
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", output)
    assert level, output
    return float(level[1]), set(re.findall(r"^✗ (\S+)", output, re.MULTILINE))


@pytest.mark.parametrize("unit", EXPOSED)
def test_unit_is_sandboxed_except_documented_rights(machine: Machine, unit: str) -> None:
    level, loosened = analysed(machine, unit)
    assert level < EXPOSED[unit]
    assert loosened == {setting for units, setting in REASONS if "all" in units or unit.replace("@x", "@") in units}


def test_systemd_finds_no_fault_in_units(machine: Machine) -> None:
    units = [*SOCKETS, *(unit.replace("@", "@cpuset") for unit in SERVICES), r"runtimeproxy-hooks@all.service"]
    assert machine.run("systemd-analyze", "verify", *units) == ""


def test_new_hook_server_has_sandboxed_unit_and_serves(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/local/bin/python-of-hooks")
    node.write(sys.executable, program(), mode=0o755)
    files, unit = new.files("pinning"), "/etc/systemd/system/pinning.service"
    for name, text in files.items():
        node.write(f"/usr/local/lib/pinning/{name}", text)
    node.write(unit, files["pinning.service"])
    assert node.run("systemd-analyze", "verify", unit) == ""
    assert analysed(node, "pinning.service") == analysed(node, "runtimeproxy-hooks@x.service")
    fit(node, "pinning.service", node.path(unit))
    node.run("systemctl", "start", "pinning.service")
    node.until(lambda: "pinning" in node.run("runtimeproxy", "hook", "ls"), "the registration of the hook server")
