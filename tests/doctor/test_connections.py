"""The doctor's check of clients of the runtime, and who uses the proxy, on a machine made of files."""

from collections.abc import Callable

import pytest

from runtimeproxy.cli.doctor import clients
from runtimeproxy.cli.doctor.machine import Machine, UnixSocket
from tests.doctor.made import Made, only, verdicts

CANARY = "canary-4711"
OTHER = 50
END_AT_PROXY = 900


def kernel(made: Made, *ends: int) -> list[UnixSocket]:
    """Return what the kernel lists if these are the clients' ends of the runtime's connections."""
    return made.connections(made.runtime, *ends, others=made.connections(made.ours, END_AT_PROXY)[1:])


def test_proxy_and_known_clients_are_distinguished(made: Made) -> None:
    made.kernel = [kernel(made, 201, 202, 203)]
    made.proxy(ends=[201, 202])
    made.process(OTHER, "/usr/bin/crictl", "ps", CANARY, sockets=[203, 9])
    made.process(51, "idle", sockets=[9])
    assert sorted(verdicts(clients.past_the_proxy(made.machine))) == [
        ("ok", f"the proxy (pid 70) has 2 connections to {made.runtime}"),
        ("warning", f"crictl (pid 50) has 1 connection to {made.runtime}, past the proxy"),
    ]


CLIENTS = [
    ("kubelet", [201], "failed", ", and none to the proxy", "the check kubelet"),
    ("kubelet", [201, END_AT_PROXY], "ok", ": cAdvisor inside it reads there", ""),
    ("cri-dockerd", [201], "failed", ", and none to the proxy", "the check cri-dockerd"),
    ("cri-dockerd", [201, END_AT_PROXY], "warning", ", past the proxy", "the proxy's socket"),
    ("crictl", [201, END_AT_PROXY], "warning", ", past the proxy", "/etc/crictl.yaml"),
    ("docker", [201], "warning", ", past the proxy", "DOCKER_HOST"),
    ("unheard-of", [201], "warning", ", past the proxy", "others may stay"),
    *((name, [201], "ok", f": {why}", "") for name, why in clients.WELL.items() if name != "kubelet"),
]


@pytest.mark.parametrize(("name", "sockets", "verdict", "words", "to_do"), CLIENTS)
def test_client_is_judged_by_its_name_and_its_other_connections(
    made: Made, name: str, sockets: list[int], verdict: str, words: str, to_do: str
) -> None:
    made.kernel = [kernel(made, 201)]
    made.process(OTHER, f"/usr/bin/{name}", sockets=sockets)
    (finding,) = clients.past_the_proxy(made.machine)
    why = f"{name} (pid 50) has 1 connection to {made.runtime}{words}"
    assert (finding.verdict.value, finding.why) == (verdict, why)
    assert to_do in finding.do


def test_connection_of_a_process_that_may_not_be_seen_is_unknown(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.kernel = [kernel(made, 201, 202)]
    made.process(OTHER, "kubelet", sockets=[201, END_AT_PROXY])
    made.process(51, "other", sockets=[202])
    opened = Machine.open_sockets

    def open_sockets(machine: Machine, pid: int) -> frozenset[int]:
        if pid == 51:
            raise PermissionError
        return opened(machine, pid)

    monkeypatch.setattr(Machine, "open_sockets", open_sockets)
    _, (verdict, why) = sorted(verdicts(clients.past_the_proxy(made.machine)))
    assert (verdict, why) == ("unknown", f"1 connection to {made.runtime} of processes that cannot be seen here")


def test_connection_that_ends_meanwhile_is_not_reported(made: Made) -> None:
    made.kernel = [kernel(made, 201, 202), kernel(made, 201)]
    made.process(OTHER, "kubelet", sockets=[201, END_AT_PROXY])
    assert only(clients.past_the_proxy, made)[0] == "ok"


def test_each_network_namespace_is_queried_once(made: Made) -> None:
    made.kernel = [kernel(made)]
    for pid, network in ((1, "node"), (2, "node"), (3, "pod")):
        made.process(pid, "x", network=network)
    assert only(clients.past_the_proxy, made) == ("ok", f"nobody is connected to {made.runtime}")
    assert made.namespaces == [{"../../namespaces/node", "../../namespaces/pod"}]


# -- where the kernel lists no peers ---------------------------------------------------------------------------------


def connected(made: Made, count: int) -> None:
    made.socket(100, made.runtime, listening=True)
    for number in range(count):
        made.socket(101 + number, made.runtime)


@pytest.mark.parametrize("count", [0, 3])
def test_connections_that_the_proxy_can_have_are_ok(made: Made, count: int) -> None:
    connected(made, count)
    if count:
        made.proxy(ends=[201, 202, 203])
    why = f"{made.runtime} has {count} connections, no more than the proxy's own"
    assert only(clients.past_the_proxy, made) == ("ok", why)


def test_connections_beyond_the_proxy_have_suspects(made: Made) -> None:
    connected(made, 3)
    assert only(clients.past_the_proxy, made)[1].endswith("(may be: no known client is seen)")
    made.proxy(ends=[201])
    for inode in (301, 302):
        made.socket(inode)
    made.process(50, "/usr/bin/kubelet", "--x", CANARY, sockets=[301])
    made.process(51, "crictl")
    made.process(52, "unheard-of", sockets=[302])
    why = f"2 or more of 3 connections to {made.runtime} go past the proxy (may be: kubelet pid 50)"
    assert only(clients.past_the_proxy, made) == ("warning", why)


# -- users of the proxy ----------------------------------------------------------------------------------------------


def users(made: Made) -> list[str]:
    return list(clients.users(made.machine))


@pytest.mark.parametrize("name", ["kubelet", "k3s", "cri-dockerd"])
def test_each_connected_program_is_listed(made: Made, name: str) -> None:
    made.kernel = [made.connections(made.ours, 900, 901)]
    made.proxy(ends=[1900, 1901])
    made.process(40, f"/usr/bin/{name}", CANARY, sockets=[900, 901, 5])
    assert users(made) == [f"{name} (pid 40) has 2 connections to {made.ours}"]


def test_connection_of_an_unseen_process_is_listed_until_it_ends(made: Made) -> None:
    made.kernel = [made.connections(made.ours, 900)]
    assert users(made) == [f"1 connection to {made.ours} of processes that cannot be seen here"]
    made.kernel = [made.connections(made.ours, 900), made.connections(made.ours)]
    assert (users(made), made.units) == ([], []), "without systemd no unit is queried"


def test_connections_are_counted_where_the_kernel_lists_no_peers(made: Made) -> None:
    made.proxy()
    made.socket(1900, made.ours)
    assert users(made) == [f"1 connection to {made.ours}; the kernel does not report whose"]


CONFIGURED: list[tuple[str, str, str]] = [
    ("kubelet", "--container-runtime-endpoint=unix://{}", "--container-runtime-endpoint"),
    ("kubelet", "--image-service-endpoint={}", "--image-service-endpoint"),
    ("kubelet", "--docker-endpoint=unix://{}", "--docker-endpoint"),
    ("cri-dockerd", "--docker-endpoint=unix:{}", "--docker-endpoint"),
    ("kubelet", "--config=/k.yaml", "containerRuntimeEndpoint in /k.yaml"),
    ("kubelet", "--container-runtime-endpoint=unix:///other.sock", ""),
]


@pytest.mark.parametrize(("name", "flag", "origin"), CONFIGURED)
def test_program_that_is_configured_to_call_the_proxy_is_listed(made: Made, name: str, flag: str, origin: str) -> None:
    made.kernel = [made.connections(made.ours)]
    made.process(40, f"/usr/bin/{name}", flag.format(made.ours), CANARY)
    made.write("proc/40/root/k.yaml", f"containerRuntimeEndpoint: unix://{made.ours}\n")
    assert users(made) == ([f"{name} (pid 40) is configured to call it, by {origin}"] if origin else [])


def by_command(made: Made) -> str:
    return f"ExecStart={{ path=/k ; argv[]=/k --container-runtime-endpoint=unix://{made.ours} ; ignore_errors=no }}\n"


def by_variable(made: Made) -> str:
    return f'Environment="KUBELET_EXTRA_ARGS=--x={CANARY} --container-runtime-endpoint=unix://{made.ours}" A=b\n'


def by_variables_file(made: Made) -> str:
    made.write("var/flags.env", f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix://{made.ours}"\n')
    return "EnvironmentFiles=/not/there (ignore_errors=yes)\nEnvironmentFiles=/var/flags.env (ignore_errors=yes)\n"


def by_file(made: Made) -> str:
    made.write("var/config.yaml", f'containerRuntimeEndpoint: "unix://{made.ours}"\n')
    return "Environment=KUBELET_CONFIG_ARGS=--config=/var/config.yaml\n"


def by_nothing(made: Made) -> str:
    return "ExecStart={ argv[]=/k --container-runtime-endpoint=unix:///run/containerd/containerd.sock }\n"


UNITS: list[tuple[Callable[[Made], str], str | None]] = [
    (by_command, ""),
    (by_variable, ""),
    (by_variables_file, " by /var/flags.env"),
    (by_file, " by /var/config.yaml"),
    (by_nothing, None),
]


@pytest.mark.parametrize(("make", "origin"), UNITS)
def test_unit_that_does_not_run_is_listed(made: Made, make: Callable[[Made], str], origin: str | None) -> None:
    made.kernel = [made.connections(made.ours)]
    made.write("run/systemd/system/x", "")
    made.unit = make(made)
    listed = [] if origin is None else [f"{unit}{origin} is configured to call it" for unit in clients.UNITS]
    assert users(made) == listed
    assert [arguments[-1] for arguments in made.units] == list(clients.UNITS)


def test_systemd_that_does_not_answer_is_an_error(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Made, arguments: object) -> str:
        raise OSError(0, "systemctl show does not answer")

    made.kernel = [made.connections(made.ours)]
    made.write("run/systemd/system/x", "")
    monkeypatch.setattr(Made, "_systemctl", fail)
    with pytest.raises(OSError, match="does not answer"):
        users(made)
