"""The doctor's checks of files and processes, on a machine made of files: what is on it, and the first finding."""

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import pytest

from runtimeproxy.cli.doctor import clients, hookservers, proxy, runtime
from runtimeproxy.cli.doctor.findings import Finding
from runtimeproxy.cli.doctor.machine import Machine, UnixSocket
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
