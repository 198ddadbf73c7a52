"""Reading what the proxy sends with hyperframe, so that the tests do not read frames with the code under test."""

from collections.abc import Iterator
from typing import Any

from hyperframe.frame import Frame

HEAD_BYTES = 9


def parse(data: bytes) -> Iterator[tuple[Any, bytes]]:
    """Yield each frame of a run of whole frames, as hyperframe's class of its type, and its bytes."""
    at = 0
    while at < len(data):
        frame, length = Frame.parse_frame_header(memoryview(data[at : at + HEAD_BYTES]), strict=True)
        end = at + HEAD_BYTES + length
        assert end <= len(data), "the last frame is cut"
        frame.parse_body(memoryview(data[at + HEAD_BYTES : end]))
        yield frame, data[at:end]
        at = end


def taken(out: list[bytes]) -> list[Any]:
    """Take the frames that are ready for the socket."""
    frames = [frame for frame, _ in parse(b"".join(out))]
    out.clear()
    return frames


def credited(out: list[bytes]) -> list[int]:
    """Take what is ready: the increment of each WINDOW_UPDATE on stream 0."""
    return [frame.window_increment for frame in taken(out) if frame.stream_id == 0]
