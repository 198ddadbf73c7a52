"""The health service of gRPC (grpc/health/v1/health.proto): Check and Watch.

Owns what is said of which service, and who is told of a change.
Must not know: sockets, hooks.
Invariant: it never blocks, so that it answers while every thread is busy.
"""

from collections.abc import Callable, Iterable, Mapping

from runtimeproxy.errors import WireError
from runtimeproxy.wire import grpc, protobuf

from .connection import Call

_SERVICE = _STATUS = 1
"""The only fields of request and answer."""
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = (bytes((_STATUS << 3, value)) for value in (1, 2, 3))
_LEAVING = "the server ends"


class Health:
    """Says of ``services`` that they are served, until ``leave``."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(services)
        self._said = _SERVING
        self._watching: dict[Call, bool] = {}
        self.methods: Mapping[str, Callable[[Call], None]] = {
            "/grpc.health.v1.Health/Check": self._check,
            "/grpc.health.v1.Health/Watch": self._watch,
        }

    def _check(self, call: Call) -> None:
        service = _service(call)
        if service in self._services:
            call.answer(self._said)
        elif service is not None:
            call.end(grpc.NOT_FOUND, "no such service is known here")

    def _watch(self, call: Call) -> None:
        service = _service(call)
        if service is None:
            return
        said = self._said if service in self._services else _SERVICE_UNKNOWN
        call.tell(said)
        self._watching[call] = said is _SERVING
        if not call.on_cut(lambda: self._unwatch(call)):
            self._unwatch(call)
        if self._said is _NOT_SERVING:  # whoever said so may have missed this one
            self._let_go(call)

    def _unwatch(self, call: Call) -> None:
        self._watching.pop(call, None)

    def leave(self) -> None:
        """Say from now on that nothing is served, also to all who watch; then there is nothing left to watch."""
        self._said = _NOT_SERVING
        for call in list(self._watching):
            self._let_go(call)

    def _let_go(self, call: Call) -> None:
        """Tell one who watches of the end, once: whoever takes it out does so."""
        serving = self._watching.pop(call, None)
        if serving is None:
            return
        if serving:
            call.tell(_NOT_SERVING)
        call.end(grpc.UNAVAILABLE, _LEAVING)


def _service(call: Call) -> str | None:
    """Return the service that is asked for; None, and the call is answered, if that cannot be read."""
    service = b""
    try:
        for field in protobuf.fields(call.message):
            if (field.number, field.wire_type) == (_SERVICE, protobuf.LENGTH_DELIMITED):
                service = call.message[field.value_start : field.end]
        return service.decode()
    except (WireError, UnicodeDecodeError):
        call.end(grpc.INVALID_ARGUMENT, "the request is no well-formed HealthCheckRequest")
        return None
