"""The doctor's check of clients of the runtime, and who uses the proxy, on a machine made of files."""

import pytest

from runtimeproxy.cli.doctor import clients
from runtimeproxy.cli.doctor.machine import Machine, UnixSocket
from tests.doctor.conftest import Made, only, verdicts

CANARY = "canary-4711"
OTHER = 50
END_AT_PROXY = 900


def kernel(made: Made, *ends: int) -> list[UnixSocket]:
    """Return what the kernel lists if these are the clients' ends of the runtime's connections."""
    return made.connections(made.runtime, *ends, more=made.connections(made.ours, END_AT_PROXY)[1:])


def test_each_connected_process_yields_one_finding(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not be read is only counted; a connection that ends meanwhile is not reported."""
    made.kernel = [kernel(made, 201, 202, 203, 204, 205), kernel(made, 201, 202, 203, 204)]
    made.proxy(ends=[201, 202])
    made.process(OTHER, "/usr/bin/crictl", "ps", CANARY, sockets=[203, 9])
    made.process(51, "other", sockets=[204])
    made.process(52, "idle", sockets=[9])
    opened = Machine.open_sockets

    def open_sockets(machine: Machine, pid: int) -> frozenset[int]:
        if pid == 51:
            raise PermissionError
        return opened(machine, pid)

    monkeypatch.setattr(Machine, "open_sockets", open_sockets)
    assert sorted(verdicts(clients.bypassing_clients(made.machine))) == [
        ("ok", f"the proxy (pid 70) has 2 connections to {made.runtime}"),
        ("unknown", f"1 connection to {made.runtime} of processes that cannot be seen here"),
        ("warning", f"crictl (pid 50) has 1 connection to {made.runtime}, past the proxy"),
    ]


CLIENTS = [
    ("kubelet", [201], "failed", ", and none to the proxy", "the check kubelet"),
    ("kubelet", [201, END_AT_PROXY], "ok", ": cAdvisor inside it reads there", ""),
    ("cri-dockerd", [201, END_AT_PROXY], "warning", ", past the proxy", "the proxy's socket"),
    ("crictl", [201, END_AT_PROXY], "warning", ", past the proxy", "/etc/crictl.yaml"),
    ("docker", [201], "warning", ", past the proxy", "DOCKER_HOST"),
    ("unheard-of", [201], "warning", ", past the proxy", "others may stay"),
    *((name, [201], "ok", f": {why}", "") for name, why in clients.EXPECTED_CLIENTS.items() if name != "kubelet"),
]


@pytest.mark.parametrize(("name", "sockets", "verdict", "words", "to_do"), CLIENTS)
def test_client_is_judged_by_name_and_connections(
    made: Made, name: str, sockets: list[int], verdict: str, words: str, to_do: str
) -> None:
    made.kernel = [kernel(made, 201)]
    made.process(OTHER, f"/usr/bin/{name}", sockets=sockets)
    (finding,) = clients.bypassing_clients(made.machine)
    why = f"{name} (pid 50) has 1 connection to {made.runtime}{words}"
    assert (finding.verdict.value, finding.why) == (verdict, why)
    assert to_do in finding.do


def test_each_network_namespace_is_queried_once(made: Made) -> None:
    made.kernel = [kernel(made)]
    for pid, network in ((1, "node"), (2, "node"), (3, "pod")):
        made.process(pid, "x", network=network)
    assert only(clients.bypassing_clients, made) == ("ok", f"nobody is connected to {made.runtime}")
    assert made.namespaces == [{"../../namespaces/node", "../../namespaces/pod"}]


def test_connections_within_proxy_count_are_ok(made: Made) -> None:
    own = f"{made.runtime} has {{}} connections, no more than the proxy's own"
    assert only(clients.bypassing_clients, made) == ("ok", own.format(0))
    for inode in (101, 102, 103):
        made.socket(inode, made.runtime)
    made.proxy(ends=[201, 202, 203])
    assert only(clients.bypassing_clients, made) == ("ok", own.format(3))


def test_connections_above_proxy_count_name_suspects(made: Made) -> None:
    made.socket(100, made.runtime, listening=True)
    for inode in (101, 102, 103):
        made.socket(inode, made.runtime)
    assert only(clients.bypassing_clients, made)[1].endswith("(may be: no known client is seen)")
    made.proxy(ends=[201])
    for inode in (301, 302):
        made.socket(inode)
    made.process(50, "/usr/bin/kubelet", "--x", CANARY, sockets=[301])
    made.process(51, "crictl")
    made.process(52, "unheard-of", sockets=[302])
    why = f"2 or more of 3 connections to {made.runtime} go past the proxy (may be: kubelet pid 50)"
    assert only(clients.bypassing_clients, made) == ("warning", why)


def users(made: Made) -> list[str]:
    return list(clients.users(made.machine))


def test_in_use_lists_connected_programs_until_they_end(made: Made) -> None:
    made.kernel = [made.connections(made.ours, 900)]
    assert users(made) == [f"1 connection to {made.ours} of processes that cannot be seen here"]
    made.kernel = [made.connections(made.ours, 900), made.connections(made.ours)]
    assert (users(made), made.units) == ([], []), "without systemd no unit is queried"
    made.kernel = [made.connections(made.ours, 900, 901)]
    made.proxy(ends=[1900, 1901])
    made.process(40, "/usr/bin/k3s", CANARY, sockets=[900, 901, 5])
    assert users(made) == [f"k3s (pid 40) has 2 connections to {made.ours}"]


def test_connections_are_counted_when_kernel_lists_no_peers(made: Made) -> None:
    made.proxy()
    made.socket(1900, made.ours)
    assert users(made) == [f"1 connection to {made.ours}; the kernel does not report whose"]


BY_FLAG = "--container-runtime-endpoint"
CONFIGURED = [
    ("kubelet", f"{BY_FLAG}=unix://{{}}", BY_FLAG),
    ("kubelet", "--image-service-endpoint={}", "--image-service-endpoint"),
    ("cri-dockerd", "--docker-endpoint=unix:{}", "--docker-endpoint"),
    ("kubelet", "--config=/k.yaml", "containerRuntimeEndpoint in /k.yaml"),
    ("kubelet", f"{BY_FLAG}=unix:///other.sock", ""),
]


@pytest.mark.parametrize(("name", "flag", "origin"), CONFIGURED)
def test_in_use_lists_program_configured_for_proxy(made: Made, name: str, flag: str, origin: str) -> None:
    made.kernel = [made.connections(made.ours)]
    made.process(40, f"/usr/bin/{name}", flag.format(made.ours), CANARY)
    made.write("proc/40/root/k.yaml", f"containerRuntimeEndpoint: unix://{made.ours}\n")
    assert users(made) == ([f"{name} (pid 40) is configured to call it, by {origin}"] if origin else [])


ENVIRONMENT = f'Environment="KUBELET_EXTRA_ARGS=--x={CANARY} {BY_FLAG}=unix://{{ours}}" A=b\n'
FILES = "EnvironmentFiles=/not/there (ignore_errors=yes)\nEnvironmentFiles=/var/flags.env (ignore_errors=yes)\n"
UNITS = [
    (f"ExecStart={{{{ path=/k ; argv[]=/k {BY_FLAG}=unix://{{ours}} ; ignore_errors=no }}}}\n", ""),
    (ENVIRONMENT, ""),
    (FILES, " by /var/flags.env"),
    ("Environment=KUBELET_CONFIG_ARGS=--config=/var/config.yaml\n", " by /var/config.yaml"),
    (f"ExecStart={{{{ argv[]=/k {BY_FLAG}=unix:///run/containerd/containerd.sock }}}}\n", None),
]


@pytest.mark.parametrize(("unit", "origin"), UNITS)
def test_in_use_lists_stopped_unit(made: Made, unit: str, origin: str | None) -> None:
    made.kernel = [made.connections(made.ours)]
    made.write("run/systemd/system/x", "")
    made.write("var/flags.env", f'KUBELET_KUBEADM_ARGS="{BY_FLAG}=unix://{made.ours}"\n')
    made.write("var/config.yaml", f'containerRuntimeEndpoint: "unix://{made.ours}"\n')
    made.unit = unit.format(ours=made.ours)
    listed = [] if origin is None else [f"{unit}{origin} is configured to call it" for unit in clients.UNITS]
    assert users(made) == listed
    assert [arguments[-1] for arguments in made.units] == list(clients.UNITS)


def test_in_use_fails_when_systemd_does_not_answer(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Made, arguments: object) -> str:
        raise OSError(0, "systemctl show does not answer")

    made.kernel = [made.connections(made.ours)]
    made.write("run/systemd/system/x", "")
    monkeypatch.setattr(Made, "_systemctl", fail)
    with pytest.raises(OSError, match="does not answer"):
        users(made)
