"""The output of commands in each form."""

import json
import sys

import pytest
import yaml

from runtimeproxy.cli.shared.output import row_text, structured_text

ROWS = [{"name": "a", "value": "1"}, {"name": "long", "value": None}]
TABLES = [
    (ROWS, ("name", "value"), False, "NAME   VALUE\na      1\nlong   -"),
    (ROWS, ("name", "value"), True, "a      1\nlong   -"),
    (ROWS, ("value",), False, "VALUE\n1\n-"),
    ([], ("name",), False, "NAME"),
    ([], ("name",), True, ""),
]


@pytest.mark.parametrize(("rows", "columns", "no_headers", "text"), TABLES)
def test_table(rows: list[dict[str, str | None]], columns: tuple[str, ...], no_headers: bool, text: str) -> None:
    assert row_text(rows, columns, "table", no_headers) == text


def test_text_of_several_lines_is_a_literal_block() -> None:
    assert structured_text({"a": "1\n2\n"}, "yaml") == "a: |\n  1\n  2"


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_rows_as_data_have_the_requested_columns(output: str, read: object) -> None:
    assert callable(read)
    assert read(row_text(ROWS, ("name", "value"), output, False)) == ROWS
    assert read(row_text(ROWS, ("value",), output, True)) == [{"value": "1"}, {"value": None}]


TEXT = "one /a/path/that/is/long two three\nfour"
WRAPPED = [(40, TEXT.splitlines()), (10, ["one", "/a/path/that/is/long", "two three", "four"])]


@pytest.mark.parametrize(("width", "lines"), WRAPPED)
def test_on_a_terminal_the_last_column_is_wrapped_below_itself(
    monkeypatch: pytest.MonkeyPatch, width: int, lines: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    first, *others = row_text([{"a": "x", "text": TEXT}], ("a", "text"), "table", True).splitlines()
    assert first == f"x   {lines[0]}"
    assert others == [f"    {line}" for line in lines[1:]]
