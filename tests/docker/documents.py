"""JSON documents: random ones, changed ones, and invalid ones."""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st


def changed(body: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy of a body with other values at paths, whose keys are separated by slashes."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    for path, value in changes.items():
        *parents, last = path.split("/")
        inner = copy
        for key in parents:
            inner = inner[key]
        inner[last] = value
    return copy


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NO_DOCUMENTS = [b"", b"canary", b"[]", b"null", b"5", b'"canary"', b"{} {}", b'{"a":"\xff"}', b"[" * 100_000]
"""Bytes that are not a JSON object."""
