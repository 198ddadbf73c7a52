"""The image of hook servers, exporter and node-installer: an OCI layout in a tar file, made by umoci without a daemon.

Its lower layer has a shell and the programs that charts call; the upper one the tree, and the archive for the
node-installer. Invariant: nothing in it runs while it is made, and no file is setuid; times are the commit's.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.building import debian, parts, sources, tools, tree
from scripts.building.tools import run

BINARIES, LIBRARIES = "usr/bin", "usr/lib/x86_64-linux-gnu"
PROGRAMS = """
[ basename cat chmod chown cp date df dirname echo env false head id install link ln ls mkdir mktemp mv printf pwd
readlink realpath rm rmdir sha256sum sleep sort stat sync tail test timeout touch tr true uname
"""
TAKEN: Mapping[str, Sequence[str]] = {
    "base-files": ("usr/lib/os-release",),
    "coreutils": (*(f"{BINARIES}/{name}" for name in PROGRAMS.split()), "usr/sbin/chroot"),
    "dash": (f"{BINARIES}/dash",),
    "gzip": (f"{BINARIES}/gzip",),
    "libacl1": (f"{LIBRARIES}/libacl.so.1",),
    "libattr1": (f"{LIBRARIES}/libattr.so.1",),
    "libc6": (f"{LIBRARIES}/{debian.LOADER}", f"{LIBRARIES}/libc.so.6"),
    "libpcre2-8-0": (f"{LIBRARIES}/libpcre2-8.so.0",),
    "libselinux1": (f"{LIBRARIES}/libselinux.so.1",),
    "tar": (f"{BINARIES}/tar",),
    "util-linux": (f"{BINARIES}/nsenter",),
}
"""What is taken of each Debian package, by its place where /bin and /lib are links."""
LINKS: Mapping[str, str] = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
    "etc/os-release": "../usr/lib/os-release",
    f"{BINARIES}/sh": "dash",
    f"usr/lib64/{debian.LOADER}": f"../lib/x86_64-linux-gnu/{debian.LOADER}",
}
NOBODY = 65534
FILES: Mapping[str, str] = {
    "etc/passwd": f"root:x:0:0:root:/:/bin/sh\nnobody:x:{NOBODY}:{NOBODY}:nobody:/:/bin/sh\n",
    "etc/group": f"root:x:0:\nnogroup:x:{NOBODY}:\n",
}
TREE, ARCHIVE = "usr/lib/runtimeproxy", "usr/share/runtimeproxy"
CONFIG = (
    *("--architecture=amd64", "--os=linux", f"--config.env=PATH=/{TREE}/bin:/usr/sbin:/usr/bin"),
    f"--config.user={NOBODY}:{NOBODY}",  # hook servers and the node-installer are root by their charts
    *("--config.cmd=runtimeproxy", "--config.cmd=--help"),
)
DESCRIPTION = "Hook servers, metrics exporter and node-installer of runtimeproxy"


def build(work: Path, dist: Path) -> None:
    """Build runtimeproxy_<version>_image.tar. Raises BuildError."""
    version, layout = sources.version(work), work / "layout"
    time = tools.iso_time()
    image, history = f"--image={layout}:{version}", [f"--history.created={time}", "--history.author=scripts/build"]
    run(["umoci", "init", f"--layout={layout}"])
    run(["umoci", "new", image])
    for folder in (_base(work), _ours(work)):
        layer = work / f"{folder.name}.tar"
        with layer.open("wb") as file:
            tools.write_tar(folder, file, "")
        run(["umoci", "raw", "add-layer", image, *history, f"--history.created_by={folder.name}", layer])
    labels = {"title": "runtimeproxy", "description": DESCRIPTION, "licenses": parts.OUR_LICENCE}
    labels |= {"version": version, "revision": sources.commit(work), "created": time}
    options = [f"--config.label=org.opencontainers.image.{name}={value}" for name, value in labels.items()]
    run(["umoci", "config", image, f"--created={time}", "--no-history", *CONFIG, *options])
    run(["umoci", "gc", f"--layout={layout}"])
    with (dist / f"runtimeproxy_{version}_image.tar").open("wb") as file:
        tools.write_tar(layout, file, "")


def _base(work: Path) -> Path:
    """Return the directory of the lower layer: what is of Debian next to the tree, and who the users are."""
    root = work / "base"
    found = debian.fetch(work / "base-debs", list(TAKEN))
    for part, folder in found:
        for place in TAKEN[part.name]:
            source = folder / place
            part.add(root, source if source.exists() else folder / place.removeprefix("usr/"), place)
        documents, control = f"usr/share/doc/{part.name}/copyright", f"var/lib/dpkg/status.d/{part.name}"
        part.add(root, folder / documents, documents)
        part.add(root, folder / debian.CONTROL, control)
    for place, content in FILES.items():
        tools.write(root / place, content)
    for place, target in LINKS.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).symlink_to(target)
    parts.write_list(work / parts.BASE, [part for part, _ in found])
    return root


def _ours(work: Path) -> Path:
    """Return the directory of the upper layer: the tree, with the archive that the node-installer puts on nodes."""
    root = work / "ours"
    shutil.copytree(tree.made(work), root / TREE, symlinks=True)
    (root / ARCHIVE).mkdir(parents=True)
    tree.build(work, root / ARCHIVE)
    return root
