"""The soak's pictures, read as any program that shows PNG files reads them."""

import struct
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.soaking import plots
from scripts.soaking.plots import AXIS, BOTTOM, GRID, HEIGHT, LEFT, LINE, RIGHT, TOP, WIDTH, Plot, png
from tests.amounts import examples

Points = Sequence[tuple[float, float]]


def chunks(content: bytes) -> dict[bytes, bytes]:
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    found, at = {}, 8
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert content[at + 8 + length : at + 12 + length] == struct.pack(">I", zlib.crc32(kind + data))
        found[kind] = data
        at += 12 + length
    return found


def pixels(points: Points, mark: float = 0) -> list[bytes]:
    """Return the rows of a picture; the mark does not lie on the line unless it is told to."""
    data = zlib.decompress(chunks(png(Plot(points, mark, "text")))[b"IDAT"])
    rows = [data[at : at + WIDTH + 1] for at in range(0, len(data), WIDTH + 1)]
    assert {row[0] for row in rows} == {0}, "no row is filtered"
    return [row[1:] for row in rows]


def places(rows: Sequence[bytes], colour: int) -> set[tuple[int, int]]:
    return {(x, y) for y, row in enumerate(rows) for x, pixel in enumerate(row) if pixel == colour}


def test_the_file_is_one_of_a_palette() -> None:
    found = chunks(png(Plot([(0, 0), (1, 1)], 0, "text")))
    assert list(found) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", found[b"IHDR"]) == (WIDTH, HEIGHT, 8, 3, 0, 0, 0)
    assert len(found[b"PLTE"]) == 3 * (max(plots.BACKGROUND, GRID, AXIS, LINE) + 1)


def test_the_line_goes_from_the_first_point_to_the_last_above_zero() -> None:
    line = places(pixels([(100, 50), (200, 100)]), LINE)
    left, right = min(line), max(line)
    middle = (TOP + HEIGHT - BOTTOM) // 2
    assert left[0] == LEFT
    assert abs(left[1] - middle) <= 1
    assert right[0] == WIDTH - RIGHT
    assert right[1] <= TOP + 1
    assert {x for x, _ in line} == set(range(LEFT, WIDTH - RIGHT + 1))


def test_a_mark_stands_upright() -> None:
    rows = pixels([(0, 1), (10, 1)], mark=5)
    middle = (LEFT + WIDTH - RIGHT) // 2
    assert all(row[middle] in (AXIS, LINE) for row in rows[TOP : HEIGHT - BOTTOM + 1])


@pytest.mark.parametrize(
    ("points", "across", "upright"),
    [
        ([(0, 34), (100_000, 36)], ["0", "20000", "40000", "60000", "80000", "100000"], ["0", "10", "20", "30", "40"]),
        ([(0, 0.5), (24, 0.6)], ["0", "5", "10", "15", "20"], ["0.0", "0.2", "0.4", "0.6"]),
        ([(1, 0), (1, 0)], ["1.0", "1.2", "1.4", "1.6", "1.8", "2.0"], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_axes_have_round_numbers(
    points: Points, across: list[str], upright: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = plots._Canvas.text

    def text(canvas: plots._Canvas, x: int, y: int, text: str) -> None:
        written.append(text)
        write(canvas, x, y, text)

    monkeypatch.setattr(plots._Canvas, "text", text)
    png(Plot(points, points[0][0], "text"))
    assert written == across + upright


def test_numbers_are_readable() -> None:
    canvas = plots._Canvas()
    canvas.text(10, 10, "1.")
    drawn = places(canvas.rows, AXIS)
    dots = ["".join(".#"[(10 + 2 * x, 10 + 2 * y) in drawn] for x in range(7)) for y in range(5)]
    assert dots == [".#.....", "##.....", ".#.....", ".#.....", "###..#."]


@settings(max_examples=examples(20))
@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)), min_size=1, max_size=20))
def test_every_point_lies_within_the_axes(hundredths: Sequence[tuple[int, int]]) -> None:
    points = [(x, y / 100) for x, y in hundredths]
    line = places(pixels(sorted(points), mark=min(points)[0]), LINE)
    assert line
    assert all(LEFT <= x <= WIDTH - RIGHT and TOP - 1 <= y <= HEIGHT - BOTTOM for x, y in line)


def test_nothing_makes_no_picture() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        png(Plot([], 0, "text"))
