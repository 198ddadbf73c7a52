"""Images for the real engines, made of one static busybox without a registry.

The same busybox gives the same bytes, so an image keeps its id between runs.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BUSYBOX_IMAGE = "docker.io/library/runtimeproxy-busybox:1"
PAUSE_IMAGE = "docker.io/library/runtimeproxy-pause:1"
IMAGES: Mapping[str, Sequence[str]] = {BUSYBOX_IMAGE: ["/bin/sh"], PAUSE_IMAGE: ["/bin/sleep", "2147483647"]}
"""Image name -> the command that it runs by default."""
STOP_SIGNALS = {PAUSE_IMAGE: "SIGKILL"}
"""Unlike a real pause, sleep as process 1 ignores SIGTERM: a stop would wait for its whole grace period."""

APPLETS = ("sh", "cat", "cp", "echo", "env", "false", "grep", "head", "ls", "nc", "printf", "sleep", "true", "wc")


def archive(busybox: Path) -> bytes:
    """Return an archive with every image of ``IMAGES``, all on one layer of busybox.

    ``busybox`` is a static binary. Raises OSError if it cannot be read.
    """
    directories = [_entry(name, tarfile.DIRTYPE, mode=0o755) for name in ("bin", "dev", "etc", "proc", "sys", "tmp")]
    links = [_entry(f"bin/{applet}", tarfile.SYMTYPE, target="busybox") for applet in APPLETS]
    users = _entry("etc/passwd", content=b"root:x:0:0:root:/:/bin/sh\n")
    layer = _tar([*directories, _entry("bin/busybox", content=busybox.read_bytes(), mode=0o755), *links, users])
    root = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}
    files, manifest = {"layer.tar": layer}, []
    for name, command in IMAGES.items():
        running = {"Cmd": command, "Env": ["PATH=/bin"], "StopSignal": STOP_SIGNALS.get(name, "SIGTERM")}
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": running, "rootfs": root}).encode()
        path = hashlib.sha256(config).hexdigest() + ".json"
        files[path] = config
        manifest.append({"Config": path, "RepoTags": [name], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    return _tar([_entry(path, content=content) for path, content in files.items()])


Entry = tuple[tarfile.TarInfo, bytes]


def _tar(entries: Sequence[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _entry(
    path: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", mode: int = 0o644, target: str = ""
) -> Entry:
    info = tarfile.TarInfo(path)
    info.type, info.size, info.mode, info.linkname = kind, len(content), mode, target
    return info, content
