"""``runtimeproxy log-level``: log more or less for a while.

Owns the command's arguments and words.
Must not know: the log.
Invariant: the level falls back by itself, so that no node logs at debug level for good.
"""

import click

from runtimeproxy.cli.shared.admin_client import AdminClient, ProxyCommand
from runtimeproxy.cli.shared.output import JSON, TABLE, YAML, output_option, structured_text
from runtimeproxy.settings.options import LOG_LEVELS


@click.command("log-level", cls=ProxyCommand, short_help="Change the level of the proxy's log for a while.")
@click.argument("level", type=click.Choice(LOG_LEVELS, case_sensitive=False), metavar="|".join(LOG_LEVELS))
@click.option("--for", "duration", metavar="DURATION", help="For how long, 24h at most.  [default: 10m]")
@output_option(TABLE, JSON, YAML)
def log_level_command(proxy: AdminClient, level: str, duration: str | None, output: str) -> None:
    """Have the proxy log at another level; after a while it falls back to the configured one by itself."""
    told = proxy.post("/loglevel", {"level": level, "for": duration})
    line = f"the log level is {told['level']} until {told['until']}, then as configured"
    click.echo(line if output == TABLE else structured_text(told, output))
