"""The fixture, in a pytest run of its own, and that loading the plugin costs nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy_hooks.sdk import pytest_plugin
from runtimeproxy_hooks.sdk.testing import HookTester

PLUGIN = "runtimeproxy_hooks.sdk.pytest_plugin"
USE = """
from runtimeproxy_hooks import Hook

class Mine(Hook):
    def pre_create_container(self, container):
        container.env["A"] = container.pod.labels["app"]

def test_mine(hook_tester):
    assert hook_tester(Mine()).pre_create_container(labels={"app": "web"}).env == {"A": "web"}

def test_a_difference_is_shown(hook_tester):
    changed = hook_tester(Mine()).pre_create_container(labels={"app": "web"})
    assert not changed, str(changed)
"""


hook_tester = pytest_plugin.hook_tester


def test_fixture_is_the_class(hook_tester: type[HookTester]) -> None:
    assert hook_tester is HookTester


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_fixture_gives_the_tester(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(USE)
    ended = run("-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-W", "error", "test_mine.py", cwd=tmp_path)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed" in ended.stdout
    assert "AssertionError: env:\n" in ended.stdout
    assert 'A: "web"' in ended.stdout


def test_fixture_is_listed_with_what_it_gives(tmp_path: Path) -> None:
    ended = run("-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--fixtures", cwd=tmp_path)
    assert "hook_tester [session scope]" in ended.stdout
    assert "Return the class HookTester" in ended.stdout


def test_plugin_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = ("grpc", "google.protobuf", "yaml", "runtimeproxy.hookapi", "runtimeproxy_hooks.sdk.testing")
    program = (
        f"import pytest, sys; before = set(sys.modules); import {PLUGIN}; print(sorted(set(sys.modules) - before))"
    )
    ended = run("-c", program, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [name for name in heavy if f"'{name}'" in ended.stdout] == []
