"""A grid of attacks and rules: as tables of losses in points, and as a picture of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.report.gaps import find_interval
from fedsift.report.plots import load_pyplot, save
from fedsift.reproduction import pictures
from fedsift.reproduction.verdicts import ENOUGH

Report = Mapping[str, Any]
Entry = dict[str, Any]
USUAL_ALPHA, USUAL_SHARE = 1.0, "20 %"
THROUGH = 0.05  # an attack that costs more than this gets through
MOST_DRAWN = 30  # points; more has the same colour
DARK = 18  # points; from here on the colour needs a light text


def read_entries(report: Report) -> list[Entry]:
    """The cells with their names apart: algorithm, rule, attack and share."""
    found = []
    for cell in report["cells"]:
        algorithm, rule, *hostile = cell["label"].split(", ")
        attack, share = hostile if hostile else ("", "")
        names = {"algorithm": algorithm, "rule": rule, "attack": attack, "share": share}
        found.append(cell | names)
    return found


def find_loss(entry: Entry) -> float:
    """What the attack costs, against honest clients under the same rule."""
    return -float(entry["gap"]["mean"]) if "gap" in entry else 0.0


def format_points(loss: float, digits: int = 1) -> str:
    """A loss in points; next to nothing is 0 and not -0."""
    return f"{round(100 * loss, digits) + 0.0:.{digits}f}"


def list_grid(report: Report) -> list[str]:
    entries = read_entries(report)
    lines = [*_list_honest(entries), ""]
    for algorithm in _names(entries, "algorithm"):
        own = [e for e in entries if e["algorithm"] == algorithm and e["attack"]]
        for alpha in _names(own, "alpha"):
            usual = [e for e in own if (e["alpha"], e["share"]) == (alpha, USUAL_SHARE)]
            title = f"{algorithm}, alpha = {alpha:g}, {USUAL_SHARE} hostile: points lost"
            lines += [*_list_losses(title, usual, "attack"), ""]
        across = [e for e in own if e["alpha"] == USUAL_ALPHA]
        title = f"{algorithm}, alpha = {USUAL_ALPHA:g}: points lost to the worst attack"
        lines += [*_list_losses(title, across, "share"), ""]
    return lines + _list_through(entries)


def _list_honest(entries: Sequence[Entry]) -> list[str]:
    """Honest clients: the accuracy, and how often one had no vote."""
    honest = [e for e in entries if not e["attack"]]
    alphas = _names(honest, "alpha")
    columns = " | ".join(f"alpha = {alpha:g}" for alpha in alphas)
    lines = ["Honest clients: accuracy (and turns in which an honest client had no vote).", ""]
    lines += [f"| | rule | {columns} |", "|---" * (len(alphas) + 2) + "|"]
    for algorithm, rule in dict.fromkeys((e["algorithm"], e["rule"]) for e in honest):
        of = {e["alpha"]: e for e in honest if (e["algorithm"], e["rule"]) == (algorithm, rule)}
        figures = [_format_honest(of[alpha]) if alpha in of else "" for alpha in alphas]
        lines.append(f"| {algorithm} | {rule} | {' | '.join(figures)} |")
    return lines


def _format_honest(entry: Entry) -> str:
    alarms = entry.get("false_alarms")
    accuracy = f"{entry['accuracy']:.3f}".lstrip("0")
    return accuracy if alarms is None else f"{accuracy} ({100 * alarms:.1f} %)"


def _list_losses(title: str, entries: Sequence[Entry], down: str) -> list[str]:
    """Rules across; where several cells meet, the worst, and which attack it is."""
    rules = _names(entries, "rule")
    lines = [f"{title}.", "", f"| {down} | {' | '.join(rules)} |", "|---" * (len(rules) + 1) + "|"]
    for name in sorted(_names(entries, down)) if down == "share" else _names(entries, down):
        figures = []
        for rule in rules:
            met = [e for e in entries if (e[down], e["rule"]) == (name, rule)]
            worst = max(met, key=find_loss, default=None)
            which = f" ({worst['attack']})" if worst is not None and down == "share" else ""
            figures.append("" if worst is None else f"{format_points(find_loss(worst))}{which}")
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return lines


def _list_through(entries: Sequence[Entry]) -> list[str]:
    """The attacks that still get through the rule that is recommended."""
    found = [e for e in entries if e["rule"] == "trust" and find_loss(e) > THROUGH]
    points = f"{100 * THROUGH:g} points"
    if not any(e["rule"] == "trust" for e in entries):
        return []
    if not found:
        return [f"No attack costs `trust` more than {points}."]
    found.sort(key=find_loss, reverse=True)
    lines = [f"What costs `trust` more than {points} in the mean:", ""]
    intervals = ["95 % interval"] * any(map(_format_interval, found))
    columns = ["", "attack", "hostile", "alpha", "points", *intervals]
    columns.append("hostile turns without a vote")
    lines += [f"| {' | '.join(columns)} |".replace("|  |", "| |"), "|---" * len(columns) + "|"]
    for e in found:
        caught = "" if e.get("caught") is None else f"{100 * e['caught']:.0f} %"
        words = [e["algorithm"], e["attack"], e["share"], f"{e['alpha']:g}"]
        words += [format_points(find_loss(e)), *[_format_interval(e) for _ in intervals], caught]
        lines.append(f"| {' | '.join(words)} |")
    return lines


def _format_interval(entry: Entry) -> str:
    """Of the points lost, from what the seeds lose; of too few seeds nothing."""
    losses = [-gap for gap in entry["gap"]["by_seed"]]
    return " to ".join(map(format_points, find_interval(losses, ENOUGH) or ()))


def _names(entries: Sequence[Entry], key: str) -> list[Any]:
    return list(dict.fromkeys(entry[key] for entry in entries))


# --- the picture ---


def draw_grid(report: Report, file: Path) -> None:
    """A map of the points lost: attacks down, rules across, a panel for each algorithm and skew.

    Where no cell is attacked, nothing is lost: then it shows accuracy.
    """
    entries = [e for e in read_entries(report) if e["share"] == USUAL_SHARE]
    if not entries:
        pictures.draw(report, file)
        return
    plt = load_pyplot()
    algorithms, alphas = _names(entries, "algorithm"), _names(entries, "alpha")
    attacks = _names(entries, "attack")
    widths = [len({e["rule"] for e in entries if e["algorithm"] == name}) for name in algorithms]
    size = (2.6 + 0.75 * sum(widths), 1.4 + (0.7 + 0.28 * len(attacks)) * len(alphas))
    figure, panels = plt.subplots(
        len(alphas),
        len(algorithms),
        figsize=size,
        squeeze=False,
        sharey=True,
        layout="constrained",
        width_ratios=widths,
    )
    shown = None
    for row, alpha in zip(panels, alphas, strict=True):
        for axes, algorithm in zip(row, algorithms, strict=True):
            own = [e for e in entries if (e["algorithm"], e["alpha"]) == (algorithm, alpha)]
            rules = _names(own, "rule")
            losses = np.full((len(attacks), len(rules)), np.nan)
            for e in own:
                losses[attacks.index(e["attack"]), rules.index(e["rule"])] = 100 * find_loss(e)
            shown = axes.imshow(losses, cmap="YlOrRd", vmin=0, vmax=MOST_DRAWN, aspect="auto")
            for (y, x), loss in np.ndenumerate(losses):
                text = "" if np.isnan(loss) else format_points(loss / 100, 0)
                seen = "white" if loss > DARK else "black"
                axes.text(x, y, text, ha="center", va="center", fontsize="x-small", color=seen)
            axes.set_xticks(range(len(rules)), rules, rotation=30, ha="right", fontsize="small")
            axes.set_yticks(range(len(attacks)), attacks, fontsize="small")
            axes.set_title(f"{algorithm}, alpha = {alpha:g}", fontsize="small")
    if shown is not None:
        figure.colorbar(shown, ax=panels, label="points lost to the attack", shrink=0.5)
    seeds = f"{report['seeds']} seeds" if report["seeds"] > 1 else "one seed"
    made = f"{report['setting']}, {report['rounds']} rounds, {seeds}, {USUAL_SHARE} hostile"
    figure.suptitle(f"{report['title']}\n{made}", fontsize="medium")
    save(figure, file)
