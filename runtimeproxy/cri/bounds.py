"""Limits on the data of a peer of a CRI connection that the proxy buffers.

Legal use stays far below each limit: one connection carries all probes of a node, and 1,000 streams at the same time
(fault matrix S3). Floods of frames without memory cost are not limited: only root and the socket's group can connect.
"""

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2

BLOCK_BYTES = 65_536
"""Longest header block in bytes, complete or not. Envoy: 60 KiB; gRPC libraries announce 8 to 16 KiB."""
BLOCK_FRAMES = 512
"""Most frames of a header block (CONTINUATION flood, CVE-2024-27316). Envoy: 512."""
COLLECTED_BYTES = BLOCK_BYTES + 261
"""Longest frame in bytes of any type but DATA: one header block with padding and priority fields."""
OPEN_STREAMS = 10_000
"""Most streams open on one connection: ten times what S3 requires; grpc-go's servers set no limit."""
HELD_TRAILERS_BYTES = 4_096
"""Longest trailers, in bytes, of a held request: no gRPC client sends any."""
FIELD_BYTES = 64
"""Bytes stored of each header field of a held call: no value that the proxy acts on is longer than 22 bytes."""
EARLY_BYTES = 1 << 20
"""Bytes buffered of an answer to a request that is still held: a server that answers so early sends only a status."""
REPLY_BYTES = 1 << 20
"""Longest answer to a held call that is read, in bytes: those of CRI contain an id."""
IMAGE_STREAMS_UNTIL_SETTINGS = 1_000
"""Most streams to an image service that has not announced MAX_CONCURRENT_STREAMS yet: S3's number. grpc-go: 100."""
UNREAD_BYTES = 4 << 20
"""Bytes of answers to a client's own frames that may wait while it reads nothing. Envoy: 10,000 queued frames."""
OVERHEAD_BYTES = 512
"""Memory in bytes of each waiting answer or frame in addition to its own bytes."""
IMAGE_BYTES = 4 << 20
"""Bytes that may wait for an image service that reads nothing: the 1 MiB of DATA with credit, headers and resets."""


class Excess(WireError):
    """A peer exceeded a limit; ``kind`` is its label in metrics, ``code`` the HTTP/2 error code."""

    def __init__(self, kind: str, text: str, code: int = http2.ENHANCE_YOUR_CALM) -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code


def classify(error: WireError) -> tuple[str, int]:
    """Return the metric label of a peer's error, and its HTTP/2 error code."""
    return (error.kind, error.code) if isinstance(error, Excess) else ("protocol", http2.PROTOCOL_ERROR)
