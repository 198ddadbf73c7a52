"""README.rst says what the program does: its tables are compared with the program's own."""

import re
from pathlib import Path

import pytest

from runtimeproxy.hookpoints import HOOK_POINTS
from runtimeproxy.options import OPTIONS
from tests.docs import HOOKS

README = (Path(__file__).parents[1] / "README.rst").read_text()
LITERALS = {" ".join(text.split()) for text in re.findall(r"``(.*?)``", README, re.DOTALL)}
COMMANDS = {line.strip() for line in README.splitlines() if line.startswith("    ")}


def table(heading: str) -> list[list[str]]:
    """Return the rows of the list-table below ``heading``, without the head row."""
    section = README.partition(f"\n{heading}\n{'-' * len(heading)}\n")[2]
    body = re.split(r"\n\n(?=\S)", section.partition(".. list-table::")[2])[0]
    rows = body.split("\n   * - ")[2:]
    return [[" ".join(cell.split()) for cell in row.split("\n     - ")] for row in rows]


def test_the_table_of_flags_is_the_table_of_options() -> None:
    rows = [[f"``{o.flag}``", o.shown_default, f"``{o.variable}``", o.help] for o in OPTIONS]
    assert table("Flags") == rows


def test_the_hook_points_are_all_there_and_say_which_answers_count() -> None:
    words = {"annotations": "annotations", "cgroup_parent": "cgroup parent", "envs": "environment"}
    rows = dict(table("Hook points"))
    assert list(rows) == [point.name for point in HOOK_POINTS]
    for point in HOOK_POINTS:
        named = {part for part in point.applies if words.get(part.value, part.value) in rows[point.name]}
        assert named == point.applies
        assert (rows[point.name] == "nothing") == (not point.applies)


@pytest.mark.parametrize(
    "command",
    [
        "koord-runtime-proxy",
        "koord-runtime-proxy --remote-runtime-service-endpoint=<sock> --remote-image-service-endpoint=<sock>",
        "koord-runtime-proxy --backend-runtime-mode=Docker --remote-runtime-service-endpoint=<docker sock>",
        "scripts/demo",
        "scripts/test",
        "/opt/runtimeproxy/bin/pip install --use-pep517 '.[hooks]'",  # without the flag Debian 12's pip warns
    ],
)
def test_the_documented_commands(command: str) -> None:
    assert command in COMMANDS


def test_a_hook_server_is_run_by_the_python_that_it_was_installed_for() -> None:
    [environment] = [command.split()[-1] for command in COMMANDS if command.startswith("python3 -m venv ")]
    command = f"{environment}/bin/python hello.py"
    assert command in LITERALS
    assert f"\n    {command}\n" in HOOKS


@pytest.mark.parametrize(
    "flags",
    [
        "--container-runtime-endpoint=unix:///var/run/koord-runtimeproxy/runtimeproxy.sock",
        "--container-runtime=remote --container-runtime-endpoint=unix:///var/run/koord-runtimeproxy/runtimeproxy.sock",
        "--docker-endpoint=unix:///var/run/koord-runtimeproxy/runtimeproxy.sock",
    ],
)
def test_the_kubelets_flags(flags: str) -> None:
    assert flags in LITERALS


@pytest.mark.parametrize(
    "words",
    [
        "Do not install it if you do not know why you need it.",
        "Kubernetes 1.18 or later",
        "Linux kernel 4.19 or later is recommended",
        "every other container passes untouched",
        "**The default is fail-open.**",
        "runtimeproxy.koordinator.sh/skip-hookserver=true",
        "Change the kubelet's flags back first",
    ],
)
def test_what_nobody_may_miss(words: str) -> None:
    assert words in " ".join(README.split())
