"""Check the configuration of the running proxy by the rules of a version that is not installed yet.

It is packed with these rules (``archive``) and put into the packages' scripts. The installed version's Python runs it:
``python3 -I check.pyz PID``, 0 for no process. Exit code FOUND: this version would not start.

Owns what is packed, and how a process of the tree shows its flags.
Must not know: what makes a value right.
Invariant: beside the standard library it needs nothing but what is packed. No value of the environment is printed but
those of the proxy's own variables that are wrong.
"""

import io
import os
import sys
import zipfile
from pathlib import Path

FOUND = 3
PACKED = ("__init__", "errors", "version", "files", "relay/listener", "cli/shared/configuration", "settings/*")


def archive(packages: Path) -> bytes:
    """Return the zip file with this file as its program, made of a directory with the installed packages."""
    package = packages / "runtimeproxy"
    files = [path for name in PACKED for path in package.glob(f"{name}.py")]
    # What these packages import themselves is not needed.
    texts = {f"runtimeproxy/{name}/__init__.py": b"" for name in ("relay", "cli", "cli/shared")}
    texts |= {str(path.relative_to(packages)): path.read_bytes() for path in [*files, *packages.glob("yaml/*.py")]}
    texts["__main__.py"] = Path(__file__).read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, content in sorted(texts.items()):
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def main() -> int:
    """Print all that is wrong; return the exit code."""
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
    return FOUND if errors else 0


def _of_process(pid: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the flags by the options' names, and the environment. Raises ConfigError for a flag that there is not."""
    from runtimeproxy.errors import ConfigError
    from runtimeproxy.settings.options import ENVIRONMENT_PREFIX, OPTIONS

    if not pid:
        return {}, {}
    try:
        words, lines = (
            Path(f"/proc/{pid}/{name}").read_text(errors="surrogateescape").split("\0")
            for name in ("cmdline", "environ")
        )
    except OSError:  # it has ended meanwhile, as in a crash loop
        return {}, {}
    # In the tree a program is "-c CODE", behind the loader and its flags.
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
