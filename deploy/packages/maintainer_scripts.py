"""The scripts of the Debian package and the RPM, with the shared functions and the check of the configuration."""

import base64
import io
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
PACKED = ("__init__", "errors", "version", "files", "relay/listener", "cli/shared/configuration", "settings/*")
"""Modules of runtimeproxy that the check imports."""


def filled(text: str, packages: Path, version: str) -> str:
    """Return the text of a script. ``packages`` is the directory with the Python packages of this version."""
    hooks = sorted(path.stem for path in (packages / "runtimeproxy_hooks/servers").glob("[!_]*.py"))
    values = {
        "FUNCTIONS": (HERE / "functions.sh").read_text().rstrip(),
        "PRECHECK": (HERE / "precheck.sh").read_text().rstrip(),
        "CHECK": base64.encodebytes(archive(packages)).decode().rstrip(),
        "HOOKS": " ".join(hooks),
        "VERSION": version,
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def archive(packages: Path) -> bytes:
    """Return a zip file that runs precheck.py, with the modules that it imports."""
    package = packages / "runtimeproxy"
    files = [path for name in PACKED for path in package.glob(f"{name}.py")]
    # These packages are packed empty: the check does not need their imports.
    texts = {f"runtimeproxy/{name}/__init__.py": b"" for name in ("relay", "cli", "cli/shared")}
    texts |= {str(path.relative_to(packages)): path.read_bytes() for path in [*files, *packages.glob("yaml/*.py")]}
    texts["__main__.py"] = (HERE / "precheck.py").read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, content in sorted(texts.items()):
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
