"""Drop from a unit what a machine cannot give it, and name it: a host may lack a capability or a kernel's feature."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.machines.machine import Machine

NEEDS_THE_HOST = re.compile(
    r"(?:Private|Protect|Proc|Restrict|Limit|Device|IPAddress|Memory|SystemCall|OOM|Capability|NoNew|Lock)\w*=.+"
)
"""Settings that the kernel or the host's rights may refuse."""
_PROBE = "/run/systemd/system/probe.service"


def fit(machine: Machine, unit: str, file: Path) -> list[str]:
    """Write a drop-in that resets the settings of a unit's file which this machine cannot give; return and print them.

    The unit's program is not started. Raises MachineError if the settings fail together and none fails alone.
    """
    settings = list(_settings(file))
    if _starts(machine, settings):
        return []
    dropped = [setting for setting in settings if not _starts(machine, [setting])]
    kept = [setting for setting in settings if setting not in dropped]
    machine.write(f"/etc/systemd/system/{unit}.d/90-machine.conf", "\n".join(["[Service]", *map(_reset, dropped)]))
    machine.run("systemctl", "daemon-reload")
    print(f"{unit}: this machine cannot give {', '.join(dropped) or 'the settings together'}")
    machine.until(lambda: _starts(machine, kept), f"a start of {unit} without {dropped}", seconds=0)
    return dropped


def _settings(file: Path) -> Iterator[str]:
    return (line for line in file.read_text().splitlines() if NEEDS_THE_HOST.fullmatch(line))


def _reset(setting: str) -> str:
    name, _, value = setting.partition("=")
    return f"{name}={'no' if value in ('yes', 'strict', 'invisible') else '0' if value.lstrip('-').isdigit() else ''}"


def _starts(machine: Machine, settings: list[str]) -> bool:
    machine.write(_PROBE, "\n".join(["[Service]", "Type=oneshot", "ExecStart=/bin/true", *settings, ""]))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "probe.service", check=False)
    return machine.show("probe.service", "Result") == "success"
