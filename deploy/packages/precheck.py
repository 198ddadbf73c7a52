"""Check the configuration of the running proxy by the rules of a version that is not installed yet.

``maintainer_scripts.archive`` packs it with these rules for the packages' scripts. The installed version's Python runs
it: ``python3 -I check.pyz PID``, 0 for no process. Exit code 3: this version would not start.

Invariant: it imports only the standard library and the packed modules. Of the environment it prints only invalid values
of the proxy's own variables.
"""

import os
import sys
from pathlib import Path

INVALID = 3


def main() -> int:
    """Print all errors; return the exit code."""
    from runtimeproxy.cli.shared.configuration import configuration, configuration_file
    from runtimeproxy.errors import ConfigError
    from runtimeproxy.relay.listener import group_id
    from runtimeproxy.settings import config

    try:
        flags, environ = _of_process(int(sys.argv[1]))
        text, path = configuration_file(flags, environ)
        errors = config.check(environ, text, path, os.path.realpath, group_id).errors
        if not errors:
            configuration(flags, environ)
    except ConfigError as error:
        errors = (str(error),)
    for line in errors:
        print(f"runtimeproxy: {line}")
    return INVALID if errors else 0


def _of_process(pid: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the flags by option name, and the environment. Raises ConfigError for an unknown flag."""
    from runtimeproxy.errors import ConfigError
    from runtimeproxy.settings.options import ENVIRONMENT_PREFIX, OPTIONS

    if not pid:
        return {}, {}
    try:
        words, lines = (
            Path(f"/proc/{pid}/{name}").read_text(errors="surrogateescape").split("\0")
            for name in ("cmdline", "environ")
        )
    except OSError:  # the process has ended, as in a crash loop
        return {}, {}
    # In the tree a program is "-c CODE", after the loader and its flags.
    given = iter(words[words.index("-c") + 2 : -1] if "-c" in words else [])
    flags = {}
    for word in given:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            if name not in {option.name for option in OPTIONS}:
                raise ConfigError(f"--{name}: this version has no such flag")
            flags[name] = value if equals else next(given, "")
    pairs = (line.partition("=") for line in lines)
    return flags, {name: value for name, _, value in pairs if name.startswith(ENVIRONMENT_PREFIX)}


if __name__ == "__main__":
    sys.exit(main())
