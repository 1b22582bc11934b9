"""Plots of runs: accuracy against rounds and against uplink bytes, and who has which labels."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsift import config
from fedsift.files import write_atomic
from fedsift.report import Method, methods, name_accuracy
from fedsift.report.palette import PALETTE, colour_methods
from fedsift.runs import History
from fedsift.types import Array, UserError

FORMATS = ("png", "pdf", "svg")
BAND = "line: mean over seeds; band: lowest to highest seed"
BARS = 40  # clients whose labels are drawn; more could not be distinguished
WIDTH, CHARACTER = 13.0, 0.075  # inches: of the picture, and of a character in its legend


def file_kind(file: Path) -> str:
    """png, pdf or svg, by the ending of the file."""
    kind = file.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise UserError(
            f"cannot draw a {file.suffix or 'file without ending'}; use "
            f"{', '.join('.' + f for f in FORMATS)}"
        )
    return kind


def load_pyplot() -> Any:
    """It draws into files alone, as there may be no screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, file: Path) -> None:
    from matplotlib import pyplot as plt

    picture = io.BytesIO()
    figure.savefig(picture, format=file_kind(file), dpi=150)
    plt.close(figure)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, picture.getvalue())


def plot(runs: Sequence[History], file: Path) -> None:
    """Three panels in one file; seeds of a method become a line (mean) and a band (min to max)."""
    file_kind(file)  # before anything is drawn
    plt = load_pyplot()
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

    compared = methods(runs)
    longest = max(len(method.label) for method in compared)
    columns = max(
        1, min(4, len(compared), int(WIDTH / (0.7 + CHARACTER * longest)))
    )  # 0.7: the line before a name
    height = 3.6 + 0.2 * -(-len(compared) // columns)
    figure, (rounds, uplink, labels) = plt.subplots(
        1, 3, figsize=(WIDTH, height), layout="constrained"
    )
    draw_curves(rounds, compared, count_rounds)
    draw_curves(uplink, compared, _sum_uplink)
    rounds.set(xlabel="round", ylabel=name_accuracy(runs), title="accuracy against rounds")
    uplink.set(
        xlabel="bytes uploaded by all clients", title="accuracy against uplink bytes", xscale="log"
    )
    uplink.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    for set_formatter in (uplink.xaxis.set_major_formatter, uplink.xaxis.set_minor_formatter):
        set_formatter(EngFormatter("B"))
    uplink.tick_params(axis="x", which="both", labelsize="x-small")
    handles, names = rounds.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=columns,
        fontsize="small",
        frameon=False,
        title=BAND if any(len(method.runs) > 1 for method in compared) else None,
        title_fontsize="small",
    )
    for axes in (rounds, uplink):
        axes.set_ylim(0, 1)
    rounds.xaxis.set_major_locator(MaxNLocator(integer=True))
    labels.yaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_label_bars(labels, runs[0], compared[0].label if _dealt_otherwise(runs) else "")
    save(figure, file)


def _dealt_otherwise(runs: Sequence[History]) -> bool:
    """Whether some run's clients have other data than the first run's, by more than the seed."""
    found = (config.differences(runs[0].experiment, run.experiment) for run in runs)
    return any(
        key.startswith(("data.", "partition.", "clients.count")) for keys in found for key in keys
    )


def count_rounds(run: History) -> Array:
    return np.arange(1, len(run.metrics) + 1)


def _sum_uplink(run: History) -> Array:
    return np.cumsum([row.uplink for row in run.ledger])


def draw_curves(axes: Any, compared: Sequence[Method], place: Callable[[History], Array]) -> None:
    """Accuracy of each method; `place` says where the rounds of a run are on the other axis."""
    for method, colour in zip(compared, colour_methods(compared), strict=True):
        _draw_curve(axes, method, colour, np.mean([place(run) for run in method.runs], axis=0))
    axes.grid(alpha=0.3)


def _draw_curve(axes: Any, method: Method, colour: Any, x: Array) -> None:
    accuracy = np.array([run.accuracies for run in method.runs])  # [seeds, rounds]
    axes.plot(
        x, accuracy.mean(0), color=colour, label=method.label, marker="." if len(x) == 1 else None
    )
    if len(accuracy) > 1:
        axes.fill_between(
            x, accuracy.min(0), accuracy.max(0), color=colour, alpha=0.15, linewidth=0
        )


def _draw_label_bars(axes: Any, run: History, whose: str) -> None:
    """A bar per client, a colour per class; `whose` names the method where methods differ."""
    drawn = run.clients[:BARS]
    ids = [client["client"] for client in drawn]
    classes = len(drawn[0]["labels"]) if drawn else 0
    counts = np.array([client["labels"] for client in drawn]).reshape(len(ids), classes)  # [., C]
    left = np.zeros(len(counts))
    for label, column in enumerate(counts.T):
        axes.barh(
            np.arange(len(counts)),
            column,
            left=left,
            color=PALETTE[label % 10],
            height=0.85,
            label=str(label),
        )
        left += column
    if 0 < classes <= 10:
        axes.legend(
            fontsize="x-small",
            frameon=False,
            title="class",
            bbox_to_anchor=(1, 1),
            loc="upper left",
        )
    everyone = run.experiment.clients.count
    who = f"{len(drawn)} of {everyone:,}" if len(drawn) < everyone else "the"
    title = f"labels of {who} clients, seed {run.experiment.seed}"
    axes.set(
        xlabel="private samples",
        ylabel="client",
        title=title + f"\n{textwrap.shorten(whose, 45)}" * bool(whose),
    )
    axes.yaxis.set_major_formatter(lambda row, _: str(ids[int(row)]) if 0 <= row < len(ids) else "")
    axes.invert_yaxis()
