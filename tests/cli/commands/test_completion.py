"""``runtimeproxy completion``: the script of each shell, and the offered words."""

import shutil
import subprocess
import time
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from runtimeproxy.admin.protocol import Refused
from runtimeproxy.cli.commands.program import INSTALL
from runtimeproxy.cli.commands.table import PROGRAM, command_group
from runtimeproxy.cli.shared import admin_client, subjects
from tests.cli.admin_answers import CANNED, CONTAINER, POD
from tests.cli.conftest import Run
from tests.fakes.canned_admin import HALF_A_LINE, HANG, SPEAK_HTTP, Canned, sending, serving

READERS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
"""What reads a script without running it."""


@pytest.mark.parametrize("shell", INSTALL)
def test_script_is_valid_and_names_its_installation(run: Run, tmp_path: Path, shell: str) -> None:
    code, out, err = run("runtimeproxy", "completion", shell)
    assert (code, err) == (0, "")
    assert f"_RUNTIMEPROXY_COMPLETE={shell}_complete" in out
    assert out.splitlines()[-1] == f"# For all new shells: {INSTALL[shell]}"
    if shutil.which(shell):
        (tmp_path / "script").write_text(out)
        subprocess.run([*READERS[shell], str(tmp_path / "script")], check=True, timeout=60)


NAMED = [
    ("config ", {"check", "show", "default"}),
    ("run --log-level d", {"debug"}),
    ("run --config /etc", {"/etc"}),
    ("config show --backend-runtime-mode D", {"Docker"}),
    ("hook disable ", {"cpuset", "gpu", "gpu-copy", "koordlet"}),
    ("hook enable ", {"rdt", "gone"}),
    ("hook trace --hook-server ", {"cpuset", "gpu", "gpu-copy", "koordlet", "rdt", "gone"}),
    ("events --pod ", {"default/web-1"}),
    ("store get default/web-1/", {"default/web-1/main"}),
    ("store get ", {"default/web-1"}),
    (f"explain {POD[:4]}", {POD}),
    (f"explain {CONTAINER[:4]}", {CONTAINER}),
    ("explain nothing-like-it", set()),
]
"""A line up to the cursor, and the words that are offered."""


@pytest.mark.parametrize(("line", "names"), NAMED)
def test_names_and_ids_are_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, names: set[str]) -> None:
    monkeypatch.setattr(subjects, "SECONDS", 60.0)
    monkeypatch.setenv("RUNTIMEPROXY_ADMIN_ENDPOINT", f"{tmp_path}/admin.sock")
    *before, begun = line.split(" ")
    with serving(tmp_path / "admin.sock", CANNED):
        completion = ShellComplete(command_group(), {}, PROGRAM, "")
        assert {item.value for item in completion.get_completions(before, begun)} == names


WITHOUT: dict[str, Canned] = {
    "it hangs": {"hooks": HANG},
    "it hangs in a line": {"hooks": sending(HALF_A_LINE, hang=True)},
    "it fails": {"hooks": Refused(500, "no")},
    "it is no proxy": {"hooks": SPEAK_HTTP},
    "its form is another": {"hooks": {}},
}


@pytest.mark.parametrize("canned", WITHOUT.values(), ids=WITHOUT)
def test_completion_is_empty_when_proxy_does_not_answer(run: Run, tmp_path: Path, canned: Canned) -> None:
    words = {"_RUNTIMEPROXY_COMPLETE": "bash_complete", "COMP_WORDS": "runtimeproxy hook disable ", "COMP_CWORD": "3"}
    with serving(tmp_path / "admin.sock", canned), pytest.raises(SystemExit):
        run("runtimeproxy", **words, RUNTIMEPROXY_ADMIN_ENDPOINT=f"{tmp_path}/admin.sock")


def test_completion_ends_within_time_limit(tmp_path: Path) -> None:
    """An import takes longer than the wait, so the time is measured within the process."""
    with serving(tmp_path / "admin.sock", {"hooks": HANG}):
        context = click.Context(click.Command("x"))
        context.params = {"admin_endpoint": f"{tmp_path}/admin.sock"}
        began = time.monotonic()
        assert subjects.hook_servers(context, click.Argument(["name"]), "") == []
        assert subjects.SECONDS <= time.monotonic() - began < admin_client.SECONDS
