"""``runtimeproxy status``: whether the proxy is well, in one line that node-problem-detector reads too.

Owns the line, and how it comes of the lines of /readyz.
Must not know: what is checked.
Invariant: whatever the proxy is like, stdout has one line of at most LONGEST printable ASCII characters.
"""

import re
from dataclasses import asdict, dataclass

import click

from runtimeproxy.cli.shared.admin_client import AdminClient, NoProxy, ProxyCommand
from runtimeproxy.cli.shared.exit_codes import FAILED, NO_PROXY
from runtimeproxy.cli.shared.output import JSON, TABLE, YAML, output_option, structured_text
from runtimeproxy.errors import RuntimeProxyError

LONGEST = 80
"""Longest line in characters: what node-problem-detector takes of an output."""

_CUT = "..."
_ADVICE = " (see runtimeproxy doctor)"
"""What is put before the reasons of checks if these are cut. The text about a proxy that does not answer begins with
what to do."""
_LINE = re.compile(r"\[([+~-])\](\S+) (?:ok|failed|degraded)(?:: (.*))?")
_VERDICTS = {"-": "failed", "~": "degraded", "+": "ok"}
_WORDS = {"failed": "not ready", "degraded": "degraded", "ok": "ready"}
"""The status for the worst verdict, the worst first."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the proxy with its verdict: ok, degraded or failed."""

    name: str
    verdict: str
    reason: str


@click.command("status", cls=ProxyCommand, short_help="Say in one line whether the proxy is well.")
@output_option(TABLE, JSON, YAML)
def status_command(proxy: AdminClient, output: str) -> int:
    """Say in one line of at most 80 characters whether the proxy is well.

    The exit code is 0 if it is ready and nothing is degraded, 1 if it is not ready or degraded, and 3 if no proxy
    answers within two seconds. JSON and YAML have all checks.
    """
    try:
        checks = checks_in(proxy.health("/readyz"))
    except RuntimeProxyError as error:
        away = isinstance(error, NoProxy)
        _print("no answer" if away else "not ready", str(error), (), output)
        return NO_PROXY if away else FAILED
    found = sorted((check for check in checks if check.verdict != "ok"), key=lambda check: check.verdict != "failed")
    status = _WORDS[found[0].verdict if found else "ok"]
    names, reasons = ", ".join(check.name for check in found), "; ".join(check.reason for check in found)
    _print(status, f"{names}: {reasons}" if found else f"{len(checks)} checks passed", checks, output)
    return FAILED if found else 0


def checks_in(text: str) -> tuple[Check, ...]:
    """Return the checks that /readyz?verbose tells. Raises NoProxy if it tells none."""
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    checks = tuple(Check(match[2], _VERDICTS[match[1]], match[3] or "") for match in found if match)
    if not checks:
        raise NoProxy("the answer of /readyz cannot be read: is it a proxy of this version?")
    return checks


def _print(status: str, text: str, checks: tuple[Check, ...], output: str) -> None:
    if output != TABLE:
        told = {"status": status, "text": text, "checks": [asdict(check) for check in checks]}
        click.echo(structured_text(told, output))
        return
    line = f"{status}: {text}"
    if len(line) > LONGEST:
        line = f"{status}{_ADVICE if checks else ''}: {text}"[: LONGEST - len(_CUT)] + _CUT
    click.echo("".join(c if c.isascii() and c.isprintable() else "?" for c in line))
