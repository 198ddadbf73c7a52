"""Every question that the backend can ask, for tests that hold for all of them.

Owns the table of questions and how their failures must read.
Must not know: what is wrong with the daemon.
Invariant: no error quotes what was asked for or what was answered.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runtimeproxy.docker.backend import Backend
from runtimeproxy.errors import BackendError
from tests.docker.daemon import EVENTS, PATIENCE_SECONDS

ID = "ab" * 32
CANARY = b"canary-4711"
INSPECT = f"/containers/{ID}/json"
UPDATE = f"/containers/{ID}/update"
UPDATE_ROUTE = "POST /containers/{}/update"
BODY = b'{"CpuShares": 7}'
LIST = "/containers/json"
SHORT_SECONDS = 0.05


async def follow(backend: Backend) -> None:
    """Wait for an event."""
    async with backend.events(["destroy"], 1) as events:
        await anext(events)


ASKS: dict[str, tuple[str, Callable[[Backend, float], Coroutine[Any, Any, object]]]] = {
    "GET /containers/{}/json": (INSPECT, lambda backend, _: backend.inspect(ID)),
    "GET /images/{}/json": ("/images/sha256%3Aff/json", lambda backend, _: backend.image("sha256:ff")),
    "GET /info": ("/info", lambda backend, _: backend.info()),
    "GET /containers/json": (LIST, lambda backend, _: backend.pods_containers()),
    UPDATE_ROUTE: (UPDATE, lambda backend, seconds: backend.update(ID, BODY, seconds)),
    "GET /events": (EVENTS, lambda backend, _: follow(backend)),
}
"""Every question: its name in errors, its path, and how it is asked (``seconds`` are for the update)."""

every_question = pytest.mark.parametrize("route", ASKS)
every_short_question = pytest.mark.parametrize("route", [route for route in ASKS if route != "GET /events"])


async def failure(backend: Backend, route: str, seconds: float = PATIENCE_SECONDS) -> BackendError:
    """Ask, and return how it fails; the text names the route and quotes nothing."""
    with pytest.raises(BackendError) as caught:
        await ASKS[route][1](backend, seconds)
    assert str(caught.value).startswith(f"{route}: ")
    assert CANARY.decode() not in str(caught.value)
    assert ID not in str(caught.value)
    return caught.value
