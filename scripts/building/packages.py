"""The Debian package, by debhelper, and the RPM, by rpmbuild: the tree, and the files that belong elsewhere."""

import gzip
import os
import re
import shutil
from email.utils import formatdate
from pathlib import Path

from deploy.packages import maintainer_scripts
from runtimeproxy.cli.commands.table import COMMANDS
from scripts.building import sources, tree
from scripts.building.parts import LICENCES, read_list
from scripts.building.tools import BuildError, epoch, run, write

PREFIX = "usr/lib/runtimeproxy"
UNITS, DEBIAN_UNITS = "usr/lib/systemd/system", "lib/systemd/system"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/runtimeproxy",
    "zsh": "usr/share/zsh/vendor-completions/_runtimeproxy",
    "fish": "usr/share/fish/vendor_completions.d/runtimeproxy.fish",
}
PROGRAMS = ("runtimeproxy", "koord-runtime-proxy", "runtimeproxy-hooks")
SOCKETS = "runtimeproxy.socket runtimeproxy-admin.socket runtimeproxy-metrics.socket"


def build_deb(work: Path, dist: Path) -> None:
    """Build runtimeproxy_<version>-1_amd64.deb. A dirty one, which is for tests, is not compressed."""
    version, folder = sources.version(work), work / "deb"
    shutil.copytree(work / "source/deploy/debian", folder / "debian")
    run(["cp", "-a", installed(work), folder / "root"])
    # Debian 12's debhelper finds units only there.
    (folder / "root" / DEBIAN_UNITS).parent.mkdir(parents=True)
    (folder / "root" / UNITS).rename(folder / "root" / DEBIAN_UNITS)
    (folder / "root" / UNITS).parent.rmdir()
    shutil.copy(work / "source/CHANGELOG.rst", folder)
    for name in ("preinst", "postinst", "prerm", "postrm"):
        path = folder / "debian" / name
        path.write_text(_script(work, path.read_text()))
    (folder / "debian/copyright").write_text(copyright_text(work))
    maintainer = (folder / "debian/control").read_text().partition("Maintainer: ")[2].splitlines()[0]
    (folder / "debian/changelog").write_text(
        f"runtimeproxy ({version}-1) stable; urgency=medium\n\n  * Version {version}; changelog.gz lists what is new.\n"
        f"\n -- {maintainer}  {formatdate(epoch())}\n"
    )
    compression = "none" if sources.commit(work).endswith("-dirty") else "xz"
    run(["debian/rules", "binary", f"COMPRESSION={compression}"], folder)
    shutil.copy(work / f"runtimeproxy_{version}-1_amd64.deb", dist)


def build_rpm(work: Path, dist: Path) -> None:
    """Build runtimeproxy-<version>-1.x86_64.rpm. Raises BuildError for a path that rpmbuild cannot use."""
    if " " in str(work):
        raise BuildError(f"rpmbuild takes no path with a space, and this is {work}: set TMPDIR to another directory")
    folder, root = work / "rpm", work / "rpm/root"
    folder.mkdir()
    run(["cp", "-a", installed(work), root])
    (root / "usr/share/zsh/vendor-completions").rename(root / "usr/share/zsh/site-functions")
    write(root / "usr/share/licenses/runtimeproxy/copyright", copyright_text(work))
    text = _script(work, (work / "source/deploy/rpm/runtimeproxy.spec").read_text())
    for name, value in {"ROOT": str(root), "SOCKETS": SOCKETS, "ENABLED": f"{SOCKETS} runtimeproxy.service"}.items():
        text = text.replace(f"@{name}@", value)
    (folder / "runtimeproxy.spec").write_text(text)
    settings = [f"_topdir {folder}/top", f"_dbpath {folder}/db", "_buildhost localhost"]
    settings += ["use_source_date_epoch_as_buildtime 1", "clamp_mtime_to_source_date_epoch 1"]
    defines = [f"--define={setting}" for setting in settings]
    run(["rpmbuild", "-bb", "--target=x86_64-linux", "--quiet", *defines, folder / "runtimeproxy.spec"])
    (package,) = (folder / "top/RPMS/x86_64").glob("*.rpm")
    shutil.copy(package, dist)


def installed(work: Path) -> Path:
    """Return the directory with the files of both packages as on a node, which the first call makes."""
    root = work / "installed"
    if root.exists():
        return root
    prefix = root / PREFIX
    prefix.parent.mkdir(parents=True)
    run(["cp", "-a", tree.made(work), prefix])
    (root / UNITS).parent.mkdir(parents=True)
    (prefix / "share/systemd").rename(root / UNITS)
    (root / "usr/lib/sysusers.d").mkdir()
    (root / UNITS / "runtimeproxy.sysusers").rename(root / "usr/lib/sysusers.d/runtimeproxy.conf")
    (root / "usr/bin").mkdir()
    for name in PROGRAMS:
        (root / "usr/bin" / name).symlink_to(f"../lib/runtimeproxy/bin/{name}")
    program = prefix / "bin/runtimeproxy"
    texts = {place: run([program, "completion", shell]) for shell, place in COMPLETIONS.items()}
    keys = re.sub(r"^(?=[a-z])", "#", run([program, "config", "default"]), flags=re.MULTILINE)
    head = "# Every key is commented out: the defaults hold, also those of a later version.\n"
    texts["etc/runtimeproxy/config.yaml"] = head + keys
    for place, text in texts.items():
        write(root / place, text)
    (root / "etc/runtime/hookserver.d").mkdir(parents=True)
    _write_manpages(prefix, root / "usr/share/man/man8", sources.version(work))
    return root


def _write_manpages(prefix: Path, folder: Path, version: str) -> None:
    """Write a page for each program and each command of runtimeproxy, by help2man(1)."""
    folder.mkdir(parents=True)
    for program in (*PROGRAMS, *(f"runtimeproxy {name}" for name in COMMANDS)):
        options = (f"--version-string={version}", f"--name=help of {program}", "--no-info", "--section=8")
        page = run(["env", f"PATH={prefix}/bin:{os.environ['PATH']}", "help2man", *options, program])
        path = folder / f"{program.replace(' ', '-')}.8.gz"
        path.write_bytes(gzip.compress(page.encode(), 9, mtime=0))


def copyright_text(work: Path) -> str:
    """Return what is ours, and the licence files of every other part of the tree, whole. Raises BuildError."""
    root, ours = tree.made(work), (work / "source/deploy/packages/copyright").read_text()
    owners: dict[str, list[str]] = {}
    for part in (part for part in read_list(root) if part.name != "runtimeproxy"):
        name, folder = f"{part.name} {part.version}", f"{LICENCES}/{part.name}/"
        files = [file for file in part.files if file.startswith(folder)]
        if not files:
            raise BuildError(f"{name} has no licence file: find its licence, and add it to the build")
        for file in files:
            owners.setdefault((root / file).read_text(errors="replace"), []).append(name)
    return ours + "".join(f"\n{'=' * 80}\n{', '.join(names)}\n\n{text}" for text, names in owners.items())


def _script(work: Path, text: str) -> str:
    return maintainer_scripts.filled(text, tree.made(work) / tree.DIST_PACKAGES, sources.version(work))
