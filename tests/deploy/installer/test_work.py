"""The work on a node: it succeeds, or restores the previous state and reports the error."""

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any
from unittest.mock import Mock

import pytest

from runtimeproxy_installer import journal, tree
from runtimeproxy_installer.errors import Failed, Refused, RolledBack
from runtimeproxy_installer.kubelet import HEAD, Kubelet, healthz, reported_by
from runtimeproxy_installer.node import File, Node
from runtimeproxy_installer.work import CONFIG, CONFIG_HEAD
from tests.deploy.installer import fakes
from tests.deploy.installer.fakes import DROP_IN, INSTALLED, SERVICE, SOCKET, Bench, Killed, serving

Make = Callable[[str], Bench]
Change = Callable[[Bench], object]


def units(bench: Bench) -> list[str]:
    folder = bench.path(tree.UNITS)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_install_leaves_kubelet_unchanged_by_default(bench: Bench) -> None:
    assert bench.install() == "0.2.0"
    assert bench.active_units == {"kubelet.service", *fakes.STARTED}
    assert f"\nExecStart={bench.home}/bin/koord-runtime-proxy\n" in (bench.text(f"{tree.UNITS}/{SERVICE}") or "")
    assert units(bench) == INSTALLED
    assert not [text for text in bench.state()["files"].values() if "/usr/bin/" in text]
    assert bench.entry(tree.COMMAND).readlink() == Path(f"{bench.home}/bin/runtimeproxy")
    assert "runtimeproxy-metrics:x:965:" in (bench.text("/etc/group") or "")
    assert bench.path("/etc/runtime/hookserver.d").stat().st_mode & 0o777 == 0o755
    assert (bench.restarts, bench.text(DROP_IN), bench.text(journal.JOURNAL_PATH)) == (0, None, None)


@pytest.mark.parametrize("ready", [True, False])
def test_install_points_kubelet_at_proxy_once(ready: bool, bench: Bench) -> None:
    bench.reported, bench.ready = Kubelet("v1.31.2", "Containerd", ready=ready), lambda: ready
    bench.install(configure_kubelet=True)
    usual = "/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS"
    command = f"{usual} $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS --container-runtime-endpoint={SOCKET}"
    assert bench.text(DROP_IN) == f"{HEAD}[Service]\nExecStart=\nExecStart={command}\n"
    assert (bench.restarts, bench.kubelet, bench.timers) == (1, command, [])
    assert bench.now >= 60
    restarts = [words for words in bench.commands if "restart" in words.split()[1]]
    expected = [f"restart {SERVICE}", f"try-restart {tree.EXPORTER}", "restart kubelet.service"]
    assert restarts == [f"systemctl {words}" for words in expected]
    before, bench.places, bench.commands = bench.state(), [], []
    assert bench.install(configure_kubelet=True) == "0.2.0"  # the same again changes nothing, and needs no place
    assert (bench.state(), bench.places) == (before, [])
    assert not [words for words in bench.commands if words.split()[1] in ("restart", "start", "enable")]


@pytest.mark.parametrize(
    ("content", "command"),
    [
        ("ExecStart=/usr/bin/kubelet --a", "/usr/bin/kubelet --a"),
        ("ExecStart=/usr/bin/kubelet \\\n    --a \\\n    --b", "/usr/bin/kubelet --a --b"),
        ("  ExecStart = -/opt/kubelet $ARGS  ", "-/opt/kubelet $ARGS"),
        ("ExecStart=/a\n\n# /etc/systemd/system/kubelet.service.d/a.conf\nExecStart=\nExecStart=/b", "/b"),
        ("ExecStart=/a\nExecStart=/b", ""),
        ("Type=oneshot", ""),
    ],
)
def test_drop_in_preserves_command_of_unit(content: str, command: str, bench: Bench) -> None:
    bench.kubelet_files = f"# /lib/systemd/system/kubelet.service\n[Service]\n{content}\n"
    if command:
        bench.install(configure_kubelet=True)
        assert f"\nExecStart={command} --container-runtime-endpoint={SOCKET}\n" in (bench.text(DROP_IN) or "")
        bench.install(configure_kubelet=True)  # the command excludes its own drop-in
        assert (bench.text(DROP_IN) or "").count(SOCKET) == 1
    else:
        with pytest.raises(Refused, match="commands: point it at the proxy by hand"):
            bench.install(configure_kubelet=True)
        assert bench.state()["files"] == {}


def test_upgrade_keeps_previous_tree_and_foreign_units(bench: Bench) -> None:
    old = ("runtimeproxy-old.service", "runtimeproxy-old.service.d/50-rights.conf")
    bench.release("0.2.0", **dict.fromkeys(old, "[Service]\n"))
    bench.install()
    folders = ["runtimeproxy-hooks@all.service.d", "runtimeproxy.service.d"]
    foreign = [f"{folder}/override.conf" for folder in folders]
    for name in foreign:
        bench.write(f"{tree.UNITS}/{name}", "[Service]\nLogLevelMax=info\n")
    for version in ("0.3.0", "0.10.0"):
        bench.release(version)
        assert bench.install() == version
    assert units(bench) == sorted([*INSTALLED, *foreign])
    assert [name.partition("-")[0] for name in bench.state()["trees"]] == ["0.10.0", "0.3.0"]
    before = bench.state()
    bench.release("0.9.0")
    with pytest.raises(Refused, match=r"the node has 0\.10\.0, newer than 0\.9\.0"):
        bench.install()
    assert bench.state() == before
    assert bench.install(allow_downgrade=True) == tree.running(bench)[1] == "0.9.0"
    bench.uninstall()
    left = sorted(path.name for path in bench.path(tree.UNITS).iterdir() if path.is_dir())
    assert (units(bench), left) == (foreign, folders)


ENDPOINT = 'remote-runtime-service-endpoint: "/var/run/crio/crio.sock"\n'
DOCKER = {"backend-runtime-mode": "Docker"}


@pytest.mark.parametrize(
    ("runtime", "own", "desired", "written", "flag"),
    [
        ("docker://20", "", DOCKER, f'{CONFIG_HEAD}backend-runtime-mode: "Docker"\n', f"--docker-endpoint={SOCKET}"),
        ("cri-o://1", "", {}, f"{CONFIG_HEAD}{ENDPOINT}", "koord-runtimeproxy/run/crio/crio.sock"),
        ("cri-o://1", "hook-timeout: 1s\n", {}, "hook-timeout: 1s\n", SOCKET),
    ],
)
def test_runtime_and_values_set_configuration_and_kubelet_flag(
    runtime: str, own: str, desired: dict[str, str], written: str, flag: str, bench: Bench
) -> None:
    node = fakes.node_object("n1", runtime)
    node["status"]["nodeInfo"]["kubeletVersion"] = "v1.23.1"
    bench.reported = reported_by(node)
    if own:
        bench.write(CONFIG, own)
    bench.install(configure_kubelet=True, config=desired)
    assert bench.text(CONFIG) == written
    assert f"{flag}\n" in (bench.text(DROP_IN) or "")


def test_healthz_reports_bad_answers_and_no_server() -> None:
    for code, fault in ((200, ""), (500, "the kubelet's /healthz answers 500")):
        with serving(lambda *request, code=code: (code, {})) as port:
            assert healthz(port) == fault
    assert healthz(port) == f"the kubelet's /healthz on port {port} does not answer"


# ---- refusals, and failures before a change


ON = {"configure_kubelet": True}
K3S = Kubelet("v1.33.1+k3s1", "Containerd", ready=True)
REFUSED: dict[str, tuple[Change, dict[str, Any], str]] = {
    "another digest": (lambda b: setattr(b, "sha256", "0" * 64), {}, "nodeInstaller.sha256 is 0000"),
    "two archives": (lambda b: (b.archives / "runtimeproxy_9_linux_x86_64.tar.gz").touch(), {}, "2 archives"),
    "no systemd": (lambda b: (b.root / "run/systemd/system").rmdir(), {}, "systemd does not run this node"),
    "a package": (lambda b: b.write(tree.PACKAGE_UNITS[0], ""), {}, "a package has put the proxy on this node"),
    "no unit": (lambda b: setattr(b, "kubelet_files", ""), ON, "no kubelet.service"),
    "kubelet inactive": (lambda b: b.active_units.clear(), ON, "kubelet.service is not active, before anything was"),
    "kubelet unhealthy": (lambda b: setattr(b, "is_unhealthy", bool), ON, "/healthz answers 500, before anything was"),
    "another mode": (lambda b: None, {"config": DOCKER}, "uses Containerd, and the proxy is configured for Docker"),
    "runtime unavailable": (lambda b: b.doctor.update(runtime="failed"), {}, "doctor: runtime: why; do"),
    "another group": (lambda b: b.write("/etc/group", "runtimeproxy-metrics:x:17:\n"), {}, "has the number 17 here"),
    "k3s": (lambda b: setattr(b, "reported", K3S), ON, r"k3s\.service starts the kubelet here: point it at the proxy"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsuitable_node_is_refused_unchanged(case: str, bench: Bench) -> None:
    change, desired, words = REFUSED[case]
    change(bench)
    before = bench.state() | {"trees": []}
    with pytest.raises(Refused, match=words):
        bench.install(**desired)
    assert bench.state() | {"trees": []} == before
    assert (bench.places, bench.restarts) == ([], 0)


NO_SPACE = OSError(errno.ENOSPC, "No space left on device", "/opt/runtimeproxy/undo.json")


@pytest.mark.parametrize(
    ("seam", "stand_in", "words", "trees"),
    [
        ("shutil.disk_usage", Mock(return_value=Mock(free=0)), "/opt/runtimeproxy has 0 MiB free, and 1 MiB are", 0),
        ("os.replace", Mock(side_effect=NO_SPACE), "No space left", 1),
        ("subprocess.run", Mock(side_effect=TimeoutExpired("tar", 1)), "see whether the node's disk is stuck", 0),
        ("subprocess.run", Mock(return_value=CompletedProcess([], 2, "", "no tar")), "cannot be unpacked: no tar", 0),
        ("os.sync", Mock(side_effect=NO_SPACE), "No space left", 0),
    ],
)
def test_failure_before_first_change_leaves_node_unchanged(
    seam: str, stand_in: Mock, words: str, trees: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seam, stand_in)
    with pytest.raises((Failed, OSError), match=words):
        bench.install()
    state = bench.state()
    assert (state["files"], len(state["trees"]), len(bench.places)) == ({}, trees, trees)
    assert bench.path(tree.TREES).exists() is bool(trees)
    assert not list(bench.root.rglob("*.runtimeproxy-installer"))


# ---- rollbacks


def unhealthy_with_proxy(bench: Bench) -> None:
    bench.is_unhealthy = lambda command: SOCKET in command


UNHEALTHY = "the kubelet did not become healthy within 60 s: .*/healthz answers 500"
UNAVAILABLE = r"the proxy is not ready: listening: gone; journalctl .*"


@pytest.mark.parametrize("folders", ["absent", "present"])
@pytest.mark.parametrize(
    ("earlier", "fault", "words", "restarts"),
    [
        (None, unhealthy_with_proxy, UNHEALTHY, 2),
        ({}, unhealthy_with_proxy, UNHEALTHY, 2),
        (
            None,
            lambda b: setattr(b, "is_unhealthy", lambda command: SOCKET in command and b.now % 15 > 10),
            UNHEALTHY,
            2,
        ),
        (None, lambda b: setattr(b, "ready", lambda: False), "the node is not ready 60 s after .*", 2),
        (None, lambda b: setattr(b, "failing", b.home), UNAVAILABLE, 0),
        (ON, lambda b: setattr(b, "failing", b.home), UNAVAILABLE, 1),
        (None, lambda b: b.doctor.update(proxy="failed"), "no call passes through the proxy: why", 0),
    ],
)
def test_fault_rolls_back_node(
    earlier: dict[str, Any] | None, fault: Change, words: str, restarts: int, folders: str, bench: Bench
) -> None:
    for place in (DROP_IN, CONFIG, f"{tree.UNITS}/runtimeproxy-hooks@all.service.d/") if folders == "present" else ():
        bench.path(place.rpartition("/")[0]).mkdir()
    if earlier is not None:
        bench.install(**earlier)
        bench.release("0.3.0")
    fault(bench)
    before = bench.state() | {"trees": []}
    with pytest.raises(RolledBack, match=f"{words}; the node is as it was before"):
        bench.install(configure_kubelet=True, config={"log-level": "debug"})
    assert bench.state() | {"trees": []} == before
    assert bench.restarts == restarts


OWNER = (1234, 1235) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
"""Another owner, where the tests may change it."""


def test_replaced_and_restored_files_keep_owner_and_mode(bench: Bench) -> None:
    before: dict[str, File] = {
        CONFIG: File("log-level: info\r\n", 0o640, *OWNER),
        f"{tree.UNITS}/{SERVICE}": File("[Service]\n", 0o600, *OWNER),
        f"{tree.UNITS}/runtimeproxy-export.service": File("/dev/null", 0o777, *OWNER, link=True),
        DROP_IN: File("../kubelet.conf", 0o777, *OWNER, link=True),
        "/etc/systemd/system/kubelet.conf": File("[Service]\n", 0o604, *OWNER),
    }
    for place, file in before.items():
        bench.put(place, file)
    unhealthy_with_proxy(bench)
    with pytest.raises(RolledBack):
        bench.install(configure_kubelet=True, config={"log-level": "debug"})
    assert {place: bench.file(place) for place in before} == before
    bench.install(config={"log-level": "debug"})
    written = bench.file(CONFIG)
    assert written is not None
    assert (written.text.count("debug"), written.mode, written.user, written.group) == (1, 0o640, *OWNER)


# ---- the installer is killed, or a command fails, at any step


def killed(bench: Bench, work: Callable[[], object], step: int) -> bool:
    """Run a work that is killed at a step; return whether it reached that step."""
    bench.kill_at, bench.steps = step, 0
    try:
        work()
    except (Killed, RolledBack) as error:
        return isinstance(error, Killed)
    finally:
        bench.kill_at = -1
    return False


@pytest.mark.slow  # two hundred installations
@pytest.mark.parametrize("case", ["install", "install, timer", "removal", "removal, timer"])
def test_next_run_completes_work_killed_at_any_step(case: str, make_bench: Make) -> None:
    removes = "removal" in case

    def work() -> None:
        bench.uninstall() if removes else bench.install(configure_kubelet=True, config={"hook-timeout": "1s"})

    bench = make_bench("whole")
    work()
    expected = bench.state()
    assert (expected["timers"], len(expected["trees"]), SOCKET in expected["kubelet"]) == ([], not removes, not removes)
    for step in count():
        bench = make_bench(str(step))
        if removes:
            bench.install(configure_kubelet=True)
        was_killed = killed(bench, work, step)
        if "timer" in case:
            bench.fire_timers()
        work()
        assert bench.state() == expected, step
        if not was_killed:
            break
    assert step > 20


@pytest.mark.slow  # forty installations
@pytest.mark.parametrize("by", ["systemd", "the next run"])
def test_unhealthy_kubelet_is_restored_after_killed_rollback(by: str, make_bench: Make) -> None:
    """Killed at each step after the restart of a kubelet that is unhealthy with the proxy."""

    def bench_killed_at(step: int) -> Bench:
        bench = make_bench(str(step))
        unhealthy_with_proxy(bench)
        assert killed(bench, lambda: bench.install(configure_kubelet=True), step) is (step >= 0)
        return bench

    steps = bench_killed_at(-1).steps
    for step in reversed(range(steps)):
        bench = bench_killed_at(step)
        if not bench.restarts:
            break
        if by == "systemd":
            bench.fire_timers()
        else:
            bench.install()
        assert (bench.kubelet, bench.text(DROP_IN)) == ("/usr/bin/kubelet", None), step
    assert 10 < step < steps - 10


@pytest.mark.slow  # forty installations
def test_failed_command_at_any_step_completes_or_rolls_back(make_bench: Make) -> None:
    """The node has the desired or the previous state, and the error names it."""
    ends = set()
    for number in count(1):
        bench, error = make_bench(str(number)), ""
        bench.fail_at, before = number, bench.state() | {"trees": [], "timers": []}
        try:
            ends.add(bench.install(configure_kubelet=True))
        except (RolledBack, Refused, Failed) as raised:
            ends.add(type(raised).__name__)
            error = str(raised)
        after = bench.state() | {"trees": []}
        if error:
            assert any(words in error for words in ("no luck", "not active", "no kubelet.service"))
            assert after | {"timers": []} == before, bench.commands
        else:  # the failed command was optional
            assert (SOCKET in after["kubelet"], SERVICE in after["active"], after["timers"]) == (True, True, [])
        assert bench.text(journal.JOURNAL_PATH) is None
        if number > len(bench.commands):
            break
    assert ends == {"0.2.0", "RolledBack", "Refused", "Failed"}


# ---- removal


def test_removal_restores_kubelet_first_and_leaves_no_file(bench: Bench) -> None:
    before = bench.state()
    bench.install(configure_kubelet=True)
    bench.commands = []
    bench.uninstall()
    changes = ["systemctl restart kubelet.service", "systemctl stop runtimeproxy-hooks@*.service", "systemctl disable"]
    done = [words.split(" --now")[0] for words in bench.commands]
    verbs = ("systemctl restart", "systemctl stop runtimeproxy-hooks", "systemctl disable")
    assert [words for words in done if words.startswith(verbs)] == changes
    for _ in range(2):
        assert bench.state() == before
        assert not bench.path(tree.TREES).exists()
        bench.uninstall()


def test_removal_is_refused_while_proxy_is_used(bench: Bench) -> None:
    bench.install()
    bench.kubelet = f"/usr/bin/kubelet --container-runtime-endpoint={SOCKET}"
    before = bench.state()
    with pytest.raises(Refused, match="still in use: kubelet calls unix:"):
        bench.uninstall()
    assert bench.state() == before


def test_kubelet_unhealthy_without_proxy_keeps_proxy(bench: Bench) -> None:
    bench.install(configure_kubelet=True)
    bench.path(DROP_IN).chmod(0o600)
    drop_in, before = bench.file(DROP_IN), bench.state()
    bench.is_unhealthy = lambda command: SOCKET not in command
    with pytest.raises(RolledBack, match="did not become healthy"):
        bench.uninstall()
    assert (bench.state(), bench.file(DROP_IN)) == (before, drop_in)
    assert bench.is_kubelet_healthy


def test_own_drop_in_is_removed_and_foreign_one_stays(bench: Bench) -> None:
    bench.install(configure_kubelet=True)
    bench.install(configure_kubelet=False)
    assert (bench.kubelet, bench.text(DROP_IN), bench.restarts) == ("/usr/bin/kubelet", None, 2)
    assert SERVICE in bench.active_units
    bench.write(DROP_IN, own := "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --own\n")
    bench.install()
    assert (bench.text(DROP_IN), bench.restarts) == (own, 2)


# ---- paths of a node through links: each resolves below the node's root, as on the node


@pytest.mark.parametrize(
    ("links", "place", "resolved"),
    [
        ({"var/run": "../run"}, "/var/run/a", "run/a"),
        ({"opt": "/srv/opt", "srv": "data", "data/opt": "/x"}, "/opt/a", "x/a"),
        ({"opt": "../../../etc"}, "/opt/a", "etc/a"),
        ({}, "/../../opt/a", "opt/a"),
        ({"opt/a": "/etc/b"}, "/opt/a", "etc/b"),
        ({"host": "/"}, "/host/opt/a", "opt/a"),
        ({"opt": "/a", "a": "opt"}, "/opt/a", None),  # a loop
    ],
)
def test_path_stays_below_root(links: dict[str, str], place: str, resolved: str | None, tmp_path: Path) -> None:
    for link, target in links.items():
        (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(target)
    with nullcontext() if resolved else pytest.raises(OSError, match="Too many levels"):
        assert Node(tmp_path).path(place) == tmp_path / (resolved or "")
