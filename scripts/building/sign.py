"""The signature of the file of checksums, by minisign(1).

Invariant: only minisign reads the secret key, from a file outside the checkout. It is in no argument, variable, log
line or file of the build.
"""

import subprocess
from pathlib import Path

from scripts.building.tools import BuildError


def check_key(key: Path, checkout: Path) -> None:
    """Raise BuildError if a secret key is not there, or is where it could be committed."""
    if not key.is_file():
        raise BuildError(f"there is no key {key}: name the secret key's file that `minisign -G` wrote")
    if key.resolve().is_relative_to(checkout.resolve()):
        raise BuildError(f"{key} is in the checkout, where it could be committed: keep the secret key elsewhere")


def sign(file: Path, key: Path, comment: str) -> None:
    """Write a file's signature next to it. minisign reads the key's password on the terminal. Raises BuildError."""
    command: list[str | Path] = ["minisign", "-S", "-s", key, "-m", file, "-t", comment]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise BuildError("minisign is not installed: run scripts/install release") from None
    if done.returncode:
        raise BuildError(f"minisign could not sign with {key}: {done.stderr.strip() or 'wrong password?'}")
