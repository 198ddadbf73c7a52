"""The frames of streams that do not pass unchanged, and the interface of such a stream.

Owns how DATA and header blocks are sent on.
Must not know: why a stream does not pass.
Invariant: a padded frame is never split, and a header block is re-encoded only if it has to be (relay-rules A1, A8).
"""

from dataclasses import dataclass
from typing import Protocol

from runtimeproxy.wire import headers, http2
from runtimeproxy.wire.flow import FlowControlledSender


@dataclass(slots=True)
class Data:
    """A complete DATA frame: payload without padding, flow-controlled length in bytes, and the frame as it came."""

    payload: bytes
    length: int
    end: bool
    frame: bytes

    def send(self, sink: FlowControlledSender, stream: int, source: FlowControlledSender | None = None) -> None:
        """Send the DATA on, split as the windows allow; a padded frame is never split (relay-rules A8)."""
        if len(self.payload) == self.length:
            sink.send_data(stream, self.payload, self.end, source, self.length)
        else:
            sink.send_frame(stream, self.frame, self.length, source)


@dataclass(slots=True)
class HeaderBlock:
    """A header block of one stream, complete once ``alone`` is set."""

    blocks: headers.Blocks
    """The header compression of the direction that it came in."""
    kind: int
    flags: int
    stream: int
    prefix: bytes
    fragments: list[bytes]
    originals: list[bytes]
    size: int
    end: bool
    """True if END_STREAM is set: the block ends its half of the stream."""
    alone: bytes = b""
    """The block re-encoded so that it does not depend on the HPACK dynamic table."""

    def send(self, sink: FlowControlledSender, stream: int, source: FlowControlledSender | None = None) -> None:
        """Send the block on, after what waits of its stream: its own frames if nothing has to change, else new ones. A
        block that waits may still be dropped, so it must not carry the table size update (relay-rules A1).
        """
        if self.blocks.standalone:
            block = self.alone
        elif sink.congested or sink.cut_through:
            block = headers.alone(self.alone)
        else:
            block = self.blocks.mark(self.alone)
        if b"".join(self.fragments) == block:
            frames = b"".join(self.originals)
        else:
            frames = http2.block_frames(self.kind, self.flags, stream, self.prefix, block)
        sink.send_frame(stream, frames)


class Stream(Protocol):
    """A stream that does not pass unchanged: held, answered by the proxy, or sent to the image endpoint. Each method is
    called for a frame or header block that the client or the runtime sent on the stream.
    """

    def client_headers(self, block: HeaderBlock) -> None: ...
    def client_data(self, data: Data) -> None: ...
    def client_reset(self, frame: bytes) -> None: ...
    def client_window(self, increment: int) -> None: ...
    def runtime_headers(self, block: HeaderBlock) -> None: ...
    def runtime_data(self, data: Data) -> None: ...
    def runtime_reset(self, frame: bytes) -> None: ...
    def runtime_window(self, increment: int) -> None: ...
