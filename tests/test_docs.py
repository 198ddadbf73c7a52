"""README.rst and docs/ say what is so: their tables are the program's own, their code runs as it stands."""

import itertools
import re
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import grpc
import pytest
import yaml
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import runtimeproxy
from runtimeproxy.admin.health import CHECKS
from runtimeproxy.cli.commands import kubelet_args
from runtimeproxy.cli.commands.kubelet_args import DISTRIBUTIONS
from runtimeproxy.cli.commands.program import INSTALL
from runtimeproxy.cli.commands.table import COMMANDS as ALL_COMMANDS
from runtimeproxy.hookapi import codec
from runtimeproxy.model import no_effect
from runtimeproxy.model.fields import RESOURCE_FIELDS
from runtimeproxy.model.hookpoints import HOOK_POINTS, Part
from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.metric_table import HOOK_SERVER_SERIES, HOOK_SERVERS, METRICS, OTHER, ROWS, SECONDS
from runtimeproxy.settings.options import FILE_OPTION, FIRST_VERSION, OPTIONS, Option
from runtimeproxy_hooks import __main__ as hooks_main
from runtimeproxy_hooks.lib import node
from runtimeproxy_hooks.sdk.context import in_no_runtime
from runtimeproxy_hooks.sdk.hook import METHODS
from tests import outputs
from tests.docs import CODE, DOCS, HOOKS, README, ROOT, code_blocks, table, tables
from tests.hooks.sdk import callers
from tests.hooks.sdk.processes import running
from tests.system.blast import BY_POLICY, DISABLE, KINDS, MOVE, REFUSAL, REPLACE

LITERALS = {" ".join(text.split()) for text in re.findall(r"``(.*?)``", README, re.DOTALL)}
COMMANDS = {line.strip() for line in README.splitlines() if line.startswith("    ")}
PACKAGE = Path(runtimeproxy.__file__).parent
SOCKET = "/var/run/koord-runtimeproxy/runtimeproxy.sock"


def test_registration_says_which_answers_count_at_each_hook_point() -> None:
    words = {Part.CGROUP_PARENT: "cgroup parent", Part.ENVS: "environment"}
    rows = dict(table(DOCS["registration"], "Hook points"))
    assert list(rows) == [point.name for point in HOOK_POINTS]
    for point in HOOK_POINTS:
        named = {part for part in Part if words.get(part, part.value) in rows[point.name]}
        assert named == point.applies
        assert (rows[point.name] == "nothing") == (not point.applies)


def test_operation_says_what_each_kind_of_event_means() -> None:
    rows = table(DOCS["operation"], "Events and call ids")
    assert [kind for kind, _ in rows] == [f"``{kind.value}``" for kind in EventKind]
    assert all(meaning.endswith(".") for _, meaning in rows)


def test_operation_says_what_each_health_check_means() -> None:
    rows = table(DOCS["operation"], "Health")
    assert [check for check, *_ in rows] == [f"``{name}``" for name in CHECKS]


def option_entry(option: Option) -> str:
    """Return the entry of an option, without what follows from a change of it."""
    none = "" if option.none_since == FIRST_VERSION else f"; ``none`` since {option.none_since}"
    fields = [
        f":Flag: ``{option.flag} {option.metavar}`` :Variable: ``{option.variable}``",
        f":Default: {option.shown_default} :Since: {option.since}{none}",
        *([":Key: none, as it names the file"] if option is FILE_OPTION else []),
    ]
    return " ".join([option.name, "-" * len(option.name), *option.help.split(), *fields, ":Changed: "])


def test_configuration_has_each_option() -> None:
    page = " ".join(DOCS["configuration"].split())
    assert re.findall(r"^(.+)\n-+$", DOCS["configuration"], re.MULTILINE) == [option.name for option in OPTIONS]
    assert [option.name for option in OPTIONS if option_entry(option) not in page] == []


def test_metrics_has_each_metric_and_the_limits() -> None:
    page = " ".join(DOCS["metrics"].split())
    labels = {row: f"; {', '.join(row.labels)}" if row.labels else "" for row in ROWS}
    entries = [f"``{row.shown}`` ({row.kind.value}{labels[row]}) {row.help}" for row in ROWS]
    bounds = ", ".join(f"{bound:g}" for bound in SECONDS)
    assert page.endswith(f"all histograms end at {bounds} seconds and infinity. {' '.join(entries)}")
    assert f"the first {HOOK_SERVERS} names of a process's life. All others together are ``{OTHER}``" in page
    assert f"more than {HOOK_SERVER_SERIES:,} counters of hook servers" in page


def test_each_error_text_says_what_to_do() -> None:
    blocks = DOCS["errors"].split("\n\n")
    entries = [(block, after) for block, after in itertools.pairwise(blocks) if block.startswith("| ``")]
    assert len(entries) > 100
    assert [block for block, after in entries if not after.startswith("    ")] == []


def test_readme_has_the_commands() -> None:
    endpoints = "--remote-runtime-service-endpoint=<sock> --remote-image-service-endpoint=<sock>"
    docker = "--backend-runtime-mode=Docker --remote-runtime-service-endpoint=<docker sock>"
    pip = "/opt/runtimeproxy-venv/bin/pip install --use-pep517 '.[hooks]'"  # without the flag Debian 12's pip warns
    proxies = {"koord-runtime-proxy", f"koord-runtime-proxy {endpoints}", f"koord-runtime-proxy {docker}"}
    assert proxies | {"scripts/demo", "scripts/test", pip} <= COMMANDS


def test_hook_server_is_run_by_the_python_that_it_was_installed_for() -> None:
    [environment] = [command.split()[-1] for command in COMMANDS if command.startswith("python3 -m venv ")]
    [link] = [command.split()[-1] for command in COMMANDS if command.startswith(f"ln -sfn {environment} ")]
    command = f"{link}/bin/python3 hello.py"
    assert command in LITERALS
    assert f"\n    {command}\n" in HOOKS


def test_page_of_the_kubelet_has_its_flags() -> None:
    told = [[r.kubelet, f"``{r.unit}``", f"``{' '.join(r.flags_for(SOCKET))}``"] for r in kubelet_args.ROWS]
    assert table(DOCS["kubelet"], "By version") == told
    rows = [[name, f"``{d.unit}``", f"``{d.file}``", f"``{d.runtime}``"] for name, d in DISTRIBUTIONS.items()]
    assert [row[:4] for row in table(DOCS["kubelet"], "k3s, RKE2, k0s, MicroK8s")] == rows


def test_fleets_says_what_each_bad_hook_server_costs() -> None:
    page = DOCS["fleets"]
    for kind in KINDS:
        [row] = re.findall(rf"^   \*\*{re.escape(kind.name)}\*\*: (.*)", page, re.MULTILINE)
        assert row.startswith(kind.does), row
        for policy, lost in kind.lost.items():
            signs = kind.signs(policy)
            failure = f"``{policy.value}`` | {BY_POLICY[policy].value} | "
            fails = kind.reason and signs is not REFUSAL
            seen = page.partition(failure)[2].partition("\n")[0] if fails else row
            shown = f"event ``{signs.event.value}``; ``{METRICS[signs.metric].shown}"
            assert shown in seen, kind.name
            assert seen.endswith(f"; {signs.alert or 'no alert'}"), kind.name
            texts = [f"``{kind.reason.value}``"] if fails and kind.reason else [lost.value]
            texts += [f"``{check}``"] if (check := kind.checks.get(policy)) else []
            assert [text for text in texts if text not in row] == []
    assert all(f"* **{way}**: " in page for way in (MOVE, DISABLE, REPLACE))


@pytest.mark.slow
def test_commands_have_the_outputs_that_the_page_shows() -> None:
    """``python -m tests.outputs`` writes them."""
    assert outputs.renewed(DOCS["commands"]) == DOCS["commands"]


def test_page_of_commands_names_each_of_them() -> None:
    named = set(re.findall(r"``(?:runtimeproxy )?([a-z-]+)", DOCS["commands"]))
    assert named >= ALL_COMMANDS.keys()
    assert [[shell, f"``{command}``"] for shell, command in INSTALL.items()] == table(DOCS["commands"], "Completion")


WORDS = [
    ("README", "Do not install it if you do not know why you need it."),
    ("README", "Kubernetes 1.18 or later"),
    ("README", "Linux kernel 4.19 or later is recommended"),
    ("README", "**The default is fail-open.**"),
    ("README", "Change the kubelet's flags back first"),
    ("docker-mode", "every other container passes untouched"),
    ("registration", "runtimeproxy.koordinator.sh/skip-hookserver=true"),
]


@pytest.mark.parametrize(("page", "words"), WORDS)
def test_page_says_what_nobody_may_miss(page: str, words: str) -> None:
    assert words in " ".join({"README": README, **DOCS}[page].split())


def test_map_of_the_package_names_modules_that_there_are() -> None:
    names = set(re.findall(r"``([a-z_.0-9]+)``", runtimeproxy.__doc__ or ""))
    assert {name for name in names if find_spec(f"runtimeproxy.{name}") is None} == set()
    rooms = {path.parent.name if path.name == "__init__.py" else path.stem for path in PACKAGE.glob("*.py")}
    rooms |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms - {"runtimeproxy", "__main__"} <= {name.partition(".")[0] for name in names}


def test_hook_server_has_ten_lines() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 10


def test_hooks_guide_says_what_a_hook_sees_and_changes() -> None:
    rows = table(HOOKS, "What a hook sees and changes")
    for point, (name, given, changes) in zip(HOOK_POINTS, rows, strict=True):
        assert name == point.name
        assert given.startswith(f"the {point.subject.value}")
        named = {} if changes == "nothing" else set(changes.split(", "))
        assert set(named) == {
            "env" if part is Part.ENVS else part.value
            for part in point.applies
            if part.value not in in_no_runtime(point.operation)
        }
    assert all(f"``{method}``" in HOOKS for method in METHODS)


def test_page_of_koordlet_has_the_fields_without_effect() -> None:
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


def test_hooks_guide_names_every_hook_server_that_comes_with_it() -> None:
    names = [name.strip("`") for name, _ in table(HOOKS, "The hook servers that come with it")]
    assert names == sorted(hooks_main.HOOKS)


@pytest.mark.slow  # it runs pytest
def test_hooks_guide_shows_the_tester_as_it_works(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(CODE.replace("main(Hello())", 'if __name__ == "__main__":\n    main(Hello())'))
    (tmp_path / "test_hello.py").write_text(code_blocks("python")[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_hello.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow  # it starts a hook server
def test_hooks_guide_shows_interceptor_and_reflection_as_they_work(tmp_path: Path) -> None:
    program = tmp_path / "hello.py"
    program.write_text(code_blocks("python")[2])
    with running(tmp_path, program=(str(program),), file="hello.json") as server:
        with grpc.insecure_channel(f"unix:{server.socket}") as channel:
            assert codec.SERVICE in ProtoReflectionDescriptorDatabase(channel).get_services()
        assert callers.status(str(server.socket), callers.request()) == (grpc.StatusCode.OK, "")
        assert server.end(signal.SIGTERM) == 0


def test_hooks_guide_has_all_settings_of_the_node() -> None:
    settings = code_blocks("yaml")[1]
    assert node.parse(settings.encode(), "node.yaml").rdt["BE"].mb == 50
    assert set(yaml.safe_load(settings)) == {name.replace("_", "-") for name in node.Settings.__dataclass_fields__}


def test_hooks_guides_pod_is_left_alone_by_the_proxy() -> None:
    template = yaml.safe_load(code_blocks("yaml")[0])["spec"]["template"]
    assert template["metadata"]["labels"]["runtimeproxy.koordinator.sh/skip-hookserver"] == "true"


@cache
def help_of(*command: str) -> str:
    return subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"``(--[a-z-]+)", HOOKS))))
def test_flag_of_the_hooks_guide_exists(flag: str) -> None:
    assert flag in help_of("runtimeproxy_hooks", "all") + help_of("runtimeproxy", "run")


def is_test(file: str, name: str) -> bool:
    path = ROOT / "tests" / file
    return path.exists() and re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE) is not None


def test_each_row_of_the_page_on_security_names_tests_that_there_are() -> None:
    rows = [row for rows in tables(DOCS["security"], "Shown by") for row in rows]
    named = [(row, re.findall(r"``([\w/]+\.py)::(\w+)``", row[-1])) for row in rows]
    assert len(rows) > 30
    assert [row for row, tests in named if not tests or not all(is_test(*test) for test in tests)] == []
