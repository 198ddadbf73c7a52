"""What an update without an answer still says beside a later one that the runtime agreed to.

Owns which of its fields count no more.
Must not know: any wire format, how it is found out what became of an update.
Invariant: nothing of the later update is taken back by the older one, neither a value nor whose it is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtimeproxy.model import ResourceValue, named, overlay
from runtimeproxy.records import SaidUpdate


def outlived(said: SaidUpdate, by: SaidUpdate) -> SaidUpdate | None:
    """Return what an update without an answer still says beside a later one that the runtime agreed to.

    None if that is nothing. What was put into the later one goes with it: that is what the runtime holds now.
    """
    asked = named(by.asked.resources)
    noted = {**by.asked.annotations, **by.annotations}
    resources = _beyond(named(said.asked.resources), asked)
    put_in = _beyond(_beyond(said.put_in, asked), by.put_in)
    if not resources and not put_in:
        return None  # of annotations alone nobody can tell whether they were set
    return SaidUpdate(
        replace(said.asked, resources=overlay(None, resources), annotations=_beyond(said.asked.annotations, noted)),
        put_in,
        _beyond(said.annotations, noted),
        named(overlay(overlay(None, _beyond(said.later, asked)), by.put_in)),
    )


def _beyond(fields: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, and the entries of maps, that the others do not name."""
    left: dict[str, ResourceValue] = {}
    for name, value in fields.items():
        named_too = others.get(name)
        if named_too is None:
            left[name] = value
        elif isinstance(value, Mapping) and isinstance(named_too, Mapping):
            rest: Any = {key: entry for key, entry in value.items() if key not in named_too}
            if rest:
                left[name] = rest
    return left
