"""Write the man pages of section 8, of the commands of the Python that runs it: ``python manpages.py DIRECTORY``.

Owns their form: a page for each program and for each command, whose own commands are subsections.
Must not know: any command.
Invariant: nothing is in a page that ``--help`` does not tell, but the files and where to read on.
"""

import os
import re
import sys
from argparse import Action
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

SECTION = 8
_HOOKS = "Serve one or several of the hooks below as one hook server, in the order of their names; `all` serves all."
FILES = {
    DEFAULT_FILE: "The configuration; `runtimeproxy config default` prints every key.",
    flags.REGISTRATIONS: "The registration files of hook servers.",
}


def main() -> None:
    """Write the pages into the directory of the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in pages().items():
        (folder / f"{name}.{SECTION}").write_text("\n".join(lines) + "\n")


def pages() -> dict[str, list[str]]:
    """Return the lines of each page by its name."""
    group = command_group()
    top = click.Context(group, info_name="runtimeproxy")
    commands = {name: group.get_command(top, name) for name in group.list_commands(top)}
    made = {f"runtimeproxy-{name}": command for name, command in commands.items() if command is not None}
    see_also = ["runtimeproxy", "runtimeproxy-hooks"]
    return {
        "runtimeproxy": _page("runtimeproxy", group, top, list(made)),
        "koord-runtime-proxy": _page(
            "koord-runtime-proxy",
            run_command(),
            click.Context(run_command(), info_name="koord-runtime-proxy"),
            see_also,
        ),
        "runtimeproxy-hooks": _hooks_page(),
        **{
            name: _page(name, command, click.Context(command, info_name=name.partition("-")[2], parent=top), see_also)
            for name, command in made.items()
        },
    }


def _page(name: str, command: click.Command, context: click.Context, see_also: list[str]) -> list[str]:
    short = command.get_short_help_str(limit=200).rstrip(".")
    lines = [*_head(name, short), ".SH SYNOPSIS", *_synopsis(command, context), ".SH DESCRIPTION", *_text(command.help)]
    lines += _options(command, context, ".SH OPTIONS")
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            assert child is not None
            if context.parent is None:  # its commands have pages of their own
                lines += [".TP", _bold(child_name), *_text(child.get_short_help_str(limit=200))]
            else:
                below = click.Context(child, info_name=child_name, parent=context)
                lines += [f".SS {_escaped(below.command_path)}", *_synopsis(child, below), ".PP", *_text(child.help)]
                lines += _options(child, below, ".PP")
                lines += _text(child.epilog, ".PP")
    return lines + _text(command.epilog, ".SH NOTES") + _tail(see_also)


def _hooks_page() -> list[str]:
    """Return the page of the hook servers, whose flags argparse has."""
    lines = [*_head("runtimeproxy-hooks", "serve the hooks that come with runtimeproxy"), ".SH SYNOPSIS"]
    lines += [f"{_bold('runtimeproxy-hooks')} NAME... [FLAGS]", ".SH DESCRIPTION", *_text(_HOOKS)]
    common = flags.parser("NAME")
    lines += [".SH OPTIONS", *_actions(common._actions), ".SH HOOKS"]
    for name in sorted(hooks.HOOKS):
        hook = hooks.load(name)
        parser = flags.parser(name)
        known = len(parser._actions)
        hook.add_arguments(parser)
        lines += [f".SS {name}", *_text((sys.modules[type(hook).__module__].__doc__ or "").split("\n\n")[0])]
        lines += _actions(parser._actions[known:])
    return lines + _tail(["runtimeproxy"])


def _actions(actions: list[Action]) -> Iterator[str]:
    for action in actions:
        metavar = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        yield from (".TP", _bold(", ".join(action.option_strings)) + _escaped(metavar))
        yield from _text((action.help or "") % {"default": action.default, "prog": "runtimeproxy-hooks"})


def _head(name: str, short: str) -> list[str]:
    date = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC).date()
    title = f'.TH "{name.upper()}" "{SECTION}" "{date}" "runtimeproxy {VERSION}" "System administration"'
    return [title, ".nh", ".ad l", ".SH NAME", f"{_escaped(name)} \\- {_escaped(short[0].lower() + short[1:])}"]


def _synopsis(command: click.Command, context: click.Context) -> list[str]:
    return [f"{_bold(context.command_path)} {_escaped(' '.join(command.collect_usage_pieces(context)))}"]


def _options(command: click.Command, context: click.Context, head: str) -> list[str]:
    records = [found for option in command.params if (found := option.get_help_record(context)) and found[1]]
    lines = [line for names, text in records for line in (".TP", _bold(names), *_text(text))]
    return [head, *lines] if lines else []


def _tail(see_also: list[str]) -> list[str]:
    files = [line for name, text in FILES.items() for line in (".TP", f"\\fI{_escaped(name)}\\fP", *_text(text))]
    return [".SH FILES", *files, ".SH SEE ALSO", ", ".join(f"{_bold(name)}({SECTION})" for name in see_also)]


def _text(text: str | None, head: str = "") -> list[str]:
    """Return paragraphs as click's help has them: one behind a backspace keeps its lines."""
    if not text:
        return []
    paragraphs = [lines for lines in re.split(r"\n\s*\n", text.strip("\n")) if lines.strip()]
    lines = [head] if head else []
    for number, paragraph in enumerate(paragraphs):
        kept, _, rest = paragraph.rpartition("\b\n")
        words = rest if kept or paragraph.startswith("\b") else " ".join(rest.split())
        lines += [".PP"] if number else []
        lines += (
            [".nf", *map(_escaped, words.splitlines()), ".fi"] if words != " ".join(rest.split()) else [_escaped(words)]
        )
    return lines


def _bold(text: str) -> str:
    return f"\\fB{_escaped(text)}\\fP"


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"``?([^`]+)``?", r"\\fB\1\\fP", text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    main()
