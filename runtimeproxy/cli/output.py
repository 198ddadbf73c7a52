"""The output of commands: rows as a table, JSON or YAML.

Owns the flags ``-o`` and ``--no-headers``, and how rows become text.
Must not know: what the rows are about.
Invariant: the output is plain, without colour and control characters, wherever it goes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

TABLE, JSON, YAML = "table", "json", "yaml"
NOT_SET = "-"

_Command = Callable[..., int | None]


def output_option(*forms: str) -> Callable[[_Command], _Command]:
    """Return the decorator that adds ``-o`` with these forms, the first being the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms),
        default=forms[0],
        metavar="|".join(forms),
        help=f"The form of the output.  [default: {forms[0]}]",
    )


def row_options(command: _Command) -> _Command:
    """Add the flags of a command that prints rows."""
    no_headers = click.option("--no-headers", is_flag=True, help="Print a table without its first line.")
    return output_option(TABLE, JSON, YAML)(no_headers(command))


def row_text(rows: Sequence[Mapping[str, str | None]], columns: Sequence[str], output: str, no_headers: bool) -> str:
    """Return rows of these columns in a form, without the last line feed."""
    if output != TABLE:
        return structured_text([{column: row[column] for column in columns} for row in rows], output)
    head = [] if no_headers else [[column.upper() for column in columns]]
    lines = head + [[NOT_SET if row[column] is None else str(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def structured_text(value: Any, output: str) -> str:
    """Return a value as JSON or YAML, without the last line feed."""
    if output == JSON:
        return json.dumps(value, indent=2)
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes a text of several lines as a literal block."""

    def write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, write_text)
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000).rstrip("\n")
