"""The documents: docutils reads them without a warning, what they name is there, and each block has who shows it."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from urllib.parse import urlsplit

import click
import pytest
import yaml
from docutils import nodes

from runtimeproxy.cli.commands.run import run_command
from runtimeproxy.cli.commands.table import command_group
from runtimeproxy.settings.version import VERSION
from tests.docs import DOCS, ROOT
from tests.documents import BLOCKS, NOT_RUN, PAGES, WRITTEN, Block, blocks, parsed
from tests.soak import test_cluster as cluster
from tests.soak import test_documented as documented

READERS = {"python": ast.parse, "json": json.loads, "yaml": lambda text: list(yaml.safe_load_all(text))}
FILE = re.compile(r"(?:[A-Za-z0-9_.-]+/)+[A-Za-z0-9_.-]+\.[a-z]+|[A-Z]+\.rst|scripts/[a-z]+|deploy/[a-z-]+")
OURS = re.compile(r"(?:docs|scripts|deploy|tests|runtimeproxy|hooks)/|[A-Z]+\.rst$")
SECTION = re.compile(r'``(docs/[a-z-]+|README|SECURITY)\.rst``,\s+(?:"([^"]+)"|([A-Z][\w\s]*?))(?=[).,;:"]|$)')
BUILT = re.compile(r"runtimeproxy[_-](\d+\.\d+\.\d+)")

ON_A_MACHINE = {(each.page, each.first) for each in documented.RUN}


@pytest.mark.parametrize("page", PAGES)
def test_page_is_read_without_a_warning(page: str) -> None:
    """An internal link without its target is one, and so is a target that is there twice."""
    assert parsed(page)[1] == ""


def literals(page: str) -> Iterator[str]:
    for node in parsed(page)[0].findall(nodes.literal):
        yield " ".join(node.astext().split())


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.rst"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    named = {text for text in literals(page) if FILE.fullmatch(text) and OURS.match(text)}
    assert [
        name for name in sorted(named) if not any((root / name).exists() for root in (ROOT, ROOT / "runtimeproxy"))
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_sections_that_a_page_names_are_there(page: str) -> None:
    wrong = []
    for other, quoted, plain in SECTION.findall(PAGES[page]):
        heading = " ".join((quoted or plain).split())
        if heading not in {node.astext() for node in parsed(f"{other}.rst")[0].findall(nodes.title)}:
            wrong.append(f"{other}.rst, {heading}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_addresses_have_the_form_of_one(page: str) -> None:
    for node in parsed(page)[0].findall(nodes.reference):
        if (address := node.get("refuri")) and not address.startswith("mailto:"):
            parts = urlsplit(address)
            assert parts.scheme in ("http", "https"), address
            assert re.fullmatch(r"[a-z0-9.-]+(?::\d+)?|\[[0-9a-f:]+\]:\d+", parts.netloc), address


# No test is made for each block or command line: every process that collects the tests would read all pages for that.


@pytest.mark.parametrize("page", PAGES)
def test_each_block_of_a_page_has_who_shows_it(page: str) -> None:
    for block in blocks(page):
        has_who_shows_it(block)


def has_who_shows_it(block: Block) -> None:
    key = block.page, block.first
    shower = "tests/soak/test_documented.py::test_documented_commands_work" if key in ON_A_MACHINE else BLOCKS.get(key)
    if block.page in WRITTEN and any(line.startswith("$ ") for line in block.lines):
        assert shower is None, key
    elif block.language:
        READERS[block.language](block.text)
    elif block.needs_a_cluster:
        assert shower is None, key
        assert block.page == cluster.PAGE, key
        assert block.first.startswith(cluster.DOCUMENTED), key
    else:
        assert shower, f"{key} is a block that nobody runs: name who does in tests/documents.py"
        assert not any(line.startswith("$ ") for line in block.lines), f"{key}: tests/outputs.py writes outputs"
        if shower not in NOT_RUN:
            path, _, name = shower.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), key


def test_blocks_that_are_told_are_there() -> None:
    there = {(each.page, each.first) for page in PAGES for each in blocks(page)}
    assert {*BLOCKS, *ON_A_MACHINE} - there == set()


OURS_TO_CALL = {"runtimeproxy": command_group, "koord-runtime-proxy": run_command}
OUR_CALL = re.compile(r"(runtimeproxy|koord-runtime-proxy)(?! --version)\b")


def test_command_lines_of_the_blocks_are_ours() -> None:
    lines = {
        line
        for page in PAGES
        for each in blocks(page)
        if not each.language and BLOCKS.get((each.page, each.first)) not in NOT_RUN
        for line in filter(OUR_CALL.match, each.lines)
    }
    assert len(lines) > 10
    for line in sorted(lines):
        is_one_of_ours(line)


def is_one_of_ours(line: str) -> None:
    """Fail unless click takes a command line: its commands, flags and values."""
    program, *words = shlex.split(re.sub("<.*?>", "/run/some.sock", line))
    command, path = OURS_TO_CALL[program](), program
    while isinstance(command, click.Group):
        with click.Context(command, info_name=path) as context:
            name, found, words = command.resolve_command(context, words)
        command, path = found, f"{path} {name}"
    command.make_context(path, words)


def test_files_of_a_release_are_named_by_their_version() -> None:
    named = {(page, version) for page, text in PAGES.items() for version in BUILT.findall(text)}
    assert {version for _, version in named} == {VERSION}
    assert {"README.rst", "docs/install.rst"} <= {page for page, _ in named}


def test_every_page_is_named_by_another_one() -> None:
    for name in DOCS:
        others = "".join(text for page, text in PAGES.items() if page != f"docs/{name}.rst")
        assert f"docs/{name}.rst" in others, name
