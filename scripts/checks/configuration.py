"""Write docs/configuration.rst from the table of options, or check that it is what would be written.

What the table does not have, what happens when an option is changed, is here; each option must have it.

Run: ``python -m scripts.checks.configuration [--check]``; scripts/genconfiguration calls it.
"""

import sys
import textwrap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from runtimeproxy.settings.options import FILE_OPTION, FIRST_VERSION, OPTIONS, Option
from scripts.checks.generated import parser, write_or_compare

PAGE = Path("docs/configuration.rst")
WIDTH = 120
HEAD = """\
Configuration
=============

.. scripts/genconfiguration writes this page from runtimeproxy/settings/options.py and scripts/checks/configuration.py.

Each flag has an environment variable, and a key of the same name in the YAML file (``hook-timeout: 2s``). Flags
override environment variables, and environment variables override the file. The file is read once, at the start: a
change of any option is in force after ``systemctl restart runtimeproxy``.

* An unknown flag or key is an error. An unknown variable with our prefix is a warning.
* An endpoint is ``/path``, ``unix:/path`` or ``unix:///path``. A time is ``500ms``, ``2s``, ``1m`` or a number of
  seconds.
* A value with a control character, such as a line feed at the end of a variable, is an error. So is a key without a
  value.

``runtimeproxy config check`` finds all errors at once, also those that an earlier version would find
(``--for-version``). ``config show --origin`` prints what is in force and why, and ``config default`` prints a file to
start from (``docs/commands.rst``). ``docs/errors.rst`` explains each error.

``runtimeproxy export`` is another process: it reads neither this file nor these variables (``docs/operation.rst``,
Metrics for collectors). Hook servers have flags of their own (``docs/hooks.rst``).
"""
CHANGED = {
    "backend-runtime-mode": "Another mode speaks another protocol, with another client and another runtime: point the "
    "kubelet, or cri-dockerd, elsewhere first (``docs/kubelet.rst``).",
    "koord-runtimeproxy-endpoint": "Clients must be pointed at the new path; the old socket is removed, and calls to "
    "it fail. With a socket unit change ``ListenStream=`` likewise. The defaults of ``--admin-endpoint`` and "
    "``--originals-dir`` follow it.",
    "remote-runtime-service-endpoint": "All calls go to another runtime. What is known of pods is read anew from it.",
    "remote-image-service-endpoint": "Calls of the image service go to another socket; pulls that run fail and are "
    "tried again.",
    "runtime-hook-server-key": "Pods with the old label are asked about from then on, also at calls about containers "
    "that run. A hook server in such a pod, with the policy ``Fail``, keeps its own next pod from starting.",
    "runtime-hook-server-val": "As ``--runtime-hook-server-key``.",
    "hookserver-config-dir": "The registrations in the old directory are gone, those in the new one count. Hook "
    "servers and koordlet must write there, too.",
    "hook-timeout": "Longer: a hook server that hangs holds each call for longer. Shorter: one that is slow fails more "
    "often; ``runtimeproxy hook ls`` shows how long they take.",
    "hook-budget": "As ``--hook-timeout``, for all hook servers of a call together. Never more than half of what is "
    "left of the kubelet's own time limit is used.",
    "hook-answer-limit": "An answer that is longer fails with ``bad_answer``. A higher limit takes that much memory "
    "for each hook call at a time.",
    "socket-mode": "Whoever may open the socket may run any container as root. With a socket unit ``SocketMode=`` "
    "counts instead.",
    "socket-group": "Members of the group may open the socket if ``--socket-mode`` lets them (0660). With a socket "
    "unit ``SocketGroup=`` counts instead.",
    "drain-timeout": "Longer: a restart waits longer for calls, execs and followed logs that do not end. "
    "``TimeoutStopSec=`` of the unit must be above it. 0 cuts them at once.",
    "originals-dir": "The old file is not read any more: a hook that scales a value may scale once more what runs "
    "already. Remove the old file.",
    "state-dir": "Hook servers that are disabled are asked again, as the old file is not read any more.",
    "admin-endpoint": "Commands find the new socket by the same file or variable; else give them ``--admin-endpoint``. "
    "With ``none`` no command can ask the proxy, and nothing can be disabled.",
    "metrics-endpoint": "The exporter needs the same path (``--metrics-endpoint``). Without it there are no metrics "
    "for collectors.",
    "metrics-group": "The exporter's user must be in the new group.",
    "log-level": "``debug`` logs more lines about each call. ``runtimeproxy log-level`` changes it for a time without "
    "a restart.",
    "log-format": "Whoever parses the log must be told.",
    "config": "All keys come from the other file. A file that is named must be there.",
}
"""What happens when an option is changed, beside the restart."""


def main() -> int:
    """Write the page, or with ``--check`` compare it; return the exit code."""
    command = "scripts/genconfiguration"
    check = parser(command, f"Write {PAGE} from the table.").parse_args().check
    return write_or_compare(command, {PAGE: page(OPTIONS)}, check=check)


def page(options: tuple[Option, ...]) -> str:
    """Return the text of the page. Raises KeyError for an option of which it is not said what changes with it."""
    return "\n".join([HEAD, *chain.from_iterable(map(_entry, options))]).rstrip("\n") + "\n"


def _entry(option: Option) -> Iterator[str]:
    yield from (option.name, "-" * len(option.name), "", *_wrapped(option.help), "")
    yield f":Flag: ``{option.flag} {option.metavar}``"
    yield f":Variable: ``{option.variable}``"
    yield f":Default: {option.shown_default}"
    none = "" if option.none_since == FIRST_VERSION else f"; ``none`` since {option.none_since}"
    yield f":Since: {option.since}{none}"
    if option is FILE_OPTION:
        yield ":Key: none, as it names the file"
    yield from _wrapped(f":Changed: {CHANGED[option.name]}", "    ")
    yield ""


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
