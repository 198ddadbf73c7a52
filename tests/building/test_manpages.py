"""The man pages of the Debian package have what the commands and hook servers print of themselves."""

import gzip
import subprocess
from pathlib import Path

import click
import pytest

from runtimeproxy.cli.commands.table import command_group
from runtimeproxy_hooks.__main__ import HOOKS

pytestmark = [pytest.mark.engine, pytest.mark.release]

GROUP = command_group()
TOP = click.Context(GROUP, info_name="runtimeproxy")


@pytest.fixture(scope="module")
def pages(release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the text of each page, without the escapes of roff."""
    (package,), folder = release.glob("*.deb"), tmp_path_factory.mktemp("package")
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    files = (folder / "usr/share/man/man8").glob("*.8.gz")
    texts = {path.name.removesuffix(".8.gz"): gzip.decompress(path.read_bytes()).decode() for path in files}
    return {name: text.replace("\\-", "-").replace("\\e", "\\").replace("\\&", "") for name, text in texts.items()}


def test_each_program_and_command_has_a_page_with_its_help(pages: dict[str, str]) -> None:
    commands = {f"runtimeproxy-{name}": GROUP.get_command(TOP, name) for name in GROUP.list_commands(TOP)}
    assert set(pages) == {"runtimeproxy", "koord-runtime-proxy", "runtimeproxy-hooks", *commands}
    for name, command in commands.items():
        assert command is not None
        context = click.Context(command, info_name=name.partition("-")[2], parent=TOP)
        assert command.get_help(context) in pages[name]
        for inner in command.list_commands(context) if isinstance(command, click.Group) else ():
            assert f"\n.SH runtimeproxy {context.info_name} {inner}\n" in pages[name]
        assert f"{name}(8)" in pages["runtimeproxy"]


def test_page_of_hook_servers_has_each_hook_and_its_flags(pages: dict[str, str]) -> None:
    text = pages["runtimeproxy-hooks"]
    assert [hook for hook in HOOKS if f"\n.SH {hook}\n" not in text] == []
    assert text.count("--failure-policy") >= len(HOOKS)
    assert "--cgroup-root DIR" in text
