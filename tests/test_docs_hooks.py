"""docs/hooks.rst says what is so: its code runs as it stands there, its tables are the program's own."""

import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import grpc
import pytest
import yaml
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from runtimeproxy.hookapi import codec
from runtimeproxy.hookpoints import HOOK_POINTS, Part
from runtimeproxy_hooks import __main__ as hooks_main
from runtimeproxy_hooks import node
from runtimeproxy_hooks.sdk.hook import METHODS
from tests.docs import CODE, HOOKS, code_blocks, table
from tests.hooks.sdk import callers
from tests.hooks.sdk.processes import running

WORDS = {Part.ENVS: "env"}


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading."""
    return table(HOOKS, heading)


def test_the_hook_server_has_ten_lines() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 10


def test_the_hook_points_and_what_each_can_change() -> None:
    assert [point for point, _, _ in rows("What a hook sees and changes")] == [point.name for point in HOOK_POINTS]
    for point, (_, given, changes) in zip(HOOK_POINTS, rows("What a hook sees and changes"), strict=True):
        assert given.startswith(f"the {point.subject.value}")
        named = {} if changes == "nothing" else set(changes.split(", "))
        assert set(named) == {WORDS.get(part, part.value) for part in point.applies}
    assert all(f"``{method}``" in HOOKS for method in METHODS)


def test_every_hook_server_that_comes_with_it_is_named() -> None:
    assert [name.strip("`") for name, _ in rows("The hook servers that come with it")] == sorted(hooks_main.HOOKS)


@pytest.mark.slow  # it runs pytest
def test_the_tester_is_shown_as_it_works(tmp_path: Path) -> None:
    _, test, *_ = code_blocks("python")
    (tmp_path / "hello.py").write_text(CODE.replace("main(Hello())", 'if __name__ == "__main__":\n    main(Hello())'))
    (tmp_path / "test_hello.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_hello.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow  # it starts a hook server
def test_the_interceptor_and_reflection_are_shown_as_they_work(tmp_path: Path) -> None:
    program = tmp_path / "hello.py"
    program.write_text(code_blocks("python")[2])
    with running(tmp_path, program=(str(program),), file="hello.json") as server:
        with grpc.insecure_channel(f"unix:{server.socket}") as channel:
            assert codec.SERVICE in ProtoReflectionDescriptorDatabase(channel).get_services()
        assert callers.status(str(server.socket), callers.request()) == (grpc.StatusCode.OK, "")
        assert server.end(signal.SIGTERM) == 0


def test_the_nodes_settings_can_be_read_and_are_all_there() -> None:
    _, settings = code_blocks("yaml")
    read = node.parse(settings.encode(), "node.yaml")
    assert read.rdt["BE"].mb == 50
    assert set(yaml.safe_load(settings)) == {name.replace("_", "-") for name in node.Settings.__dataclass_fields__}


def test_the_pod_has_the_label_with_which_the_proxy_leaves_it_alone() -> None:
    template = yaml.safe_load(code_blocks("yaml")[0])["spec"]["template"]
    assert template["metadata"]["labels"]["runtimeproxy.koordinator.sh/skip-hookserver"] == "true"


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"``(--[a-z-]+)", HOOKS))))
def test_the_flags_exist(flag: str) -> None:
    assert flag in _help("runtimeproxy_hooks", "all") + _help("runtimeproxy", "run")


@cache
def _help(*command: str) -> str:
    return subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, text=True, check=True).stdout
