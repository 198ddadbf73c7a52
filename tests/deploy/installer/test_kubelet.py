"""The kubelet of a node: what follows from its runtime, and from the distribution that starts it."""

import pytest

from runtimeproxy_installer.errors import Refused
from runtimeproxy_installer.kubelet import Kubelet, reported_by
from runtimeproxy_installer.work import CONFIG, CONFIG_HEAD
from tests.deploy.installer.fakes import DROP_IN, Bench, node_object


@pytest.mark.parametrize("own", ["", "hook-timeout: 1s\n"], ids=["no configuration", "the node's own"])
def test_node_with_crio_gets_its_socket_in_cri_mode(own: str, bench: Bench) -> None:
    bench.reported = reported_by(node_object("n1", "cri-o://1.31.0"))
    if own:
        bench.node.write(CONFIG, own)
    bench.install(configure_kubelet=True)
    endpoint = 'remote-runtime-service-endpoint: "/var/run/crio/crio.sock"\n'
    assert bench.node.text(CONFIG) == (own or f"{CONFIG_HEAD}{endpoint}")
    name = "runtimeproxy.sock" if own else "run/crio/crio.sock"
    assert f"-endpoint=unix:///var/run/koord-runtimeproxy/{name}\n" in (bench.node.text(DROP_IN) or "")
    bench.install(configure_kubelet=True)
    assert bench.node.restarts == 1


def test_kubelet_of_a_distribution_is_left_to_a_person(bench: Bench) -> None:
    bench.reported = Kubelet("v1.33.1+k3s1", "Containerd", ready=True)
    with pytest.raises(Refused, match=r"k3s\.service starts the kubelet here: point it at the proxy by hand"):
        bench.install(configure_kubelet=True)
    assert bench.install() == "0.2.0"
    bench.uninstall()
