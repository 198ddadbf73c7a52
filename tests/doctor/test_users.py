"""Who uses the proxy, on a machine made of files."""

from collections.abc import Callable

import pytest

from runtimeproxy.cli.doctor import clients
from runtimeproxy.cli.doctor.machine import UnixSocket
from tests.doctor.made import Made

CANARY = "canary-4711"
END = 900


def told(made: Made) -> list[str]:
    return list(clients.users(made.machine))


def kernel(made: Made, *ends: int) -> list[UnixSocket]:
    """Return what the kernel tells where these are the clients' ends of the proxy's connections."""
    accepted = [UnixSocket(1000 + end, False, True, str(made.ours), end) for end in ends]
    clients = [UnixSocket(end, False, True, "", 1000 + end) for end in ends]
    return [UnixSocket(1, True, False, str(made.ours)), *accepted, *clients]


def test_nobody_uses_a_proxy_that_nobody_calls(made: Made) -> None:
    made.kernel = [kernel(made)]
    made.proxy()
    made.process(40, "/usr/bin/kubelet", f"--container-runtime-endpoint=unix://{made.runtime}")
    assert told(made) == []


@pytest.mark.parametrize("name", ["kubelet", "k3s", "cri-dockerd"])
def test_each_connected_program_is_told(made: Made, name: str) -> None:
    made.kernel = [kernel(made, END, 901)]
    made.proxy(ends=[1000 + END, 1901])
    made.process(40, f"/usr/bin/{name}", CANARY, sockets=[END, 901, 5])
    assert told(made) == [f"{name} (pid 40) has 2 connections to {made.ours}"]


def test_connection_of_a_process_that_is_not_seen_is_told(made: Made) -> None:
    made.kernel = [kernel(made, END)]
    assert told(made) == [f"1 connection to {made.ours} of processes that cannot be seen here"]


def test_connection_that_ends_meanwhile_is_nobody(made: Made) -> None:
    made.kernel = [kernel(made, END), kernel(made)]
    assert told(made) == []


def test_connections_are_counted_where_the_kernel_tells_no_peers(made: Made) -> None:
    made.proxy()
    made.socket(1900, made.ours)
    assert told(made) == [f"1 connection to {made.ours}; the kernel does not tell whose"]


CONFIGURED: list[tuple[str, str, str]] = [
    ("kubelet", "--container-runtime-endpoint=unix://{}", "--container-runtime-endpoint"),
    ("kubelet", "--image-service-endpoint={}", "--image-service-endpoint"),
    ("kubelet", "--docker-endpoint=unix://{}", "--docker-endpoint"),
    ("cri-dockerd", "--docker-endpoint=unix:{}", "--docker-endpoint"),
]


@pytest.mark.parametrize(("name", "flag", "origin"), CONFIGURED)
def test_program_that_is_told_the_proxy_is_told(made: Made, name: str, flag: str, origin: str) -> None:
    made.kernel = [kernel(made)]
    made.process(40, f"/usr/bin/{name}", flag.format(made.ours), CANARY)
    assert told(made) == [f"{name} (pid 40) is configured to call it, by {origin}"]


def test_kubelet_is_told_by_its_file(made: Made) -> None:
    made.kernel = [kernel(made)]
    made.process(40, "kubelet", "--config=/k.yaml")
    made.write("proc/40/root/k.yaml", f"containerRuntimeEndpoint: unix://{made.ours}\n")
    assert told(made) == ["kubelet (pid 40) is configured to call it, by containerRuntimeEndpoint in /k.yaml"]


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


UNITS: list[tuple[Callable[[Made], str], str]] = [
    (by_command, ""),
    (by_variable, ""),
    (by_variables_file, " by /var/flags.env"),
    (by_file, " by /var/config.yaml"),
]


@pytest.mark.parametrize(("make", "origin"), UNITS)
def test_unit_that_does_not_run_is_told(made: Made, make: Callable[[Made], str], origin: str) -> None:
    made.kernel = [kernel(made)]
    made.write("run/systemd/system/x", "")
    made.unit = make(made)
    assert told(made) == [f"{unit}{origin} is configured to call it" for unit in clients.UNITS]
    assert [arguments[-1] for arguments in made.units] == list(clients.UNITS)


def test_unit_of_another_runtime_is_nobody(made: Made) -> None:
    made.kernel = [kernel(made)]
    made.write("run/systemd/system/x", "")
    made.unit = "ExecStart={ argv[]=/k --container-runtime-endpoint=unix:///run/containerd/containerd.sock }\n"
    assert told(made) == []


def test_systemd_that_does_not_answer_is_an_error(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.kernel = [kernel(made)]
    made.write("run/systemd/system/x", "")

    def away(self: Made, arguments: object) -> str:
        raise OSError(0, "systemctl show does not answer")

    monkeypatch.setattr(Made, "_systemctl", away)
    with pytest.raises(OSError, match="does not answer"):
        told(made)


def test_without_systemd_no_unit_is_asked(made: Made) -> None:
    made.kernel = [kernel(made)]
    assert (told(made), made.units) == ([], [])
