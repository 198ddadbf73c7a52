"""Reading what the proxy sends with hyperframe, so that the tests do not read frames with the code under test."""

from collections.abc import Iterator
from typing import Any

from hyperframe.frame import Frame

HEAD_BYTES = 9


def parse(data: bytes) -> Iterator[tuple[Any, bytes]]:
    """Yield each frame of a series of complete frames, as hyperframe's class of its type, and its bytes."""
    at = 0
    while at < len(data):
        frame, length = Frame.parse_frame_header(memoryview(data[at : at + HEAD_BYTES]), strict=True)
        end = at + HEAD_BYTES + length
        assert end <= len(data), "the last frame is cut"
        frame.parse_body(memoryview(data[at + HEAD_BYTES : end]))
        yield frame, data[at:end]
        at = end


def clear_frames(out: list[bytes]) -> list[Any]:
    """Return the frames that are ready for the socket, and clear them."""
    frames = [frame for frame, _ in parse(b"".join(out))]
    out.clear()
    return frames


def clear_credits(out: list[bytes]) -> list[int]:
    """Return the increment of each ready WINDOW_UPDATE on stream 0, and clear what is ready."""
    return [frame.window_increment for frame in clear_frames(out) if frame.stream_id == 0]
