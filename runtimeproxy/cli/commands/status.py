"""``runtimeproxy status`` and ``runtimeproxy log-level``.

Invariant: ``status`` prints one line of at most LONGEST printable ASCII characters, for node-problem-detector.
"""

from collections.abc import Mapping, Sequence

import click

from runtimeproxy.cli.shared.admin_client import AdminClient, NoProxy, ProxyCommand
from runtimeproxy.cli.shared.output import FAILED, NO_PROXY, TABLE, output_option, structured_text
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.settings.options import LOG_LEVELS

LONGEST = 80
"""Longest line in characters: what node-problem-detector reads of an output."""
_CUT = "..."
_ADVICE = " (see runtimeproxy doctor)"
"""Text before the reasons of checks if these are cut."""
_WORDS = {"failed": "not ready", "degraded": "degraded", "ok": "ready"}


@click.command("status", cls=ProxyCommand, short_help="Show in one line whether the proxy is well.")
@output_option()
def status_command(proxy: AdminClient, output: str) -> int:
    """Show in one line of at most 80 characters whether the proxy is well.

    The exit code is 0 if it is ready and nothing is degraded, 1 if it is not ready or degraded, and 3 if no proxy
    answers within two seconds. JSON and YAML have all checks.
    """
    try:
        checks = proxy.call("readyz")["checks"]
        not_ok = sorted((c for c in checks if c["state"] != "ok"), key=lambda check: check["state"] != "failed")
        status = _WORDS[not_ok[0]["state"] if not_ok else "ok"]
        names, reasons = ", ".join(check["name"] for check in not_ok), "; ".join(check["reason"] for check in not_ok)
    except RuntimeProxyError as error:
        unavailable = isinstance(error, NoProxy)
        _print("no answer" if unavailable else "not ready", str(error), (), output)
        return NO_PROXY if unavailable else FAILED
    except (LookupError, TypeError):
        _print("no answer", "the answer to readyz cannot be read: is it a proxy of this version?", (), output)
        return NO_PROXY
    _print(status, f"{names}: {reasons}" if not_ok else f"{len(checks)} checks passed", checks, output)
    return FAILED if not_ok else 0


def _print(status: str, text: str, checks: Sequence[Mapping[str, str]], output: str) -> None:
    if output != TABLE:
        answer = {"status": status, "text": text, "checks": list(checks)}
        click.echo(structured_text(answer, output))
        return
    line = f"{status}: {text}"
    if len(line) > LONGEST:
        line = f"{status}{_ADVICE if checks else ''}: {text}"[: LONGEST - len(_CUT)] + _CUT
    click.echo("".join(c if c.isascii() and c.isprintable() else "?" for c in line))


@click.command("log-level", cls=ProxyCommand, short_help="Change the level of the proxy's log for a while.")
@click.argument("level", type=click.Choice(LOG_LEVELS, case_sensitive=False), metavar="|".join(LOG_LEVELS))
@click.option("--for", "duration", metavar="DURATION", help="For how long, 24h at most.  [default: 10m]")
@output_option()
def log_level_command(proxy: AdminClient, level: str, duration: str | None, output: str) -> None:
    """Have the proxy log at another level; after a while it falls back to the configured one by itself."""
    answer = proxy.call("loglevel", **{"level": level, "for": duration})
    line = f"the log level is {answer['level']} until {answer['until']}, then as configured"
    click.echo(line if output == TABLE else structured_text(answer, output))
