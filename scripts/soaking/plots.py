"""A line over its two axes, as a PNG file, drawn by matplotlib (the extra ``soak``).

Owns the picture's size and axes.
Must not know: what the numbers are of; the text below the picture tells that.
Invariant: the upright axis begins at zero, so that what grows little looks so.
"""

from pathlib import Path

from matplotlib.figure import Figure

from scripts.soaking.results import Plot


def draw(plot: Plot, file: Path) -> None:
    """Write the picture. Raises ValueError if there are no points."""
    picture = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes = picture.subplots()
    axes.plot(*zip(*plot.points, strict=True))
    axes.axvline(plot.mark, color="black")
    axes.set_ylim(0, 1.1 * max(y for _, y in plot.points) or 1)
    axes.grid(color="lightgrey")
    picture.savefig(file, dpi=100)
