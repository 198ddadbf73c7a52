"""A line over its two axes, as a PNG file.

Owns the picture: its size, the marks of the axes with their numbers, the line, PNG's chunks
(https://www.w3.org/TR/png-3/).
Must not know: what the numbers are of; the text below the picture tells that.
Invariant: every point lies within the axes; the upright one begins at zero, so that what grows little looks so.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 40, 15, 30
"""Margins in pixels; the numbers stand in the left and the bottom one, with room for seven characters."""
MARKS = 5
"""About so many on each axis."""
BACKGROUND, GRID, AXIS, LINE = range(4)
COLOURS = bytes.fromhex("ffffff e4e4e4 333333 1f5fbf")
LETTER_WIDTH, LETTER_HEIGHT, LETTER_SCALE = 3, 5, 2
LETTERS = {
    "0": "75557",
    "1": "26227",
    "2": "71747",
    "3": "71717",
    "4": "55711",
    "5": "74717",
    "6": "74757",
    "7": "71111",
    "8": "75757",
    "9": "75717",
    ".": "00002",
}
"""Rows from the top, three dots each, as octal digits."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Points in the order of their x; ``mark`` is an x at which a line stands upright, for what the text says of it."""

    points: Sequence[tuple[float, float]]
    mark: float
    text: str


@dataclass(frozen=True, slots=True)
class _Scale:
    """An axis from ``low`` to ``high``, a mark every ``step``; ``start`` and ``end`` are its ends in pixels."""

    low: float
    high: float
    step: float
    start: int
    end: int

    def pixel(self, value: float) -> int:
        """Return where a value stands."""
        return self.start + round((value - self.low) / (self.high - self.low) * (self.end - self.start))

    def marks(self) -> Iterator[tuple[int, str]]:
        """Yield the marks' places and numbers."""
        digits = max(0, -math.floor(math.log10(self.step)))
        low, high = (round(end / self.step, 6) for end in (self.low, self.high))  # 0.6 / 0.2 is below 3
        for number in range(math.ceil(low), math.floor(high) + 1):
            yield self.pixel(number * self.step), f"{number * self.step:.{digits}f}"


def png(plot: Plot) -> bytes:
    """Return the file's content. Raises ValueError if there are no points."""
    xs, ys = zip(*plot.points, strict=True)
    across = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT, whole=False)
    upright = _scale(0, max(ys), HEIGHT - BOTTOM, TOP, whole=True)
    canvas = _Canvas()
    for at, number in across.marks():
        canvas.upright(at, GRID)
        canvas.text(at - _width(number) // 2, HEIGHT - BOTTOM + 8, number)
    for at, number in upright.marks():
        canvas.across(at, GRID)
        canvas.text(LEFT - 8 - _width(number), at - LETTER_HEIGHT, number)
    canvas.upright(across.pixel(plot.mark), AXIS)
    canvas.upright(LEFT, AXIS)
    canvas.across(HEIGHT - BOTTOM, AXIS)
    canvas.path([(across.pixel(x), upright.pixel(y)) for x, y in plot.points])
    return _file(canvas.rows)


def _scale(low: float, high: float, start: int, end: int, *, whole: bool) -> _Scale:
    """Choose marks at 1, 2 or 5 times a power of ten; a ``whole`` axis ends with one."""
    reach = (high - low) or 1.0
    tenth = 10 ** math.floor(math.log10(reach / MARKS))
    step = next(times * tenth for times in (1, 2, 5, 10) if times * tenth * MARKS >= reach)
    return _Scale(low, math.ceil(round(high / step, 6)) * step if whole and high else low + reach, step, start, end)


def _width(text: str) -> int:
    return len(text) * (LETTER_WIDTH + 1) * LETTER_SCALE


class _Canvas:
    """Rows of pixels, each the number of a colour."""

    def __init__(self) -> None:
        self.rows = [bytearray(WIDTH) for _ in range(HEIGHT)]

    def upright(self, x: int, colour: int) -> None:
        """Draw from the top to the bottom margin."""
        for row in self.rows[TOP : HEIGHT - BOTTOM + 1]:
            row[x] = colour

    def across(self, y: int, colour: int) -> None:
        """Draw from the left to the right margin."""
        self.rows[y][LEFT : WIDTH - RIGHT + 1] = bytes([colour]) * (WIDTH - RIGHT + 1 - LEFT)

    def path(self, points: Sequence[tuple[int, int]]) -> None:
        """Draw from point to point, two pixels thick."""
        for (x, y), (next_x, next_y) in zip(points, points[1:] or points, strict=False):
            steps = max(abs(next_x - x), abs(next_y - y), 1)
            for step in range(steps + 1):
                at_x, at_y = x + (next_x - x) * step // steps, y + (next_y - y) * step // steps
                for row in self.rows[at_y - 1 : at_y + 1]:
                    row[at_x] = LINE

    def text(self, x: int, y: int, text: str) -> None:
        """Write digits and points."""
        for number, letter in enumerate(text):
            left = x + _width(text[:number])
            for row in range(LETTER_HEIGHT * LETTER_SCALE):
                dots = int(LETTERS[letter][row // LETTER_SCALE])
                for column in range(LETTER_WIDTH * LETTER_SCALE):
                    if dots >> (LETTER_WIDTH - 1 - column // LETTER_SCALE) & 1:
                        self.rows[y + row][left + column] = AXIS


def _file(rows: Sequence[bytearray]) -> bytes:
    """Return a PNG with eight bits a pixel, which are a colour's number in the palette."""
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 9)  # 0: no filter
    parts = ((b"IHDR", head), (b"PLTE", COLOURS), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
