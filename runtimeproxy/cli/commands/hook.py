"""``runtimeproxy hook``: list, disable and enable the hook servers of the running proxy; tools of their authors.

A name is sent as it was written: the proxy resolves it.
"""

import shlex
from collections.abc import Mapping
from typing import Any

import click

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient, ProxyCommand
from runtimeproxy.cli.shared.flags import LazyGroup
from runtimeproxy.cli.shared.output import STATES, TABLE, clock, output_option, row_options, row_text, structured_text

COLUMNS = ("#", "name", "policy", "state", "p50", "p99", "detail")

_NO_ROW: Mapping[str, str | None] = dict.fromkeys(COLUMNS)


@click.command("ls", cls=ProxyCommand, short_help="List the registered hook servers in their order.")
@row_options
def ls_command(proxy: AdminClient, output: str, no_headers: bool) -> None:
    """List the registered hook servers in the order in which they are called.

    P50 and P99 are the times of their calls since the proxy's start. DETAIL has the hook points, after why and since
    when a hook server is disabled or unreachable, or its last error. "same socket as" names the hook server that is
    called, or disabled, for it at its other hook points. A registration file that cannot be used has the state
    "invalid".
    """
    answer = proxy.call("hooks")
    click.echo(row_text(rows(answer), COLUMNS, output, no_headers, answer))


def rows(answer: Mapping[str, Any]) -> list[dict[str, str | None]]:
    """Return a row for each hook server, each file that cannot be used, and each disabled name without a file."""
    result = [{**_NO_ROW, "#": str(number), **_row(hook)} for number, hook in enumerate(answer["hooks"], 1)]
    for file, reason in ((invalid["file"], invalid["reason"]) for invalid in answer["invalid"]):
        result.append({**_NO_ROW, "name": file, "state": "invalid", "detail": reason.removeprefix(f"{file}: ")})
    result += [{**_NO_ROW, "name": name, "state": "disabled", "detail": "not registered"} for name in answer["masked"]]
    return result


def _row(hook: Mapping[str, Any]) -> dict[str, str | None]:
    same_socket_as = hook["sameSocketAs"]
    same_socket = [f"same socket as {' and '.join(same_socket_as)}"] if same_socket_as else []
    return {
        "name": hook["name"],
        "policy": hook["policy"],
        "state": STATES.get(hook["state"], hook["state"]),
        "p50": _milliseconds(hook["p50Seconds"]),
        "p99": _milliseconds(hook["p99Seconds"]),
        "detail": f"{_problem_text(hook)}{', '.join([*hook['points'], *same_socket])}",
    }


def _problem_text(hook: Mapping[str, Any]) -> str:
    mask, absence, last_error = hook["disabled"], hook["unreachable"], hook["lastError"]
    if mask:
        return f"{mask['reason']} (until {clock(mask['until'])}); " if mask["until"] else f"{mask['reason']}; "
    if absence:
        return f"since {clock(absence['since'])}: {absence['reason']}; "
    return "" if last_error is None else f"{last_error['reason']} at {clock(last_error['time'])}; "


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.{0 if seconds >= 0.01 else 2}f}ms"


@click.command("disable", cls=ProxyCommand, short_help="Stop calling a hook server, whatever its policy.")
@click.argument("name", metavar="NAME", shell_complete=subjects.enabled_hook_servers)
@click.option("--reason", metavar="TEXT", required=True, help="Why, for the people who see it; no secrets.")
@click.option("--for", "duration", metavar="DURATION", help="For how long, like 10m or 1h.  [default: until enabled]")
@click.option("--unregistered", is_flag=True, help="Disable a name that is not registered, before it registers.")
@output_option()
def disable_command(
    proxy: AdminClient, name: str, reason: str, duration: str | None, unregistered: bool, output: str
) -> None:
    """Stop calling the hook server NAME, as if it were not registered; calls that its policy Fail would refuse pass.

    That holds within half a second, over restarts of the proxy and however often the hook server registers again, until
    `hook enable NAME` or for the time given. Pods that are made meanwhile lack what the hook server would have set.

    NAME is as `hook ls` shows it, or the name of the registration file. Under the policy Ignore calls continue without
    a hook server that fails anyhow.
    """
    params = {"reason": reason, "for": duration, "unregistered": unregistered or None}
    answer = proxy.call("disable", name=_checked_name(name), **params)
    until = (answer.get("disabled") or {}).get("until")
    limit = f" until {until}; sooner" if until else "; back"
    command = f"runtimeproxy hook enable {shlex.quote(answer['name'])}{proxy.flags}"
    _print(answer, output, f"{answer['name']} is disabled{limit} by: {command}")


@click.command("enable", cls=ProxyCommand, short_help="Call a disabled hook server again.")
@click.argument("name", metavar="NAME", shell_complete=subjects.disabled_hook_servers)
@output_option()
def enable_command(proxy: AdminClient, name: str, output: str) -> None:
    """Call the hook server NAME again, which was disabled. NAME may be the name of the registration file."""
    answer = proxy.call("enable", name=_checked_name(name))
    _print(answer, output, f"{answer['name']} is enabled")


def _checked_name(name: str) -> str:
    if not name:
        raise click.BadParameter("write the name of a hook server, as runtimeproxy hook ls shows it", param_hint="NAME")
    return name


def _print(answer: dict[str, Any], output: str, line: str) -> None:
    """Print the change, and on stderr the proxy's notes, for instance that a restart would forget it."""
    click.echo(line if output == TABLE else structured_text(answer, output))
    for note in answer.get("notes", ()):
        click.echo(f"note: {note}", err=True)


HOOK = LazyGroup(
    "hook",
    {
        "ls": "runtimeproxy.cli.commands.hook:ls_command",
        "trace": "runtimeproxy.cli.commands.events:trace_command",
        "disable": "runtimeproxy.cli.commands.hook:disable_command",
        "enable": "runtimeproxy.cli.commands.hook:enable_command",
        "call": "runtimeproxy_hooks.tools.command:call_command",
        "verify": "runtimeproxy_hooks.tools.command:verify_command",
        "bench": "runtimeproxy_hooks.tools.command:bench_command",
        "new": "runtimeproxy_hooks.tools.command:new_command",
    },
    help=(
        "See and switch the hook servers of the running proxy (ls, trace, disable, enable). Try, check, measure "
        "and start hook servers (call, verify, bench, new), for which no proxy need run."
    ),
    short_help="See, switch, try and check hook servers.",
)
