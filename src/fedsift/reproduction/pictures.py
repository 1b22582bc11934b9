"""Pictures of a reproduction, drawn from its JSON: accuracy against rounds, or against the bytes of an upload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.report.plots import save


def draw(report: Mapping[str, Any], file: Path) -> None:
    """A panel for every skew."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    bytes_ = report["layout"] == "budget"
    alphas = list(dict.fromkeys(cell["alpha"] for cell in report["cells"]))
    size = (4.2 * len(alphas) + (2.6 if bytes_ else 1), 4.4)
    figure, panels = plt.subplots(1, len(alphas), figsize=size, squeeze=False, sharey=not bytes_, layout="constrained")
    looks = _looks(dict.fromkeys(cell["label"] for cell in report["cells"]))
    panel = _against_bytes if bytes_ else _against_rounds
    for axes, alpha in zip(panels[0], alphas, strict=True):
        panel(axes, [cell for cell in report["cells"] if cell["alpha"] == alpha], looks)
        axes.set_title(f"alpha = {alpha:g}")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("test accuracy")
    entries = {name: one for axes in panels[0] for one, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    where = {"loc": "outside right center"} if bytes_ else {"loc": "outside lower center", "ncols": 4}
    figure.legend(entries.values(), entries.keys(), fontsize="small", frameon=False, **where)
    figure.suptitle(report["title"], fontsize="medium")
    save(figure, file)


def _looks(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for every label; ten colours, then the same with another marker."""
    return {label: (f"C{n % 10}", "osD^v"[n // 10 % 5]) for n, label in enumerate(labels)}


def _against_rounds(axes: Any, cells: list[Mapping[str, Any]], looks: Mapping[str, tuple[str, str]]) -> None:
    """A line a curve, as far as all its seeds go, its band from the lowest to the highest of them, and the paper's
    figure as a dash at the end."""
    for cell in cells:
        common = min(map(len, cell["by_round"]))
        colour, by_round = looks[cell["label"]][0], np.array([run[:common] for run in cell["by_round"]])
        x = np.arange(1, by_round.shape[1] + 1)
        axes.plot(x, by_round.mean(0), color=colour, label=cell["label"], linewidth=1.2)
        if len(by_round) > 1:
            axes.fill_between(x, by_round.min(0), by_round.max(0), color=colour, alpha=0.12, linewidth=0)
        if cell["paper"] is not None:
            axes.plot([x[-1] + 0.5, x[-1] + 2], [cell["paper"]] * 2, color=colour, linewidth=2.5)
    axes.set_xlabel("round")
    axes.locator_params(axis="x", integer=True)


def _against_bytes(axes: Any, cells: list[Mapping[str, Any]], looks: Mapping[str, tuple[str, str]]) -> None:
    for cell in sorted(cells, key=lambda cell: cell["uplink_bytes_per_upload"]):
        x, y, spread = cell["uplink_bytes_per_upload"], cell["accuracy"], cell["sd"] or 0
        colour, marker = looks[cell["label"]]
        axes.errorbar(
            [x],
            [y],
            yerr=[spread],
            color=colour,
            marker=marker,
            markersize=6,
            capsize=2,
            linestyle="",
            label=cell["label"],
        )
    axes.set(xscale="log", xlabel="bytes a client uploads in a round")
