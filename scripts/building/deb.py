"""The Debian package, by debhelper: the files of ``installed`` with the scripts and units of deploy/debian."""

import os
import shutil
from email.utils import formatdate
from pathlib import Path

from scripts.building import installed, sources
from scripts.building.errors import run

REVISION = 1
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


def build(work: Path, dist: Path) -> list[Path]:
    """Build runtimeproxy_<version>-1_amd64.deb; nobody waits for the compression of a dirty one, which is for tests."""
    package = f"runtimeproxy_{sources.version(work)}-{REVISION}_amd64.deb"
    folder = work / "deb"
    shutil.copytree(work / "source/deploy/debian", folder / "debian")
    run(["cp", "-a", installed.made(work), folder / "root"])
    # Debian 12's debhelper knows units here alone.
    (folder / "root/lib/systemd").mkdir(parents=True)
    (folder / "root" / installed.UNITS).rename(folder / "root/lib/systemd/system")
    (folder / "root/usr/lib/systemd").rmdir()
    shutil.copy(work / "source/CHANGELOG.rst", folder)
    for name in SCRIPTS:
        path = folder / "debian" / name
        path.write_text(installed.script(work, path.read_text()))
    (folder / "debian/copyright").write_text(installed.copyright_text(work))
    (folder / "debian/changelog").write_text(_changelog(folder, sources.version(work)))
    run(["debian/rules", "binary", f"COMPRESSION={'none' if sources.is_dirty(work) else 'xz'}"], folder)
    return [Path(shutil.copy(work / package, dist))]


def _changelog(folder: Path, version: str) -> str:
    """Return the changelog that dpkg wants, with this version alone; CHANGELOG.rst is in the package."""
    control = (folder / "debian/control").read_text()
    maintainer = control.partition("Maintainer: ")[2].splitlines()[0]
    date = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    return (
        f"runtimeproxy ({version}-{REVISION}) stable; urgency=medium\n\n"
        f"  * Version {version}; changelog.gz says what is new.\n\n -- {maintainer}  {date}\n"
    )
