"""Drop from a unit what a machine cannot give it, and name it: a host may lack a capability or a kernel's feature."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.machines.machine import Machine, MachineError

NEEDS_THE_HOST = re.compile(
    r"(?:Private|Protect|Proc|Restrict|Limit|Device|IPAddress|Memory|SystemCall|OOM|Capability|NoNew|Lock)\w*=.+"
)
"""Settings that the kernel or the host's rights may refuse."""
_PROBE, _REPORTED = "/run/systemd/system/probe.service", "/run/probe"
_REPORT = "/bin/sh -c 'cat /proc/self/oom_score_adj; ulimit -n'"


def fit(machine: Machine, unit: str, file: Path) -> list[str]:
    """Write a drop-in that resets the settings of a unit's file which this machine cannot give; return and print them.

    Those that systemd itself passes over where it may not give them need no drop-in, and are returned, too. The unit's
    program is not started. Raises MachineError if the settings fail together and none fails alone.
    """
    settings = list(_settings(file))
    dropped: list[str] = []
    if not _starts(machine, settings):
        dropped = [setting for setting in settings if not _starts(machine, [setting])]
        machine.write(f"/etc/systemd/system/{unit}.d/90-machine.conf", "\n".join(["[Service]", *map(_reset, dropped)]))
        retained = [setting for setting in settings if setting not in dropped]
        if not _starts(machine, retained):
            raise MachineError(f"{unit} starts neither with its settings nor without {dropped}")
    notified = dict(zip(("OOMScoreAdjust", "LimitNOFILE"), machine.path(_REPORTED).read_text().split(), strict=True))
    desired = {name: value for name, _, value in (setting.partition("=") for setting in settings)}
    passed_over = [name for name, value in notified.items() if desired.get(name, "infinity") not in ("infinity", value)]
    dropped += [f"{name}={desired[name]}" for name in passed_over if f"{name}={desired[name]}" not in dropped]
    if dropped:
        print(f"{unit}: this machine cannot give {', '.join(dropped)}")
    return dropped


def _settings(file: Path) -> Iterator[str]:
    return (line for line in file.read_text().splitlines() if NEEDS_THE_HOST.fullmatch(line))


def _reset(setting: str) -> str:
    name, _, value = setting.partition("=")
    return f"{name}={'no' if value in ('yes', 'strict', 'invisible') else '0' if value.lstrip('-').isdigit() else ''}"


def _starts(machine: Machine, settings: list[str]) -> bool:
    head = ["[Service]", "Type=oneshot", f"ExecStart={_REPORT}", f"StandardOutput=truncate:{_REPORTED}"]
    machine.write(_PROBE, "\n".join([*head, *settings, ""]))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "probe.service", check=False)
    return machine.show("probe.service", "Result") == "success"
