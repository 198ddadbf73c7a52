"""The doctor's checks of the kubelet and cri-dockerd, on a machine made of files."""

from collections.abc import Callable

import pytest

from runtimeproxy.cli.doctor import clients
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.options import CRIO_SOCKET
from tests.doctor.made import Made
from tests.doctor.test_ours import only

Make = Callable[[Made], object]
CANARY = "canary-4711"
FILE, DROP_INS = "/var/lib/kubelet/config.yaml", "/etc/kubelet.d"


def kubelet(made: Made, *arguments: str) -> None:
    made.process(40, "/usr/bin/kubelet", f"--node-labels=x={CANARY}", *arguments)


def file(made: Made, endpoint: object, name: str = FILE) -> None:
    made.write(f"proc/40/root{name}", f"kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix://{endpoint}\n")


def by_file(made: Made) -> None:
    kubelet(made, "--config", FILE)
    file(made, made.ours)


def by_flag_over_file(made: Made) -> None:
    kubelet(made, f"--container-runtime-endpoint=unix://{made.ours}", f"--config={FILE}")
    file(made, made.runtime)


def by_drop_in(made: Made) -> None:
    kubelet(made, f"--config={FILE}", f"--config-dir={DROP_INS}")
    file(made, made.runtime)
    file(made, made.ours, f"{DROP_INS}/20-b.conf")
    for number in range(10):
        file(made, "/other.sock", f"{DROP_INS}/1{number}-a.conf")
        file(made, "/other.sock", f"{DROP_INS}/3{number}-c.yaml")
    made.write(f"proc/40/root{DROP_INS}/40-d.conf", "maxPods: 7\n")


def by_relative_file(made: Made) -> None:
    kubelet(made, "--config=kubelet.yaml")
    made.write("proc/40/cwd/kubelet.yaml", f"containerRuntimeEndpoint: unix://{made.ours}\n")


WELL: list[tuple[Make, str]] = [
    (lambda made: kubelet(made, f"--container-runtime-endpoint=unix://{made.ours}"), "--container-runtime-endpoint"),
    (by_file, f"containerRuntimeEndpoint in {FILE}"),
    (by_flag_over_file, "--container-runtime-endpoint"),
    (by_drop_in, f"containerRuntimeEndpoint in {DROP_INS}/20-b.conf"),
    (by_relative_file, "containerRuntimeEndpoint in kubelet.yaml"),
]


@pytest.mark.parametrize(("make", "origin"), WELL)
def test_kubelet_at_the_proxy_is_ok_wherever_it_is_set(made: Made, make: Make, origin: str) -> None:
    make(made)
    assert only(clients.kubelet, made) == ("ok", f"kubelet (pid 40) calls {made.ours}, by {origin}")


@pytest.mark.parametrize("name", ["proxy.sock", "crio.sock", "run/crio/crio.sock"])
def test_kubelet_at_crio_must_call_a_socket_named_crio(made: Made, name: str) -> None:
    made.runtime = made.runtime.parent / CRIO_SOCKET
    called = made.ours.with_name("named") / name
    called.parent.mkdir(parents=True)
    called.symlink_to(made.ours)
    kubelet(made, f"--container-runtime-endpoint=unix://{called}")
    (finding,) = clients.kubelet(made.machine)
    assert finding.verdict.value == ("ok" if "/" in name else "warning")
    assert (f"unix://{made.ours.parent}/run/crio/crio.sock" in finding.do) is ("/" not in name)


ILL: list[tuple[Make, str]] = [
    (kubelet, "is told no endpoint and takes its default, not the proxy"),
    (
        lambda made: kubelet(made, f"--container-runtime-endpoint={made.runtime}"),
        "that is the runtime itself, past the proxy",
    ),
    (lambda made: kubelet(made, "--container-runtime-endpoint=unix:///x.sock"), "that is no proxy"),
    (lambda made: kubelet(made, "--container-runtime-endpoint=tcp:x"), "'tcp:x' is not a unix socket"),
]


@pytest.mark.parametrize(("make", "words"), ILL)
def test_kubelet_elsewhere_fails_with_what_to_set(made: Made, make: Make, words: str) -> None:
    make(made)
    (finding,) = clients.kubelet(made.machine)
    assert finding.verdict.value == "failed"
    assert words in finding.why
    assert CANARY not in finding.why
    assert finding.do.startswith(f"set --container-runtime-endpoint=unix://{made.ours} and restart kubelet")


def test_kubelet_that_is_not_seen_is_unknown(made: Made) -> None:
    assert only(clients.kubelet, made) == ("unknown", "no process named kubelet is seen here")


def test_kubelet_configuration_that_is_no_yaml_quotes_nothing(made: Made) -> None:
    kubelet(made, f"--config={FILE}")
    made.write(f"proc/40/root{FILE}", f"a: [{CANARY}\n")
    with pytest.raises(ConfigError, match="not YAML that can be read") as raised:
        list(clients.kubelet(made.machine))
    assert CANARY not in str(raised.value)


def test_dockershim_is_judged_by_its_docker_endpoint(made: Made) -> None:
    made.flags["backend-runtime-mode"] = "Docker"
    kubelet(made, f"--docker-endpoint=unix://{made.ours}", "--container-runtime-endpoint=unix:///else.sock")
    assert only(clients.kubelet, made)[0] == "ok"


def test_cri_dockerd_is_judged_in_place_of_the_kubelet(made: Made) -> None:
    made.flags["backend-runtime-mode"] = "Docker"
    made.process(41, "/usr/bin/cri-dockerd", f"--docker-endpoint=unix://{made.runtime}")
    assert only(clients.kubelet, made)[0] == "skipped"
    verdict, why = only(clients.cri_dockerd, made)
    assert (verdict, "past the proxy" in why) == ("failed", True)


NO_CRI_DOCKERD = [
    ("Docker", ("ok", "no cri-dockerd runs here")),
    ("Containerd", ("skipped", "cri-dockerd belongs to Docker mode")),
]


@pytest.mark.parametrize(("mode", "finding"), NO_CRI_DOCKERD)
def test_cri_dockerd_need_not_run(made: Made, mode: str, finding: tuple[str, str]) -> None:
    made.flags["backend-runtime-mode"] = mode
    assert only(clients.cri_dockerd, made) == finding
