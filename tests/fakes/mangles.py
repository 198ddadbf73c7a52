"""Answers that no runtime should give, for ``RuntimeState.mangle``: a verbose part of any text.

Replies of other methods, and parts that are not named, stay as they are.
"""

import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from tests.fakes.runtime_state import Mangle

ABSENT = object()
"""Stands for a part that is taken away."""


def info_text(method: str, text: str) -> Mangle:
    """Let a method's verbose part be a text, where it is answered at all."""

    def mangle(called: str, reply: Any) -> Message | bytes:
        if called == method and reply.info:
            reply.info["info"] = text
        return reply  # type: ignore[no-any-return]

    return mangle


def info_part(method: str, path: Sequence[str], value: Any) -> Mangle:
    """Let a part of a method's verbose JSON have another value, or be away; nothing happens where its owner is away."""

    def mangle(called: str, reply: Any) -> Message | bytes:
        if called == method and reply.info:
            document = json.loads(reply.info["info"])
            _put(document, path, value)
            reply.info["info"] = json.dumps(document, separators=(",", ":"))
        return reply  # type: ignore[no-any-return]

    return mangle


def _put(owner: Any, path: Sequence[str], value: Any) -> None:
    *above, last = path
    for name in above:
        owner = owner.get(name) if isinstance(owner, dict) else None
    if not isinstance(owner, dict):
        return
    if value is ABSENT:
        owner.pop(last, None)
    else:
        owner[last] = value
