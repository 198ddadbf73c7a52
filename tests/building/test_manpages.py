"""The man pages tell what the commands and hook servers tell of themselves."""

import re

import click
import pytest

from runtimeproxy.cli.commands.table import command_group
from runtimeproxy_hooks.__main__ import HOOKS
from scripts.building import manpages

GROUP = command_group()
TOP = click.Context(GROUP, info_name="runtimeproxy")
COMMANDS = GROUP.list_commands(TOP)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        return {name: "\n".join(lines) for name, lines in manpages.pages().items()}


def shown(page: str) -> str:
    """Return the text of a page without its requests and fonts."""
    lines = [line for line in page.splitlines() if not re.match(r"\.(TP|PP|nf|fi|nh|ad)", line)]
    return re.sub(r"\\f[BIP]|\\&", "", "\n".join(lines)).replace("\\-", "-").replace("\\e", "\\")


def test_each_program_and_command_has_a_page(pages: dict[str, str]) -> None:
    commands = {f"runtimeproxy-{name}" for name in COMMANDS}
    assert set(pages) == {"runtimeproxy", "koord-runtime-proxy", "runtimeproxy-hooks", *commands}
    assert [name for name in COMMANDS if f"runtimeproxy-{name}(8)" not in shown(pages["runtimeproxy"])] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_page_has_each_flag_with_its_help(pages: dict[str, str], name: str) -> None:
    command = GROUP.get_command(TOP, name)
    assert command is not None
    text = shown(pages[f"runtimeproxy-{name}"])
    context = click.Context(command, info_name=name, parent=TOP)
    inner = command.list_commands(context) if isinstance(command, click.Group) else []
    for each in (command, *(command.get_command(context, child) for child in inner)):
        records = [record for option in each.params if (record := option.get_help_record(context)) and record[1]]
        assert [
            names for names, words in records if f"{names}\n{' '.join(words.replace('`', '').split())}" not in text
        ] == []


def test_page_of_hook_servers_has_each_hook_and_its_flags(pages: dict[str, str]) -> None:
    text = shown(pages["runtimeproxy-hooks"])
    assert re.findall(r"^\.SS (.*)$", text, re.MULTILINE) == sorted(HOOKS)
    assert "--failure-policy" in text
    assert "--cgroup-root DIR" in text


def test_page_is_of_the_day_and_the_version_of_the_build(pages: dict[str, str]) -> None:
    head = f'.TH "RUNTIMEPROXY-TOP" "8" "2023-11-14" "runtimeproxy {manpages.VERSION}"'
    assert pages["runtimeproxy-top"].startswith(head)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb\n\nc -x", ["a b", ".PP", "c \\-x"]),
        ("\b\nkept  as\nit is", [".nf", "kept  as", "it is", ".fi"]),
        (".dot and `code`", ["\\&.dot and \\fBcode\\fP"]),
        ("back\\slash", ["back\\eslash"]),
        (None, []),
    ],
)
def test_text_of_help_becomes_paragraphs(text: str | None, lines: list[str]) -> None:
    assert manpages._text(text) == lines
