"""``runtimeproxy hook ls``: the registered hook servers in their order.

Owns the columns, and what of a hook server stands in them.
Must not know: how the proxy keeps them.
Invariant: what is registered and cannot be used, and what is disabled and not registered, has a row too.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from runtimeproxy.cli.shared.admin_client import AdminClient, ProxyCommand
from runtimeproxy.cli.shared.breaker_words import STATES
from runtimeproxy.cli.shared.output import TABLE, row_options, row_text, structured_text
from runtimeproxy.cli.shared.times import clock

COLUMNS = ("#", "name", "policy", "state", "p50", "p99", "detail")

_NO_ROW: Mapping[str, str | None] = dict.fromkeys(COLUMNS)


@click.command("ls", cls=ProxyCommand, short_help="List the registered hook servers in their order.")
@row_options
def ls_command(proxy: AdminClient, output: str, no_headers: bool) -> None:
    """List the registered hook servers in the order in which they are asked.

    P50 and P99 are the times of their calls since the proxy's start. DETAIL has the hook points, after why and since
    when a hook server is disabled or unreachable, or its last error. "same socket as" names the hook server that is
    called, or disabled, for it at its other hook points. A registration file that cannot be used has the state
    "invalid".
    """
    told = proxy.get("/hooks")
    if output == TABLE:
        click.echo(row_text(rows(told), COLUMNS, output, no_headers))
    else:
        click.echo(structured_text(told, output))


def rows(told: Mapping[str, Any]) -> list[dict[str, str | None]]:
    """Return a row for each hook server, each file that cannot be used, and each disabled name without a file."""
    found = [{**_NO_ROW, "#": str(number), **_row(hook)} for number, hook in enumerate(told["hooks"], 1)]
    found += [{**_NO_ROW, "name": i["file"], "state": "invalid", "detail": _fault(i)} for i in told["invalid"]]
    found += [{**_NO_ROW, "name": name, "state": "disabled", "detail": "not registered"} for name in told["masked"]]
    return found


def _row(hook: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        "name": hook["name"],
        "policy": hook["policy"],
        "state": STATES.get(hook["state"], hook["state"]),
        "p50": _milliseconds(hook["p50Seconds"]),
        "p99": _milliseconds(hook["p99Seconds"]),
        "detail": f"{_trouble(hook)}{', '.join([*hook['points'], *_same_socket(hook)])}",
    }


def _trouble(hook: Mapping[str, Any]) -> str:
    mask, absence, last = hook["disabled"], hook["unreachable"], hook["lastError"]
    if mask:
        return f"{mask['reason']} (until {clock(mask['until'])}); " if mask["until"] else f"{mask['reason']}; "
    if absence:
        return f"since {clock(absence['since'])}: {absence['reason']}; "
    return "" if last is None else f"{last['reason']} at {clock(last['time'])}; "


def _same_socket(hook: Mapping[str, Any]) -> Iterator[str]:
    if others := hook["sameSocketAs"]:
        yield f"same socket as {' and '.join(others)}"


def _fault(invalid: Mapping[str, str]) -> str:
    return invalid["reason"].removeprefix(f"{invalid['file']}: ")


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.{0 if seconds >= 0.01 else 2}f}ms"
