"""``runtimeproxy kubelet-args``: the flags that point a kubelet, or cri-dockerd, at the proxy, and the way back."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import click

from runtimeproxy.cli.shared.configuration import configuration_file
from runtimeproxy.cli.shared.flags import Command, flags_given, option_flags
from runtimeproxy.cli.shared.output import JSON, YAML, output_option, structured_text
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings import config
from runtimeproxy.settings.options import CRIO_SOCKET, CRIO_SUFFIX, FILE_OPTION, MODE_OPTION, OPTIONS, Mode

TEXT = "text"
OLDEST = (1, 18)
_DOCKERSHIM_ENDS = (1, 24)
"""From this version on the kubelet speaks CRI only, and needs no flag for that."""
_NO_UPPER_LIMIT = (1 << 30, 0)
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:[.+-].*)?")
_PLAIN_PATH = re.compile("[A-Za-z0-9/._+@-]+")
_FLAGS = tuple(
    option
    for option in OPTIONS
    if option in (MODE_OPTION, FILE_OPTION) or option.field in ("listen_endpoint", "runtime_endpoint")
)
_CRIO_BY_NAME = (1, 29)
"""From this version on the kubelet recognises CRI-O by the end of the socket's path (kubernetes PR 118704)."""
Parts = dict[str, str | list[str]]

_KUBELET = (
    "kubelet.service",
    "/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS",
)
"""A systemd unit, and its command as its usual package has it: of kubeadm, or of cri-dockerd."""
_CRI_DOCKERD = ("cri-docker.service", "/usr/bin/cri-dockerd --container-runtime-endpoint fd://")
_REMOTE = "--container-runtime=remote"
_CRI_FLAG = "--container-runtime-endpoint=unix://{socket}"
_DOCKER_FLAG = "--docker-endpoint=unix://{socket}"


@dataclass(frozen=True, slots=True)
class Row:
    """The flags for kubelets of some versions in one mode; ``kubelet`` is their name in docs/kubelet.rst."""

    kubelet: str
    mode: Mode
    cri_dockerd: bool
    since: tuple[int, int]
    before: tuple[int, int]
    unit: str
    command: str
    flags: tuple[str, ...]

    def flags_for(self, socket: str) -> list[str]:
        return [flag.format(socket=socket) for flag in self.flags]


ROWS = (
    Row("from 1.24 on", Mode.CONTAINERD, False, _DOCKERSHIM_ENDS, _NO_UPPER_LIMIT, *_KUBELET, (_CRI_FLAG,)),
    Row("before 1.24", Mode.CONTAINERD, False, OLDEST, _DOCKERSHIM_ENDS, *_KUBELET, (_REMOTE, _CRI_FLAG)),
    Row("with dockershim (Docker mode)", Mode.DOCKER, False, OLDEST, _DOCKERSHIM_ENDS, *_KUBELET, (_DOCKER_FLAG,)),
    Row("with cri-dockerd (Docker mode)", Mode.DOCKER, True, OLDEST, _NO_UPPER_LIMIT, *_CRI_DOCKERD, (_DOCKER_FLAG,)),
)


@dataclass(frozen=True, slots=True)
class FlagLocation:
    """Where the flags of a unit are set: ``content`` returns the text of ``file`` with them. ``apply`` and ``back`` are
    run before the unit's restart. ``runtime`` is the socket of a distribution's containerd."""

    runtime: str
    unit: str
    file: str
    content: Callable[[Sequence[str]], str]
    apply: tuple[str, ...]
    back: tuple[str, ...]
    notes: tuple[str, ...]


def _drop_in(runtime: str, unit: str, command: Callable[[Sequence[str]], str], *notes: str) -> FlagLocation:
    file, reload = f"/etc/systemd/system/{unit}.d/90-runtimeproxy.conf", "systemctl daemon-reload"
    return FlagLocation(
        *(runtime, unit, file),
        lambda flags: f"[Service]\nExecStart=\nExecStart={command(flags)}\n",
        *((reload,), (f"rm {file}", reload), notes),
    )


def _rancher(name: str, unit: str, note: str) -> FlagLocation:
    """Return k3s or RKE2. The YAML adds flags to those of other files (k3s docs, "Multiple Config Files")."""
    file = f"/etc/rancher/{name}/config.yaml.d/90-runtimeproxy.yaml"
    notes = (
        note,
        "If the unit's command has --kubelet-arg, add the values there: it replaces those of files.",
        "So does a later file with kubelet-arg without +. Before 1.21 only config.yaml itself is read.",
        f"{name}'s own container-runtime-endpoint will not do: {name} then starts no containerd.",
    )
    return FlagLocation(
        *("/run/k3s/containerd/containerd.sock", unit, file),
        lambda flags: "kubelet-arg+:\n" + "".join(f"- {flag.removeprefix('--')}\n" for flag in flags),
        *((), (f"rm {file}",), notes),
    )


_MICROK8S_FILE = "/var/snap/microk8s/current/args/kubelet"
_MICROK8S_SAVED = "/var/snap/microk8s/common/kubelet.before-runtimeproxy"
DISTRIBUTIONS = {  # of Kubernetes, without kubelet.service
    "k3s": _rancher("k3s", "k3s.service", "On an agent the unit is k3s-agent.service."),
    "rke2": _rancher("rke2", "rke2-agent.service", "On a server the unit is rke2-server.service."),
    "k0s": _drop_in(
        "/run/k0s/containerd.sock",
        "k0sworker.service",
        lambda flags: f'/usr/local/bin/k0s worker --token-file=/etc/k0s/token "--kubelet-extra-args={" ".join(flags)}"',
        "Compare with `systemctl cat k0sworker.service`: if its ExecStart= is another one, keep that, and",
        "add the flags to its --kubelet-extra-args. A controller with a worker has k0scontroller.service.",
        "--cri-socket will not do: k0s then starts no containerd.",
    ),
    "microk8s": FlagLocation(
        "/var/snap/microk8s/common/run/containerd.sock",
        "snap.microk8s.daemon-kubelite.service",
        _MICROK8S_FILE,
        lambda flags: f"{flags[-1]}\n",
        (
            f"cp {_MICROK8S_FILE} {_MICROK8S_SAVED}",
            f"sed -i 's|^--container-runtime-endpoint=.*|{{endpoint}}|' {_MICROK8S_FILE}",
        ),
        (f"cp {_MICROK8S_SAVED} {_MICROK8S_FILE}",),
        (
            "This line replaces the one with the same flag. Look again after each refresh of the snap.",
            "Before 1.21 the unit is snap.microk8s.daemon-kubelet.",
            "The snap must be a classic one (`snap list microk8s`): a strict one may not connect to a socket",
            "outside of itself, so there it cannot be done.",
        ),
    ),
}
_DISTRIBUTION = re.compile(r"\+(k3s|rke2|k0s)|(-[0-9]+\+[0-9a-f]{14})")
"""The part of a kubelet's version that names the distribution; the second form is of MicroK8s up to 1.22."""


@click.command(
    "kubelet-args",
    cls=Command,
    params=option_flags(_FLAGS),
    short_help="Print what points the kubelet at the proxy, and back.",
)
@click.option("--kube-version", metavar="VERSION", required=True, help="The kubelet's version, like 1.27 or v1.27.3.")
@click.option("--cri-dockerd", is_flag=True, help="The kubelet uses cri-dockerd, and the proxy runs in Docker mode.")
@click.option(
    "--distribution",
    type=click.Choice([*DISTRIBUTIONS]),
    help="Where the kubelet has no unit of its own.  [default: what the version implies, like v1.33.1+k3s1]",
)
@output_option(TEXT, JSON, YAML)
def kubelet_args_command(
    kube_version: str, cri_dockerd: bool, distribution: str | None, output: str, **given: str | None
) -> None:
    """Print the flags, a systemd drop-in with them, and the way back. Nothing is changed.

    Mode and sockets are those of the proxy's configuration: these flags, the environment, the file.
    """
    try:
        flags = flags_given(given)
        settings = config.load(flags, os.environ, *configuration_file(flags, os.environ))  # the group may be elsewhere
        if cri_dockerd and MODE_OPTION.name in flags and settings.mode is not Mode.DOCKER:
            raise ConfigError(f"--cri-dockerd is for Docker mode: take {MODE_OPTION.flag} out")
        version, row = _row_for(kube_version, Mode.DOCKER if cri_dockerd else settings.mode, cri_dockerd)
        socket, notes = _socket_for(version, row, settings)
        if distribution is None and (match := _DISTRIBUTION.search(kube_version)):
            distribution = match[1] or "microk8s"
        parts = _parts(distribution, row, row.flags_for(socket), notes)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(_text(parts) if output == TEXT else structured_text(parts, output))


def _row_for(text: str, mode: Mode, cri_dockerd: bool) -> tuple[tuple[int, int], Row]:
    """Return the version and the row of a kubelet. Raises ConfigError if there is none."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ConfigError(f"--kube-version: {text!r} is not a version: write one like 1.27 or v1.27.3")
    version = int(match[1]), int(match[2])
    if version < OLDEST:
        raise ConfigError(f"--kube-version: {text!r} is too old: the proxy needs Kubernetes 1.18 or later")
    for row in ROWS:
        if (row.mode, row.cri_dockerd) == (mode, cri_dockerd) and row.since <= version < row.before:
            return version, row
    raise ConfigError("--kube-version: from 1.24 on the kubelet has no dockershim: add --cri-dockerd")


def _socket_for(version: tuple[int, int], row: Row, settings: config.Config) -> tuple[str, list[str]]:
    """Return the path by which the kubelet is to call the proxy, with notes on it. Raises ConfigError."""
    socket = settings.listen_endpoint
    if not _PLAIN_PATH.fullmatch(socket):
        raise ConfigError(
            f"--koord-runtimeproxy-endpoint: {socket!r} has characters that a unit or the kubelet reads in ways of "
            "their own: take a path of letters, digits and ._+@-"
        )
    notes: list[str] = []
    if row.mode is Mode.CONTAINERD and settings.runtime_endpoint.endswith(CRIO_SOCKET):
        if not socket.endswith(CRIO_SUFFIX):
            socket = f"{os.path.dirname(socket)}/{CRIO_SUFFIX}"
            notes += [
                f"The kubelet recognises CRI-O by a path that ends in {CRIO_SUFFIX}. runtimeproxy.socket makes a link",
                f"there; without that unit run the proxy with --koord-runtimeproxy-endpoint={socket}.",
            ]
        if version < _CRIO_BY_NAME:
            notes.append("Before 1.29 the path must be /var/run/crio/crio.sock itself: docs/kubelet.rst (CRI-O).")
    return socket, notes


def _parts(distribution: str | None, row: Row, flags: list[str], notes: list[str]) -> Parts:
    """Return the parts of the output. Raises ConfigError if the distribution does not support the row."""
    proxy = [f"{MODE_OPTION.flag}={row.mode.value}"]
    if distribution is None or (row.cri_dockerd and distribution != "k3s"):
        location = _drop_in(
            *("", row.unit, lambda flags: " ".join([row.command, *flags])),
            f"Compare with `systemctl cat {row.unit}`: if its last ExecStart= is another one, keep that",
            "and put the flags after it.",
        )
    elif row.cri_dockerd:
        location = DISTRIBUTIONS[distribution]
        note = "With `docker: true` this key of k3s is the endpoint of the cri-dockerd inside it."
        content = f"container-runtime-endpoint: {flags[-1].partition('=')[2]}\n"
        location = replace(location, content=lambda flags: content, notes=(location.notes[0], note))
    elif row.mode is Mode.DOCKER:
        why = f"the dockershim of {distribution} cannot be pointed at the proxy"
        raise ConfigError(f"--kube-version: {why}: use cri-dockerd")
    else:
        location = DISTRIBUTIONS[distribution]
        proxy.append(f"--remote-runtime-service-endpoint={location.runtime}")
    restart = f"systemctl restart {location.unit}"
    return {
        "proxy": proxy,
        "unit": location.unit,
        "flags": flags,
        "file": location.file,
        "dropIn": location.content(flags),
        "apply": [*(line.format(endpoint=flags[-1]) for line in location.apply), restart],
        "back": [*location.back, restart],
        "notes": [*location.notes, *notes],
    }


def _text(parts: Parts) -> str:
    return f"""\
# The proxy runs with {" ".join(parts["proxy"])}; do what follows only while it runs.

# Flags of {parts["unit"]}:
{_lines(parts["flags"])}

# Drop-in {parts["file"]}
{_lines(parts["notes"], "# ")}
{_lines(str(parts["dropIn"]).splitlines())}

# In force by:
{_lines(parts["apply"])}

# The way back, before the proxy is stopped:
{_lines(parts["back"])}"""


def _lines(lines: str | list[str], indent: str = "    ") -> str:
    return "\n".join(f"{indent}{line}" for line in lines)
