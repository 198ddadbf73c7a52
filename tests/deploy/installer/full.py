"""Install on a node whose /opt has 64 KiB: ``unshare --mount python -m tests.deploy.installer.full DIRECTORY``.

Prints how it ends, then how it ends if the size of the file system tells nothing, each with what is left.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace

from runtimeproxy_installer.errors import Failed
from tests.deploy.installer.fakes import Bench, archive


def main() -> None:
    """Install twice."""
    bench = Bench(Path(sys.argv[1]))
    (bench.node.root / "opt").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(bench.node.root / "opt")], check=True)
    bench.sha256 = archive(bench.archives, programs={"runtimeproxy": Random(0).randbytes(1 << 19).hex()})
    for _ in range(2):
        try:
            bench.install()
        except Failed as error:
            print(f"{error}; left: {bench.node.trees()}")
        shutil.disk_usage = lambda path: SimpleNamespace(free=1 << 30)  # type: ignore[assignment,return-value]


if __name__ == "__main__":
    main()
