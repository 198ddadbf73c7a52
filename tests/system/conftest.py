"""What system tests share."""

from tests.engines.conftest import containerd

__all__ = ["containerd"]
