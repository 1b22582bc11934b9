"""Pictures of a reproduction, from its JSON: accuracy against rounds or bytes per upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.report.palette import colour_systems
from fedsift.report.plots import load_pyplot, save

Box = tuple[float, float, float, float]  # left, low, right, high


def draw(report: Mapping[str, Any], file: Path) -> None:
    """One panel per skew."""
    plt = load_pyplot()

    alphas = list(dict.fromkeys(cell["alpha"] for cell in report["cells"]))
    panel, family = LAYOUTS.get(report["layout"], (_draw_rounds, str))
    rows = len(report["cells"]) / len(alphas) if panel is _draw_bars else 0
    size, level = (1.5 + 4.8 * len(alphas), max(4.8, 0.22 * rows)), panel is _draw_rounds
    figure, panels = plt.subplots(
        1, len(alphas), figsize=size, sharey=level, squeeze=False, layout="constrained"
    )
    families = dict.fromkeys(family(cell["label"]) for cell in report["cells"])
    coloured = colour_systems(list(families))
    measured = f"{report.get('measured_on', 'test')} accuracy"
    for axes, alpha in zip(panels[0], alphas, strict=True):
        cells = [cell for cell in report["cells"] if cell["alpha"] == alpha]
        panel(axes, cells, coloured)
        if panel is _draw_bars:
            axes.set_xlabel(f"{measured}{_explain_dashes(cells)}")
        axes.set_title(f"alpha = {alpha:g}")
        axes.grid(alpha=0.3)
    if panel is not _draw_bars:
        panels[0][0].set_ylabel(measured)
    entries = {
        name: one
        for axes in panels[0]
        for one, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    legend: dict[str, Any] = {
        "loc": "outside lower center",
        "ncols": 1 + 2 * len(alphas),
        "frameon": False,
    }
    figure.legend(entries.values(), entries.keys(), fontsize="small", **legend)
    seeds = f"{report['seeds']} seeds" if report["seeds"] > 1 else "one seed"
    planned = report.get("planned")
    rounds = f"{report['rounds']}{f' of {planned}' if report['unfinished'] else ''} rounds"
    data = report.get("data", report["setting"])
    made = f"{data}, recipe {Path(report['recipe']).stem}, {rounds}, {seeds}"
    figure.suptitle(f"{report['title']}\n{made}", fontsize="medium")
    if panel is _draw_bytes:
        figure.draw_without_rendering()
        for axes, alpha in zip(panels[0], alphas, strict=True):
            _name_variants(
                axes, [cell for cell in report["cells"] if cell["alpha"] == alpha], coloured
            )
    save(figure, file)


def _draw_rounds(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    """One line per curve, as far as all its seeds go, with a band from the lowest to the highest.

    The published figure is a dash at the end.
    """
    for cell in cells:
        common = min(map(len, cell["by_round"]))
        colour, by_round = (
            colours[cell["label"]],
            np.array([run[:common] for run in cell["by_round"]]),
        )
        x = np.arange(1, by_round.shape[1] + 1)
        axes.plot(x, by_round.mean(0), color=colour, label=cell["label"], linewidth=1.2)
        if len(by_round) > 1:
            axes.fill_between(
                x, by_round.min(0), by_round.max(0), color=colour, alpha=0.12, linewidth=0
            )
        if cell["paper"] is not None:
            axes.plot([x[-1] + 0.5, x[-1] + 2], [cell["paper"]] * 2, color=colour, linewidth=2.5)
    several = any(len(cell["by_round"]) > 1 for cell in cells)
    axes.set_xlabel("round" + ("; bands: lowest to highest seed" if several else ""))
    axes.locator_params(axis="x", integer=True)


def _system(label: str) -> str:
    """What comes before the comma; after it comes what was varied: "FAS, 2 bits"."""
    return label.partition(", ")[0]


def _draw_bytes(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    """One colour per system, its variants joined by a line (and named in the end)."""
    cells = sorted(cells, key=lambda cell: cell["uplink_bytes_per_upload"])
    axes.set(xscale="log", xlabel="bytes a client uploads per round")
    for system in dict.fromkeys(_system(cell["label"]) for cell in cells):
        own = [cell for cell in cells if _system(cell["label"]) == system]
        x, y = ([cell[key] for cell in own] for key in ("uplink_bytes_per_upload", "accuracy"))
        spread = [cell["sd"] or 0 for cell in own]
        axes.errorbar(x, y, yerr=spread, color=colours[system], capsize=2, linewidth=0.6)
        axes.plot(
            x, y, "o", color=colours[system], markersize=5, label=system, zorder=4
        )  # above the names
    axes.set_xlim(right=axes.get_xlim()[1] * 2)  # room for the last names


def _name_variants(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    """What was varied, near its point, clear of points and names; needs the panel's final size."""
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    def pixels(cell: Mapping[str, Any], off: float = 0) -> tuple[float, float]:
        x, y = axes.transData.transform((cell["uplink_bytes_per_upload"], cell["accuracy"] + off))
        return float(x), float(y)

    taken, panel = list[Box](), axes.get_window_extent().extents
    for cell in cells:
        (x, low), (_, high) = pixels(cell, -(cell["sd"] or 0)), pixels(cell, cell["sd"] or 0)
        taken.append((x - 4, low - 4, x + 4, high + 4))
    for cell in cells:
        system, _, variant = cell["label"].partition(", ")
        if not variant:
            continue
        line = {
            "arrowstyle": "-",
            "color": colours[system],
            "linewidth": 0.4,
            "shrinkA": 0,
            "shrinkB": 2,
        }
        name = axes.annotate(
            variant,
            (cell["uplink_bytes_per_upload"], cell["accuracy"]),
            (0, 0),
            textcoords="offset points",
            fontsize=6.5,
            color=colours[system],
            ha="center",
            va="center",
            arrowprops=line,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
        extent, (x, y) = Text.get_window_extent(name), pixels(cell)
        room = _find_room((x, y), (extent.width, extent.height), taken, panel)
        taken.append(room)
        middle = (room[0] + room[2]) / 2, (room[1] + room[3]) / 2
        name.set_position(
            [(a - b) * 72 / axes.figure.dpi for a, b in zip(middle, (x, y), strict=True)]
        )


def _find_room(
    point: tuple[float, float], size: tuple[float, float], taken: Sequence[Box], panel: Box
) -> Box:
    """A place for a name of this size: near its point, in the panel, with the least overlap."""
    (x, y), (width, height) = point, size

    def cost(room: Box) -> float:
        outside = width * height - _shared_area(room, panel)
        return sum(_shared_area(room, other) for other in taken) + 1e4 * (outside > 1)

    places = [
        (a - width / 2, b - height / 2, a + width / 2, b + height / 2)
        for far in (8, 16, 28, 42, 58, 78)
        for turn in range(16)  # first to the right, and then all the way round
        for a in [x + (far + width / 2) * cos(turn * pi / 8)]
        for b in [y + (far + height / 2) * sin(turn * pi / 8)]
    ]
    return min(places, key=cost)  # of equals the first, which is nearest


def _shared_area(one: Box, other: Box) -> float:
    """The area two boxes have in common."""
    width, height = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1))
    return max(0.0, width) * max(0.0, height)


def _draw_bars(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, Any]) -> None:
    """One row per variant, best on top, with the bytes per upload; published figures are dashes."""
    cells = sorted(cells, key=lambda cell: cell["accuracy"])
    rows = range(len(cells))
    for row, cell in zip(rows, cells, strict=True):
        colour = colours[_system(cell["label"])]
        axes.errorbar(
            cell["accuracy"],
            row,
            xerr=cell["sd"] or 0,
            color=colour,
            marker="o",
            markersize=5,
            capsize=2,
        )
        if cell["paper"] is not None:
            axes.plot([cell["paper"]] * 2, [row - 0.3, row + 0.3], color=colour, linewidth=2.5)
    names = [f"{cell['label']} ({cell['uplink_bytes_per_upload']:,} bytes)" for cell in cells]
    axes.set_yticks(rows, names, fontsize="small")


def _explain_dashes(cells: list[Mapping[str, Any]]) -> str:
    return "; dashes: the paper's" if any(cell["paper"] is not None for cell in cells) else ""


LAYOUTS = {
    "budget": (_draw_bytes, _system),
    "variants": (_draw_bars, _system),
    "choice": (_draw_bars, _system),
}  # and what has a colour of its own
