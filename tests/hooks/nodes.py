"""Shared parts of the hooks' tests: a node's settings and cgroups in a directory, and Koordinator's texts."""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtimeproxy_hooks.__main__ import load
from runtimeproxy_hooks.lib.koordinator import QOS_CLASS
from runtimeproxy_hooks.sdk.testing import HookTester


def tree(root: Path, files: dict[str, str]) -> list[Path]:
    paths = [root / name for name in files]
    for file, content in zip(paths, files.values(), strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return paths


def configured(hook: Any, *flags: str) -> Any:
    parser = argparse.ArgumentParser()
    hook.add_arguments(parser)
    hook.configure(parser.parse_known_args(flags)[0])
    return hook


def on_node(folder: Path, hook: Any, settings: str = "", *flags: str) -> HookTester:
    """Return the tester of a hook (or its name) on a node with settings; its cgroups are in the folder."""
    [file] = tree(folder, {"node.yaml": settings})
    loaded = load(hook) if isinstance(hook, str) else hook
    return HookTester(configured(loaded, f"--node-config={file}", f"--cgroup-root={folder}", *flags))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def qos(name: str) -> dict[str, str]:
    return {QOS_CLASS: name} if name else {}


def annotation(key: str, value: Any) -> dict[str, str]:
    """Return annotations with one key: a text as it is, anything else as JSON."""
    return {key: value if isinstance(value, str) else json.dumps(value)}
