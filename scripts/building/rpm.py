"""The RPM, by rpmbuild: the same files and the same shell as the Debian package's."""

import shutil
from pathlib import Path

from scripts.building import installed
from scripts.building.errors import BuildError, run

SOCKETS = "runtimeproxy.socket runtimeproxy-admin.socket runtimeproxy-metrics.socket"
REPRODUCIBLE = {
    "_buildhost": "localhost",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
}


def build(work: Path, dist: Path) -> list[Path]:
    """Build runtimeproxy-<version>-1.x86_64.rpm. Raises BuildError where rpmbuild would find no file of its own."""
    if " " in str(work):
        raise BuildError(f"rpmbuild takes no path with a space, and this is {work}: set TMPDIR to another directory")
    folder = work / "rpm"
    root = folder / "root"
    folder.mkdir()
    run(["cp", "-a", installed.made(work), root])
    (root / "usr/share/zsh/vendor-completions").rename(root / "usr/share/zsh/site-functions")
    (root / "usr/share/licenses/runtimeproxy").mkdir(parents=True)
    (root / "usr/share/licenses/runtimeproxy/copyright").write_text(installed.copyright_text(work))
    text = installed.script(work, (work / "source/deploy/rpm/runtimeproxy.spec").read_text())
    for name, value in {"ROOT": str(root), "SOCKETS": SOCKETS, "ENABLED": f"{SOCKETS} runtimeproxy.service"}.items():
        text = text.replace(f"@{name}@", value)
    (folder / "runtimeproxy.spec").write_text(text)
    settings = {"_topdir": str(folder / "top"), "_dbpath": str(folder / "db"), **REPRODUCIBLE}
    defines = [word for name, value in settings.items() for word in ("--define", f"{name} {value}")]
    run(["rpmbuild", "-bb", "--target=x86_64-linux", "--quiet", *defines, folder / "runtimeproxy.spec"])
    (package,) = (folder / "top/RPMS/x86_64").glob("*.rpm")
    return [Path(shutil.copy(package, dist))]
