"""The doctor's check of who is connected to the runtime past the proxy, on a machine made of files."""

import pytest

from runtimeproxy.cli.doctor import clients
from runtimeproxy.cli.doctor.machine import Machine, UnixSocket
from tests.doctor.made import Made
from tests.doctor.test_ours import only, told
from tests.fakes import registration

CANARY = "canary-4711"
PROXY, OTHER = 70, 50
LISTENER, END_AT_PROXY = 700, 900


def kernel(made: Made, *ends: int) -> list[UnixSocket]:
    """Return what the kernel tells where these are the clients' ends of the runtime's connections."""
    runtime, ours = str(made.runtime), str(made.ours)
    accepted = [UnixSocket(1000 + end, False, True, runtime, end) for end in ends]
    at_proxy = [UnixSocket(1000 + END_AT_PROXY, False, True, ours, END_AT_PROXY)]
    clients = [UnixSocket(end, False, True, "", 1000 + end) for end in (*ends, END_AT_PROXY)]
    return [UnixSocket(1, True, False, runtime), *accepted, *at_proxy, *clients]


def test_proxy_and_known_clients_are_told_apart(made: Made) -> None:
    made.kernel = [kernel(made, 201, 202, 203)]
    made.proxy(ends=[201, 202])
    made.process(OTHER, "/usr/bin/crictl", "ps", CANARY, sockets=[203, 9])
    made.process(51, "idle", sockets=[9])
    assert sorted(told(clients.past_the_proxy(made.machine))) == [
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
    ("unheard-of", [201], "warning", ", past the proxy", "who only reads may stay"),
    *((name, [201], "ok", f": {why}", "") for name, why in clients.WELL.items() if name != "kubelet"),
]


@pytest.mark.parametrize(("name", "sockets", "verdict", "words", "to_do"), CLIENTS)
def test_client_is_judged_by_its_name_and_its_other_connections(
    made: Made, name: str, sockets: list[int], verdict: str, words: str, to_do: str
) -> None:
    made.kernel = [kernel(made, 201)]
    made.process(OTHER, f"/usr/bin/{name}", sockets=sockets)
    (finding,) = clients.past_the_proxy(made.machine)
    said = f"{name} (pid 50) has 1 connection to {made.runtime}{words}"
    assert (finding.verdict.value, finding.why) == (verdict, said)
    assert to_do in finding.do


def test_nobody_at_the_runtime_is_ok(made: Made) -> None:
    made.kernel = [kernel(made)]
    assert only(clients.past_the_proxy, made) == ("ok", f"nobody is connected to {made.runtime}")


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
    _, (verdict, why) = sorted(told(clients.past_the_proxy(made.machine)))
    assert (verdict, why) == ("unknown", f"1 connection to {made.runtime} of processes that cannot be seen here")


def test_connection_that_ends_meanwhile_is_not_told(made: Made) -> None:
    made.kernel = [kernel(made, 201, 202), kernel(made, 201)]
    made.process(OTHER, "kubelet", sockets=[201, END_AT_PROXY])
    assert only(clients.past_the_proxy, made)[0] == "ok"


def test_each_network_namespace_is_asked_once(made: Made) -> None:
    made.kernel = [kernel(made)]
    for pid, network in ((1, "node"), (2, "node"), (3, "pod")):
        made.process(pid, "x", network=network)
    assert only(clients.past_the_proxy, made)[0] == "ok"
    assert made.namespaces == [{"../../namespaces/node", "../../namespaces/pod"}]


def connected(made: Made, count: int) -> None:
    made.socket(100, made.runtime, listening=True)
    for number in range(count):
        made.socket(101 + number, made.runtime)


def test_connections_that_the_proxy_can_have_are_ok(made: Made) -> None:
    connected(made, 3)
    made.proxy(ends=[201, 202, 203])
    why = f"{made.runtime} has 3 connections, no more than the proxy's own"
    assert only(clients.past_the_proxy, made) == ("ok", why)


def test_no_connection_is_ok_without_a_proxy(made: Made) -> None:
    why = f"{made.runtime} has 0 connections, no more than the proxy's own"
    assert only(clients.past_the_proxy, made) == ("ok", why)


def test_connections_beyond_the_proxy_are_told_with_suspects(made: Made) -> None:
    connected(made, 3)
    made.proxy(ends=[201])
    for inode in (301, 302):
        made.socket(inode)
    made.process(50, "/usr/bin/kubelet", "--x", CANARY, sockets=[301])
    made.process(51, "crictl")
    made.process(52, "unheard-of", sockets=[302])
    why = f"2 or more of 3 connections to {made.runtime} go past the proxy (may be: kubelet pid 50)"
    assert told(clients.past_the_proxy(made.machine)) == [("warning", why)]


def test_without_a_proxy_all_connections_go_past_it(made: Made) -> None:
    connected(made, 1)
    verdict, why = only(clients.past_the_proxy, made)
    assert (verdict, why.startswith("1 or more of 1 connection to")) == ("warning", True)
    assert why.endswith("(may be: no known client is seen)")


def at_nri(made: Made, name: str, endpoint: str, end: int) -> None:
    """Make a koordlet with a connection to the NRI socket, and a registration of an endpoint."""
    nri = clients.NRI_SOCKET.replace("/var/run", "/run")
    made.kernel = [[UnixSocket(1201, False, True, nri, 201), UnixSocket(201, False, True, "", 1201)]]
    made.process(OTHER, "/koordlet", sockets=[end])
    made.registrations.mkdir(mode=0o755)
    registration.write(made.registrations, name, registration.text(endpoint))


NRI = [
    ("koordlet.json", "/run/x.sock", 201, "warning"),
    ("a.json", "/run/koordlet/koordlet.sock", 201, "warning"),
    ("koordlet.json", "/run/x.sock", 202, "ok"),
    ("a.json", "/run/x.sock", 201, "ok"),
]


@pytest.mark.parametrize(("name", "endpoint", "end", "verdict"), NRI)
def test_registered_koordlet_at_nri_is_a_warning(made: Made, name: str, endpoint: str, end: int, verdict: str) -> None:
    at_nri(made, name, endpoint, end)
    (finding,) = clients.nri(made.machine)
    assert finding.verdict.value == verdict
    assert ("-enable-nri-runtime-hook=false" in finding.do) is (verdict == "warning")


def test_koordlet_at_nri_is_unknown_without_peers(made: Made) -> None:
    at_nri(made, "koordlet.json", "/run/x.sock", 201)
    made.kernel = []
    assert only(clients.nri, made)[0] == "unknown"
