"""Pictures of a reproduction, drawn from its JSON: accuracy against rounds, or against the bytes of an upload."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import cos, sin
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.report.plots import save

Box = tuple[float, float, float, float]  # left, low, right, high


def draw(report: Mapping[str, Any], file: Path) -> None:
    """A panel for every skew."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    alphas = list(dict.fromkeys(cell["alpha"] for cell in report["cells"]))
    panel, family = LAYOUTS.get(report["layout"], (_against_rounds, str))
    size, level = (1.5 + 4.8 * len(alphas), 4.8), panel is _against_rounds
    figure, panels = plt.subplots(1, len(alphas), figsize=size, sharey=level, squeeze=False, layout="constrained")
    families = dict.fromkeys(family(cell["label"]) for cell in report["cells"])
    twenty = [matplotlib.colormaps["tab20"](n) for n in range(20)]  # ten, each with a lighter one after it
    colours = dict(zip(families, itertools.cycle(twenty[::2] + twenty[1::2])))
    for axes, alpha in zip(panels[0], alphas, strict=True):
        panel(axes, [cell for cell in report["cells"] if cell["alpha"] == alpha], colours)
        axes.set_title(f"alpha = {alpha:g}")
        axes.grid(alpha=0.3)
    if panel is not _side_by_side:
        panels[0][0].set_ylabel("test accuracy")
    entries = {name: one for axes in panels[0] for one, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    legend: dict[str, Any] = {"loc": "outside lower center", "ncols": 1 + 2 * len(alphas), "frameon": False}
    figure.legend(entries.values(), entries.keys(), fontsize="small", **legend)
    seeds, planned = f"{report['seeds']} seeds" if report["seeds"] > 1 else "one seed", report.get("planned")
    rounds = f"{report['rounds']}{f' of {planned}' if report['unfinished'] else ''} rounds"
    made = f"{report['setting']}, recipe {Path(report['recipe']).stem}, {rounds}, {seeds}"
    figure.suptitle(f"{report['title']}\n{made}", fontsize="medium")
    if panel is _against_bytes:
        figure.draw_without_rendering()
        for axes, alpha in zip(panels[0], alphas, strict=True):
            _name_variants(axes, [cell for cell in report["cells"] if cell["alpha"] == alpha], colours)
    save(figure, file)


def _against_rounds(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    """A line a curve, as far as all its seeds go, its band from the lowest to the highest of them, and the paper's
    figure as a dash at the end."""
    for cell in cells:
        common = min(map(len, cell["by_round"]))
        colour, by_round = colours[cell["label"]], np.array([run[:common] for run in cell["by_round"]])
        x = np.arange(1, by_round.shape[1] + 1)
        axes.plot(x, by_round.mean(0), color=colour, label=cell["label"], linewidth=1.2)
        if len(by_round) > 1:
            axes.fill_between(x, by_round.min(0), by_round.max(0), color=colour, alpha=0.12, linewidth=0)
        if cell["paper"] is not None:
            axes.plot([x[-1] + 0.5, x[-1] + 2], [cell["paper"]] * 2, color=colour, linewidth=2.5)
    several = any(len(cell["by_round"]) > 1 for cell in cells)
    axes.set_xlabel("round" + ("; bands: lowest to highest seed" if several else ""))
    axes.locator_params(axis="x", integer=True)


def _system(label: str) -> str:
    """What comes before the comma; after it comes what was varied: "FAS, 2 bits"."""
    return label.partition(", ")[0]


def _against_bytes(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    """A colour a system, its variants joined by a line (and named in the end)."""
    cells = sorted(cells, key=lambda cell: cell["uplink_bytes_per_upload"])
    axes.set(xscale="log", xlabel="bytes a client uploads in a round")
    for system in dict.fromkeys(_system(cell["label"]) for cell in cells):
        own = [cell for cell in cells if _system(cell["label"]) == system]
        x, y = ([cell[key] for cell in own] for key in ("uplink_bytes_per_upload", "accuracy"))
        spread = [cell["sd"] or 0 for cell in own]
        axes.errorbar(x, y, yerr=spread, color=colours[system], capsize=2, linewidth=0.6)
        axes.plot(x, y, "o", color=colours[system], markersize=5, label=system, zorder=4)  # above the names
    axes.set_xlim(right=axes.get_xlim()[1] * 2)  # room for the last names


NAME = 6.5  # points, as all sizes below


def _name_variants(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    """What was varied, near its point and clear of other points and names; once the panel has its final size."""
    from matplotlib.patheffects import withStroke

    def spot(cell: Mapping[str, Any], off: float = 0) -> Box:
        x, y = axes.transData.transform((cell["uplink_bytes_per_upload"], cell["accuracy"] + off)) * scale
        return x - 3, y - 3, x + 3, y + 3

    scale = 72 / axes.figure.dpi
    panel = tuple(axes.get_window_extent().extents * scale)
    spots = [(*spot(cell, -(cell["sd"] or 0))[:2], *spot(cell, cell["sd"] or 0)[2:]) for cell in cells]
    named = [cell for cell in cells if ", " in cell["label"]]
    systems, variants = zip(*(cell["label"].split(", ", 1) for cell in named), strict=True) if named else ((), ())
    sizes = [(0.55 * NAME * len(variant), 1.3 * NAME) for variant in variants]
    rooms = _rooms([spot(cell) for cell in named], sizes, spots, panel)
    for cell, system, variant, (left, low, right, high) in zip(named, systems, variants, rooms, strict=True):
        x, y = spot(cell)[0] + 3, spot(cell)[1] + 3
        line = {"arrowstyle": "-", "color": colours[system], "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            variant, (cell["uplink_bytes_per_upload"], cell["accuracy"]), ((left + right) / 2 - x, (low + high) / 2 - y),
            textcoords="offset points", fontsize=NAME, color=colours[system], ha="center", va="center",
            arrowprops=line, path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip


def _rooms(spots: Sequence[Box], sizes: Sequence[tuple[float, float]], taken: Sequence[Box], panel: Box) -> list[Box]:
    """A place for each name: near its spot, inside the panel, on as little as possible of what is taken by then."""
    full, rooms = list(taken), list[Box]()
    for spot, size in zip(spots, sizes, strict=True):
        costs = {
            room: far + 2 * sum(_shared(room, other) for other in full) + 1e4 * (_shared(room, panel) < 0.99 * area)
            for area in [size[0] * size[1]]
            for far in (6, 12, 20, 30, 42, 56)
            for room in _around(spot, size, far)
        }
        rooms.append(min(costs, key=lambda room: costs[room]))
        full.append(rooms[-1])
    return rooms


def _around(spot: Box, size: tuple[float, float], far: float) -> Iterator[Box]:
    """Boxes so far from the middle of a spot, first to its right and then all the way round."""
    x, y, (width, height) = (spot[0] + spot[2]) / 2, (spot[1] + spot[3]) / 2, size
    for turn in np.linspace(0, 2 * np.pi, 16, endpoint=False).tolist():
        a, b = x + (far + width / 2) * cos(turn), y + (far + height / 2) * sin(turn)
        yield a - width / 2, b - height / 2, a + width / 2, b + height / 2


def _shared(one: Box, other: Box) -> float:
    """The area two boxes have in common."""
    width, height = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1))
    return max(0.0, width) * max(0.0, height)


def _side_by_side(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    """A row a variant, the best on top, with the bytes of an upload; the paper's figures as dashes."""
    cells = sorted(cells, key=lambda cell: cell["accuracy"])
    rows = range(len(cells))
    for row, cell in zip(rows, cells, strict=True):
        colour = colours[_system(cell["label"])]
        axes.errorbar(cell["accuracy"], row, xerr=cell["sd"] or 0, color=colour, marker="o", markersize=5, capsize=2)
        if cell["paper"] is not None:
            axes.plot([cell["paper"]] * 2, [row - 0.3, row + 0.3], color=colour, linewidth=2.5)
    names = [f"{cell['label']} ({cell['uplink_bytes_per_upload']:,} bytes)" for cell in cells]
    axes.set_yticks(rows, names, fontsize="small")
    dashes = "; dashes: the paper's" if any(cell["paper"] is not None for cell in cells) else ""
    axes.set_xlabel(f"test accuracy{dashes}")


LAYOUTS = {
    "budget": (_against_bytes, _system),
    "variants": (_side_by_side, _system),
}  # and what has a colour of its own
