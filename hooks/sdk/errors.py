"""Exceptions that a hook raises, and those that its errors cause.

Invariant: no text of the SDK contains the value of an env, label or annotation.
"""

from typing import NoReturn


class Rejected(Exception):
    """The call is refused, under either failure policy; the text goes to the kubelet."""


class Malformed(ValueError):
    """Part of the request cannot be read: ``what`` names it ("annotation NAME"), ``why`` is the rule."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why


class NotSayable(Exception):
    """An edit that the hook protocol cannot express, or without effect at this hook point; the text has the reason."""


def reject(text: str) -> NoReturn:
    """Refuse the call (gRPC PERMISSION_DENIED), under either failure policy; the kubelet gets ``text``."""
    raise Rejected(text)
