"""Pictures of a reproduction, drawn from its JSON: accuracy against rounds, or against the bytes of an upload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.report.plots import save


def draw(report: Mapping[str, Any], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    alphas = list(dict.fromkeys(cell["alpha"] for cell in report["cells"]))
    size = (4.2 * len(alphas) + 1, 4.4)
    figure, panels = plt.subplots(1, len(alphas), figsize=size, squeeze=False, sharey=True, layout="constrained")
    colours = {label: f"C{n}" for n, label in enumerate(dict.fromkeys(cell["label"] for cell in report["cells"]))}
    panel = _against_bytes if report["layout"] == "budget" else _against_rounds
    for axes, alpha in zip(panels[0], alphas, strict=True):
        panel(axes, [cell for cell in report["cells"] if cell["alpha"] == alpha], colours)
        axes.set_title(f"alpha = {alpha:g}")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("test accuracy")
    if report["layout"] != "budget":
        handles, names = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    figure.suptitle(report["title"], fontsize="medium")
    save(figure, file)


def _against_rounds(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, str]) -> None:
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
    axes.set_xlabel("round")


def _against_bytes(axes: Any, cells: list[Mapping[str, Any]], colours: Mapping[str, str]) -> None:
    for cell in cells:
        x, y, spread = cell["uplink_bytes_per_upload"], cell["accuracy"], cell["sd"] or 0
        axes.errorbar([x], [y], yerr=[spread], color=colours[cell["label"]], marker="o", markersize=4, capsize=2)
        axes.annotate(cell["label"], (x, y), xytext=(4, 3), textcoords="offset points", fontsize=6.5)
    axes.set(xscale="log", xlabel="bytes a client uploads in a round")
