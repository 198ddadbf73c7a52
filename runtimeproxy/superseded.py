"""What an update without an answer still says beside a later one that the runtime agreed to.

Owns which of its fields count no more.
Must not know: any wire format, how it is found out what became of an update.
Invariant: no field of the later update is taken back by the older one.
"""

from collections.abc import Mapping
from typing import Any

from runtimeproxy.model import ResourceValue, named, overlay
from runtimeproxy.records import AskedUpdate


def outlived(
    asked: AskedUpdate,
    put_in: Mapping[str, ResourceValue],
    later: AskedUpdate,
    later_put_in: Mapping[str, ResourceValue],
) -> tuple[AskedUpdate, Mapping[str, ResourceValue]] | None:
    """Return what an update without an answer still says beside a later one that the runtime agreed to.

    None if that is nothing. What was put into the later one is part of it: that is what the runtime holds now.
    """
    of_later = named(later.resources)
    resources = _beyond(named(asked.resources), of_later)
    annotations = {key: value for key, value in asked.annotations.items() if key not in later.annotations}
    own = _beyond(_beyond(put_in, of_later), later_put_in)
    if not resources and not annotations and not own:
        return None
    return AskedUpdate(asked.container_id, overlay(None, resources), annotations), {**own, **later_put_in}


def _beyond(fields: Mapping[str, ResourceValue], others: Mapping[str, ResourceValue]) -> dict[str, ResourceValue]:
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
