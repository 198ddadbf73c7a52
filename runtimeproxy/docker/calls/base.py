"""The base class of Docker's held calls; ``creates`` and ``references`` have its subclasses.

Owns how a held request is released and refused, and what the calls of all connections share.
Must not know: heads, chunks, connections, hook servers, what a body means.
Invariant: an unchanged request is released as exactly the bytes that came.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runtimeproxy.docker.backend import Backend
from runtimeproxy.docker.exchange import DockerHeld, Shared
from runtimeproxy.docker.lookup import Lookup
from runtimeproxy.docker.sync import EventFollower
from runtimeproxy.errors import HookError
from runtimeproxy.model.values import Adjustment, Subject
from runtimeproxy.observe.metrics import Metrics

ERROR_STATUS = 500


@dataclass(frozen=True, slots=True)
class Daemon(Shared):
    """What the connections of a front and their calls share."""

    backend: Backend
    lookup: Lookup
    events: EventFollower
    metrics: Metrics
    creates_pass: Callable[[], bool]
    """Return whether no create is to be reported to a hook server or edited."""
    pods_fail: Callable[[], bool]
    """Return whether a hook server with policy Fail is registered for the create of pods."""


class DockerCall(DockerHeld):
    """What the calls of all operations have in common; each subclass reads one kind of request."""

    shared: Daemon

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes | None:
        """Return the body to release; None if nothing changes."""
        return None

    def release(self, subject: Subject | None, adjustment: Adjustment) -> None:
        """Edit the request and send it on."""
        self.send_request(None if subject is None else self.edited(subject, adjustment))

    def refuse(self, error: HookError) -> None:
        """Answer the client with status 500 and a message that names plugin, hook point and reason."""
        self.send_refusal(ERROR_STATUS, f"runtimeproxy: {self.operation.value} refused: {error}")

    def leave_out(self, names: tuple[str, ...]) -> None:
        """Report the fields that a hook server set and that Docker's API cannot carry."""
        kinds = frozenset(name if name == "annotations" else f"resources.{name}" for name in names)
        self.no_effect += (("left out: Docker cannot set it", kinds),)
        self.shared.metrics.left_out(self.operation.value, names, by="Docker", call=self.call_id)
