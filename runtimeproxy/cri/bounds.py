"""How much of what a peer of a CRI connection sends may be kept: one table.

Owns the limits and their sources.
Must not know: bytes, sockets, what a frame is for.
Invariant: what a broken peer can make us keep is bounded, and no legal use comes near a limit: one connection carries
all probes of a node, and 1,000 streams at once (fault matrix S3). How often a peer sends what serves nobody is not
counted: whoever can connect is root or the socket's group, and could stop the node in easier ways.

``wire.flow`` has the limits of what waits for a peer's credit, ``wire.headers`` that of a block's fields.
"""

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2

BLOCK_BYTES = 65_536
"""Longest header block, also while it is not whole. Envoy: 60 KiB; gRPC libraries announce 8 to 16 KiB."""
BLOCK_FRAMES = 512
"""Most frames of a header block (CONTINUATION flood, CVE-2024-27316). Envoy: 512."""
COLLECTED_BYTES = BLOCK_BYTES + 261
"""Longest frame but DATA: a block's, with padding and priority."""
OPEN_STREAMS = 10_000
"""Most streams that are open on a connection: ten times what S3 asks for; grpc-go's servers set no limit."""
HELD_TRAILERS_BYTES = 4_096
"""Longest trailers of a request that is held: no gRPC client sends any."""
FIELD_BYTES = 64
"""How much is kept of a header field of a held call: no value that means anything is longer than 22 bytes."""
EARLY_BYTES = 1 << 20
"""What is kept of an answer to a request that was not sent yet: servers answer that with a status, if at all."""
REPLY_BYTES = 1 << 20
"""Longest answer to a held call that is read: CRI's hold an id."""
IMAGE_STREAMS_UNTIL_TOLD = 1_000
"""Most streams to an image service that has not said yet how many it takes: S3's number. grpc-go: 100."""
UNREAD_BYTES = 4 << 20
"""What a client that reads nothing may make us answer to its own frames. Envoy: 10,000 frames that are queued."""
PIECE_BYTES = 512
"""What each of these answers counts beside its bytes: what keeping it costs."""
IMAGE_BYTES = 4 << 20
"""What may wait for an image service that reads nothing: the 1 MiB of DATA that have credit, headers and resets."""


class Excess(WireError):
    """A peer went beyond a bound; ``kind`` names it in metrics, ``code`` is HTTP/2's."""

    def __init__(self, kind: str, text: str, code: int = http2.ENHANCE_YOUR_CALM) -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code


def verdict(error: WireError) -> tuple[str, int]:
    """Return the name in metrics of what a peer did wrong, and HTTP/2's error code for it."""
    return (error.kind, error.code) if isinstance(error, Excess) else ("protocol", http2.PROTOCOL_ERROR)


class Unread:
    """What was sent to a peer in answer to its own frames while it read nothing."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, size: int, delivered: bool) -> None:
        """Count an answer of ``size`` bytes; ``delivered``: all that went before has left. Raises Excess."""
        self._bytes = 0 if delivered else self._bytes + size + PIECE_BYTES
        if self._bytes > UNREAD_BYTES:
            raise Excess("unread", "it reads nothing of what its own frames are answered")
