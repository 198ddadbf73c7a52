"""``runtimeproxy hook``: the hook servers of the running proxy, and the tools of their authors.

Owns the group's names.
Must not know: any hook server; the authors' tools are in another package and are found by name.
Invariant: no command is imported before it is asked for.
"""

from collections.abc import Mapping

from runtimeproxy.cli.shared.lazy import LazyGroup


class HookCommands(LazyGroup):
    """The commands about hook servers by name."""

    PLACES: Mapping[str, str] = {
        "ls": "runtimeproxy.cli.commands.hook_ls:ls_command",
        "trace": "runtimeproxy.cli.commands.events:trace_command",
        "disable": "runtimeproxy.cli.commands.hook_switch:disable_command",
        "enable": "runtimeproxy.cli.commands.hook_switch:enable_command",
        "call": "runtimeproxy_hooks.tools.command:call_command",
        "verify": "runtimeproxy_hooks.tools.command:verify_command",
        "bench": "runtimeproxy_hooks.tools.command:bench_command",
        "new": "runtimeproxy_hooks.tools.command:new_command",
    }


HOOK = HookCommands(
    "hook",
    help=(
        "See and switch the hook servers of the running proxy (ls, trace, disable, enable). Try, check, measure "
        "and start hook servers (call, verify, bench, new), for which no proxy need run."
    ),
    short_help="See, switch, try and check hook servers.",
    no_args_is_help=False,
)
