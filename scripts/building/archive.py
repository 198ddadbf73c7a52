"""The archive for a node without Python: the tree, below a directory of its own."""

from pathlib import Path

from scripts.building import packing, sources, tree


def build(work: Path, dist: Path) -> list[Path]:
    """Build runtimeproxy_<version>_linux_x86_64.tar.gz."""
    version = sources.version(work)
    archive = dist / f"runtimeproxy_{version}_linux_x86_64.tar.gz"
    packing.pack(tree.made(work), archive, f"runtimeproxy-{version}")
    return [archive]
