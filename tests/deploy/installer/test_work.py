"""The work on a node: each way that it can go ends well, or everything is as it was before and the error says so."""

import ast
import errno
import gzip
import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runtimeproxy_installer
from runtimeproxy_installer import journal, tree
from runtimeproxy_installer.errors import Failed, Refused, RolledBack
from runtimeproxy_installer.kubelet import HEAD, Kubelet
from runtimeproxy_installer.node import File
from runtimeproxy_installer.work import CONFIG
from tests.deploy.installer.fakes import DROP_IN, INSTALLED, SERVICE, SOCKET, STARTED, Bench, Killed, archive


def home(bench: Bench, version: str = "0.2.0") -> str:
    return f"/opt/runtimeproxy/{version}-{bench.sha256[:12]}"


def test_the_proxy_is_installed_and_no_kubelet_is_touched(bench: Bench) -> None:
    assert bench.install() == "0.2.0"
    assert bench.node.active_units == {"kubelet.service", *STARTED}
    assert f"\nExecStart={home(bench)}/bin/koord-runtime-proxy\n" in bench.node.text(f"{tree.UNITS}/{SERVICE}")
    assert units(bench) == INSTALLED
    assert not [text for text in bench.node.state()["files"].values() if "/usr/bin/" in text]
    assert bench.node.entry("/usr/local/bin/runtimeproxy").readlink() == Path(f"{home(bench)}/bin/runtimeproxy")
    assert "runtimeproxy-metrics:x:965:" in (bench.node.text("/etc/group") or "")
    assert bench.node.path("/etc/runtime/hookserver.d").stat().st_mode & 0o777 == 0o755
    assert (bench.node.restarts, bench.node.text(DROP_IN), bench.node.text(journal.PLACE)) == (0, None, None)


def test_a_kubelet_is_pointed_at_the_proxy_by_one_restart(bench: Bench) -> None:
    bench.install(configure_kubelet=True)
    usual = "/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS"
    command = f"{usual} $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS --container-runtime-endpoint={SOCKET}"
    assert bench.node.text(DROP_IN) == f"{HEAD}[Service]\nExecStart=\nExecStart={command}\n"
    assert (bench.node.restarts, bench.node.kubelet, bench.node.timers) == (1, command, [])
    assert bench.node.now >= 60
    verbs = ("systemctl restart", "systemctl try-restart")
    assert [words.removeprefix("systemctl ") for words in bench.node.calls_made if words.startswith(verbs)] == [
        f"restart {SERVICE}",
        f"try-restart {tree.EXPORTER}",
        "restart kubelet.service",
    ]


COMMANDS: dict[str, tuple[str, str]] = {
    "of the unit alone": ("ExecStart=/usr/bin/kubelet --a", "/usr/bin/kubelet --a"),
    "over lines": ("ExecStart=/usr/bin/kubelet \\\n    --a \\\n    --b", "/usr/bin/kubelet --a --b"),
    "with blanks": ("  ExecStart = -/opt/kubelet $ARGS  ", "-/opt/kubelet $ARGS"),
    "of a drop-in": (
        "ExecStart=/usr/bin/kubelet\n\n# /etc/systemd/system/kubelet.service.d/a.conf\nExecStart=\nExecStart=/b",
        "/b",
    ),
    "several": ("ExecStart=/a\nExecStart=/b", ""),
    "none": ("Type=oneshot", ""),
}
"""What the unit's files say, and the command in them; "" where there is not one."""


@pytest.mark.parametrize("case", COMMANDS)
def test_the_nodes_own_command_is_kept(case: str, bench: Bench) -> None:
    calls_made, command = COMMANDS[case]
    bench.node.kubelet_files = f"# /lib/systemd/system/kubelet.service\n[Service]\n{calls_made}\n"
    if command:
        bench.install(configure_kubelet=True)
        assert f"\nExecStart={command} --container-runtime-endpoint={SOCKET}\n" in (bench.node.text(DROP_IN) or "")
        bench.install(configure_kubelet=True)  # its own drop-in is not the node's command
        assert (bench.node.text(DROP_IN) or "").count(SOCKET) == 1
    else:
        with pytest.raises(Refused, match="commands: point it at the proxy by hand"):
            bench.install(configure_kubelet=True)
        assert bench.node.state()["files"] == {}


def test_installed_twice_changes_nothing_and_needs_no_place(bench: Bench) -> None:
    bench.install(configure_kubelet=True)
    before, places, bench.node.calls_made = bench.node.state(), bench.places, []
    assert bench.install(configure_kubelet=True) == "0.2.0"
    assert (bench.node.state(), bench.places, bench.node.restarts) == (before, places, 1)
    assert not [words for words in bench.node.calls_made if words.split()[1] in ("restart", "start", "enable")]


def test_an_upgrade_keeps_the_version_before_and_no_older_one(bench: Bench) -> None:
    for version in ("0.2.0", "0.3.0", "0.10.0"):
        bench.sha256 = archive(bench.archives, version)
        assert bench.install() == version
    assert [name.partition("-")[0] for name in bench.node.trees()] == ["0.10.0", "0.3.0"]
    assert tree.running(bench.node)[1] == "0.10.0"


def units(bench: Bench) -> list[str]:
    folder = bench.node.path(tree.UNITS)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def folders(bench: Bench) -> list[str]:
    """Return the directories of drop-ins."""
    return sorted(path.name for path in bench.node.path(tree.UNITS).iterdir() if path.is_dir())


def test_units_that_are_no_more_go_and_what_others_added_stays(bench: Bench) -> None:
    old = {"runtimeproxy-old.service": "[Service]\n", "runtimeproxy-old.service.d/50-rights.conf": "[Service]\n"}
    bench.sha256 = archive(bench.archives, **old)
    bench.install()
    others = ["runtimeproxy-hooks@all.service.d/override.conf", "runtimeproxy.service.d/override.conf"]
    for name in others:
        bench.node.write(f"{tree.UNITS}/{name}", "[Service]\nLogLevelMax=info\n")
    bench.sha256 = archive(bench.archives, "0.3.0")
    bench.install()
    assert units(bench) == sorted([*INSTALLED, *others])
    assert "runtimeproxy-old.service.d" not in folders(bench)
    bench.uninstall()
    assert (units(bench), folders(bench)) == (others, [name.partition("/")[0] for name in others])


@pytest.mark.parametrize("there", [False, True], ids=["made", "there before"])
def test_the_way_back_leaves_the_directories_as_they_were(there: bool, bench: Bench) -> None:
    if there:
        for place in (DROP_IN, CONFIG, f"{tree.UNITS}/runtimeproxy-hooks@all.service.d/"):
            bench.node.path(place.rpartition("/")[0]).mkdir()
    before, bench.node.bad = bench.node.state(), lambda command: SOCKET in command
    with pytest.raises(RolledBack):
        bench.install(configure_kubelet=True, config={"log-level": "debug"})
    assert bench.node.state()["folders"] == before["folders"]


def test_a_configuration_is_checked_and_written(bench: Bench) -> None:
    bench.reported = Kubelet("v1.23.1", "Docker", ready=True)
    bench.install(config={"backend-runtime-mode": "Docker", "hook-timeout": "1s"}, configure_kubelet=True)
    lines = (bench.node.text("/etc/runtimeproxy/config.yaml") or "").splitlines()
    assert lines[1:] == ['backend-runtime-mode: "Docker"', 'hook-timeout: "1s"']
    assert f"--docker-endpoint={SOCKET}" in (bench.node.text(DROP_IN) or "")


Make = Callable[[Path], Bench]
Setting = Callable[[Bench], None]
REFUSED: dict[str, tuple[Setting, dict[str, Any], str]] = {
    "another digest": (lambda b: setattr(b, "sha256", "0" * 64), {}, "nodeInstaller.sha256 is 0000"),
    "two archives": (
        lambda b: shutil.copy(next(b.archives.iterdir()), b.archives / "runtimeproxy_9_linux_x86_64.tar.gz"),
        {},
        "2 archives",
    ),
    "no systemd": (lambda b: (b.node.root / "run/systemd/system").rmdir(), {}, "systemd does not run this node"),
    "a package": (
        lambda b: b.node.write(tree.PACKAGE_UNITS[0], "") or b.node.write(tree.PACKAGE_UNITS[1], ""),
        {},
        "a package has put the proxy on this node",
    ),
    "no kubelet's unit": (lambda b: b.node.units.clear(), {"configure_kubelet": True}, "no kubelet.service"),
    "the kubelet away": (
        lambda b: b.node.active_units.clear(),
        {"configure_kubelet": True},
        "kubelet.service is not active, before anything was changed",
    ),
    "the kubelet not well": (
        lambda b: setattr(b.node, "bad", lambda command: True),
        {"configure_kubelet": True},
        "/healthz answers 500, before anything was changed",
    ),
    "another mode": (
        lambda b: None,
        {"config": {"backend-runtime-mode": "Docker"}},
        "the kubelet uses Containerd, and the proxy is configured for Docker",
    ),
    "a runtime that does not answer": (
        lambda b: b.node.doctor.update(runtime="failed"),
        {},
        "doctor: runtime: why; do",
    ),
    "another group": (
        lambda b: (b.node.root / "etc/group").write_text("runtimeproxy-metrics:x:17:\n"),
        {},
        "has the number 17 here",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_that_is_none_for_it_is_refused_unchanged(case: str, bench: Bench) -> None:
    setting, changed, words = REFUSED[case]
    setting(bench)
    before = bench.node.state() | {"trees": []}
    with pytest.raises(Refused, match=words):
        bench.install(**changed)
    assert bench.node.state() | {"trees": []} == before
    assert (bench.places, bench.node.restarts) == (0, 0)


def test_a_newer_version_stays_unless_allowed(bench: Bench) -> None:
    bench.sha256 = archive(bench.archives, "0.10.0")
    bench.install()
    before = bench.node.state()
    bench.sha256 = archive(bench.archives, "0.9.0")
    with pytest.raises(Refused, match=r"the node has 0\.10\.0, newer than 0\.9\.0"):
        bench.install()
    assert bench.node.state() == before
    assert bench.install(allow_downgrade=True) == "0.9.0"
    assert tree.running(bench.node)[1] == "0.9.0"


@pytest.mark.parametrize("installed", [False, True], ids=["a first version", "an upgrade"])
def test_a_kubelet_that_does_not_become_healthy_goes_back(bench: Bench, installed: bool) -> None:
    if installed:
        bench.install()
        bench.sha256 = archive(bench.archives, "0.3.0")
    before, bench.node.bad = bench.node.state(), lambda command: SOCKET in command
    words = r"the kubelet did not become healthy within 60 s: .*/healthz answers 500; the node is as it was before"
    with pytest.raises(RolledBack, match=words):
        bench.install(configure_kubelet=True)
    after = bench.node.state()
    assert (after["files"], after["folders"]) == (before["files"], before["folders"])
    assert (bench.node.active_units, bench.node.kubelet) == (before["active"], "/usr/bin/kubelet")
    assert (bench.node.restarts, bench.node.timers, bench.node.kubelet_well) == (2, [], True)


def test_a_kubelet_that_is_well_for_a_moment_only_goes_back(bench: Bench) -> None:
    bench.node.bad = lambda command: SOCKET in command and bench.node.now % 15 > 10
    with pytest.raises(RolledBack, match="did not become healthy"):
        bench.install(configure_kubelet=True)
    assert bench.node.kubelet == "/usr/bin/kubelet"


@pytest.mark.parametrize("was", [True, False], ids=["it was ready", "it was not"])
def test_a_node_that_is_not_ready_any_more_goes_back(bench: Bench, was: bool) -> None:
    bench.reported, bench.ready = Kubelet("v1.31.2", "Containerd", ready=was), False
    if was:
        with pytest.raises(RolledBack, match="the node is not ready"):
            bench.install(configure_kubelet=True)
    else:
        bench.install(configure_kubelet=True)
    assert (SOCKET in bench.node.kubelet) is not was


@pytest.mark.parametrize("installed", [False, True], ids=["a first version", "an upgrade"])
def test_a_proxy_that_does_not_become_ready_goes_back(bench: Bench, installed: bool) -> None:
    if installed:
        bench.install(configure_kubelet=True)
        bench.sha256 = archive(bench.archives, "0.3.0")
    before, new = bench.node.state(), home(bench, "0.3.0" if installed else "0.2.0")
    bench.node.proxy_fails = lambda running: running == new
    with pytest.raises(
        RolledBack, match=r"the proxy is not ready: listening: gone; journalctl .*; the node is as it was"
    ):
        bench.install(configure_kubelet=installed)
    after = bench.node.state()
    assert (after["files"], after["active"], after["kubelet"]) == (before["files"], before["active"], before["kubelet"])
    assert bench.node.entry("/usr/local/bin/runtimeproxy").is_symlink() is installed


def test_a_call_that_does_not_pass_through_goes_back(bench: Bench) -> None:
    bench.node.doctor["proxy"] = "failed"
    with pytest.raises(RolledBack, match="no call passes through the proxy: why"):
        bench.install()
    assert bench.node.state()["files"] == {}


def test_a_full_file_system_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
    with pytest.raises(Failed, match="/opt/runtimeproxy has 0 MiB free, and 1 MiB are needed"):
        bench.install()
    assert (bench.node.state()["files"], bench.places) == ({}, 0)
    assert not bench.node.path(tree.TREES).exists()


def no_space(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/opt/runtimeproxy/undo.json")


def test_a_file_system_that_fills_meanwhile_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="No space left"):
        bench.install()
    assert bench.node.state()["files"] == {}
    assert not list(bench.node.root.rglob("*.runtimeproxy-installer"))


def test_an_archive_that_is_none_leaves_no_tree(bench: Bench) -> None:
    [file] = bench.archives.iterdir()
    file.write_bytes(gzip.compress(b"no archive"))
    bench.sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(Failed, match="the archive cannot be unpacked"):
        bench.install()
    assert (bench.node.trees(), bench.places) == ([], 0)


def test_an_archive_that_is_never_unpacked_is_reported(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tar").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin/tar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(tree, "UNPACK_SECONDS", 0.1)
    with pytest.raises(Failed, match=r"not unpacked to /opt/runtimeproxy within 0\.1 s: see whether the node's disk"):
        bench.install()
    assert (bench.node.state()["files"], bench.node.trees(), bench.places) == ({}, [], 0)


def killed_at(bench: Bench, step: int, **changed: Any) -> bool:
    """Begin an installation that is killed at a step; return whether it came to that."""
    bench.node.kill_at, bench.node.steps = step, 0
    try:
        bench.install(**changed)
    except Killed:
        return True
    finally:
        bench.node.kill_at = -1
    return False


@pytest.mark.slow  # a hundred installations
def test_half_installed_at_any_step_is_made_whole_by_the_next_run(tmp_path: Path, fast_bench: Make) -> None:
    """Killed, with the node's own timer gone off meanwhile, or not."""
    steps = 0
    for timer in (False, True):
        step = 0
        while True:
            bench = fast_bench(tmp_path / f"{timer}-{step}")
            cut = killed_at(bench, step, configure_kubelet=True, config={"hook-timeout": "1s"})
            if timer:
                bench.node.fire_timers()
            assert bench.install(configure_kubelet=True, config={"hook-timeout": "1s"}) == "0.2.0"
            assert SOCKET in bench.node.kubelet
            assert bench.node.kubelet_well
            assert bench.node.trees() == [home(bench).rpartition("/")[2]]
            assert bench.node.active_units == {"kubelet.service", *STARTED}
            assert bench.node.timers == []
            assert bench.node.text("/etc/runtimeproxy/config.yaml")
            step, steps = step + 1, steps + 1
            if not cut:
                break
    assert steps > 50


@pytest.mark.slow  # forty installations
@pytest.mark.parametrize("by", ["systemd", "the next run"])
def test_killed_on_the_way_back_somebody_brings_the_kubelet_back(by: str, tmp_path: Path, fast_bench: Make) -> None:
    """At each step after the restart of a kubelet that is not well with the proxy."""

    def made(name: str) -> Bench:
        bench = fast_bench(tmp_path / name)
        bench.node.bad = lambda command: SOCKET in command
        return bench

    whole = made("whole")
    with pytest.raises(RolledBack):
        whole.install(configure_kubelet=True)
    for step in reversed(range(whole.node.steps)):
        bench = made(str(step))
        assert killed_at(bench, step, configure_kubelet=True)
        if not bench.node.restarts:
            break
        if by == "systemd":
            bench.node.fire_timers()
        else:
            bench.install()
        assert (bench.node.kubelet, bench.node.text(DROP_IN)) == ("/usr/bin/kubelet", None), step
    assert 10 < step < whole.node.steps - 10


def test_a_timer_brings_back_a_drop_in_whose_directory_is_gone(bench: Bench) -> None:
    bench.install(configure_kubelet=True)
    bench.node.bad = lambda command: SOCKET not in command
    drop_in, step = bench.node.text(DROP_IN), 0
    while bench.node.path(DROP_IN).parent.exists():
        bench.node.kill_at, bench.node.steps = step, 0
        with pytest.raises(Killed):
            bench.uninstall()
        step += 1
    bench.node.kill_at = -1
    bench.node.fire_timers()
    assert (bench.node.text(DROP_IN), bench.node.kubelet_well) == (drop_in, True)


OWNER = (1234, 1235) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
"""Somebody else, where this may be given away."""


def test_what_is_replaced_keeps_owner_and_mode_and_what_is_undone_is_as_before(bench: Bench) -> None:
    node = bench.node
    before: dict[str, File] = {
        CONFIG: File("log-level: info\r\n", 0o640, *OWNER),
        f"{tree.UNITS}/{SERVICE}": File("[Service]\n", 0o600, *OWNER),
        f"{tree.UNITS}/runtimeproxy-export.service": File("/dev/null", 0o777, *OWNER, link=True),
        DROP_IN: File("../kubelet.conf", 0o777, *OWNER, link=True),
        "/etc/systemd/system/kubelet.conf": File("[Service]\n", 0o604, *OWNER),
    }
    for place, file in before.items():
        node.put(place, file)
    node.bad = lambda command: SOCKET in command
    with pytest.raises(RolledBack):
        bench.install(configure_kubelet=True, config={"log-level": "debug"})
    assert {place: node.file(place) for place in before} == before
    bench.install(config={"log-level": "debug"})
    written = node.file(CONFIG)
    assert written is not None
    assert (written.text.count("debug"), written.mode, written.user, written.group) == (1, 0o640, *OWNER)


class Broken:
    """Lets one command of a node fail; the watch's many looks count as none."""

    def __init__(self, bench: Bench, at: int) -> None:
        self.count = 0
        self._at = at
        self._bench = bench
        bench.node.breaks = self._breaks

    def _breaks(self, words: str) -> bool:
        if "is-active" in words and self._bench.node.now:
            return False
        self.count += 1
        return self.count - 1 == self._at


@pytest.mark.slow  # forty installations
def test_a_command_that_fails_at_any_step_ends_well_or_goes_back(tmp_path: Path, fast_bench: Make) -> None:
    """The node is as wanted or as before, and the error says so."""
    step, ends, calls_made = 0, list[str](), ""
    while True:
        bench = fast_bench(tmp_path / str(step))
        broken = Broken(bench, step)
        before = bench.node.state()
        try:
            bench.install(configure_kubelet=True)
            ends.append("Installed")
            good = SOCKET in bench.node.kubelet and SERVICE in bench.node.active_units
        except (RolledBack, Refused, Failed) as error:
            ends.append(type(error).__name__)
            calls_made = str(error)
            after = bench.node.state()
            good = all(after[key] == before[key] for key in ("files", "folders", "active", "kubelet"))
        assert good, (step, ends[-1], bench.node.calls_made)
        assert ends[-1] == "Installed" or any(
            words in calls_made for words in ("no luck", "not active", "no kubelet.service")
        )
        assert ends[-1] != "Installed" or bench.node.timers == []  # it does what was done, once more
        assert bench.node.text(journal.PLACE) is None
        if step >= broken.count:
            break
        step += 1
    assert set(ends) == {"Installed", "RolledBack", "Refused", "Failed"}


def test_the_way_back_is_the_way_there_in_reverse_order(bench: Bench) -> None:
    before = bench.node.state()
    bench.install(configure_kubelet=True)
    bench.node.calls_made = []
    bench.uninstall()
    changes = ("systemctl restart", "systemctl stop runtimeproxy-hooks", "systemctl disable")
    assert [words.split(" --now")[0] for words in bench.node.calls_made if words.startswith(changes)] == [
        "systemctl restart kubelet.service",
        "systemctl stop runtimeproxy-hooks@*.service",
        "systemctl disable",
    ]
    assert bench.node.state() == before
    assert not bench.node.entry("/usr/local/bin/runtimeproxy").is_symlink()
    assert not bench.node.path(tree.TREES).exists()
    bench.uninstall()  # twice
    assert bench.node.state() == before


@pytest.mark.slow  # sixty installations
def test_half_removed_at_any_step_is_gone_after_the_next_run(tmp_path: Path, fast_bench: Make) -> None:
    step = 0
    while True:
        bench = fast_bench(tmp_path / str(step))
        before = bench.node.state()
        bench.install(configure_kubelet=True)
        bench.node.kill_at, bench.node.steps = step, 0
        try:
            bench.uninstall()
            break
        except Killed:
            bench.node.kill_at = -1
        bench.uninstall()
        assert bench.node.state() == before
        assert not bench.node.path(tree.TREES).exists()
        assert bench.node.timers == []
        step += 1
    assert step > 20


def test_a_proxy_that_is_used_otherwise_is_not_taken_away(bench: Bench) -> None:
    bench.install()
    bench.node.kubelet, before = f"/usr/bin/kubelet --container-runtime-endpoint={SOCKET}", bench.node.state()
    with pytest.raises(Refused, match="still in use: kubelet calls unix:"):
        bench.uninstall()
    assert bench.node.state()["files"] == before["files"]
    assert SERVICE in bench.node.active_units


def test_a_kubelet_that_is_not_well_without_it_keeps_it(bench: Bench) -> None:
    bench.install(configure_kubelet=True)
    bench.node.path(DROP_IN).chmod(0o600)
    drop_in = bench.node.file(DROP_IN)
    before, bench.node.bad = bench.node.state(), lambda command: SOCKET not in command
    with pytest.raises(RolledBack, match="did not become healthy"):
        bench.uninstall()
    assert (bench.node.state(), bench.node.file(DROP_IN)) == (before, drop_in)
    assert bench.node.kubelet_well


def test_a_kubelet_is_taken_off_the_proxy_when_that_is_wanted(bench: Bench) -> None:
    bench.install(configure_kubelet=True)
    bench.install(configure_kubelet=False)
    assert (bench.node.kubelet, bench.node.text(DROP_IN), bench.node.restarts) == ("/usr/bin/kubelet", None, 2)
    assert SERVICE in bench.node.active_units


def test_somebody_elses_drop_in_stays(bench: Bench) -> None:
    bench.node.write(DROP_IN, "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --own\n")
    bench.install()
    assert "--own" in (bench.node.text(DROP_IN) or "")
    assert bench.node.restarts == 0


def test_the_installer_needs_nothing_but_python() -> None:
    names = set()
    for file in Path(runtimeproxy_installer.__file__).parent.glob("*.py"):
        for found in ast.walk(ast.parse(file.read_text())):
            if isinstance(found, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in found.names}
            elif isinstance(found, ast.ImportFrom) and found.level == 0:
                names.add((found.module or "").partition(".")[0])
    assert names - set(sys.stdlib_module_names) == set()
    assert "urllib" in names
