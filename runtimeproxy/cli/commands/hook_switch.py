"""``runtimeproxy hook disable`` and ``enable``: take a hook server out, whatever it registers, and back in.

Owns the commands' arguments and words.
Must not know: how a hook server is kept out.
Invariant: the name is sent as it was written; no other hook server is ever meant by it.
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
@output_option(TABLE, JSON, YAML)
def disable_command(proxy: AdminClient, name: str, reason: str, duration: str | None, output: str) -> None:
    """Stop asking the hook server NAME, as if it were not registered; calls that its policy Fail would refuse pass.

    That holds within half a second, over restarts of the proxy and however often the hook server registers anew, until
    `hook enable NAME` or for the time given. Pods that are made meanwhile lack what the hook server would have set.
    """
    told = proxy.post(_target(name, "disable"), {"reason": reason, "for": duration})
    until = (told.get("disabled") or {}).get("until")
    limit = f" until {until}; sooner" if until else "; back"
    _print(told, output, f"{name} is disabled{limit} by: runtimeproxy hook enable {shlex.quote(name)}")


@click.command("enable", cls=ProxyCommand, short_help="Ask a disabled hook server again.")
@click.argument("name", metavar="NAME", shell_complete=names.disabled_hook_servers)
@output_option(TABLE, JSON, YAML)
def enable_command(proxy: AdminClient, name: str, output: str) -> None:
    """Ask the hook server NAME again, which was disabled."""
    _print(proxy.post(_target(name, "enable"), {}), output, f"{name} is enabled")


def _target(name: str, action: str) -> str:
    if not name:
        raise click.BadParameter("write the name of a hook server, as runtimeproxy hook ls shows it", param_hint="NAME")
    return f"/hooks/{quote(name, safe='')}/{action}"


def _print(told: dict[str, Any], output: str, line: str) -> None:
    """Print what was done, and on stderr what the proxy adds, as that a restart would forget it."""
    click.echo(line if output == TABLE else structured_text(told, output))
    for note in told.get("notes", ()):
        click.echo(f"note: {note}", err=True)
