"""A picture of Theorem 1: how near the distilled estimator comes, against the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.papers.fas_icc2022.theory import Row, best_threshold, closed_form
from fedsift.report.palette import PALETTE
from fedsift.report.plots import file_kind, load_pyplot, save
from fedsift.types import UserError


def plot(rows: Sequence[Row], file: Path) -> None:
    """A panel for every sigma (down) and alpha (across), a colour for every u_bar."""
    file_kind(file)
    if not rows:
        raise UserError("nothing to draw: the grid has no rows")
    plt = load_pyplot()

    sigmas, alphas = sorted({row.sigma for row in rows}), sorted({row.alpha for row in rows})
    size = (4.8 * len(alphas) + 1.8, 3.4 * len(sigmas))
    figure, panels = plt.subplots(
        len(sigmas), len(alphas), figsize=size, squeeze=False, layout="constrained"
    )
    for line, sigma in zip(panels, sigmas, strict=True):
        for axes, alpha in zip(line, alphas, strict=True):
            _panel(
                axes,
                [row for row in rows if (row.sigma, row.alpha) == (sigma, alpha)],
                alpha,
                sigma,
            )
    entries: dict[str, Any] = {}
    for axes in panels.flat:  # the same in every panel, up to the values of u_bar
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        entries.values(), entries.keys(), loc="outside right upper", fontsize="small", frameon=False
    )
    save(figure, file)


def _panel(axes: Any, rows: Sequence[Row], alpha: float, sigma: float) -> None:
    """Lines: closed form; dashes: the misprint; points and 95 % intervals: the simulation."""
    best = {
        u_bar: best_threshold(u_bar, alpha, sigma) for u_bar in sorted({row.u_bar for row in rows})
    }
    gammas = np.linspace(0, 1.05 * max(*best.values(), *(row.gamma for row in rows)), 200).tolist()
    for place, (u_bar, top) in enumerate(best.items()):
        colour, cells = PALETTE[place % len(PALETTE)], [row for row in rows if row.u_bar == u_bar]
        exact, wrong = (
            [closed_form(g, u_bar, alpha, sigma, m).cot for g in gammas] for m in (False, True)
        )
        axes.plot(gammas, exact, color=colour, label=f"closed form, u_bar = {u_bar:g}")
        axes.plot(gammas, wrong, color=colour, linestyle="--", linewidth=0.9, alpha=0.6)
        axes.plot(top, closed_form(top, u_bar, alpha, sigma).cot, "*", color=colour, markersize=11)
        axes.errorbar(
            [row.gamma for row in cells],
            [row.mean for row in cells],
            [row.half_width for row in cells],
            fmt="o",
            markersize=4,
            capsize=3,
            color=colour,
            markerfacecolor="white",
            zorder=3,
        )
    axes.axhline(
        alpha / np.sqrt(1 - alpha**2),
        color="grey",
        linestyle=":",
        label="beta_s, before distillation",
    )
    axes.plot([], [], "--", color="grey", linewidth=0.9, label="as misprinted, 1 / (2 pi)")
    axes.plot(
        [],
        [],
        "o",
        color="grey",
        markersize=4,
        markerfacecolor="white",
        label="simulation, 95 % interval",
    )
    axes.plot([], [], "*", color="grey", markersize=11, label="best threshold")
    axes.set(
        xlabel="threshold Gamma",
        ylabel="cot(beta_hat, u)",
        title=f"alpha = {alpha:g}, sigma = {sigma:g}",
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
