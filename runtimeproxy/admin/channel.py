"""The channel between the daemon and its admin server: questions and answers as lines of JSON on a socketpair.

A question is ``{"n": 1, "ask": NAME, "with": {...}}``. Its answer is any number of ``{"n": 1, "part": {...}}`` and then
``{"n": 1, "end": {}}``, or ``{"n": 1, "error": {"status": 404, "text": "..."}}``. Answers come in any order. The parts
together are one object: lists of one key are joined, other values are set.
Owns both ends, the bounds of lines and of questions that wait, the time limit of an answer.
Must not know: what can be asked, HTTP.
Invariant: in one turn of the daemon's loop at most one part of one answer is made and written, however many questions
wait; a server that does not read makes no part more.
"""

import asyncio
import itertools
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Self

log = logging.getLogger(__name__)

Part = dict[str, Any]
Query = Callable[[Mapping[str, Any]], Iterator[Part] | AsyncIterator[Part]]
"""Makes the parts of an answer, each in less than 2 ms; raises Refused."""

QUESTION_BYTES = 64 * 1024
"""Longest line of a question: more than the head and the body of a request together have, escaped."""
PART_BYTES = 1 << 20
"""Longest line of an answer."""
QUESTIONS = 64
"""Most questions that are answered at once; the server has a request each, and one for all followers."""
ANSWER_SECONDS = 1.5
"""Less than a command waits, so that it can tell that the loop hangs."""
BAD_REQUEST = 400
NOT_FOUND = 404
INTERNAL_ERROR = 500
UNAVAILABLE = 503


class Refused(Exception):
    """A question that is not answered, with HTTP's status and a line that says what there is."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Answers:
    """The daemon's end: answers each question by the query of its name."""

    def __init__(self, queries: Mapping[str, Query]) -> None:
        self._queries = queries
        self._turn = asyncio.Lock()
        self._room = asyncio.Semaphore(QUESTIONS)
        self._answering = set[asyncio.Task[None]]()

    async def serve(self, sock: socket.socket) -> None:
        """Answer until the other end closes or breaks the protocol, or until this is cancelled; close the socket."""
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=QUESTION_BYTES)
        try:
            while line := await reader.readline():
                question = json.loads(line)
                number, name, arguments = question["n"], question["ask"], question["with"]
                await self._room.acquire()
                task = asyncio.create_task(self._answer(number, name, arguments, writer))
                self._answering.add(task)
                task.add_done_callback(self._answered)
        except (OSError, ValueError, LookupError, TypeError):  # the server is gone; or a line too long, or no question
            pass
        finally:
            for task in self._answering:
                task.cancel()
            writer.transport.abort()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        self._room.release()

    async def _answer(self, number: int, name: str, arguments: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        try:
            if name not in self._queries:
                raise Refused(NOT_FOUND, f"the proxy does not answer {name}")
            parts = self._queries[name](arguments)
            if isinstance(parts, Iterator):
                await self._in_turn((_line(number, part=part) for part in parts), writer)
            else:
                async for part in parts:
                    await self._in_turn(iter([_line(number, part=part)]), writer)
            last = _line(number, end={})
        except Refused as refused:
            last = _line(number, error={"status": refused.status, "text": refused.text})
        except OSError:
            return  # the server is gone
        except Exception:
            log.exception("the question %s failed", name, extra={"kind": name})
            last = _line(
                number, error={"status": INTERNAL_ERROR, "text": f"{name}: an error in the proxy; see its log"}
            )
        await self._in_turn(iter([last]), writer)

    async def _in_turn(self, lines: Iterator[bytes], writer: asyncio.StreamWriter) -> None:
        """Make and write each line in a turn of the loop in which no other line is made."""
        more = True
        while more:
            async with self._turn:
                await asyncio.sleep(0)
                if more := (line := next(lines, b"")) != b"":
                    writer.write(line)
            await writer.drain()


class Channel:
    """The server's end: asks, any number of questions at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Part, asyncio.Future[None]]] = {}

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        """Return the server's end over its socket."""
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=PART_BYTES))

    async def run(self) -> None:
        """Read the answers until the daemon closes its end."""
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        finally:
            self._writer.transport.abort()

    def _take(self, answer: dict[str, Any]) -> None:
        body, done = self._waiting.get(answer["n"], ({}, None))
        if done is None or done.done():
            return  # nobody waits any longer
        if "part" in answer:
            _join(body, answer["part"])
        elif "error" in answer:
            done.set_exception(Refused(**answer["error"]))
        else:
            done.set_result(None)

    async def ask(self, name: str, arguments: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> Part:
        """Return the answer to a question. Raises Refused, with 503 if none came in so many seconds."""
        number, body, done = next(self._numbers), Part(), asyncio.get_running_loop().create_future()
        self._waiting[number] = body, done
        try:
            self._writer.write(_line(number, ask=name, **{"with": dict(arguments)}))
            await asyncio.wait_for(done, seconds)
        except TimeoutError:
            raise Refused(UNAVAILABLE, f"the proxy did not answer within {seconds:g} s: its event loop hangs") from None
        finally:
            del self._waiting[number]
        return body


def looked_at(task: asyncio.Task[Any]) -> None:
    """Take note of a shared task's error, which is no line of the log when all who waited for it have gone."""
    if not task.cancelled():
        task.exception()


def _line(number: int, **content: Any) -> bytes:
    line = json.dumps({"n": number, **content}, separators=(",", ":")).encode() + b"\n"
    if len(line) > PART_BYTES:
        raise ValueError("an answer's part is too long for the channel")
    return line


def _join(body: Part, part: Part) -> None:
    for key, value in part.items():
        if isinstance(value, list) and key in body:
            body[key] += value
        else:
            body[key] = value
