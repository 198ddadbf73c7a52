"""Strict reading of YAML written by people: mappings with unique keys, and scalars as the written texts.

Invariant: every error is one line with the file, the line, the path of keys and what to do, and without any value.
"""

from collections.abc import Iterator

import yaml

from runtimeproxy.errors import ConfigError

NULL = "tag:yaml.org,2002:null"


class Place:
    """The position of a value, for errors: the file and the path of keys."""

    def __init__(self, origin: str, keys: tuple[str, ...] = ()) -> None:
        self._origin = origin
        self._keys = keys

    def inside(self, key: str) -> "Place":
        """Return the place of a key inside this one."""
        return Place(self._origin, (*self._keys, key))

    def fault(self, node: yaml.Node, text: str) -> ConfigError:
        """Return the error for a node at this place."""
        path = f"{'.'.join(self._keys)}: " if self._keys else ""
        return ConfigError(f"{self._origin}:{node.start_mark.line + 1}: {path}{text}")


def compose(text: str, origin: str) -> yaml.Node | None:
    """Return the root node of a text; None if it is empty or null. Raises ConfigError, naming ``origin``.

    No Python values are built of the nodes: an alias is the same node as its anchor, and costs only what its reader
    does with it.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: this is not YAML: {_reason(error)}") from None
    except RecursionError:
        raise ConfigError(f"{origin}: this is nested too deeply: write 'key: value' lines") from None
    except (ValueError, OverflowError):  # raised by the parser for an escape of a character that does not exist
        raise ConfigError(f"{origin}: an escape is no character: \\UXXXXXXXX ends at \\U0010FFFF") from None
    return None if root is None or is_nothing(root) else root


def _reason(error: yaml.YAMLError) -> str:
    """Return the parser's message without the lines of the file that it quotes."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return "it holds characters that YAML does not allow"


def is_nothing(node: yaml.Node) -> bool:
    """Return whether no value is written at all; a written ``null`` or "" is a text."""
    return bool(node.tag == NULL and not node.value)


def pairs(node: yaml.Node, place: Place, faults: list[ConfigError] | None = None) -> Iterator[tuple[str, yaml.Node]]:
    """Yield a mapping's keys with their values' nodes. Raises ConfigError for a key that occurs twice or is no text;
    with ``faults`` all of them are added there instead, and their keys left out."""
    report = _raise if faults is None else faults.append
    if not isinstance(node, yaml.MappingNode):
        report(place.fault(node, "write 'key: value' lines here"))
        return
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            report(place.fault(key, "a key is one text"))
        elif key.value in seen:
            report(place.inside(key.value).fault(key, "is there twice: remove one of them"))
        else:
            seen.add(key.value)
            yield key.value, value


def _raise(fault: ConfigError) -> None:
    raise fault


def scalar(node: yaml.Node, place: Place) -> str:
    """Return a scalar as the text that was written: 0600, true and 1e3 stay as they are. Raises ConfigError."""
    if not isinstance(node, yaml.ScalarNode):
        raise place.fault(node, "write one text, in quotes if it is JSON")
    return str(node.value)
