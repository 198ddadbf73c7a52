"""``python -m runtimeproxy_hooks NAME... [flags]`` serves several of the project's own hooks, in this order.

Invariant: only the modules of the named hooks are imported.
"""

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from typing import NoReturn

from .sdk import Hook, main
from .sdk.flags import USE_ERROR

HOOKS: Mapping[str, str] = {
    "batchresource": "BatchResource",
    "coresched": "CoreSched",
    "cpunormalization": "CpuNormalization",
    "cpuset": "Cpuset",
    "gpu": "Gpu",
    "groupidentity": "GroupIdentity",
    "oomscoreadj": "OomScoreAdj",
    "rdt": "Rdt",
}
"""The class of the hook in each module."""
ALL = "all"
PROGRAM = "runtimeproxy-hooks"
USAGE = f"usage: {PROGRAM} NAME... [flags], or {PROGRAM} {ALL} [flags]\nhooks: {', '.join(sorted(HOOKS))}\n"


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve the hooks that the command line names before its first flag; exit as ``main`` does."""
    words = list(sys.argv[1:] if argv is None else argv)
    names = list(takewhile(lambda word: not word.startswith("-"), words))
    flags = words[len(names) :]
    if not names and flags in (["-h"], ["--help"]):
        sys.stdout.write(USAGE + f"{PROGRAM} NAME --help lists a hook's flags, {PROGRAM} --version the versions\n")
        sys.exit(0)
    if not names and flags == ["--version"]:
        from runtimeproxy.settings.version import version_text  # reads the metadata of all that is installed

        print(version_text(PROGRAM))
        sys.exit(0)
    if fault := _fault(names):
        sys.stderr.write(f"{PROGRAM}: error: {fault}\n")
        sys.exit(USE_ERROR)
    chosen, name = (sorted(HOOKS), ALL) if names == [ALL] else (names, "")
    main(*(load(hook) for hook in chosen), name=name, argv=flags)


def _fault(names: Sequence[str]) -> str:
    available = ", ".join(sorted(HOOKS))
    if not names:
        return f"name the hooks to serve first: {available}, or {ALL}"
    if names == [ALL]:
        return ""
    if unknown := [name for name in names if name not in HOOKS]:
        near = get_close_matches(unknown[0], HOOKS, 1)
        suggestion = f"; did you mean {near[0]!r}?" if near else f"; there are {available}; {ALL} must be alone"
        return f"there is no hook {unknown[0]!r}{suggestion}"
    if twice := [name for name in names if names.count(name) > 1]:
        return f"{twice[0]} is named twice"
    return ""


def load(name: str) -> Hook:
    hook: Hook = getattr(import_module(f".servers.{name}", __package__), HOOKS[name])()
    return hook


if __name__ == "__main__":
    run()
