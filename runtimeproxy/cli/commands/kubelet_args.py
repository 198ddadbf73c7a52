"""``runtimeproxy kubelet-args``: what points a kubelet, or cri-dockerd, at the proxy, and how one goes back.

Owns the table of flags by Kubernetes version and mode, which docs/kubelet.rst shows too.
Must not know: the node; it prints what is to be done and changes nothing.
Invariant: the way back is printed with the way there.
"""

import os
import re
from dataclasses import dataclass

import click

from runtimeproxy.cli.shared.configuration import configuration_file
from runtimeproxy.cli.shared.flags import Command, flags_given, option_flags
from runtimeproxy.cli.shared.output import JSON, YAML, output_option, structured_text
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings import config
from runtimeproxy.settings.options import FILE_OPTION, MODE_OPTION, OPTIONS, Mode

TEXT = "text"
OLDEST = (1, 18)
_DOCKERSHIM_ENDS = (1, 24)
"""From this version on the kubelet speaks CRI only, and needs no flag that says so."""
_ANY = (1 << 30, 0)
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:[.+-].*)?")
_PLAIN_PATH = re.compile("[A-Za-z0-9/._+@-]+")
_FLAGS = tuple(
    option for option in OPTIONS if option in (MODE_OPTION, FILE_OPTION) or option.field == "listen_endpoint"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit, and its command as its usual package has it: of kubeadm, or of cri-dockerd."""

    name: str
    command: str


_KUBELET = Unit(
    "kubelet.service",
    "/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS",
)
_CRI_DOCKERD = Unit("cri-docker.service", "/usr/bin/cri-dockerd --container-runtime-endpoint fd://")


@dataclass(frozen=True, slots=True)
class Row:
    """The flags for kubelets of some versions in one mode; ``kubelet`` is what docs/kubelet.rst calls them."""

    kubelet: str
    mode: Mode
    cri_dockerd: bool
    since: tuple[int, int]
    before: tuple[int, int]
    unit: Unit
    flags: tuple[str, ...]

    def flags_for(self, socket: str) -> list[str]:
        """Return the flags with the path of the proxy's socket."""
        return [flag.format(socket=socket) for flag in self.flags]


ROWS = (
    Row(
        "from 1.24 on",
        Mode.CONTAINERD,
        False,
        _DOCKERSHIM_ENDS,
        _ANY,
        _KUBELET,
        ("--container-runtime-endpoint=unix://{socket}",),
    ),
    Row(
        "before 1.24",
        Mode.CONTAINERD,
        False,
        OLDEST,
        _DOCKERSHIM_ENDS,
        _KUBELET,
        ("--container-runtime=remote", "--container-runtime-endpoint=unix://{socket}"),
    ),
    Row(
        "with dockershim (Docker mode)",
        Mode.DOCKER,
        False,
        OLDEST,
        _DOCKERSHIM_ENDS,
        _KUBELET,
        ("--docker-endpoint=unix://{socket}",),
    ),
    Row(
        "with cri-dockerd (Docker mode)",
        Mode.DOCKER,
        True,
        OLDEST,
        _ANY,
        _CRI_DOCKERD,
        ("--docker-endpoint=unix://{socket}",),
    ),
)


@click.command(
    "kubelet-args",
    cls=Command,
    params=option_flags(_FLAGS),
    short_help="Print what points the kubelet at the proxy, and back.",
)
@click.option("--kube-version", metavar="VERSION", required=True, help="The kubelet's version, like 1.27 or v1.27.3.")
@click.option("--cri-dockerd", is_flag=True, help="The kubelet uses cri-dockerd, and the proxy runs in Docker mode.")
@output_option(TEXT, JSON, YAML)
def kubelet_args_command(kube_version: str, cri_dockerd: bool, output: str, **given: str | None) -> None:
    """Print the flags, a systemd drop-in with them, and the way back. Nothing is changed.

    Mode and socket are those of the proxy's configuration: these flags, the environment, the file.
    """
    try:
        flags = flags_given(given)
        settings = config.load(flags, os.environ, *configuration_file(flags, os.environ))  # the group may be elsewhere
        if cri_dockerd and MODE_OPTION.name in flags and settings.mode is not Mode.DOCKER:
            raise ConfigError(f"--cri-dockerd is for Docker mode: take {MODE_OPTION.flag} out")
        row = row_for(_version(kube_version), Mode.DOCKER if cri_dockerd else settings.mode, cri_dockerd)
        parts = _parts(row, settings.listen_endpoint)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(_text(row, parts) if output == TEXT else structured_text(parts, output))


def row_for(version: tuple[int, int], mode: Mode, cri_dockerd: bool) -> Row:
    """Return the row of a kubelet. Raises ConfigError if there is none."""
    for row in ROWS:
        if (row.mode, row.cri_dockerd) == (mode, cri_dockerd) and row.since <= version < row.before:
            return row
    raise ConfigError("--kube-version: from 1.24 on the kubelet has no dockershim: add --cri-dockerd")


def _version(text: str) -> tuple[int, int]:
    found = _VERSION.fullmatch(text)
    if found is None:
        raise ConfigError(f"--kube-version: {text!r} is not a version: write one like 1.27 or v1.27.3")
    version = int(found[1]), int(found[2])
    if version < OLDEST:
        raise ConfigError(f"--kube-version: {text!r} is too old: the proxy needs Kubernetes 1.18 or later")
    return version


def _parts(row: Row, socket: str) -> dict[str, str | list[str]]:
    if not _PLAIN_PATH.fullmatch(socket):
        raise ConfigError(
            f"--koord-runtimeproxy-endpoint: {socket!r} has characters that a unit or the kubelet reads in ways of "
            "their own: take a path of letters, digits and ._+@-"
        )
    flags = row.flags_for(socket)
    file = f"/etc/systemd/system/{row.unit.name}.d/90-runtimeproxy.conf"
    restart = ["systemctl daemon-reload", f"systemctl restart {row.unit.name}"]
    return {
        "proxy": [f"{MODE_OPTION.flag}={row.mode.value}"],
        "unit": row.unit.name,
        "flags": flags,
        "file": file,
        "dropIn": f"[Service]\nExecStart=\nExecStart={' '.join([row.unit.command, *flags])}\n",
        "apply": restart,
        "back": [f"rm {file}", *restart],
    }


def _text(row: Row, parts: dict[str, str | list[str]]) -> str:
    return f"""\
# The proxy runs with {_lines(parts["proxy"], "")}; do what follows only while it runs.

# Flags of {row.unit.name}:
{_lines(parts["flags"])}

# Drop-in {parts["file"]}
# Compare with `systemctl cat {row.unit.name}`: if its last ExecStart= is another one, keep that
# and put the flags behind it.
{_lines(str(parts["dropIn"]).splitlines())}

# In force by:
{_lines(parts["apply"])}

# The way back, before the proxy is stopped:
{_lines(parts["back"])}"""


def _lines(lines: str | list[str], indent: str = "    ") -> str:
    return "\n".join(f"{indent}{line}" for line in lines)
