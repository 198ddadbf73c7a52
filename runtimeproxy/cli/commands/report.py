"""``runtimeproxy report``: write one file to attach to an issue.

Invariant: a source that hangs does not stop the others: after its time limit the manifest reports it.
"""

import json
import os
import platform
import stat
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import click

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.cli.shared.configuration import configuration
from runtimeproxy.cli.shared.flags import Command, flags_given, option_flags
from runtimeproxy.cli.shared.output import FAILED, error_text
from runtimeproxy.cli.shared.subjects import recent_events
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings import config
from runtimeproxy.settings.config import Config
from runtimeproxy.settings.options import OPTIONS
from runtimeproxy.settings.version import VERSION, versions

FOLDER = "runtimeproxy-report"
MANIFEST = "MANIFEST"
SECONDS = 2.5
"""The time limit of a source; longer than a client's own limit, so that its error text is reported."""
DOCTOR_SECONDS = 5.0
JOURNAL_LINES = 2000
_JOURNAL_SECONDS = 2.0
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Node:
    """The node to read from; ``fault`` is the fault of the configuration, "" if none."""

    config: Config
    fault: str
    unit: str

    def proxy(self) -> AdminClient:
        return AdminClient(self.config.admin_endpoint or None)


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the report; ``read`` may raise, which the manifest reports."""

    name: str
    read: Callable[[Node], str]
    seconds: float = SECONDS


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _doctor(node: Node) -> str:
    if node.fault:
        raise ConfigError(node.fault)
    from runtimeproxy.cli.doctor import table  # heavy: the clients of runtimes and hook servers

    return _json(table.rows(node.config))


def _versions(node: Node) -> str:
    with suppress(OSError):  # a distribution without /etc/os-release
        return _json({"distribution": platform.freedesktop_os_release()["PRETTY_NAME"], **versions()})
    return _json({"distribution": None, **versions()})


def _answer(method: str) -> Callable[[Node], str]:
    return lambda node: _json(node.proxy().call(method))


def _metrics(node: Node) -> str:
    from runtimeproxy.admin.exposition import exposition  # heavy: prometheus_client

    return exposition(node.proxy().call("metrics")).decode()


def _store(node: Node) -> str:
    pods, containers = subjects.records(node.proxy(), limit=_PAGE)
    return _json({"pods": pods, "containers": containers})


def _journal(node: Node) -> str:
    command = ["journalctl", "--quiet", "--no-pager", "--output=short-iso-precise", f"--lines={JOURNAL_LINES}"]
    command, nothing = [*command, f"--unit={node.unit}"], subprocess.DEVNULL
    try:
        lines = subprocess.check_output(
            command, stdin=nothing, stderr=nothing, text=True, errors="replace", timeout=_JOURNAL_SECONDS
        )
    except FileNotFoundError:
        raise OSError(0, "journalctl is not there") from None
    except subprocess.SubprocessError as error:
        raise OSError(0, f"journalctl does not answer ({type(error).__name__})") from None
    if not lines:
        raise OSError(0, f"the journal has no line of the unit {node.unit}, or none that may be read; --unit names it")
    return lines


SOURCES = (
    Source("doctor.json", _doctor, DOCTOR_SECONDS),
    Source("versions.json", _versions),
    *(Source(f"{name}.json", _answer(name)) for name in ("version", "livez", "readyz", "configz", "hooks")),
    Source("metrics.txt", _metrics),
    Source("events.ndjson", lambda node: "".join(json.dumps(event) + "\n" for event in recent_events(node.proxy()))),
    Source("store.json", _store),
    Source("journal.txt", _journal),
)


@click.command("report", cls=Command, params=option_flags(OPTIONS), short_help="Write a file to attach to an issue.")
@click.argument("file", type=click.Path(), metavar="FILE.tar.gz")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option(
    "--unit", default="runtimeproxy", metavar="UNIT", help="The proxy's systemd unit.  [default: runtimeproxy]"
)
def report_command(file: str, force: bool, unit: str, **given: str | None) -> int:
    """Write a file to attach to an issue: what doctor finds, and what the running proxy reports of itself.

    It has the configuration, metrics, events, hook servers, the names of pods, containers and changed fields, the last
    lines of the journal, and versions; no value of a request. MANIFEST in it lists what could not be read, and why:
    then the exit code is 1. No proxy need run. Give it the flags that the proxy runs with: they show where to look.
    """
    _check_target(file, force)
    node = _node(flags_given(given), unit)
    texts, missing = collect(node)
    _write(file, force, {MANIFEST: _manifest(texts, missing), **texts})
    click.echo(f"{file} has {len(texts)} of {len(SOURCES)} sources. Look through it before you attach it.")
    for why in dict.fromkeys(missing.values()):
        click.echo(f"not got: {', '.join(name for name in missing if missing[name] == why)}: {why}")
    return FAILED if missing else 0


def _node(flags: Mapping[str, str], unit: str) -> Node:
    """Return the node to read from. If only variables or the file are wrong, the flags and defaults are used."""
    try:
        by_flags = config.load(flags, {}, None, "")
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    try:
        return Node(configuration(flags, os.environ), "", unit)
    except ConfigError as error:
        return Node(by_flags, str(error), unit)


def collect(node: Node) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts of the sources that could be read, and the reasons of the missing ones, in the table's order."""
    began = time.monotonic()
    texts, missing = {}, {}
    for source, running in [(source, _start_reading(source, node)) for source in SOURCES]:
        try:
            texts[source.name] = running.result(max(0.0, began + source.seconds - time.monotonic()))
        except TimeoutError:
            missing[source.name] = f"no answer within {source.seconds:g} s"
        except click.ClickException as error:
            missing[source.name] = error.format_message()
        except OSError as error:
            missing[source.name] = error.strerror or type(error).__name__
        except Exception as error:
            missing[source.name] = error_text(error)
    return texts, {name: " ".join(why.split()) for name, why in missing.items()}


def _start_reading(source: Source, node: Node) -> "Future[str]":
    """Read a source in a daemon thread."""
    future: Future[str] = Future()

    def read() -> None:
        try:
            future.set_result(source.read(node))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=read, name=source.name, daemon=True).start()
    return future


def _manifest(texts: Mapping[str, str], missing: Mapping[str, str]) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    files = (
        f"not got  {source.name}: {missing[source.name]}"
        if source.name in missing
        else f"got      {source.name}: {len(texts[source.name].encode())} bytes"
        for source in SOURCES
    )
    return "\n".join([f"A report of runtimeproxy {VERSION}, {at}.", "", *files, ""])


def _check_target(file: str, force: bool) -> None:
    """Raise click.ClickException if the report cannot be written there."""
    folder = os.path.dirname(file) or "."
    if not os.path.isdir(folder):
        raise click.ClickException(f"{folder} is no directory: make it, or name another one")
    try:
        mode = os.lstat(file).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
        raise click.ClickException(f"{file} is {kind}: name another file")
    if not force:
        raise click.ClickException(f"{file} is there already: name another file, or replace it with --force")


def _write(file: str, force: bool, texts: Mapping[str, str]) -> None:
    """Write the archive next to its place, then put it there in one step. Raises OSError and click.ClickException."""
    handle, temporary = tempfile.mkstemp(prefix=".runtimeproxy-report-", dir=os.path.dirname(file) or ".")
    try:
        with open(handle, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, text in texts.items():
                body = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{FOLDER}/{name}")
                entry.size, entry.mode, entry.mtime = len(body), 0o600, int(time.time())
                archive.addfile(entry, BytesIO(body))
        _check_target(file, force)
        if force:
            os.replace(temporary, file)
        else:
            os.link(temporary, file)  # fails if the file exists
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
