"""``runtimeproxy hook disable`` and ``enable``: take a hook server out, whatever it registers, and back in.

Owns the commands' arguments and words.
Must not know: how a hook server is kept out.
Invariant: the name is sent as it was written. The proxy finds the hook server, and the answer has its name.
"""

import shlex
from typing import Any
from urllib.parse import quote

import click

from runtimeproxy.cli.shared import names
from runtimeproxy.cli.shared.admin_client import AdminClient, ProxyCommand
from runtimeproxy.cli.shared.output import JSON, TABLE, YAML, output_option, structured_text


@click.command("disable", cls=ProxyCommand, short_help="Stop asking a hook server, whatever its policy.")
@click.argument("name", metavar="NAME", shell_complete=names.enabled_hook_servers)
@click.option("--reason", metavar="TEXT", required=True, help="Why, for whoever sees it; no secrets.")
@click.option("--for", "duration", metavar="DURATION", help="For how long, like 10m or 1h.  [default: until enabled]")
@click.option("--unregistered", is_flag=True, help="Disable a name that is not registered, before it registers.")
@output_option(TABLE, JSON, YAML)
def disable_command(
    proxy: AdminClient, name: str, reason: str, duration: str | None, unregistered: bool, output: str
) -> None:
    """Stop asking the hook server NAME, as if it were not registered; calls that its policy Fail would refuse pass.

    That holds within half a second, over restarts of the proxy and however often the hook server registers again, until
    `hook enable NAME` or for the time given. Pods that are made meanwhile lack what the hook server would have set.

    NAME is as `hook ls` shows it, or the name of the registration file. Under the policy Ignore calls go on without a
    hook server that fails anyhow.
    """
    body = {"reason": reason, "for": duration, "unregistered": unregistered or None}
    answer = proxy.post(_target(name, "disable"), body)
    until = (answer.get("disabled") or {}).get("until")
    limit = f" until {until}; sooner" if until else "; back"
    command = f"runtimeproxy hook enable {shlex.quote(answer['name'])}{proxy.flags}"
    _print(answer, output, f"{answer['name']} is disabled{limit} by: {command}")


@click.command("enable", cls=ProxyCommand, short_help="Ask a disabled hook server again.")
@click.argument("name", metavar="NAME", shell_complete=names.disabled_hook_servers)
@output_option(TABLE, JSON, YAML)
def enable_command(proxy: AdminClient, name: str, output: str) -> None:
    """Ask the hook server NAME again, which was disabled. NAME may be the name of the registration file."""
    answer = proxy.post(_target(name, "enable"), {})
    _print(answer, output, f"{answer['name']} is enabled")


def _target(name: str, action: str) -> str:
    if not name:
        raise click.BadParameter("write the name of a hook server, as runtimeproxy hook ls shows it", param_hint="NAME")
    return f"/hooks/{quote(name, safe='')}/{action}"


def _print(answer: dict[str, Any], output: str, line: str) -> None:
    """Print what was done, and on stderr what the proxy adds, as that a restart would forget it."""
    click.echo(line if output == TABLE else structured_text(answer, output))
    for note in answer.get("notes", ()):
        click.echo(f"note: {note}", err=True)
