"""Pictures of a reproduction, drawn from its JSON: accuracy against rounds, or against the bytes of an upload."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.report.plots import save


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
    """A colour a system, its variants joined by a line and named beside their points."""
    from matplotlib.patheffects import withStroke

    cells = sorted(cells, key=lambda cell: cell["uplink_bytes_per_upload"])
    axes.set(xscale="log", xlabel="bytes a client uploads in a round")
    for system in dict.fromkeys(_system(cell["label"]) for cell in cells):
        own = [cell for cell in cells if _system(cell["label"]) == system]
        x, y = ([cell[key] for cell in own] for key in ("uplink_bytes_per_upload", "accuracy"))
        spread = [cell["sd"] or 0 for cell in own]
        axes.errorbar(x, y, yerr=spread, color=colours[system], capsize=2, linewidth=0.6)
        axes.plot(x, y, "o", color=colours[system], markersize=5, label=system, zorder=4)  # above the names
    named = [cell for cell in cells if ", " in cell["label"]]
    places = [(cell["uplink_bytes_per_upload"], cell["accuracy"]) for cell in named]
    heights = _apart(places, float(np.diff(axes.get_ylim())[0]) / 28)
    for cell, (x, y), height in zip(named, places, heights, strict=True):
        system, _, variant = cell["label"].partition(", ")
        axes.annotate(
            variant, (x, y), (x * 1.15, height), fontsize=6.5, color=colours[system], verticalalignment="center",
            arrowprops=None if height == y else {"arrowstyle": "-", "color": colours[system], "linewidth": 0.4},
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
    axes.set_xlim(right=axes.get_xlim()[1] * 2)  # room for the last names


BESIDE = 4.0  # a name beside 100 bytes reaches to about 400: bytes are on an axis of powers of ten


def _apart(places: Sequence[tuple[float, float]], least: float) -> list[float]:
    """Heights for names beside (x, y): moved up, where they must be, from names that are near in both."""
    taken: dict[int, tuple[float, float]] = {}
    for n in sorted(range(len(places)), key=lambda n: places[n][1]):
        x, y = places[n]
        for left, height in sorted(taken.values(), key=lambda place: place[1]):
            if 1 / BESIDE < left / x < BESIDE and abs(y - height) < least:
                y = height + least
        taken[n] = x, y
    return [taken[n][1] for n in range(len(places))]


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
