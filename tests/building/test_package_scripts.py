"""The scripts of the Debian package, and the shell that the RPM shares, run below a root of the test, with stubs."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml

from deploy.packages.maintainer_scripts import filled
from tests.docs import ROOT

pytestmark = pytest.mark.slow

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
STUB = '#!/bin/sh\necho "${0##*/} $*" >>"$CALLS"\neval "${%s:-}"\n'
STUBS = {name: name.upper().removeprefix("SYSTEMD-") for name in ("systemctl", "getent", "groupdel", "debhelper")}
STUBS["systemd-sysusers"] = "SYSUSERS"
TREE = {"runtimeproxy": "PROGRAM", "python3": "PYTHON"}
SERVES, STOPPED = "exit 0", 'case "$*" in *is-active*) exit 3 ;; esac'
STOPS_MEANWHILE = 'case "$*" in *is-active*) ! grep -q debhelper "$CALLS" ;; esac'


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the scripts with all insertions; their check is built from the checkout."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "runtimeproxy").symlink_to(ROOT / "runtimeproxy")
    (folder / "runtimeproxy_hooks").symlink_to(ROOT / "hooks")
    (folder / "yaml").symlink_to(Path(yaml.__file__).parent)
    texts = {name: (ROOT / "deploy/debian" / name).read_text().replace("#DEBHELPER#", "debhelper") for name in SCRIPTS}
    return {name: filled(text, folder, "9.8.7") for name, text in texts.items()}


class Node:
    """A root with stubs of the package's programs. Each stub runs the shell code in its variable."""

    def __init__(self, root: Path, scripts: Mapping[str, str]) -> None:
        self.root, self.scripts = root, scripts
        for folder, names in (("stubs", STUBS), ("usr/lib/runtimeproxy/bin", TREE)):
            (root / folder).mkdir(parents=True)
            for name, variable in names.items():
                (root / folder / name).write_text(STUB % variable)
                (root / folder / name).chmod(0o755)
        (root / "run/systemd/system").mkdir(parents=True)

    def run(self, command: str, does: Mapping[str, str] = MappingProxyType({})) -> tuple[int, str, list[str]]:
        """Run a script; return its exit code, its errors, and the calls of the stubs."""
        name, *arguments = command.split()
        script, calls = self.root / name, self.root / "calls"
        script.write_text(self.scripts[name])
        calls.write_text("")
        environ = {"PATH": f"{self.root}/stubs:{os.environ['PATH']}", "DPKG_ROOT": str(self.root), "CALLS": str(calls)}
        words = ["sh", str(script), *arguments]
        done = subprocess.run(words, env=environ | does, capture_output=True, text=True, check=False)
        assert done.stdout == ""
        return done.returncode, done.stderr, calls.read_text().splitlines()

    def write(self, place: str, text: str = "") -> Path:
        (self.root / place).parent.mkdir(parents=True, exist_ok=True)
        (self.root / place).write_text(text)
        return self.root / place


@pytest.fixture
def node(tmp_path: Path, scripts: Mapping[str, str]) -> Node:
    return Node(tmp_path, scripts)


BAD = {"PYTHON": "echo bad key; exit 3"}
REFUSING, FORCED = {"PROGRAM": "echo kubelet is connected; exit 1"}, {"FORCE_RUNTIMEPROXY_REMOVAL": "1"}
FORCE = "kubelet is connected|kubelet-args|FORCE_RUNTIMEPROXY_REMOVAL=1"
STOPS = "systemctl stop runtimeproxy-hooks@*.service;debhelper"
FIRST = "systemd-sysusers runtimeproxy.conf;runtimeproxy config check;debhelper"
UPGRADE, CONFIGURE = "preinst upgrade 1.0", "postinst configure 1.0"
CASES: dict[str, tuple[str, dict[str, str], int, str, str]] = {
    "installed Python checks": (UPGRADE, {"SYSTEMCTL": "echo 77"}, 0, "", "systemctl show;python3 -I;debhelper"),
    "bad configuration": (UPGRADE, BAD, 1, "bad key|9.8.7 would not start|continues to run", "!debhelper"),
    "check cannot run": (UPGRADE, {"PYTHON": "exit 127"}, 0, "could not be checked beforehand", "debhelper"),
    "first installation checks nothing": ("preinst install", BAD, 0, "", "!python3;debhelper"),
    "first installation": ("postinst configure", {"SYSTEMCTL": SERVES}, 0, "nothing uses it yet|kubelet-args", FIRST),
    "first start fails": ("postinst configure", {"SYSTEMCTL": STOPPED}, 0, "does not run", "debhelper"),
    "broken tree": (CONFIGURE, {"PROGRAM": "echo no; exit 1"}, 1, "no\n|nothing is restarted", "!debhelper"),
    "old hook servers": (CONFIGURE, {"SYSTEMCTL": SERVES}, 0, "hook servers still run the earlier", "debhelper"),
    "version that does not start": (CONFIGURE, {"SYSTEMCTL": STOPS_MEANWHILE}, 1, "9.8.7 does not start", "debhelper"),
    "stopped proxy stays stopped": (CONFIGURE, {"SYSTEMCTL": STOPPED}, 0, "", "debhelper"),
    "aborted upgrade restarts nothing": ("postinst abort-upgrade 1.0", {}, 0, "", "!debhelper;!systemctl"),
    "refused removal": ("prerm remove", REFUSING, 1, FORCE, "runtimeproxy in-use;!systemctl;!debhelper"),
    "removal without a look": ("prerm remove", {"PROGRAM": "exit 127"}, 1, "not removed", "!debhelper"),
    "forced removal": ("prerm remove", REFUSING | FORCED, 0, "", f"!runtimeproxy;{STOPS}"),
    "removal stops hook servers first": ("prerm remove", {}, 0, "", f"runtimeproxy in-use;{STOPS}"),
    "upgrade is never refused": ("prerm upgrade 2.0", {}, 0, "", "!runtimeproxy;debhelper"),
    "removal keeps the group": ("postrm remove", {}, 0, "", "debhelper;!groupdel"),
    "purge": ("postrm purge", {}, 0, "", "debhelper;groupdel runtimeproxy-metrics"),
    "purge without a group": ("postrm purge", {"GETENT": "exit 2"}, 0, "", "!groupdel"),
}
"""Command, code of the stubs, exit code, reported texts, and the calls in order ("!": not called)."""


@pytest.mark.parametrize(("command", "does", "code", "words", "calls"), CASES.values(), ids=CASES)
def test_maintainer_scripts_run_expected_commands(
    node: Node, command: str, does: dict[str, str], code: int, words: str, calls: str
) -> None:
    if command == "preinst install":
        (node.root / "usr/lib/runtimeproxy/bin/python3").unlink()
    ran, reported, called = node.run(command, does)
    assert ran == code, reported
    assert [expected for expected in words.split("|") if expected not in reported] == []
    assert reported or not words
    desired, actual = calls.split(";"), iter(called)
    assert [call for call in desired if call[0] != "!" and not any(line.startswith(call) for line in actual)] == []
    assert [call for call in desired if call[0] == "!" and any(line.startswith(call[1:]) for line in called)] == []


def test_scripts_query_no_socket_without_systemd(node: Node) -> None:
    (node.root / "run/systemd/system").rmdir()
    for command in (UPGRADE, CONFIGURE, "prerm remove"):
        code, reported, calls = node.run(command)
        assert (code, [call for call in calls if call.startswith("systemctl")]) == (0, [])
        assert ("nothing was started" in reported) == (command is CONFIGURE)


CONFIGURATIONS = [
    ("hook-timeout: 3s\n", ["run", "--hook-budget=20s", "--log-level", "debug"], 0, ""),
    ("hook-timeot: 3s\nlog-level: loud\n", [], 1, "unknown key 'hook-timeot'|'loud' is not one of"),
    ("socket-group: no-such-group\n", [], 1, "there is no group 'no-such-group'"),
    ("[", [], 1, "config.yaml"),
    ("", ["--hook-timeout", "soon"], 1, "--hook-timeout: 'soon' is not a duration"),
    ("", ["run", "--hook-timeot=1s"], 1, "--hook-timeot: this version has no such flag"),
]


@pytest.mark.parametrize(("text", "flags", "code", "words"), CONFIGURATIONS)
def test_check_requires_only_python(node: Node, text: str, flags: list[str], code: int, words: str) -> None:
    """The process has the command line of the tree's, and a variable that names the file."""
    environ = {"RUNTIMEPROXY_CONFIG": str(node.write("config.yaml", text)), "TOKEN": "canary-4711"}
    command = [sys.executable, "-I", "-c", "import sys; print(flush=True); sys.stdin.read()", *flags]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its command line is set
        python = f'exec {sys.executable} -S "$@"'  # without installed packages
        ran, reported, _ = node.run(UPGRADE, {"SYSTEMCTL": f"echo {process.pid}", "PYTHON": python})
        process.communicate()
    assert (ran, [word for word in words.split("|") if word not in reported]) == (code, []), reported
    assert (reported == "") == (code == 0)


MADE = (
    "var/lib/runtimeproxy/x.disabled.json run/koord-runtimeproxy/originals run/runtimeproxy/coresched.json "
    "run/runtimeproxy-hooks/x.lock etc/runtimeproxy/node.yaml "
    "etc/systemd/system/multi-user.target.wants/runtimeproxy-hooks@gpu.service"
)


def registered(node: Node, name: str, folder: str = "/var/run/runtimeproxy-hooks") -> Path:
    return node.write(f"etc/runtime/hookserver.d/{name}", f'{{\n  "remote-endpoint": "{folder}/{name}.sock"\n}}\n')


def test_removal_deletes_registrations_of_packaged_servers(node: Node) -> None:
    packaged = [registered(node, name) for name in ("cpuset.json", "10-cpuset-gpu.json", "all.json")]
    foreign = [registered(node, name) for name in ("koordlet.json", "cpuset-mine.json", "99-all-x.json")]
    foreign.append(registered(node, "gpu.json", "/run/else"))
    assert node.run("prerm remove")[0] == 0
    assert ([file for file in packaged if file.exists()], [file for file in foreign if not file.exists()]) == ([], [])


def test_purge_keeps_foreign_files_and_no_empty_directory(node: Node) -> None:
    (node.root / "etc/runtime/hookserver.d").mkdir(parents=True)
    assert node.run("postrm purge")[0] == 0
    assert list((node.root / "etc").iterdir()) == []
    created, theirs = [node.write(place) for place in MADE.split()], registered(node, "koordlet.json", "/run/koordlet")
    assert node.run("postrm purge")[0] == 0
    assert [path for path in created if path.exists()] == []
    assert [path for path in (node.root / "etc").rglob("*") if path.is_file()] == [theirs]
    registered(node, "mine.json")
    socket = node.write("run/runtimeproxy-hooks/mine.sock")
    assert node.run("postrm purge")[0] == 0
    assert socket.exists()
