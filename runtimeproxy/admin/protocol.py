"""The lines of the control protocol (docs/control-protocol.rst), for the daemon and its clients."""

import json
from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 1
REQUEST_BYTES, PART_BYTES = 16 * 1024, 1 << 20
"""Longest lines of a request and of an answer."""
BAD_REQUEST, FORBIDDEN, NOT_FOUND, INTERNAL_ERROR, UNAVAILABLE = 400, 403, 404, 500, 503
"""The statuses of errors are HTTP's."""

Part = dict[str, Any]


class Refused(Exception):
    """A rejected request: an HTTP status, and a line with the fault and the remedy."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Answer:
    """Parser of the lines of one answer; the last line sets ``complete``."""

    complete = False

    def parse(self, line: bytes) -> Part:
        """Return the content of one line. Raises Refused for an error, and ValueError for an invalid line."""
        message = json.loads(line)
        error = message.get("error") if isinstance(message, dict) else {}
        if isinstance(error, dict):
            if type(error.get("status")) is not int:
                raise ValueError
            raise Refused(error["status"], str(error.get("text")))
        self.complete = "end" in message
        part = message.get("end" if self.complete else "part")
        if not isinstance(part, dict) or (self.complete and part.get("schemaVersion") != SCHEMA_VERSION):
            raise ValueError
        return part


def join(body: Part, part: Part) -> None:
    for key, value in part.items():
        if isinstance(value, list) and isinstance(body.get(key), list):
            body[key] += value
        else:
            body[key] = value


def line(**content: Any) -> bytes:
    return encoded(content) + b"\n"


def encoded(part: Mapping[str, Any]) -> bytes:
    return json.dumps(part, separators=(",", ":")).encode()


def part_line(number: Any, part: Part | bytes) -> bytes:
    """Return the line of a part, which may be encoded already."""
    octets = part if isinstance(part, bytes) else encoded(part)
    return b'{"id":%s,"part":%s}\n' % (json.dumps(number).encode(), octets)


def request(method: str, params: Mapping[str, Any]) -> bytes:
    """Return the line of a request; parameters that are None are left out."""
    return line(id=1, method=method, params={name: value for name, value in params.items() if value is not None})
