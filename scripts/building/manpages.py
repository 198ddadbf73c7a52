"""Write the man pages into a directory: the ``--help`` of each program and command, by the Python that runs this."""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from runtimeproxy.cli.commands.run import run_command
from runtimeproxy.cli.commands.table import command_group
from runtimeproxy.settings.options import DEFAULT_FILE
from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks import __main__ as hooks
from runtimeproxy_hooks.sdk import flags

FILES = {
    DEFAULT_FILE: "The configuration; runtimeproxy config default prints every key.",
    flags.REGISTRATIONS: "The registration files of hook servers.",
}
Section = tuple[str, str]
"""The heading and the text of a section."""


def main() -> None:
    """Write the pages into the directory of the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    group = command_group()
    top = click.Context(group, info_name="runtimeproxy")
    commands = {name: group.get_command(top, name) for name in group.list_commands(top)}
    pages = {"koord-runtime-proxy": [*_helps(run_command(), "koord-runtime-proxy")]}
    pages["runtimeproxy"] = [("DESCRIPTION", group.get_help(top))]
    pages |= {f"runtimeproxy-{name}": [*_helps(command, name, top)] for name, command in commands.items() if command}
    shorts = {name: command.get_short_help_str(200) for name, command in commands.items() if command}
    names = {f"runtimeproxy-{name}": short for name, short in shorts.items()}
    names |= {"runtimeproxy": group.get_short_help_str(200), "koord-runtime-proxy": shorts["run"]}
    names["runtimeproxy-hooks"] = "serve the hooks that come with runtimeproxy"
    pages["runtimeproxy-hooks"] = [("DESCRIPTION", hooks.USAGE), *map(_hook, sorted(hooks.HOOKS))]
    for name, sections in pages.items():
        (folder / f"{name}.8").write_text(_page(name, names[name].rstrip("."), sections, sorted(pages)))


def _helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[Section]:
    """Yield a command's help, and a section for each command of a group."""
    context = click.Context(command, info_name=name, parent=parent)
    yield "DESCRIPTION", command.get_help(context)
    if not isinstance(command, click.Group):
        return
    for inner in command.list_commands(context):
        found = command.get_command(context, inner)
        assert found is not None
        yield f"{context.command_path} {inner}", found.get_help(click.Context(found, info_name=inner, parent=context))


def _hook(name: str) -> Section:
    parser = flags.parser(name)
    hooks.load(name).add_arguments(parser)
    return name, parser.format_help()


def _page(name: str, short: str, sections: list[Section], pages: list[str]) -> str:
    date = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC).date()
    files = "\n\n".join(f"{path}\n    {text}" for path, text in FILES.items())
    others = ", ".join(f"{page}(8)" for page in pages if page != name)
    lines = [f'.TH "{name.upper()}" "8" "{date}" "runtimeproxy {VERSION}" "System administration"', ".nh", ".ad l"]
    lines += [".SH NAME", f"{_escaped(name)} \\- {_escaped(short[0].lower() + short[1:])}"]
    for title, text in (*sections, ("FILES", files)):
        lines += [f".SH {_escaped(title)}", ".nf", *map(_escaped, text.strip().splitlines()), ".fi"]
    return "\n".join([*lines, ".SH SEE ALSO", _escaped(others)]) + "\n"


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    main()
