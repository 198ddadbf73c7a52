"""``runtimeproxy hook new``: write a hook server to start from, with a test, a unit and its registration file.

Invariant: no existing file is overwritten.
"""

import json
import keyword
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib import resources
from importlib.metadata import packages_distributions
from pathlib import Path
from string import Template

from runtimeproxy.errors import ConfigError

SOCKETS = "/var/run/runtimeproxy-hooks"
"""The default directory for sockets of hook servers with the SDK."""

_FILES: Mapping[str, str] = {
    "hook.py.template": "{name}.py",
    "test_hook.py.template": "test_{name}.py",
    "hook.service.template": "{name}.service",
    "hook.json.template": "{name}.json",
    "README.rst.template": "README.rst",
}
"""The file name for each template."""

_HOMES = ("/home/", "/root/", "/run/user/")
"""The directories that ProtectHome=yes hides: the unit cannot use a Python there."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MODE = 0o755
"""The folder's mode, whatever the umask: no other user may replace the hook server's socket."""
_LONGEST_NAME = 40  # the socket's path must not be longer than 107 bytes


def new(name: str, directory: Path) -> Path:
    """Write a folder with the hook's name into a directory and return it; dashes in the name become underscores.

    Raises ConfigError for an invalid module name, and if the folder exists or cannot be completed, after removing the
    incomplete folder.
    """
    name = checked(name)
    folder = directory / name
    try:
        folder.mkdir()
    except FileExistsError:
        raise ConfigError(f"{folder} is there already, and nothing is written over: take another NAME") from None
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}; name a folder with --directory") from None
    try:
        folder.chmod(_MODE)
        for file, text in files(name).items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # created here, so it contains no other files
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; name a folder with --directory") from None
    return folder


def checked(name: str) -> str:
    """Return a hook's name as a module name. Raises ConfigError if it is not valid, or is another module's."""
    module = name.replace("-", "_")
    if not _NAME.fullmatch(module) or len(module) > _LONGEST_NAME:
        raise ConfigError(
            f"NAME: {name!r} is not a name: write small letters, digits and '_' between them, like cpu_pinning, "
            f"{_LONGEST_NAME} at most"
        )
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in packages_distributions():
        raise ConfigError(f"NAME: {module!r} is the name of another module, which {module}.py would hide: take another")
    return module


def files(name: str) -> Mapping[str, str]:
    endpoint = f"{SOCKETS}/{name}.sock"
    python = shlex.quote(sys.executable)  # runtimeproxy and its dependencies are installed for this Python
    words = {
        "name": name,
        # With "Hook" and "HOOK_" no name collides with an import of the files (HookTester) or a variable with a meaning
        # (PATH).
        "class_name": "".join(part.capitalize() for part in name.split("_")) + "Hook",
        "label": f"example.com/{name.replace('_', '-')}",
        "variable": f"HOOK_{name.upper()}",
        "endpoint": endpoint,
        "endpoint_json": json.dumps(endpoint),
        "underline": "=" * len(name),
        "python": python,
        "python_in_unit": python.replace("%", "%%"),
        "protect_home": "read-only" if sys.executable.startswith(_HOMES) else "yes",
    }
    folder = resources.files("runtimeproxy_hooks.tools") / "template"
    return {
        file.format(name=name): Template((folder / template).read_text(encoding="utf-8")).substitute(words)
        for template, file in _FILES.items()
    }
