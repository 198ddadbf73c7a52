"""What hooks that look at the node have in common: their flags, and what they say once."""

import argparse
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtimeproxy_hooks.batchresource import BatchResource
from runtimeproxy_hooks.cgroups import ROOT
from runtimeproxy_hooks.coresched import CoreSched
from runtimeproxy_hooks.cpunormalization import CpuNormalization
from runtimeproxy_hooks.cpuset import Cpuset
from runtimeproxy_hooks.groupidentity import GroupIdentity
from runtimeproxy_hooks.node import DEFAULT_FILE
from runtimeproxy_hooks.nodehook import NodeHook
from runtimeproxy_hooks.oomscoreadj import OomScoreAdj
from runtimeproxy_hooks.rdt import Rdt
from runtimeproxy_hooks.sdk import Hook
from tests.hooks.nodes import configured, node


@pytest.mark.parametrize("kind", [BatchResource, Cpuset, GroupIdentity, Rdt])
def test_flags_name_settings_and_cgroups(
    tmp_path: Path, kind: type[NodeHook], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node(tmp_path, "system-cpuset: 0-1")
    hook, other, parser = kind(), BatchResource(), argparse.ArgumentParser()
    other.add_arguments(parser)
    hook.add_arguments(parser)  # the same flags, for both
    assert (parser.parse_args([]).node_config.path, parser.parse_args([]).cgroup_root) == (DEFAULT_FILE, ROOT)
    arguments = parser.parse_args([f"--node-config={tmp_path}/node.yaml", f"--cgroup-root={tmp_path}"])
    hook.configure(arguments)
    other.configure(arguments)
    assert hook.node is other.node
    taken = f"{tmp_path}/node.yaml: the node's settings are taken"
    assert [message for message in caplog.messages if "node.yaml" in message] == [taken], "at the start, and once"
    assert (hook.node.settings.system_cpuset, hook.cgroups.root) == ("0-1", tmp_path)


@pytest.mark.parametrize(
    ("kind", "flag"),
    [(CpuNormalization, "--cgroup-root"), (CoreSched, "--node-config"), (OomScoreAdj, "--cgroup-root")],
)
def test_hook_has_no_flag_for_what_it_does_not_look_at(kind: type[Hook], flag: str) -> None:
    with pytest.raises(SystemExit):
        configured(kind(), f"{flag}=/x")


def test_trouble_is_told_the_first_time_only(caplog: pytest.LogCaptureFixture) -> None:
    one, two = GroupIdentity(), BatchResource()
    for number in (1, 2):
        one.warn_once("file", "%s is not there, time %d", "x", number)
        one.warn_once(("file", None), "100 % of it is gone")
    two.warn_once("file", "not there either")
    assert [(each.name.rpartition(".")[2], each.getMessage()) for each in caplog.records] == [
        ("groupidentity", "x is not there, time 1; said once only"),
        ("groupidentity", "100 % of it is gone; said once only"),
        ("batchresource", "not there either; said once only"),
    ]


def test_trouble_is_told_once_whichever_threads_meet_it(caplog: pytest.LogCaptureFixture) -> None:
    hook = Cpuset()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: hook.warn_once(number % 2, "trouble"), range(200)))
    assert len(caplog.records) == 2
