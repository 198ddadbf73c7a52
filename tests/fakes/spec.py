"""The verbose JSON of a pod's and a container's status, with everything that containerd 1.6 writes there.

It has the keys of containerd's (tested by test_cri_contract.py), so that parsing it costs as much.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes import cri_pb2, inside

Json = dict[str, Any]

_CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
        *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
]
MASKED_PATHS = (
    *("/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
)
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_UNSAFE = ("nosuid", "noexec", "nodev")
_MOUNTS: Sequence[tuple[str, str, str, tuple[str, ...]]] = (
    ("/proc", "proc", "proc", _UNSAFE),
    ("/dev", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
    ("/dev/pts", "devpts", "devpts", ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")),
    ("/dev/mqueue", "mqueue", "mqueue", _UNSAFE),
    ("/sys", "sysfs", "sysfs", (*_UNSAFE, "ro")),
)
_CGROUP_MOUNT = ("/sys/fs/cgroup", "cgroup", "cgroup", (*_UNSAFE, "relatime", "ro"))
_SHM = ("/dev/shm", "tmpfs", "shm", (*_UNSAFE, "mode=1777", "size=65536k"))
_SANDBOXES = "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes"
_SHMS = "/run/containerd/io.containerd.grpc.v1.cri/sandboxes"
_RUNTIME = {
    "snapshotter": "overlayfs",
    "runtimeType": "io.containerd.runc.v2",
    "runtimeOptions": {"root": "/run/containerd/runc"},
}
_SANDBOX_SHARES = 2


def pod_info(pod_id: str, config: cri_pb2.PodSandboxConfig, runtime_handler: str) -> Json:
    return {
        "pid": 1,
        "processStatus": "running",
        "netNamespaceClosed": False,
        "image": "registry.k8s.io/pause:3.6",
        "snapshotKey": pod_id,
        "runtimeHandler": runtime_handler,
        **_RUNTIME,
        "config": inside.go_json(config),
        "runtimeSpec": _pod_spec(pod_id, config),
        "cniResult": None,
    }


def container_info(
    container_id: str,
    pod_id: str,
    request: cri_pb2.CreateContainerRequest,
    resources: cri_pb2.LinuxContainerResources,
    cgroup_path: str,
) -> Json:
    """Return containerd's report of a container: its config as it was created, its spec as it is now."""
    return {
        "sandboxID": pod_id,
        "pid": 1,
        "removing": False,
        "snapshotKey": container_id,
        **_RUNTIME,
        "config": inside.go_json(request.config),
        "runtimeSpec": _container_spec(request, inside.runtime_spec(request.config, resources, cgroup_path)),
    }


def _container_spec(request: cri_pb2.CreateContainerRequest, asked: Mapping[str, Any]) -> Json:
    config, security = request.config, request.config.linux.security_context
    process = {"args": [*config.command, *config.args], "cwd": config.working_dir or "/", **asked["process"]}
    namespaces = [{"type": kind, "path": f"/proc/1/ns/{kind}"} for kind in ("ipc", "uts", "network")]
    linux = {
        **asked["linux"],
        "resources": {"memory": {}, **asked["linux"]["resources"]},
        "namespaces": [{"type": "pid"}, {"type": "mount"}, *namespaces],
        **_paths(list(security.masked_paths), list(security.readonly_paths)),
    }
    names = {"container-name": config.metadata.name, "container-type": "container", "image-name": config.image.image}
    return {
        **_spec({"user": {"uid": 0, "gid": 0, "additionalGids": [0]}, **process}, readonly=False),
        "mounts": [_mount(*mount) for mount in (*_MOUNTS, _CGROUP_MOUNT, *_binds(request))],
        "annotations": _annotations(request.pod_sandbox_id, request.sandbox_config.metadata, names),
        "linux": _with_devices(linux),
    }


def _binds(request: cri_pb2.CreateContainerRequest) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return the mounts that containerd adds from the sandbox, and those that the kubelet asked for."""
    pod_id = request.pod_sandbox_id
    places = {f"/etc/{name}": f"{_SANDBOXES}/{pod_id}/{name}" for name in ("hostname", "hosts", "resolv.conf")}
    rows = {path: (source, "rw") for path, source in {**places, "/dev/shm": f"{_SHMS}/{pod_id}/shm"}.items()}
    rows |= {each.container_path: (each.host_path, "ro" if each.readonly else "rw") for each in request.config.mounts}
    return [(path, "bind", source, ("rbind", "rprivate", mode)) for path, (source, mode) in rows.items()]


def _pod_spec(pod_id: str, config: cri_pb2.PodSandboxConfig) -> Json:
    process = {"args": ["/pause"], "env": ["PATH=/bin"], "cwd": "/", "noNewPrivileges": True, "oomScoreAdj": 0}
    binds = (("/dev/shm", f"{_SHMS}/{pod_id}/shm"), ("/etc/resolv.conf", f"{_SANDBOXES}/{pod_id}/resolv.conf"))
    mounts = (*_MOUNTS, _SHM, *((path, "bind", source, ("rbind", "ro")) for path, source in binds))
    linux = {
        "resources": {"cpu": {"shares": _SANDBOX_SHARES}},
        "cgroupsPath": f"{config.linux.cgroup_parent}/{pod_id}",
        "namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount")],
        **_paths(MASKED_PATHS, READONLY_PATHS),
    }
    names = {"container-type": "sandbox", "sandbox-log-directory": config.log_directory}
    return {
        **_spec({"user": {"uid": 0, "gid": 0}, **process}, readonly=True),
        "mounts": [_mount(*mount) for mount in mounts],
        "annotations": _annotations(pod_id, config.metadata, names),
        "linux": _with_devices(linux),
    }


def _spec(process: Mapping[str, Any], *, readonly: bool) -> Json:
    sets = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.2-dev",
        "process": {**process, "capabilities": dict.fromkeys(sets, _CAPABILITIES)},
        "root": {"path": "rootfs", **({"readonly": True} if readonly else {})},
    }


def _with_devices(linux: Json) -> Json:
    resources = {"devices": [{"allow": False, "access": "rwm"}], **linux["resources"]}
    return {**linux, "resources": resources}


def _paths(masked: Sequence[str], readonly: Sequence[str]) -> Json:
    return {key: list(paths) for key, paths in (("maskedPaths", masked), ("readonlyPaths", readonly)) if paths}


def _mount(destination: str, kind: str, source: str, options: Sequence[str]) -> Json:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}


def _annotations(pod_id: str, pod: cri_pb2.PodSandboxMetadata, names: Mapping[str, str]) -> dict[str, str]:
    of_pod = {"id": pod_id, "name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    named = {**names, **{f"sandbox-{key}": value for key, value in of_pod.items()}}
    return {f"io.kubernetes.cri.{key}": value for key, value in named.items()}
