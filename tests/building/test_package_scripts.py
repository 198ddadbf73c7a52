"""The scripts of the Debian package, and the shell that the RPM shares, run below a root of the test with stubs."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from deploy.packages.maintainer_scripts import filled
from tests.docs import ROOT

pytestmark = pytest.mark.slow

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
STUB = '#!/bin/sh\necho "${0##*/} $*" >>"$CALLS"\neval "${%s:-}"\n'
STUBS = {
    "systemctl": "SYSTEMCTL",
    "systemd-sysusers": "SYSUSERS",
    "getent": "GETENT",
    "groupdel": "GROUPDEL",
    "debhelper": "DEBHELPER",
}
TREE = {"runtimeproxy": "PROGRAM", "python3": "PYTHON"}
SERVES, STOPPED = "exit 0", 'case "$*" in *is-active*) exit 3 ;; esac'
STOPS_MEANWHILE = 'case "$*" in *is-active*) ! grep -q debhelper "$CALLS" ;; esac'


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the scripts with everything put in, their check made of the checkout."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "runtimeproxy").symlink_to(ROOT / "runtimeproxy")
    (folder / "runtimeproxy_hooks").symlink_to(ROOT / "hooks")
    (folder / "yaml").symlink_to(Path(yaml.__file__).parent)
    texts = {name: (ROOT / "deploy/debian" / name).read_text().replace("#DEBHELPER#", "debhelper") for name in SCRIPTS}
    return {name: filled(text, folder, "9.8.7") for name, text in texts.items()}


class Ran(NamedTuple):
    code: int
    reported: str
    calls: list[str]


class Node:
    """A root with the package's programs as stubs; what a stub does is the shell in its variable."""

    def __init__(self, root: Path, scripts: Mapping[str, str]) -> None:
        self.root, self.scripts = root, scripts
        for folder, names in (("stubs", STUBS), ("usr/lib/runtimeproxy/bin", TREE)):
            (root / folder).mkdir(parents=True)
            for name, variable in names.items():
                (root / folder / name).write_text(STUB % variable)
                (root / folder / name).chmod(0o755)
        (root / "run/systemd/system").mkdir(parents=True)

    def run(self, name: str, arguments: Sequence[str], does: Mapping[str, str]) -> Ran:
        script, calls = self.root / name, self.root / "calls"
        script.write_text(self.scripts[name])
        calls.write_text("")
        environ = {"PATH": f"{self.root}/stubs:{os.environ['PATH']}", "DPKG_ROOT": str(self.root), "CALLS": str(calls)}
        done = subprocess.run(
            ["sh", script, *arguments], env=environ | does, capture_output=True, text=True, check=False
        )
        assert done.stdout == ""
        return Ran(done.returncode, done.stderr, calls.read_text().splitlines())

    def write(self, place: str, text: str = "") -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def node(tmp_path: Path, scripts: Mapping[str, str]) -> Node:
    return Node(tmp_path, scripts)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_shell_with_everything_put_in(scripts: Mapping[str, str], name: str) -> None:
    assert re.findall(r"@[A-Z]+@", scripts[name]) == []
    assert subprocess.run(["sh", "-n"], input=scripts[name], text=True, check=False).returncode == 0


class Case(NamedTuple):
    script: str
    arguments: str
    does: dict[str, str]
    code: int
    reported: str
    calls: str
    """Calls in this order, with others between them; a word with "!" must not be called."""


BAD = {"PYTHON": "echo bad key; exit 3"}
CASES = {
    "an upgrade is checked by the installed Python": Case(
        "preinst", "upgrade 1.0", {"SYSTEMCTL": "echo 77"}, 0, "", "systemctl show;python3 -I;debhelper"
    ),
    "a bad configuration stops the upgrade": Case(
        "preinst", "upgrade 1.0", BAD, 1, "bad key|9.8.7 would not start|runs on", "!debhelper"
    ),
    "a check that cannot run is reported and left to the tree": Case(
        "preinst", "upgrade 1.0", {"PYTHON": "exit 127"}, 0, "could not be checked beforehand", "debhelper"
    ),
    "a first installation has nothing to check by": Case("preinst", "install", BAD, 0, "", "!python3;debhelper"),
    "a first installation names the next step": Case(
        "postinst",
        "configure",
        {"SYSTEMCTL": SERVES},
        0,
        "nothing uses it yet|kubelet-args",
        "systemd-sysusers runtimeproxy.conf;runtimeproxy config check;debhelper",
    ),
    "a proxy that does not start at first is reported": Case(
        "postinst", "configure", {"SYSTEMCTL": STOPPED}, 0, "does not run", "debhelper"
    ),
    "a tree that does not work restarts nothing": Case(
        "postinst", "configure 1.0", {"PROGRAM": "echo no; exit 1"}, 1, "no\n|nothing is restarted", "!debhelper"
    ),
    "an upgrade names hook servers of the old version": Case(
        "postinst", "configure 1.0", {"SYSTEMCTL": SERVES}, 0, "hook servers still run the earlier", "debhelper"
    ),
    "a version that does not start is an error": Case(
        "postinst", "configure 1.0", {"SYSTEMCTL": STOPS_MEANWHILE}, 1, "9.8.7 does not start", "debhelper"
    ),
    "a proxy that was stopped may stay so": Case(
        "postinst", "configure 1.0", {"SYSTEMCTL": STOPPED}, 0, "", "debhelper"
    ),
    "what is taken back restarts nothing": Case("postinst", "abort-upgrade 1.0", {}, 0, "", "!debhelper;!systemctl"),
    "a removal that is refused stops nothing": Case(
        "prerm",
        "remove",
        {"PROGRAM": "echo kubelet is connected; exit 1"},
        1,
        "kubelet is connected|kubelet-args|FORCE_RUNTIMEPROXY_REMOVAL=1",
        "runtimeproxy in-use;!systemctl;!debhelper",
    ),
    "a removal is refused where it cannot be looked": Case(
        "prerm", "remove", {"PROGRAM": "exit 127"}, 1, "not removed", "!debhelper"
    ),
    "a removal may be forced": Case(
        "prerm",
        "remove",
        {"PROGRAM": "exit 1", "FORCE_RUNTIMEPROXY_REMOVAL": "1"},
        0,
        "",
        "!runtimeproxy;systemctl stop runtimeproxy-hooks@*.service;debhelper",
    ),
    "a removal stops hook servers before the proxy": Case(
        "prerm", "remove", {}, 0, "", "runtimeproxy in-use;systemctl stop runtimeproxy-hooks@*.service;debhelper"
    ),
    "an upgrade queries nobody whether it may": Case("prerm", "upgrade 2.0", {}, 0, "", "!runtimeproxy;debhelper"),
    "a removal keeps the group": Case("postrm", "remove", {}, 0, "", "debhelper;!groupdel"),
    "a purge removes the group": Case("postrm", "purge", {}, 0, "", "debhelper;groupdel runtimeproxy-metrics"),
    "a purge may find no group": Case("postrm", "purge", {"GETENT": "exit 2"}, 0, "", "!groupdel"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_scripts(node: Node, case: Case) -> None:
    if case.arguments == "install":
        (node.root / "usr/lib/runtimeproxy/bin/python3").unlink()
    ran = node.run(case.script, case.arguments.split(), case.does)
    assert ran.code == case.code, ran.reported
    assert [words for words in case.reported.split("|") if words not in ran.reported] == []
    assert ran.reported or not case.reported
    desired = case.calls.split(";")
    made = iter(ran.calls)
    assert [call for call in desired if call[0] != "!" and not any(line.startswith(call) for line in made)] == []
    assert [call for call in desired if call[0] == "!" and any(line.startswith(call[1:]) for line in ran.calls)] == []


def test_without_systemd_nothing_is_queried(node: Node) -> None:
    (node.root / "run/systemd/system").rmdir()
    for name, arguments in (("preinst", "upgrade 1"), ("postinst", "configure 1"), ("prerm", "remove")):
        ran = node.run(name, arguments.split(), {})
        assert (ran.code, [call for call in ran.calls if call.startswith("systemctl")]) == (0, [])
        assert ("nothing was started" in ran.reported) == (name == "postinst")


CONFIGURATIONS = [
    ("", [], 0, ""),
    ("hook-timeout: 3s\n", ["run", "--hook-budget=20s", "--log-level", "debug"], 0, ""),
    ("hook-timeot: 3s\nlog-level: loud\n", [], 1, "unknown key 'hook-timeot'|'loud' is not one of"),
    ("socket-group: no-such-group\n", [], 1, "there is no group 'no-such-group'"),
    ("[", [], 1, "config.yaml"),
    ("", ["--hook-timeout", "soon"], 1, "--hook-timeout: 'soon' is not a duration"),
    ("", ["--hook-timeot=1s"], 1, "--hook-timeot: this version has no such flag"),
    ("", ["run", "--backend-runtime-mode=Podman"], 1, "'Podman' is not a backend mode"),
]


@pytest.mark.parametrize(("text", "flags", "code", "words"), CONFIGURATIONS)
def test_check_needs_nothing_but_python(node: Node, text: str, flags: list[str], code: int, words: str) -> None:
    """What runs has the form of the tree's process, and a variable that names the file."""
    environ = {"RUNTIMEPROXY_CONFIG": str(node.write("config.yaml", text)), "TOKEN": "canary-4711"}
    command = [sys.executable, "-I", "-c", "import sys; print(flush=True); sys.stdin.read()", *flags]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has its command line
        python = f'exec {sys.executable} -S "$@"'  # without what is installed
        ran = node.run("preinst", ["upgrade", "1.0"], {"SYSTEMCTL": f"echo {process.pid}", "PYTHON": python})
        process.communicate()
    assert (ran.code, [word for word in words.split("|") if word not in ran.reported]) == (code, []), ran.reported
    assert (ran.reported == "") == (code == 0)


OURS = ["cpuset.json", "10-cpuset-gpu.json", "all.json"]
OTHERS = ["koordlet.json", "cpuset-mine.json", "99-all-x.json"]


def registered(node: Node, name: str, socket: str) -> Path:
    return node.write(f"etc/runtime/hookserver.d/{name}", f'{{\n  "remote-endpoint": "{socket}"\n}}\n')


def test_registrations_of_our_hook_servers_go_with_the_package(node: Node) -> None:
    ours = [registered(node, name, f"/var/run/runtimeproxy-hooks/{name}.sock") for name in OURS]
    others = [registered(node, name, f"/var/run/runtimeproxy-hooks/{name}.sock") for name in OTHERS]
    others.append(registered(node, "gpu.json", "/run/else/gpu.sock"))
    assert node.run("prerm", ["remove"], {}).code == 0
    assert ([file for file in ours if file.exists()], [file for file in others if not file.exists()]) == ([], [])


MADE = [
    "var/lib/runtimeproxy/x.disabled.json",
    "run/koord-runtimeproxy/originals",
    "run/runtimeproxy/coresched.json",
    "run/runtimeproxy-hooks/x.lock",
    "etc/runtimeproxy/node.yaml",
    "etc/systemd/system/multi-user.target.wants/runtimeproxy-hooks@gpu.service",
]


def test_purge_leaves_registrations_of_others_alone(node: Node) -> None:
    made = [node.write(place) for place in MADE]
    theirs = registered(node, "koordlet.json", "/var/run/koordlet/koordlet.sock")
    assert node.run("postrm", ["purge"], {}).code == 0
    assert [path for path in made if path.exists()] == []
    assert [path for path in (node.root / "etc").rglob("*") if path.is_file()] == [theirs]


def test_purge_leaves_the_sockets_of_others_hook_servers(node: Node) -> None:
    registered(node, "mine.json", "/var/run/runtimeproxy-hooks/mine.sock")
    socket = node.write("run/runtimeproxy-hooks/mine.sock")
    assert node.run("postrm", ["purge"], {}).code == 0
    assert socket.exists()


def test_purge_leaves_no_empty_directory(node: Node) -> None:
    (node.root / "etc/runtime/hookserver.d").mkdir(parents=True)
    assert node.run("postrm", ["purge"], {}).code == 0
    assert list((node.root / "etc").iterdir()) == []
