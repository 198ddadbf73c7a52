"""The fake dockerd's calls that carry a container's streams: logs, attach and exec.

A line is sent at once; a hijacked connection is half-closed at its end, as dockerd does it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tests.fakes.dockerd_calls import Handler, flag, read_json, text
from tests.fakes.dockerd_checks import Refused, bad
from tests.fakes.dockerd_events import Event
from tests.fakes.dockerd_programs import Stdio, frame, run
from tests.fakes.dockerd_records import Container, Exec, Output
from tests.fakes.dockerd_routes import version_number
from tests.fakes.dockerd_state import KILLED
from tests.fakes.dockerd_streams import hearing, until_event
from tests.fakes.dockerd_wire import Exchange

if TYPE_CHECKING:
    from tests.fakes.dockerd import FakeDockerd

RAW = "application/vnd.docker.raw-stream"
MULTIPLEXED = "application/vnd.docker.multiplexed-stream"
ENDS = ("die", "destroy")


@contextlib.contextmanager
def output_of(dockerd: FakeDockerd, container: Container) -> Iterator[asyncio.Queue[Output | None]]:
    """Collect what a container writes from now on, with None behind it when the container dies or is removed."""
    output: asyncio.Queue[Output | None] = asyncio.Queue()

    def hear(event: Event) -> None:
        if event["Actor"]["ID"] == container.id and event["Action"] in ENDS:
            output.put_nowait(None)

    unsubscribe = dockerd.state.events.subscribe(hear)
    container.listeners.add(output.put_nowait)
    try:
        yield output
    finally:
        container.listeners.discard(output.put_nowait)
        unsubscribe()


def _spelt(container: Container, output: Output) -> bytes:
    return output[1] if container.tty else frame(*output)


def _is_new(exchange: Exchange) -> bool:
    return version_number(exchange.api) >= (1, 42)


def _stream_type(exchange: Exchange, tty: bool) -> str:
    return RAW if tty or not _is_new(exchange) else MULTIPLEXED


async def logs(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    streams = {number for number, name in ((1, "stdout"), (2, "stderr")) if flag(exchange, name)}
    if not streams:
        raise bad("Bad parameters: you must choose at least one stream")
    container = dockerd.state.find(reference)
    tail = text(exchange, "tail")
    past = list(container.output)
    # 20.10 names no type, and Go finds none where the head is flushed before the first line.
    kind = ("Content-Type", _stream_type(exchange, container.tty))
    with output_of(dockerd, container) as output:
        if not flag(exchange, "follow") or not container.running:
            output.put_nowait(None)
        await exchange.begin(*([kind] if _is_new(exchange) else []))
        for line in past[len(past) - int(tail) if tail.isdecimal() and int(tail) < len(past) else 0 :]:
            if line[0] in streams:
                await exchange.send(_spelt(container, line))
        while (said := await output.get()) is not None:
            if said[0] in streams:
                await exchange.send(_spelt(container, said))
    await exchange.finish()


async def attach(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    """Attach: the container's output comes from ``say``; stdin is kept, and echoed if its command is ``cat``."""
    try:
        container = dockerd.state.find(reference)
    except Refused as refused:
        phrase = f"{refused.status.value} {refused.status.phrase}"
        head = f"HTTP/1.1 {phrase}\r\nContent-Type: {RAW}\r\n\r\n{refused.message}\r\n"
        await exchange.hijack(refused.status, head.encode())
        return await exchange.half_close()
    with output_of(dockerd, container) as output:
        await _hijack(dockerd, exchange, container.tty, common=False)
        stdin = asyncio.create_task(_take_stdin(dockerd, exchange, container))
        try:
            while (said := await output.get()) is not None:
                await exchange.write(_spelt(container, said))
        finally:
            stdin.cancel()
            await asyncio.gather(stdin, return_exceptions=True)
    return await exchange.half_close()


async def _take_stdin(dockerd: FakeDockerd, exchange: Exchange, container: Container) -> None:
    echoes = flag(exchange, "stdin") and container.command == ["cat"]
    with hearing(dockerd) as heard:
        if container.status == "created":  # nobody reads it until then
            await until_event(heard, container, "start")
    while data := await exchange.reader.some():
        if flag(exchange, "stdin"):
            container.stdin += data
        if echoes:
            dockerd.state.say(container.id, data)
    if echoes and container.running:
        dockerd.state.exit(container, 0)


async def _hijack(dockerd: FakeDockerd, exchange: Exchange, tty: bool, common: bool) -> None:
    """Answer 101 to a request with Upgrade, else 200 without framing; ``common`` sends the common headers too."""
    kind = f"Content-Type: {_stream_type(exchange, tty)}\r\n"
    more = "".join(f"{key}: {value}\r\n" for key, value in sorted(exchange.common)) if common else ""
    if exchange.head.upgrade:
        head = f"HTTP/1.1 101 UPGRADED\r\n{kind}Connection: Upgrade\r\nUpgrade: tcp\r\n{more}\r\n"
    else:
        head = f"HTTP/1.1 200 OK\r\n{kind}{more}\r\n"
    await exchange.hijack(101 if exchange.head.upgrade else 200, head.encode())


async def exec_start(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    _, body = await read_json(exchange)
    made = dockerd.state.exec_find(reference)
    dockerd.state.exec_start(made)
    if body.get("Detach"):
        dockerd.detach(_run(dockerd, made, Stdio(_nothing, _nowhere)))
        return await exchange.reply(200)

    async def write(stream: int, data: bytes) -> None:
        await exchange.write(data if body.get("Tty") else frame(stream, data))

    await _hijack(dockerd, exchange, bool(body.get("Tty")), common=True)
    await _run(dockerd, made, Stdio(exchange.reader.some if made.config.get("AttachStdin") else _nothing, write))
    return await exchange.half_close()


async def _run(dockerd: FakeDockerd, made: Exec, stdio: Stdio) -> None:
    """Run an exec's command until it ends, its container dies, or its client is gone."""
    with hearing(dockerd) as heard:
        death = asyncio.create_task(until_event(heard, made.container, *ENDS))
        command = asyncio.create_task(run(made.command, stdio, made.container))
        try:
            await asyncio.wait({death, command}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
            command.cancel()
            code, _ = await asyncio.gather(command, death, return_exceptions=True)
            dockerd.state.exec_exit(made, code if isinstance(code, int) else KILLED)


async def _nothing() -> bytes:
    return b""


async def _nowhere(stream: int, data: bytes) -> None:
    pass


HIJACKS: Mapping[str, Handler] = {
    "GET /containers/{ref}/logs": logs,
    "POST /containers/{ref}/attach": attach,
    "POST /exec/{ref}/start": exec_start,
}
