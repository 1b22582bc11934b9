"""Pictures of runs, one question each, in sizes that fit a column or a page of a paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsift import ledger, registry
from fedsift.report import Method, methods, name_accuracy
from fedsift.report.page_data import cut
from fedsift.report.palette import colour_methods
from fedsift.report.plots import BAND, BARS, count_rounds, draw_curves, file_kind, load_pyplot, save
from fedsift.runs import History
from fedsift.runs.recording import read_recording
from fedsift.types import UserError

WIDTHS = {"column": 3.5, "page": 7.16}  # inches, of papers in two columns
NARROWEST, WIDEST = 2.0, 30.0
SHORT = 30  # letters of a name beside bars, or in a title
SMALL = {  # letters as large as those of a caption; in PDF and SVG they stay letters
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


def read_width(text: str) -> float:
    """Inches: "column", "page" or a number."""
    if text in WIDTHS:
        return WIDTHS[text]
    try:
        inches = float(text)
    except ValueError:
        raise UserError(f"the width must be column, page or inches, not {text!r}") from None
    if not NARROWEST <= inches <= WIDEST:
        raise UserError(f"the width must be {NARROWEST:g} to {WIDEST:g} inches, not {text}")
    return inches


def draw_kind(kind: str, runs: Sequence[History], file: Path, width: float) -> None:
    """One of `KINDS`, as wide as said."""
    ending = file_kind(file)
    if kind not in KINDS:
        raise UserError(registry.unknown_name("kind of picture", kind, KINDS, ", ".join(KINDS)))
    plt = load_pyplot()

    height, draw = KINDS[kind]
    fixed: dict[str, Any] = {"svg.hashsalt": "fedsift"} if ending == "svg" else {}
    settings: Any = SMALL | fixed
    with plt.rc_context(settings):
        figure = plt.figure(figsize=(width, height * width), layout="constrained")
        draw(figure, runs)
        save(figure, file)


def draw_rounds(figure: Any, runs: Sequence[History]) -> None:
    """Accuracy against rounds."""
    axes, compared = figure.subplots(), methods(runs)
    draw_curves(axes, compared, count_rounds)
    axes.set(xlabel="round", ylabel=name_accuracy(runs))
    _add_legend(figure, axes, compared)


def draw_bytes(figure: Any, runs: Sequence[History]) -> None:
    """Bytes of a run by direction, a bar per method."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import EngFormatter

    axes, compared = figure.subplots(), methods(runs)
    totals = [[ledger.total(run.ledger) for run in method.runs] for method in compared]
    ways = {
        "up": [np.mean([one.uplink for one in each]) for each in totals],
        "down, a copy for each client": [
            np.mean([one.downlink for one in each]) for each in totals
        ],
        "down, by broadcast": [np.mean([one.broadcast for one in each]) for each in totals],
    }
    place, shades = np.arange(len(compared)), (1.0, 0.6, 0.3)
    for number, sizes in enumerate(ways.values()):
        where = place + 0.27 * (number - 1)
        own = colour_methods(compared)
        axes.barh(where, sizes, 0.25, alpha=shades[number], color=own)
    axes.set(xlabel="bytes of a run, mean over seeds", xscale="log")
    axes.set_yticks(place, [cut(method.label, SHORT) for method in compared])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.grid(axis="x", alpha=0.3)
    figure.legend(
        [Patch(color="black", alpha=shade) for shade in shades],
        list(ways),
        loc="outside lower center",
        frameon=False,
        ncols=1 if figure.get_figwidth() < 5 else 3,
    )


def draw_partition(figure: Any, runs: Sequence[History]) -> None:
    """How many samples of each class each client of the first run has."""
    run = runs[0]
    shown = run.clients[:BARS]
    if not shown or not shown[0]["labels"]:
        raise UserError(f"{run.folder} does not say which labels its clients have")
    counts = np.array([client["labels"] for client in shown])  # [clients, classes]
    axes = figure.subplots()
    _draw_table(figure, axes, counts, "private samples", numbers=counts.size <= 300)
    everyone = run.experiment.clients.count
    some = f" ({len(shown)} of {everyone:,})" if len(shown) < everyone else ""
    axes.set(xlabel="class", ylabel=f"client{some}")
    axes.set_yticks(range(len(shown)), [client["client"] for client in shown])
    _name_classes(axes.set_xticks, run, counts.shape[1])


def draw_frontier(figure: Any, runs: Sequence[History]) -> None:
    """Accuracy against bytes per upload; a line joins the methods that none beats in both."""
    from matplotlib.ticker import EngFormatter

    axes, compared = figure.subplots(), methods(runs)
    rows = [method.row() for method in compared]
    sizes = [max(1, row["uplink_bytes_per_upload"]) for row in rows]
    for method, row, size, colour in zip(
        compared, rows, sizes, colour_methods(compared), strict=True
    ):
        axes.errorbar(
            size,
            row["accuracy"],
            yerr=row["accuracy_sd"],
            fmt="o",
            capsize=2,
            color=colour,
            label=method.label,
        )
    best = find_frontier(sizes, [row["accuracy"] for row in rows])
    axes.plot(
        [sizes[n] for n in best],
        [rows[n]["accuracy"] for n in best],
        color="0.6",
        zorder=0,
        linestyle="--",
        linewidth=0.8,
    )
    axes.set(xlabel="bytes per upload", ylabel=name_accuracy(runs), xscale="log")
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.grid(alpha=0.3)
    several = any(len(method.runs) > 1 for method in compared)
    _add_legend(figure, axes, compared, "bar: standard deviation over seeds" if several else None)


def find_frontier(sizes: Sequence[float], accuracies: Sequence[float]) -> list[int]:
    """Which points none has both fewer bytes and a higher accuracy than, by their bytes."""
    order = sorted(range(len(sizes)), key=lambda n: (sizes[n], -accuracies[n]))
    found: list[int] = []
    for n in order:
        if not found or accuracies[n] > accuracies[found[-1]]:
            found.append(n)
    return found


def draw_confusion(figure: Any, runs: Sequence[History]) -> None:
    """What the classes of the test samples are taken for, in the last round, all seeds together."""
    method = methods(runs)[0]
    tables: list[Any] = [run.metrics[-1].get("confusion") for run in method.runs]
    if not all(tables):
        raise UserError(f"{method.runs[0].folder} has no confusion matrix (up to 50 classes)")
    if len({len(table) for table in tables}) > 1:  # some folder is damaged
        sizes = (f"{len(t)} in {run.folder}" for t, run in zip(tables, method.runs, strict=True))
        raise UserError(cut(f"confusion matrices of unlike numbers of classes: {', '.join(sizes)}"))
    counts = np.sum(tables, axis=0)  # [true, predicted]
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    axes = figure.subplots()
    _draw_table(figure, axes, shares, "share of the true class", numbers=len(counts) <= 10)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(f"{cut(method.label, SHORT)}, last round")
    _name_classes(axes.set_xticks, method.runs[0], len(counts))
    _name_classes(axes.set_yticks, method.runs[0], len(counts))


def draw_picks(figure: Any, runs: Sequence[History]) -> None:
    """Of the first run: which classes clients have, and which they speak of in what they chose."""
    run = runs[0]
    told = read_recording(run.folder)
    spoken = count_picks(told.rounds.values() if told else ())
    if not spoken:
        raise UserError(f"{run.folder} has no recording of what clients chose (record=true)")
    has = {client["client"]: client["labels"] for client in run.clients}
    shown = [client for client in sorted(spoken) if has.get(client)][:BARS]
    if not shown:
        raise UserError(f"{run.folder} does not say which labels its clients have")
    classes = len(has[shown[0]])
    own = np.array([has[client] for client in shown], float)
    said = np.array([[spoken[client].get(n, 0) for n in range(classes)] for client in shown], float)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, counts, title in (
        (left, own, "has, of its own samples"),
        (right, said, "says, of the public ones it chose"),
    ):
        shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
        image = axes.imshow(shares, cmap="cividis", aspect="auto", vmin=0, vmax=1)
        axes.set(xlabel="class", title=title)
        _name_classes(axes.set_xticks, run, classes)
    left.set_ylabel("client")
    left.set_yticks(range(len(shown)), shown)
    figure.colorbar(image, ax=(left, right), label="share of the client's")


def count_picks(rows: Any) -> dict[int, dict[int, int]]:
    """Client -> class -> soft labels of which it is the largest, of those that were recorded."""
    found: dict[int, dict[int, int]] = {}
    for row in rows:
        for client, told in row.get("clients", {}).items():
            counts = found.setdefault(int(client), {})
            for label in told["said"].values():
                counts[label[0]] = counts.get(label[0], 0) + 1
    return {client: counts for client, counts in found.items() if counts}


def _draw_table(figure: Any, axes: Any, values: Any, about: str, numbers: bool) -> None:
    image = axes.imshow(values, cmap="cividis", aspect="auto")
    figure.colorbar(image, ax=axes, label=about)
    if not numbers:
        return
    middle = (float(values.max()) + float(values.min())) / 2
    for (row, column), value in np.ndenumerate(values):
        text = f"{value:.2f}".lstrip("0") if values.dtype.kind == "f" else f"{value}"
        colour = "white" if value < middle else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=5, color=colour)


def _name_classes(set_ticks: Callable[..., Any], run: History, classes: int) -> None:
    """Their names where they are short and few; every so many of the numbers otherwise."""
    names = [name if len(name) <= 8 else f"{name[:7]}." for name in run.class_names]
    step = math.ceil(classes / 20)
    places = range(0, classes, step)
    set_ticks(list(places), [names[n] if len(names) == classes else str(n) for n in places])


def _add_legend(figure: Any, axes: Any, compared: Sequence[Method], title: str | None = "") -> None:
    """Below the picture; it says what the band is, where there is one."""
    band = BAND if any(len(method.runs) > 1 for method in compared) else None
    longest = max(len(method.label) for method in compared)
    columns = max(1, min(len(compared), 4, int(figure.get_figwidth() / (0.5 + 0.055 * longest))))
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        [cut(name, 60) for name in names],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        title=band if title == "" else title,
        title_fontsize=6.5,
    )


Draw = Callable[[Any, Sequence[History]], None]
KINDS: dict[str, tuple[float, Draw]] = {  # height as a share of the width, and what draws it
    "curves": (0.8, draw_rounds),
    "bytes": (0.7, draw_bytes),
    "partition": (0.9, draw_partition),
    "frontier": (0.8, draw_frontier),
    "confusion": (0.85, draw_confusion),
    "picks": (0.75, draw_picks),
}
