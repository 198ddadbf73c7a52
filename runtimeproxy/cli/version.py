"""``runtimeproxy version``: what one names in an issue.

Owns the list of what is told.
Must not know: anything of a running proxy.
Invariant: nothing of it is imported, its version is read from the installed package's metadata.
"""

import json
import os
import platform
from importlib import metadata

import click

from runtimeproxy.cli.output import row_options, row_text
from runtimeproxy.cli.run import Command
from runtimeproxy.version import VERSION

LIBRARIES = (
    "aiohttp",
    "asyncinotify",
    "click",
    "grpcio",
    "hpack",
    "prometheus-client",
    "protobuf",
    "pyyaml",
    "rich",
    "uvloop",
)
"""What the proxy and its hook servers run on."""


@click.command("version", cls=Command, short_help="Print the versions of the proxy, Python and the libraries.")
@row_options
def version_command(output: str, no_headers: bool) -> None:
    """Print the versions of the proxy, Python, the kernel and the libraries; - for what is not installed or not known.

    "commit" is known where the package was installed from a git address.
    """
    rows = [{"name": name, "version": version} for name, version in versions().items()]
    click.echo(row_text(rows, ("name", "version"), output, no_headers))


def versions() -> dict[str, str | None]:
    """Return the versions by name; None for what is not installed or not known."""
    own = {"runtimeproxy": VERSION, "commit": _commit(), "python": platform.python_version()}
    return own | {"linux": os.uname().release} | {name: _installed(name) for name in LIBRARIES}


def _installed(name: str) -> str | None:
    return next((distribution.version for distribution in metadata.distributions(name=name)), None)


def _commit() -> str | None:
    """Return the commit that pip noted when it installed the package (PEP 610)."""
    for distribution in metadata.distributions(name="runtimeproxy"):
        noted = json.loads(distribution.read_text("direct_url.json") or "{}")
        if "vcs_info" in noted:
            return str(noted["vcs_info"]["commit_id"])
    return None
