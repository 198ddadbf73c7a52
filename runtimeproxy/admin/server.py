"""The admin server's HTTP: aiohttp's application, and what becomes of errors.

Owns the applications of the two sockets, the bounds of a head and a body, the status and text of errors.
Must not know: what answers mean, how the daemon makes them.
Invariant: every error is a JSON object with one line; none has a value of the request, and no traceback leaves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.log import server_logger
from aiohttp.typedefs import Middleware

from runtimeproxy.admin.channel import BAD_REQUEST, INTERNAL_ERROR, NOT_FOUND, UNAVAILABLE, Channel, Refused
from runtimeproxy.admin.connections import Connection
from runtimeproxy.admin.event_stream import Event, Events, stream
from runtimeproxy.admin.exposition import CONTENT_TYPE, Exposition
from runtimeproxy.admin.routes import ROUTES, Route, health, json_text, members
from runtimeproxy.observe.events import shown
from runtimeproxy.relay.listener import peer_credentials

log = logging.getLogger(__name__)

HEAD_BYTES = 8 * 1024
BODY_BYTES = 4 * 1024
BODY_SECONDS = 10.0
EVENTS = 1000
"""Most events of an answer, unless the client says another number."""
FOLLOWERS = 16
"""Most clients that follow: half of all connections, as the others must get through."""
HEALTH_SECONDS = 1.0
"""How long the daemon's loop may take to answer before it counts as hanging."""

# A client whose request is no HTTP has its answer; it is no error of the proxy's.
server_logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Translates between HTTP and the channel."""

    def __init__(self, channel: Channel, daemon: int) -> None:
        self._channel = channel
        self._exposition = Exposition(lambda: channel.ask("metrics", {}), daemon)
        self._events = Events(self._ask_events)
        self._followers = 0

    async def http(self, *, metrics_only: bool) -> Callable[[], asyncio.Protocol]:
        """Return what makes the protocol of a connection."""
        routes = [route for route in ROUTES if route.on_metrics_socket or not metrics_only]
        app = web.Application(
            middlewares=[_answered("there are " + ", ".join(f"{route.method} {route.path}" for route in routes))],
            client_max_size=BODY_BYTES,
            handler_args={"max_line_size": HEAD_BYTES, "max_field_size": HEAD_BYTES, "lingering_time": 0},
        )
        for route in routes:
            app.router.add_route(route.method, route.path, self._handler(route))
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        return cast(Callable[[], asyncio.Protocol], runner.server)

    def _handler(self, route: Route) -> Handler:
        special = {"metrics": self._metrics, "livez": self._health, "readyz": self._health, "events": self._stream}
        kind = special.get(route.asks, self._ask)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await kind(request, route)

        return handle

    async def _metrics(self, request: web.Request, route: Route) -> web.StreamResponse:
        route.question(request.query.items())
        return web.Response(body=await self._exposition.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, request: web.Request, route: Route) -> web.StreamResponse:
        asked = route.question(request.query.items())
        try:
            checks = (await self._channel.ask(route.asks, {}, HEALTH_SECONDS))["checks"]
        except Refused as refused:
            checks = [{"name": "loop", "state": "failed", "reason": refused.text}]
        passed, lines = health(route.asks, checks)
        text = lines if asked.get("verbose") or not passed else "ok"
        return web.Response(text=text, status=200 if passed else UNAVAILABLE)

    async def _ask_events(self, since: int, limit: int) -> list[Event]:
        answer = await self._channel.ask("events", {"since": since, "limit": limit})
        return [event if isinstance(event, dict) else shown(*event) for event in answer.get("events", ())]

    async def _stream(self, request: web.Request, route: Route) -> web.StreamResponse:
        asked = route.question(request.query.items())
        follow = asked.get("follow", False)
        if follow and self._followers >= FOLLOWERS:
            raise Refused(UNAVAILABLE, f"{FOLLOWERS} clients follow already; try again without follow, or later")
        self._followers += follow
        try:
            events = await self._events.after(asked.get("since", 0), follow=follow)
            return await stream(request, events, asked, asked.get("limit", None if follow else EVENTS))
        finally:
            self._followers -= follow

    async def _ask(self, request: web.Request, route: Route) -> web.StreamResponse:
        given: Iterable[tuple[str, Any]] = request.query.items()
        who = {}
        if route.method == "POST":
            who["by"] = _peer(request)
            if request.query:
                raise Refused(BAD_REQUEST, f"{route.path} takes a JSON object as its body, and no query")
            async with asyncio.timeout(BODY_SECONDS):
                given = members(await request.read())
        answer = await self._channel.ask(route.asks, route.question(given) | request.match_info | who)
        return web.Response(body=json_text(answer), content_type="application/json")


def _answered(there_are: str) -> Middleware:
    """Return the middleware that makes an answer of each error; ``there_are`` lists the paths."""

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        assert request.transport is not None
        with cast(Connection, request.transport.get_protocol()).work():
            response = await answer(request, handler)
        # One request a connection: connecting costs little, and a connection that waits would take a place.
        response.force_close()
        return response

    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_head(request)
            return await handler(request)
        except Refused as refused:
            return _error(refused.status, refused.text)
        except web.HTTPNotFound:
            return _error(NOT_FOUND, there_are)
        except web.HTTPMethodNotAllowed as wrong:
            allowed = ", ".join(sorted(wrong.allowed_methods))
            return _error(405, f"this path takes {allowed}", Allow=allowed)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body is longer than {BODY_BYTES} bytes")
        except web.HTTPException as error:
            return _error(error.status, error.reason)
        except TimeoutError:
            return _error(408, f"the body did not come within {BODY_SECONDS:g} s")
        except ConnectionError:
            return _error(UNAVAILABLE, "the client is gone")  # nobody gets it; aiohttp would log the error
        except Exception:
            log.exception("a request failed")
            return _error(INTERNAL_ERROR, "an error in the admin server; see the proxy's log")

    return answered


def _peer(request: web.Request) -> str:
    """Return who has connected, as the kernel says it."""
    assert request.transport is not None
    pid, user, _ = peer_credentials(request.transport.get_extra_info("socket"))
    return f"uid {user}, pid {pid}"


def _check_head(request: web.Request) -> None:
    head = sum(len(name) + len(value) + 4 for name, value in request.raw_headers) + len(request.raw_path)
    if head > HEAD_BYTES:
        raise Refused(431, f"the head is longer than {HEAD_BYTES} bytes")


def _error(status: int, text: str, **headers: str) -> web.Response:
    body = json_text({"error": text})
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
