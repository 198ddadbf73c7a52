"""What the packages install, below a root: the tree, and around it the files that belong elsewhere.

Owns the places on the node.
Must not know: the form of a package.
Invariant: the tree's files are those of the archive, except the units, which are where systemd looks for them.
"""

import base64
import gzip
import re
from pathlib import Path

from scripts.building import precheck, sources, tree
from scripts.building.errors import BuildError, run
from scripts.building.parts import Part, read

PREFIX = "usr/lib/runtimeproxy"
UNITS = "usr/lib/systemd/system"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/runtimeproxy",
    "zsh": "usr/share/zsh/vendor-completions/_runtimeproxy",
    "fish": "usr/share/fish/vendor_completions.d/runtimeproxy.fish",
}
PROGRAMS = ("runtimeproxy", "koord-runtime-proxy", "runtimeproxy-hooks")
SYSUSERS = "usr/lib/sysusers.d/runtimeproxy.conf"
_HEAD = """\
# Every key is commented out: the defaults hold, also those of a later version.
"""
_LICENCE = re.compile(r"(licen[cs]e|copying|notice|copyright)", re.IGNORECASE)


def made(work: Path) -> Path:
    """Return the directory that is the root, which the first call makes. Raises BuildError."""
    root = work / "installed"
    if root.exists():
        return root
    prefix = root / PREFIX
    prefix.parent.mkdir(parents=True)
    run(["cp", "-a", tree.made(work), prefix])
    (root / UNITS).parent.mkdir(parents=True)
    (prefix / "share/systemd").rename(root / UNITS)
    (root / SYSUSERS).parent.mkdir()
    (root / UNITS / "runtimeproxy.sysusers").rename(root / SYSUSERS)
    (root / "usr/bin").mkdir()
    for name in PROGRAMS:
        (root / "usr/bin" / name).symlink_to(f"../lib/runtimeproxy/bin/{name}")
    program = prefix / "bin/runtimeproxy"
    texts = {place: run([program, "completion", shell]) for shell, place in COMPLETIONS.items()}
    texts["etc/runtimeproxy/config.yaml"] = commented(run([program, "config", "default"]))
    for place, text in texts.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    (root / "etc/runtime/hookserver.d").mkdir(parents=True)
    _write_pages(work, root, prefix)
    return root


def commented(defaults: str) -> str:
    """Return the configuration file with each key commented out."""
    return _HEAD + re.sub(r"^(?=[a-z])", "#", defaults, flags=re.MULTILINE)


def script(work: Path, text: str) -> str:
    """Return a script of a package with the shared functions and this version's values put in."""
    return filled(text, work / "source", tree.made(work) / tree.DIST_PACKAGES, sources.version(work))


def filled(text: str, source: Path, packages: Path, version: str) -> str:
    """Return the text of a script, whose functions are in the sources and whose check is of these Python packages."""
    shared, hooks = source / "deploy/packages", packages / "runtimeproxy_hooks/servers"
    values = {
        "FUNCTIONS": (shared / "functions.sh").read_text().rstrip(),
        "PRECHECK": (shared / "precheck.sh").read_text().rstrip(),
        "CHECK": base64.encodebytes(precheck.archive(packages)).decode().rstrip(),
        "FOUND": str(precheck.FOUND),
        "HOOKS": " ".join(sorted(path.stem for path in hooks.glob("[!_]*.py"))),
        "VERSION": version,
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def copyright_text(work: Path) -> str:
    """Return what is ours, and the licence files of every other part of the tree, whole. Raises BuildError."""
    root, ours = tree.made(work), (work / "source/deploy/packages/copyright").read_text()
    owners: dict[str, list[str]] = {}
    for part in read(root):
        for text in _licences(root, part) if part.name != "runtimeproxy" else ():
            owners.setdefault(text, []).append(f"{part.name} {part.version}")
    return ours + "".join(f"\n{'=' * 80}\n{', '.join(names)}\n\n{text}" for text, names in owners.items())


def _licences(root: Path, part: Part) -> list[str]:
    files = [name for name in part.files if _LICENCE.match(Path(name).name) and not name.endswith((".py", ".so"))]
    if not files:
        raise BuildError(
            f"{part.name} {part.version} has no licence file: look which one holds, and add it to the build"
        )
    return [(root / name).read_text(errors="replace") for name in files]


def _write_pages(work: Path, root: Path, prefix: Path) -> None:
    """Write the man pages, compressed as Debian's policy wants it."""
    folder, made = root / "usr/share/man/man8", work / "manpages"
    generator = work / "source/scripts/building/manpages.py"
    run([prefix / "bin/python3", "-I", generator, made])
    folder.mkdir(parents=True)
    for page in sorted(made.iterdir()):
        with (folder / f"{page.name}.gz").open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(page.read_bytes())
