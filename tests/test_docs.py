"""What README.rst and docs/ contain exists and works: tables, flags, files, code blocks, command lines and outputs."""

import ast
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import grpc
import pytest
import yaml
from docutils import nodes
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from runtimeproxy.admin.health import CHECKS
from runtimeproxy.cli.commands import kubelet_args
from runtimeproxy.cli.commands.program import INSTALL
from runtimeproxy.cli.commands.run import run_command
from runtimeproxy.cli.commands.table import COMMANDS, command_group
from runtimeproxy.hookapi import codec
from runtimeproxy.model import no_effect
from runtimeproxy.model.fields import RESOURCE_FIELDS
from runtimeproxy.model.hookpoints import HOOK_POINTS, Part
from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.metric_table import HOOK_SERVER_SERIES, HOOK_SERVERS, OTHER_LABEL, ROWS, SECONDS
from runtimeproxy.settings.options import FILE_OPTION, FIRST_VERSION, OPTIONS
from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks import __main__ as hooks_main
from runtimeproxy_hooks.lib import node
from runtimeproxy_hooks.sdk.context import in_no_runtime
from runtimeproxy_hooks.sdk.hook import METHODS
from tests import outputs
from tests.docs import CODE, DOCS, HOOKS, PAGES, ROOT, blocks, code_blocks, parsed, table, tables
from tests.hooks.sdk import processes

SOCKET = "/var/run/koord-runtimeproxy/runtimeproxy.sock"


def test_pages_list_answers_events_and_health_checks() -> None:
    words = {Part.CGROUP_PARENT: "cgroup parent", Part.ENVS: "environment"}
    used = dict(table(DOCS["registration"], "Hook points"))
    assert list(used) == [hook_point.name for hook_point in HOOK_POINTS]
    for hook_point in HOOK_POINTS:
        assert {part for part in Part if words.get(part, part.value) in used[hook_point.name]} == hook_point.applies
        assert (used[hook_point.name] == "nothing") == (not hook_point.applies)
    for heading, names in (("Events and call ids", [kind.value for kind in EventKind]), ("Health", CHECKS)):
        rows = table(DOCS["operation"], heading)
        assert [row[0] for row in rows] == [f"``{name}``" for name in names]
        assert all(row[-1].endswith(".") for row in rows)


def test_configuration_page_has_each_option() -> None:
    page = " ".join(DOCS["configuration"].split())
    assert re.findall(r"^(.+)\n-+$", DOCS["configuration"], re.MULTILINE) == [option.name for option in OPTIONS]
    for option in OPTIONS:
        none = "" if option.none_since == FIRST_VERSION else f"; ``none`` since {option.none_since}"
        parts = [option.name, "-" * len(option.name), *option.help.split()]
        parts += [f":Set by: ``{option.flag} {option.metavar}``, ``{option.variable}``"]
        parts += [f":Default: {option.shown_default} (since {option.since}{none})"]
        parts += [":Key: none, as it names the file"] if option is FILE_OPTION else []
        assert " ".join([*parts, ":Changed: "]) in page


def test_metrics_page_has_each_metric_and_limits() -> None:
    page = " ".join(DOCS["metrics"].split())
    labels = {row: f"; {', '.join(row.labels)}" if row.labels else "" for row in ROWS}
    entries = [f"``{row.shown}`` ({row.kind.value}{labels[row]}) {row.help}" for row in ROWS]
    bounds = ", ".join(f"{bound:g}" for bound in SECONDS)
    assert page.endswith(f"all histograms end at {bounds} seconds and infinity. {' '.join(entries)}")
    assert f"the first {HOOK_SERVERS} names of a process's life. All others together are ``{OTHER_LABEL}``" in page
    assert f"more than {HOOK_SERVER_SERIES:,} counters of hook servers" in page


def test_kubelet_page_lists_kubelet_flags() -> None:
    reported = [[r.kubelet, f"``{r.unit}``", f"``{' '.join(r.flags_for(SOCKET))}``"] for r in kubelet_args.ROWS]
    assert table(DOCS["kubelet"], "By version") == reported
    rows = [
        [name, f"``{d.unit}``", f"``{d.file}``", f"``{d.runtime}``"] for name, d in kubelet_args.DISTRIBUTIONS.items()
    ]
    assert [row[:4] for row in table(DOCS["kubelet"], "k3s, RKE2, k0s, MicroK8s")] == rows


@pytest.mark.slow
def test_commands_have_documented_output() -> None:
    """``python -m tests.outputs`` writes it."""
    assert outputs.updated(DOCS["commands"]) == DOCS["commands"]


def test_pages_name_each_command_and_hook_server() -> None:
    named = set(re.findall(r"``(?:runtimeproxy )?([a-z-]+)", DOCS["commands"]))
    assert named >= COMMANDS.keys()
    assert [[shell, f"``{command}``"] for shell, command in INSTALL.items()] == table(DOCS["commands"], "Completion")
    rows = table(HOOKS, "The hook servers that come with it")
    assert [name.strip("`") for name, _ in rows] == sorted(hooks_main.HOOKS)


def test_hooks_guide_lists_fields_and_node_settings() -> None:
    rows = table(HOOKS, "What a hook sees and changes")
    for hook_point, (name, given, changes) in zip(HOOK_POINTS, rows, strict=True):
        assert name == hook_point.name
        assert given.startswith(f"the {hook_point.subject.value}")
        named = {} if changes == "nothing" else set(changes.split(", "))
        assert set(named) == {
            "env" if part is Part.ENVS else part.value
            for part in hook_point.applies
            if part.value not in in_no_runtime(hook_point.operation)
        }
    assert all(f"``{method}``" in HOOKS for method in METHODS)
    text = code_blocks("yaml")[1]
    assert node.parse(text.encode(), "node.yaml").rdt["BE"].mb == 50
    assert set(yaml.safe_load(text)) == {name.replace("_", "-") for name in node.Settings.__dataclass_fields__}


def test_koordlet_page_lists_fields_without_effect() -> None:
    expected: dict[tuple[str, str], list[str]] = {}
    for row in no_effect.ROWS:
        names = {name.removeprefix("resources.") for name in row.fields}
        fields = ["resources"] if names == {*RESOURCE_FIELDS} else sorted(names)
        until = f" before {row.until[0]}.{row.until[1]}" if row.until else ""
        expected.setdefault((row.runtime, row.operation.value), []).extend(f"{name}{until}" for name in fields)
    runtimes = {"CRI-O": "cri-o", "cri-dockerd": "docker"}
    found = table(DOCS["koordlet"], "What has no effect")
    assert {(runtimes.get(name, name), call): fields.split(", ") for name, call, fields in found} == expected
    assert {f"``{name}``" for name in no_effect.PLAIN_HANDLERS if name} <= set(re.findall(r"``\w+``", DOCS["koordlet"]))


@pytest.mark.slow  # it runs pytest, and starts a hook server
def test_hooks_guide_shows_working_examples(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(CODE.replace("main(Hello())", 'if __name__ == "__main__":\n    main(Hello())'))
    (tmp_path / "test_hello.py").write_text(code_blocks("python")[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_hello.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    program = tmp_path / "interceptor.py"
    program.write_text(code_blocks("python")[2])
    with processes.running(tmp_path, program=(str(program),), file="hello.json") as server:
        with grpc.insecure_channel(f"unix:{server.socket}") as channel:
            assert codec.SERVICE in ProtoReflectionDescriptorDatabase(channel).get_services()
        assert processes.status(str(server.socket), processes.request()) == (grpc.StatusCode.OK, "")
        assert server.end(signal.SIGTERM) == 0


def test_security_page_names_existing_tests() -> None:
    rows = [row for rows in tables(DOCS["security"], "Shown by") for row in rows]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"``([\w/]+\.py)::(\w+)``", row[-1])
        assert named, row
        for file, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), row


READERS = {"python": ast.parse, "json": json.loads, "yaml": lambda text: list(yaml.safe_load_all(text))}
FOLDERS = "(?:docs|scripts|deploy|tests|runtimeproxy|hooks)"
FILE = re.compile(rf"{FOLDERS}/(?:[\w.-]+/)*[\w.-]+\.[a-z]+|[A-Z]+\.rst|scripts/[a-z]+")


@pytest.mark.parametrize("page", PAGES)
def test_page_is_well_formed_and_names_files_that_exist(page: str) -> None:
    """Docutils warns of an internal link without a target."""
    document, warnings = parsed(page)
    assert warnings == ""
    for block in blocks(page):
        if block.language:
            READERS[block.language](block.text)
    named = {" ".join(node.astext().split()) for node in document.findall(nodes.literal)}
    files = {name for name in named if FILE.fullmatch(name) and page != "CHANGELOG.rst"}
    assert [
        name for name in sorted(files) if not any((root / name).exists() for root in (ROOT, ROOT / "runtimeproxy"))
    ] == []


PROGRAMS = {"runtimeproxy": command_group, "koord-runtime-proxy": run_command}
COMMAND_LINE = re.compile(r"(runtimeproxy|koord-runtime-proxy)(?! --version| \d)\b")


def test_command_lines_of_blocks_are_accepted() -> None:
    """Parsed by click: commands, flags and values."""
    found = {line for page in PAGES for block in blocks(page) if not block.language for line in block.lines}
    lines = sorted(filter(COMMAND_LINE.match, found))
    assert len(lines) > 10
    for line in lines:
        program, *words = shlex.split(re.sub("<.*?>", "/run/some.sock", line))
        command, path = PROGRAMS[program](), program
        while isinstance(command, click.Group):
            with click.Context(command, info_name=path) as context:
                name, found_command, words = command.resolve_command(context, words)
            assert found_command is not None
            command, path = found_command, f"{path} {name}"
        command.make_context(path, words)


def test_release_files_are_named_by_their_version() -> None:
    built = re.compile(r"runtimeproxy[_-](\d+\.\d+\.\d+)")
    named = {(page, version) for page, text in PAGES.items() for version in built.findall(text)}
    assert {version for _, version in named} == {VERSION}
    assert {"README.rst", "docs/install.rst"} <= {page for page, _ in named}
