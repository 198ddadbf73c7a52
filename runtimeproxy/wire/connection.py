"""The client's end of an HTTP/2 connection of the proxy's own (RFC 9113): what all such connections have in common.

What the peer can make the proxy keep is bounded; a peer that breaks the protocol raises WireError.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from runtimeproxy.errors import WireError
from runtimeproxy.wire import headers, http2
from runtimeproxy.wire.flow import FlowControlledSender

HEADER_LIMIT = 64 * 1024
"""Longest header block that is accepted, in bytes, including the heads of its frames."""

_SHAPE = http2.END_HEADERS | http2.PADDED | http2.PRIORITY_FLAG


class ClientConnection(ABC):
    """A connection to a server; ``sender.out`` collects the bytes for it."""

    def __init__(self, settings: dict[int, int], streams_until_told: int) -> None:
        self.sender = FlowControlledSender()
        self.stream_limit = streams_until_told
        """How many streams may be open, as the server's SETTINGS say."""
        self.closing = False
        """True once the peer takes no new streams."""
        self.greeted = False
        """True once the server's SETTINGS were received."""
        self._acknowledged = False
        """True once the server acknowledged the table size of 0, so that each header block must stand alone. Before
        that each block is translated, also one that no call waits for: the decoder's dynamic table depends on it."""
        self._frames = http2.FrameBuffer(settings.get(http2.MAX_FRAME_SIZE, http2.DEFAULT_FRAME_SIZE))
        self._blocks = headers.Blocks()
        self._fragment: bytearray | None = None
        """The part of an unfinished header block that has come, else None; the next three fields belong to it."""
        self._block_stream = self._block_bytes = 0
        self._block_ends = False
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            http2.HEADERS: self._headers,
            http2.CONTINUATION: self._continuation,
            http2.RST_STREAM: self._reset,
            http2.SETTINGS: self._settings,
            http2.PUSH_PROMISE: self._push,
            http2.PING: self._ping,
            http2.GOAWAY: self._goaway,
            http2.WINDOW_UPDATE: self._window_update,
        }
        self.sender.out.append(http2.PREFACE + http2.settings({**settings, http2.HEADER_TABLE_SIZE: 0}))
        self.sender.start()

    def receive(self, data: bytes) -> None:
        """Process bytes from the peer. Raises WireError, after which the connection must not be used any more."""
        for kind, flags, stream, payload in self._frames.feed(data):
            if (self._fragment is None) == (kind == http2.CONTINUATION):
                raise WireError("CONTINUATION out of place")
            if not self.greeted and (kind != http2.SETTINGS or flags & http2.ACK):
                raise WireError("the first frame is not SETTINGS")
            if kind == http2.DATA:
                self.sender.received(len(payload))
                part = http2.unpad(payload, flags) if flags & http2.PADDED else payload
                self.data(stream, part, len(payload), bool(flags & http2.END_STREAM))
            elif kind == http2.HEADERS and flags & _SHAPE == http2.END_HEADERS:  # nearly all of them
                block = payload if self._acknowledged else self._blocks.translate(payload)
                self.block(stream, block, bool(flags & http2.END_STREAM))
            elif (handler := self._handlers.get(kind)) is not None:
                handler(flags, stream, payload)
        if self.sender.widened:
            self.sender.catch_up()

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        _, fragment = http2.split_block(http2.HEADERS, flags, payload)
        self._fragment = bytearray()
        self._block_stream, self._block_bytes, self._block_ends = stream, 0, bool(flags & http2.END_STREAM)
        self._continuation(flags, stream, fragment)

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        assert self._fragment is not None
        self._fragment += payload
        self._block_bytes += http2.HEAD_BYTES + len(payload)
        if stream != self._block_stream or self._block_bytes > HEADER_LIMIT:
            raise WireError("CONTINUATION of another stream, or header block is too long")
        if flags & http2.END_HEADERS:
            block, self._fragment = bytes(self._fragment), None
            self.block(stream, block if self._acknowledged else self._blocks.translate(block), self._block_ends)

    def _reset(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise WireError("RST_STREAM frame whose length is not 4")
        self.reset(stream, int.from_bytes(payload))

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & http2.ACK:
            self._acknowledged = True
            self._blocks.acknowledge()
            return
        entries = http2.read_settings(payload)
        # Without an entry the number is unlimited (RFC 9113, 6.5.2).
        unnamed = self.stream_limit if self.greeted else http2.MAX_STREAM_ID
        self.stream_limit = dict(entries).get(http2.MAX_CONCURRENT_STREAMS, unnamed)
        self.greeted = True
        self.sender.apply_settings(entries)
        self.sender.inject(http2.SETTINGS_ACK)

    def _push(self, flags: int, stream: int, payload: bytes) -> None:
        raise WireError("PUSH_PROMISE although push is off")

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise WireError("PING frame whose length is not 8")
        if not flags & http2.ACK:
            self.acknowledge(http2.frame(http2.PING, http2.ACK, 0, payload))

    def _goaway(self, flags: int, stream: int, payload: bytes) -> None:
        self.closing = True
        self.goaway(http2.read_u32(payload))

    def _window_update(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise WireError("WINDOW_UPDATE frame whose length is not 4")
        increment = int.from_bytes(payload) & http2.MAX_STREAM_ID
        if stream:
            self.sender.open_stream_window(stream, increment)
        else:
            self.sender.open_window(increment)

    def acknowledge(self, ack: bytes) -> None:
        self.sender.inject(ack)

    # Handlers of frames on streams, for the subclass.

    @abstractmethod
    def data(self, stream: int, payload: bytes, length: int, end: bool) -> None:
        """Called for DATA, without its padding; ``length`` must be credited to the sender once the data is consumed."""

    @abstractmethod
    def block(self, stream: int, block: bytes, end: bool) -> None:
        """Called for a whole header block, which must stand alone. Raises WireError."""

    @abstractmethod
    def reset(self, stream: int, code: int) -> None:
        """Called for RST_STREAM."""

    @abstractmethod
    def goaway(self, last_stream: int) -> None:
        """Called for GOAWAY: streams above the last one were not processed."""
