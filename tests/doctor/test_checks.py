"""The doctor's checks, and who uses the proxy, on a machine made of files, and reading this one."""

import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runtimeproxy.cli.doctor import clients, hookservers, machine, proxy, runtime
from runtimeproxy.cli.doctor.findings import Finding
from runtimeproxy.cli.doctor.machine import Machine, Process, UnixSocket, is_denied, reported_sockets, sockets_at
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.options import CRIO_SOCKET
from tests.doctor.conftest import CANARY, KERNEL, Made, only, verdicts
from tests.fakes import registration

Make = Callable[[Made], object]
Check = Callable[[Machine], Iterable[Finding]]
Case = tuple[Check, Make, str, str]
"""A check, what is on the machine, the verdict, and words of the reason in which {ours} and {runtime} are sockets."""
FILE, DROP_INS = "/var/lib/kubelet/config.yaml", "/etc/kubelet.d"


def all_of(*makes: Make) -> Make:
    return lambda made: [make(made) for make in makes]


nothing = all_of()


def flag(name: str, value: str) -> Make:
    return lambda made: made.flags.update({name: value})


DOCKER = flag("backend-runtime-mode", "Docker")


def file(place: str, text: str) -> Make:
    return lambda made: made.write(place, text.format(ours=made.ours, runtime=made.runtime))


def bind(made: Made, mode: int = 0o600) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(made.ours))
    made.ours.chmod(mode)


def listen(made: Made, mode: int = 0o600) -> None:
    bind(made, mode)
    made.socket(1, made.ours, listening=True)


AS_A_LINK = all_of(lambda made: made.ours.parent.rmdir(), lambda made: made.ours.parent.symlink_to(made.root))
LOCK_OF_ANOTHER = all_of(Made.proxy, lambda made: made.process(71, "other"), lambda made: made.lock(71))
SYSTEMD = all_of(Made.proxy, file("run/systemd/system/x", ""))
SCOPE = "0::/user.slice/user-0.slice/session-1.scope\n"
FULL = all_of(Made.proxy, file("proc/sys/fs/file-nr", "90\t0\t100\n"))
V1 = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0"
BOTH = "cgroup /c/cpu cgroup rw 0 0\ncgroup2 /c/unified cgroup2 rw 0 0"


def kubelet(*arguments: str) -> Make:
    command = ("/usr/bin/kubelet", f"--node-labels=x={CANARY}", *arguments)
    return lambda made: made.process(40, *(word.format(ours=made.ours, runtime=made.runtime) for word in command))


def endpoint(name: str, of: str = "{ours}") -> Make:
    return file(f"proc/40/{name}", f"kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix://{of}\n")


BY_FILE, BY_FLAG = f"--config={FILE}", "--container-runtime-endpoint=unix://{ours}"
DROP_IN = all_of(
    kubelet(BY_FILE, f"--config-dir={DROP_INS}"),
    endpoint(f"root{FILE}", "{runtime}"),
    *(endpoint(f"root{DROP_INS}/1{number}-a.conf", "/other.sock") for number in range(10)),
    endpoint(f"root{DROP_INS}/20-b.conf"),
    *(endpoint(f"root{DROP_INS}/3{number}-c.yaml", "/other.sock") for number in range(10)),
    file(f"proc/40/root{DROP_INS}/40-d.conf", "maxPods: 7\n"),
)
CALLS, IN_FILE = "kubelet (pid 40) calls {ours}, by ", "containerRuntimeEndpoint in "
OWN_SHIM = kubelet("--docker-endpoint=unix://{ours}", "--container-runtime-endpoint=unix:///else.sock")
PAST = all_of(DOCKER, lambda made: made.process(41, "cri-dockerd", f"--docker-endpoint=unix://{made.runtime}"))
BOTH_WAYS = all_of(kubelet(BY_FLAG, BY_FILE), endpoint(f"root{FILE}", "{runtime}"))


def registered(*contents: str, names: Sequence[str] = ("a", "b")) -> Make:
    return lambda made: [made.register(f"{name}.json", text) for name, text in zip(names, contents, strict=False)]


NRI = clients.NRI_SOCKET.replace("/var/run", "/run")
PEERS = [UnixSocket(1201, False, True, NRI, 201), UnixSocket(201, False, True, "", 1201)]


def at_nri(name: str, endpoint: str, end: int, peers: int = 1) -> Make:
    """Make a koordlet with a connection to the NRI socket, and a registration of an endpoint."""
    koordlet, listed = registered(registration.text(endpoint), names=[name]), [PEERS] * peers
    return all_of(koordlet, lambda m: m.process(50, "/koordlet", sockets=[end]), lambda m: m.kernel.extend(listed))


UNKNOWN, VALID = (registration.text("/run/x.sock", [name]) for name in ("PreNothing", "PreCreateContainer"))
TEXT = registration.text("/run/x.sock")
OPEN = all_of(registered(TEXT), lambda made: made.registrations.chmod(0o777))
TWICE = "a.json and b.json name the same socket, which is called once, by a.json, at PreCreateContainer"
SKIP = all_of(flag("runtime-hook-server-key", "team/skip"), flag("runtime-hook-server-val", "yes"))
CASES: list[Case] = [
    (proxy.socket_file, nothing, "failed", "{ours} is not there: no proxy listens"),
    (proxy.socket_file, lambda made: made.ours.touch(), "failed", "{ours} is not a socket"),
    (proxy.socket_file, bind, "failed", "{ours} is there and nobody listens on it"),
    (proxy.socket_file, listen, "ok", "{ours} listens, mode 0600"),
    (proxy.socket_file, lambda made: listen(made, 0o660), "warning", "has mode 0660, wider than --socket-mode 0600"),
    (proxy.socket_file, all_of(lambda made: listen(made, 0o660), flag("socket-mode", "0660")), "ok", "mode 0660"),
    (proxy.socket_file, all_of(listen, flag("socket-mode", "0660")), "ok", "mode 0600"),
    (proxy.directory, nothing, "ok", "can be written by no other user"),
    (proxy.directory, lambda made: made.ours.parent.chmod(0o777), "failed", "can be written by everybody, who could"),
    (proxy.directory, lambda made: made.ours.parent.rmdir(), "failed", "is not there"),
    (proxy.directory, AS_A_LINK, "failed", "is a link or no directory"),
    (proxy.lock, nothing, "ok", "{ours}.lock is not there: no proxy ran here, or systemd made the socket"),
    (proxy.lock, lambda made: os.mkdir(f"{made.ours}.lock"), "failed", "{ours}.lock is not a regular file"),
    (proxy.lock, all_of(lambda made: made.lock(70), file("proc/locks", "")), "ok", "nobody holds {ours}.lock"),
    (proxy.lock, lambda made: made.lock(70), "warning", "pid 70 holds {ours}.lock and does not listen"),
    (proxy.lock, Made.proxy, "ok", "pid 70, which listens, holds {ours}.lock"),
    (proxy.lock, LOCK_OF_ANOTHER, "failed", "pid 71 holds {ours}.lock and another process listens on the socket"),
    (proxy.file_limits, nothing, "unknown", "no proxy runs"),
    (proxy.file_limits, Made.proxy, "ok", "the proxy (pid 70) has 1 of 65536 files open"),
    (proxy.file_limits, lambda made: made.proxy(limit="unlimited"), "ok", "has 1 files open, without a limit"),
    (proxy.file_limits, lambda made: made.proxy(limit="1024"), "warning", "may open 1024 files only"),
    (proxy.file_limits, lambda made: made.proxy(limit="5", ends=range(4)), "failed", "has 5 of 5 files open"),
    (proxy.file_limits, FULL, "warning", "90 of the machine's 100 files"),
    (proxy.unit, Made.proxy, "skipped", "systemd does not run here"),
    (proxy.unit, file("run/systemd/system/x", ""), "unknown", "no proxy runs"),
    (proxy.unit, all_of(SYSTEMD, file("proc/70/cgroup", SCOPE)), "warning", "(pid 70) runs in no systemd service"),
    (proxy.versions, nothing, "ok", f"kernel {KERNEL}"),
    (proxy.versions, file("proc/sys/kernel/osrelease", "4.18.0"), "warning", "4.18.0"),
    (proxy.versions, file("proc/sys/kernel/osrelease", "odd"), "ok", "kernel odd"),
    (runtime.cgroup, nothing, "ok", "cgroup v2"),
    (runtime.cgroup, file("proc/mounts", V1), "ok", "cgroup v1"),
    (runtime.cgroup, file("proc/mounts", BOTH), "ok", "cgroup v1 with a v2 tree next to it"),
    (runtime.cgroup, file("proc/mounts", "proc /proc proc rw 0 0"), "unknown", "no cgroup tree is mounted here"),
    (clients.kubelet, kubelet(BY_FLAG), "ok", f"{CALLS}--container-runtime-endpoint"),
    (clients.kubelet, all_of(kubelet(BY_FILE), endpoint(f"root{FILE}")), "ok", f"{CALLS}{IN_FILE}{FILE}"),
    (clients.kubelet, BOTH_WAYS, "ok", f"{CALLS}--container-runtime-endpoint"),
    (clients.kubelet, DROP_IN, "ok", f"{CALLS}{IN_FILE}{DROP_INS}/20-b.conf"),
    (clients.kubelet, all_of(kubelet("--config=k.yaml"), endpoint("cwd/k.yaml")), "ok", f"{CALLS}{IN_FILE}k.yaml"),
    (clients.kubelet, nothing, "unknown", "no process named kubelet is seen here"),
    (clients.kubelet, kubelet(), "failed", "has no endpoint configured and uses its default, not the proxy"),
    (clients.kubelet, kubelet("--container-runtime-endpoint={runtime}"), "failed", "runtime itself, past the proxy"),
    (clients.kubelet, kubelet("--container-runtime-endpoint=unix:///x.sock"), "failed", "that is no proxy"),
    (clients.kubelet, kubelet("--container-runtime-endpoint=tcp:x"), "failed", "'tcp:x' is not a unix socket"),
    (clients.kubelet, all_of(DOCKER, OWN_SHIM), "ok", ""),
    (clients.kubelet, PAST, "skipped", ""),
    (clients.cri_dockerd, PAST, "failed", "past the proxy"),
    (clients.cri_dockerd, DOCKER, "ok", "no cri-dockerd runs here"),
    (clients.cri_dockerd, nothing, "skipped", "cri-dockerd belongs to Docker mode"),
    (clients.nri, at_nri("koordlet", "/run/x.sock", 201), "warning", ""),
    (clients.nri, at_nri("a", "/run/koordlet/koordlet.sock", 201), "warning", ""),
    (clients.nri, at_nri("koordlet", "/run/x.sock", 202), "ok", ""),
    (clients.nri, at_nri("a", "/run/x.sock", 201), "ok", ""),
    (clients.nri, at_nri("koordlet", "/run/x.sock", 201, 0), "unknown", ""),
    (hookservers.registrations, nothing, "ok", ""),
    (hookservers.hook_servers, nothing, "ok", "no hook server is registered"),
    (hookservers.registrations, registered(TEXT), "ok", "hookserver.d has 1 registration file"),
    (hookservers.registrations, registered("{"), "failed", "a.json: not JSON (yet?)"),
    (hookservers.registrations, registered('{"runtime-hooks": []}'), "failed", "a.json: remote-endpoint is missing"),
    (hookservers.registrations, registered(UNKNOWN), "warning", "unknown hook points are ignored: 'PreNothing'"),
    (hookservers.registrations, registered(VALID, VALID), "warning", TWICE),
    (hookservers.registrations, OPEN, "failed", "can be written by everybody"),
    (hookservers.skip_label, SKIP, "ok", "pods with the label team/skip=yes are never handed"),
]


@pytest.mark.parametrize(("check", "make", "verdict", "words"), CASES)
def test_check_reports_finding(made: Made, check: Check, make: Make, verdict: str, words: str) -> None:
    make(made)
    results = verdicts(check(made.machine))
    assert results[0][0] == verdict
    assert words.format(ours=made.ours, runtime=made.runtime) in results[0][1]
    assert CANARY not in str(results)


@pytest.mark.engine
def test_socket_of_other_user_is_reported(made: Made) -> None:
    listen(made)
    os.chown(made.ours, 12345, -1)
    assert only(proxy.socket_file, made) == ("failed", f"{made.ours} belongs to user 12345")


@pytest.mark.parametrize("name", ["proxy.sock", "crio.sock", "run/crio/crio.sock"])
def test_kubelet_at_crio_must_call_crio_named_socket(made: Made, name: str) -> None:
    made.runtime = made.runtime.parent / CRIO_SOCKET
    called = made.ours.with_name("named") / name
    called.parent.mkdir(parents=True)
    called.symlink_to(made.ours)
    kubelet(f"--container-runtime-endpoint=unix://{called}")(made)
    (finding,) = clients.kubelet(made.machine)
    assert finding.verdict.value == ("ok" if "/" in name else "warning")
    assert (f"unix://{made.ours.parent}/run/crio/crio.sock" in finding.do) is ("/" not in name)


def test_advice_names_flag(made: Made) -> None:
    all_of(kubelet(BY_FILE), file(f"proc/40/root{FILE}", "maxPods: 7\n"))(made)
    at_nri("koordlet", "/run/x.sock", 201)(made)
    (at_kubelet,), (at_koordlet,) = clients.kubelet(made.machine), clients.nri(made.machine)
    assert at_kubelet.do.startswith(f"set --container-runtime-endpoint=unix://{made.ours} and restart kubelet")
    assert "-enable-nri-runtime-hook=false" in at_koordlet.do
    file(f"proc/40/root{FILE}", f"a: [{CANARY}\n")(made)
    with pytest.raises(ConfigError, match="not YAML that can be read") as raised:
        list(clients.kubelet(made.machine))
    assert CANARY not in str(raised.value)


GOOD = {"NeedDaemonReload": "no", "Type": "notify", "Restart": "always", "WatchdogUSec": "30s"}
GOOD["OOMScoreAdjust"] = "-999"
BAD = {"NeedDaemonReload": "yes", "Type": "simple", "Restart": "no", "WatchdogUSec": "0", "OOMScoreAdjust": "0"}
CGROUPS = ["0::/user.slice/user@0.service/app.slice/rp.service\n"]
CGROUPS += ["2:cpu:/\n1:name=systemd:/system.slice/rp.service\n0::/\n"]


def test_unit_is_judged_by_effective_settings(made: Made) -> None:
    SYSTEMD(made)
    for cgroup, (key, value) in product(CGROUPS, [*BAD.items(), ("", "")]):
        made.write("proc/70/cgroup", cgroup)
        made.unit = "".join(f"{name}={value if name == key else good}\n" for name, good in GOOD.items())
        verdict, why = only(proxy.unit, made)
        assert (verdict, why) == ("warning", f"rp.service has {key}={value}") if key else verdict == "ok"
        assert made.units.pop() == ["show", f"--property={','.join(GOOD)}", "--", "rp.service"]


def test_unreadable_registration_does_not_hide_next_one(made: Made) -> None:
    made.register("b.json", "{")
    (made.registrations / "a.json").mkdir()
    results = verdicts(hookservers.registrations(made.machine))
    assert [why.partition(":")[0] for _, why in results] == ["a.json", "b.json"]


END_AT_PROXY = 900


def kernel(made: Made, *ends: int) -> list[UnixSocket]:
    """Return what the kernel lists if these are the clients' ends of the runtime's connections."""
    return made.connections(made.runtime, *ends, more=made.connections(made.ours, END_AT_PROXY)[1:])


def test_each_connected_process_yields_one_finding(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not be read is only counted; a connection that ends meanwhile is not reported."""
    made.kernel = [kernel(made, 201, 202, 203, 204, 205), kernel(made, 201, 202, 203, 204)]
    made.proxy(ends=[201, 202])
    made.process(50, "/usr/bin/crictl", "ps", CANARY, sockets=[203, 9])
    made.process(51, "other", sockets=[204])
    made.process(52, "idle", sockets=[9], network="pod")

    def open_sockets(machine: Machine, pid: int, opened: Any = Machine.open_sockets) -> Any:
        if pid == 51:
            raise PermissionError
        return opened(machine, pid)

    monkeypatch.setattr(Machine, "open_sockets", open_sockets)
    assert sorted(verdicts(clients.bypassing_clients(made.machine))) == [
        ("ok", f"the proxy (pid 70) has 2 connections to {made.runtime}"),
        ("unknown", f"1 connection to {made.runtime} of processes that cannot be seen here"),
        ("warning", f"crictl (pid 50) has 1 connection to {made.runtime}, past the proxy"),
    ]
    assert made.namespaces == [{"../../namespaces/n", "../../namespaces/pod"}] * 2
    made.kernel = [kernel(made)]
    assert only(clients.bypassing_clients, made) == ("ok", f"nobody is connected to {made.runtime}")


def test_client_is_judged_by_name_and_connections(tmp_path: Path) -> None:
    judged = [
        ("kubelet", [201], "failed", ", and none to the proxy", "the check kubelet"),
        ("kubelet", [201, END_AT_PROXY], "ok", ": cAdvisor inside it reads there", ""),
        ("cri-dockerd", [201, END_AT_PROXY], "warning", ", past the proxy", "the proxy's socket"),
        ("crictl", [201, END_AT_PROXY], "warning", ", past the proxy", "/etc/crictl.yaml"),
        ("docker", [201], "warning", ", past the proxy", "DOCKER_HOST"),
        ("unheard-of", [201], "warning", ", past the proxy", "others may stay"),
        *((name, [201], "ok", f": {why}", "") for name, why in clients.EXPECTED_CLIENTS.items() if name != "kubelet"),
    ]
    for at, (name, sockets, verdict, words, to_do) in enumerate(judged):
        (tmp_path / str(at)).mkdir()
        made = Made(tmp_path / str(at))
        made.kernel = [kernel(made, 201)]
        made.process(50, f"/usr/bin/{name}", sockets=sockets)
        (finding,) = clients.bypassing_clients(made.machine)
        why = f"{name} (pid 50) has 1 connection to {made.runtime}{words}"
        assert (finding.verdict.value, finding.why, to_do in finding.do) == (verdict, why, True)


@pytest.mark.parametrize("own", [1, 3])
def test_connections_above_proxy_count_name_suspects(made: Made, own: int) -> None:
    why = f"{made.runtime} has {{}} connections, no more than the proxy's own"
    assert only(clients.bypassing_clients, made) == ("ok", why.format(0))
    made.socket(100, made.runtime, listening=True)
    for inode in (101, 102, 103):
        made.socket(inode, made.runtime)
    assert only(clients.bypassing_clients, made)[1].endswith("(may be: no known client is seen)")
    made.proxy(ends=range(201, 201 + own))
    for inode in (301, 302):
        made.socket(inode)
    made.process(50, "/usr/bin/kubelet", "--x", CANARY, sockets=[301])
    made.process(51, "crictl")
    made.process(52, "unheard-of", sockets=[302])
    suspects = f"2 or more of 3 connections to {made.runtime} go past the proxy (may be: kubelet pid 50)"
    found = only(clients.bypassing_clients, made)
    assert found == (("ok", why.format(3)) if own == 3 else ("warning", suspects))


def users(made: Made) -> list[str]:
    return list(clients.users(made.machine))


ENDPOINT = "--container-runtime-endpoint"
CONFIGURED = [
    ("kubelet", f"{ENDPOINT}=unix://{{}}", ENDPOINT),
    ("kubelet", "--image-service-endpoint={}", "--image-service-endpoint"),
    ("cri-dockerd", "--docker-endpoint=unix:{}", "--docker-endpoint"),
    ("kubelet", "--config=/k.yaml", "containerRuntimeEndpoint in /k.yaml"),
    ("kubelet", f"{ENDPOINT}=unix:///other.sock", ""),
]


def test_in_use_lists_connected_and_configured_programs(made: Made) -> None:
    made.kernel = [made.connections(made.ours, 900)]
    assert users(made) == [f"1 connection to {made.ours} of processes that cannot be seen here"]
    made.kernel = [made.connections(made.ours, 900), made.connections(made.ours)]
    assert (users(made), made.units) == ([], []), "without systemd no unit is queried"
    made.kernel = [made.connections(made.ours, 900, 901)]
    made.proxy(ends=[1900, 1901])
    made.process(40, "/usr/bin/k3s", CANARY, sockets=[900, 901, 5])
    assert users(made) == [f"k3s (pid 40) has 2 connections to {made.ours}"]
    made.kernel = []
    made.socket(1902, made.ours)
    assert users(made) == [f"1 connection to {made.ours}; the kernel does not report whose"]
    made.kernel = [made.connections(made.ours)]
    for pid, (name, flag, _) in enumerate(CONFIGURED):
        made.process(pid, f"/usr/bin/{name}", flag.format(made.ours), CANARY)
        made.write(f"proc/{pid}/root/k.yaml", f"containerRuntimeEndpoint: unix://{made.ours}\n")
    listed = [(pid, name, by) for pid, (name, _, by) in enumerate(CONFIGURED) if by]
    assert sorted(users(made)) == sorted(f"{n} (pid {pid}) is configured to call it, by {by}" for pid, n, by in listed)


ENVIRONMENT = f'Environment="KUBELET_EXTRA_ARGS=--x={CANARY} {ENDPOINT}=unix://{{ours}}" A=b\n'
ENV_FILES = "EnvironmentFiles=/not/there (ignore_errors=yes)\nEnvironmentFiles=/var/flags.env (ignore_errors=yes)\n"
UNITS = [
    (f"ExecStart={{{{ path=/k ; argv[]=/k {ENDPOINT}=unix://{{ours}} ; ignore_errors=no }}}}\n", ""),
    (ENVIRONMENT, ""),
    (ENV_FILES, " by /var/flags.env"),
    ("Environment=KUBELET_CONFIG_ARGS=--config=/var/config.yaml\n", " by /var/config.yaml"),
    (f"ExecStart={{{{ argv[]=/k {ENDPOINT}=unix:///run/containerd/containerd.sock }}}}\n", None),
]


def test_in_use_lists_stopped_unit(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.kernel = [made.connections(made.ours)]
    made.write("run/systemd/system/x", "")
    made.write("var/flags.env", f'KUBELET_KUBEADM_ARGS="{ENDPOINT}=unix://{made.ours}"\n')
    made.write("var/config.yaml", f'containerRuntimeEndpoint: "unix://{made.ours}"\n')
    for unit, origin in UNITS:
        made.unit = unit.format(ours=made.ours)
        listed = [] if origin is None else [f"{name}{origin} is configured to call it" for name in clients.UNITS]
        assert users(made) == listed
    assert [arguments[-1] for arguments in made.units] == [*clients.UNITS] * len(UNITS)
    monkeypatch.setattr(Made, "_systemctl", Mock(side_effect=OSError(0, "systemctl show does not answer")))
    with pytest.raises(OSError, match="does not answer"):
        users(made)


NOBODY = 65534
FLAGS = [("--x=a", "a"), ("--x a", "a"), ("--x=a --x=b", "b"), ("--xy=a", None), ("--x", None), ("--x=", "")]


def test_processes_and_proxy_are_found(made: Made, tmp_path: Path) -> None:
    """A flag is read in both spellings."""
    assert [Process(1, ("kubelet", *text.split())).flag("x") for text, _ in FLAGS] == [value for _, value in FLAGS]
    made.process(5, "/usr/bin/kubelet", "--x")
    made.process(6, "kubelet-helper")
    made.process(7)
    (made.root / "proc/8").mkdir()
    assert [process.pid for process in made.machine.processes("kubelet")] == [5]
    assert sorted(process.pid for process in made.machine.processes()) == [5, 6]
    assert made.machine.open_sockets(4711) == frozenset(), "a process that has ended has none"
    (tmp_path / "var").symlink_to(made.ours.parent)
    made.socket(9, tmp_path / "var" / made.ours.name, listening=True)
    assert made.machine.listeners(str(made.ours)) == {9}
    made.process(1, "/sbin/init", sockets=[9])
    made.process(30, "other", sockets=[8])
    assert made.machine.proxy() is None
    made.process(31, "python3", sockets=[9])
    assert made.machine.proxy() == 31
    made.write("proc/net/unix", made.root.joinpath("proc/net/unix").read_text().replace(" 0001 ", " 0002 "))
    assert made.machine.sockets() == ()


def test_real_machine_lists_own_sockets_and_lock(made: Made) -> None:
    this = Machine(made.machine.config)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(made.ours))
        listener.listen()
        client.connect(str(made.ours))
        assert len(this.listeners(str(made.ours))) == 1
        assert this.listeners(str(made.ours)) < this.open_sockets(os.getpid())
        accepted, _ = listener.accept()
        with accepted:
            assert [found.connected for found in sockets_at(str(made.ours), this.sockets())].count(True) == 1
    with open(f"{made.ours}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert this.lock_holder() == os.getpid()


@pytest.mark.engine
def test_socket_is_denied_when_user_has_no_rights(made: Made) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(made.ours))
        made.ours.chmod(0o600)
    places = [str(made.ours), f"{made.ours}.absent", "/run/absent"]
    assert [is_denied(place) for place in places] == [False, False, False]
    try:
        os.seteuid(NOBODY)
        assert [is_denied(place) for place in places] == [True, True, False]
    finally:
        os.seteuid(0)


HERE = Path("/proc/self/ns/net")
ERROR, DONE = 2, 3


@pytest.mark.engine
def test_clients_in_other_network_namespace_are_reported(tmp_path: Path) -> None:
    path = str(tmp_path / "runtime.sock")
    code = "import os, socket, sys; s = socket.socket(1); s.connect(sys.argv[1]); print(os.fstat(s.fileno()).st_ino)"
    command = ["unshare", "--net", sys.executable, "-uc", f"{code}; input()", path]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            number = int(client.stdout.readline())
            accepted, _ = listener.accept()  # the kernel omits connections that were not accepted
            with accepted:
                assert all(found.peer != number for found in reported_sockets([HERE]))
                namespaces = [Path("/proc/absent/ns/net"), Path(f"/proc/{client.pid}/ns/net")]
                (found,) = sockets_at(path, reported_sockets(namespaces))
                assert (found.inode, found.peer) == (os.fstat(accepted.fileno()).st_ino, number)
            client.communicate(b"\n")


def answers(monkeypatch: pytest.MonkeyPatch, *datagrams: bytes) -> Iterator[UnixSocket]:
    """Return the sockets that are read from these answers of the kernel."""
    kernel, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for datagram in datagrams:
        kernel.send(datagram)
    monkeypatch.setattr(machine, "_open_netlink", lambda namespace: client)
    with kernel:
        yield from reported_sockets([HERE])


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def answer(number: int, path: bytes, peer: int, kind: int = socket.SOCK_STREAM) -> bytes:
    """Return one socket's answer; its path is padded to four bytes, as the kernel does."""
    name = struct.pack("=HH", 4 + len(path), 0) + path + bytes(-len(path) % 4)
    return message(20, struct.pack("=BBBBIII", 1, kind, 1, 0, number, 0, 0) + name + struct.pack("=HHI", 8, 2, peer))


def test_answers_of_kernel_and_systemctl_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = answer(6, b"/b.sock\0", 2, kind=socket.SOCK_DGRAM) + answer(7, b"\0abstract", 3)
    sockets = answers(monkeypatch, answer(5, b"/a.sock\0", 1) + shared, message(DONE, bytes(4)))
    assert [(end.inode, end.path, end.peer) for end in sockets] == [(5, "/a.sock", 1), (7, "@abstract", 3)]
    for kind in (ERROR, DONE):
        with pytest.raises(FileNotFoundError, match="No such file"):
            list(answers(monkeypatch, answer(5, b"", 1), message(kind, struct.pack("=i", -errno.ENOENT))))
    (tmp_path / "systemctl").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="systemctl show does not answer"):
        machine.systemctl(["show"])
