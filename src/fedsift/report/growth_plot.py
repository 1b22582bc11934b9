"""A picture of how cost grows (`fedsift.growth`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsift.growth import FIGURES
from fedsift.report import plots
from fedsift.report.palette import PALETTE
from fedsift.types import UserError


def draw(result: dict[str, Any], file: Path) -> None:
    """All curves: an axis per column, a figure per row, both logarithmic; dotted: linear growth."""
    plots.file_kind(file)  # before anything is drawn
    plt = plots.load_pyplot()

    axes = {name: one for name, one in result["axes"].items() if len(one["points"]) > 1}
    if not axes:
        raise UserError("no axis has two points; give more --seconds")
    shape = len(FIGURES), len(axes)
    figure, grid = plt.subplots(
        *shape, figsize=(3 * len(axes), 7), squeeze=False, layout="constrained"
    )
    for column, (axis, found) in enumerate(axes.items()):
        sizes = [point[axis] for point in found["points"]]
        for row, (name, label) in enumerate(FIGURES.items()):
            panel, values = grid[row][column], [point[name] for point in found["points"]]
            panel.loglog(sizes, values, "o-", color=PALETTE[0])
            panel.loglog(sizes, [values[0] * size / sizes[0] for size in sizes], ":", color="grey")
            panel.set_ylim(min(values) / 2, max(values) * 2)
            panel.set_title(f"exponent {found['exponents'][name]:.2f}", fontsize=9)
            if not column:
                panel.set_ylabel(label)
        grid[-1][column].set_xlabel(axis)
    plots.save(figure, file)
