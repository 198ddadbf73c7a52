"""Reading what the proxy sends with hyperframe, so that the tests do not read frames with the code under test."""

from collections.abc import Iterator

from hyperframe.frame import Frame

HEAD_BYTES = 9


def parse(data: bytes) -> Iterator[tuple[Frame, bytes]]:
    """Yield each frame of a run of whole frames, and its bytes."""
    at = 0
    while at < len(data):
        frame, length = Frame.parse_frame_header(memoryview(data[at : at + HEAD_BYTES]), strict=True)
        end = at + HEAD_BYTES + length
        assert end <= len(data), "the last frame is cut"
        frame.parse_body(memoryview(data[at + HEAD_BYTES : end]))
        yield frame, data[at:end]
        at = end
