"""``runtimeproxy hook``: the hook servers of the running proxy, and the tools of their authors.

Owns the group's names.
Must not know: any hook server; the authors' tools are in another package and are found by name.
Invariant: no command is imported before it is asked for.
"""

from collections.abc import Mapping
from importlib import import_module

import click

from runtimeproxy.cli.lazy import LazyGroup, Loader


def _tool(name: str) -> Loader:
    return lambda: import_module("runtimeproxy_hooks.tools.command").COMMANDS[name]


class HookCommands(LazyGroup):
    """The commands about hook servers by name."""

    LOADERS: Mapping[str, Loader] = {
        "ls": lambda: import_module("runtimeproxy.cli.hook_ls").ls_command(),
        "trace": lambda: import_module("runtimeproxy.cli.events").trace_command(),
        "disable": lambda: import_module("runtimeproxy.cli.hook_switch").disable_command(),
        "enable": lambda: import_module("runtimeproxy.cli.hook_switch").enable_command(),
        **{name: _tool(name) for name in ("call", "verify", "bench", "new")},
    }


def hook_group() -> click.Group:
    """Return the group of commands."""
    return HookCommands(
        "hook",
        help=(
            "See and switch the hook servers of the running proxy (ls, trace, disable, enable). Try, check, measure "
            "and start hook servers (call, verify, bench, new), for which no proxy need run."
        ),
        short_help="See, switch, try and check hook servers.",
        no_args_is_help=False,
    )
