"""The proxy, its commands and the hook servers of the demo: the project's own programs, called as a user calls them.

``python -m scripts.demonstration.commands ROOT [flags]`` is the project's hook server rdt on the tests' stand-in for
resctrl, because few machines have cache and bandwidth control; like the kernel it refuses what the hardware could not
do.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from runtimeproxy_hooks import main
from runtimeproxy_hooks.servers.rdt import Rdt
from tests.fakes.resctrl import StandIn

PROGRAMS = Path(os.environ.get("DEMO_PROGRAMS") or Path(sys.executable).parent)
"""The directory of the programs: bin of an unpacked archive, or that of .venv."""
PROXY = "koord-runtime-proxy"
PROXY_SOCKET, ADMIN_SOCKET, REGISTRATIONS, RESCTRL = "runtimeproxy.sock", "admin.sock", "hookserver.d", "resctrl"
"""Names in the demo's folder, which takes the place of the machine's directories."""
NODE_SETTINGS = "cpu-normalization-ratio: 1.25\n"
"""A CPU of this node counts as 1.25 units: quotas are divided by it."""
BATCH = "20-batchresource-cpunormalization-cpuset"


def proxy(folder: Path, documented: Sequence[str], runtime: str) -> list[str]:
    """Return a documented command line of the proxy, with the demo's folder in place of the machine's."""
    return [
        *(str(PROGRAMS / PROXY), *(flag.format(runtime=runtime) for flag in documented)),
        f"--koord-runtimeproxy-endpoint={folder / PROXY_SOCKET}",
        f"--admin-endpoint={folder / ADMIN_SOCKET}",
        f"--metrics-endpoint={folder}/metrics/metrics.sock",
        f"--hookserver-config-dir={folder / REGISTRATIONS}",
    ]


def of_proxy(folder: Path, *words: str) -> list[str]:
    """Return one of the proxy's own commands."""
    return [str(PROGRAMS / "runtimeproxy"), *words, f"--admin-endpoint={folder / ADMIN_SOCKET}"]


def hook_servers(folder: Path, *, without_cgroups: bool) -> dict[str, list[str]]:
    """Write what the hook servers need; return their commands by their names in the proxy. ``without_cgroups`` keeps
    them off the real cgroups."""
    settings, cgroups = folder / "node.yaml", folder / "cgroup"
    settings.write_text(NODE_SETTINGS)
    cgroups.mkdir()
    (folder / REGISTRATIONS).mkdir()
    node = (f"--node-config={settings}", *([f"--cgroup-root={cgroups}"] if without_cgroups else []))
    ours = str(PROGRAMS / "runtimeproxy-hooks")
    commands = {
        "10-gpu": [ours, "gpu", "--failure-policy=Fail"],
        BATCH: [ours, *BATCH.split("-")[1:], *node],
        "30-rdt": [sys.executable, "-m", __name__, str(folder / RESCTRL), *node],
    }
    # The directory is removed with the demo, so no warning that a registration stays is needed.
    common = (f"--register-dir={folder / REGISTRATIONS}", "--unregister")
    return {
        name: [*command, f"--order={name[:2]}", f"--endpoint={hook_socket(folder, name)}", *common]
        for name, command in commands.items()
    }


def hook_socket(folder: Path, name: str) -> Path:
    return folder / f"{name[:2]}.sock"


def shown(command: Sequence[str]) -> str:
    """Return a command line that can be pasted into a shell, in any directory."""
    modules = [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "-m" in command and "PYTHONPATH" in os.environ else []
    return shlex.join([*modules, *command])


if __name__ == "__main__":
    main(Rdt(StandIn(Path(sys.argv[1]))), argv=sys.argv[2:])
