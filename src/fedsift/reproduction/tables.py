"""The tables of a report: cells with their costs, the best for each budget, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from fedsift.report.formats import format_signed
from fedsift.report.gaps import Gap, find_interval
from fedsift.reproduction.verdicts import ENOUGH

Cell = dict[str, Any]  # as a report describes it


# --- what a report draws from all of its cells ---


def add_gap(cell: Cell, cells: Sequence[Cell], reference: str, seeds: Sequence[int]) -> Cell:
    """The cell with its gap to a reference at the same skew, seed by seed."""
    beside = [c for c in cells if (c["curve"], c["alpha"]) == (reference, cell["alpha"])]
    if not beside or cell["curve"] == reference:
        return cell
    differences = (a - b for a, b in zip(cell["by_seed"], beside[0]["by_seed"], strict=True))
    return cell | {"gap": Gap(beside[0]["label"], tuple(seeds), tuple(differences)).row()}


def find_best(cells: Sequence[Cell], budgets: Sequence[int]) -> list[Cell]:
    """For each skew and budget the cell of the highest accuracy whose every upload fits."""
    found = []
    for alpha in sorted({cell["alpha"] for cell in cells}):
        for most in sorted(budgets):
            own = [c for c in cells if c["alpha"] == alpha and c["uplink_bytes_largest"] <= most]
            if own:
                best = max(own, key=lambda cell: cell["accuracy"])
                kept = ("curve", "label", "accuracy", "sd", "uplink_bytes_largest")
                found.append({"alpha": alpha, "bytes": most} | {key: best[key] for key in kept})
    return found


def choose_variants(cells: Sequence[Cell]) -> list[Cell]:
    """For each curve the variant with the highest mean over the skews that all of it has."""
    found = []
    for system, of in groupby(cells, key=lambda cell: cell["curve"].partition("+")[0]):
        trials: dict[str, list[Cell]] = {}
        for cell in of:
            trials.setdefault(cell["curve"], []).append(cell)
        whole = max(map(len, trials.values()))
        means = {
            curve: fmean(cell["accuracy"] for cell in own)
            for curve, own in trials.items()
            if len(own) == whole
        }
        best = max(means, key=lambda curve: means[curve])
        found.append(
            {
                "system": system,
                "trials": len(means),
                "curve": best,
                "label": trials[best][0]["label"],
                "accuracy": round(means[best], 6),
                "first": round(next(iter(means.values())), 6),
            }
        )
    return found


# --- Markdown ---


def format_accuracy(accuracy: float, sd: float | None) -> str:
    spread = "" if sd is None else f" ± {sd:.3f}".replace("0.", ".")
    return f"{accuracy:.3f}".lstrip("0") + spread


def format_figure(cell: Mapping[str, Any]) -> str:
    paper = "" if cell["paper"] is None else f" ({cell['paper']:.4f})".replace("(0.", "(.")
    return format_accuracy(cell["accuracy"], cell["sd"]) + paper


def format_gap(cell: Mapping[str, Any]) -> str:
    """ "+.068 ± .013, 5 of 5": the mean gap, and in how many seeds the cell is ahead."""
    if "gap" not in cell:
        return ""
    gap = cell["gap"]
    sd = "" if gap["sd"] is None else f" ± {gap['sd']:.3f}".replace("0.", ".")
    ahead = f"{gap['ahead']} of {len(gap['by_seed'])}"
    return f"{gap['mean']:+.3f}".replace("0.", ".") + f"{sd}, {ahead}"


def format_interval(gaps: Sequence[float]) -> str:
    """ "+.036 to +.100": the 95 % interval of the mean gap; of too few seeds nothing."""
    return " to ".join(map(format_signed, find_interval(gaps, ENOUGH) or ()))


def describe_verdict(claim: Mapping[str, Any]) -> str:
    """The verdict; where it is by the mean alone, that too, and how far the interval reaches."""
    verdict: str = claim["verdict"]
    rows = [] if isinstance(claim["evidence"], str) else claim["evidence"]
    for row in rows:
        if "reaches" in row and verdict.startswith(row["verdict"]):
            return f"{verdict} in the mean; the interval reaches {format_signed(row['reaches'])}"
    return verdict


def describe_evidence(claim: Mapping[str, Any]) -> str:
    """The comparison that decides a claim, with its gap."""
    if isinstance(claim["evidence"], str):  # of a report that needs no runs
        return claim["evidence"]
    if claim["decided_by"] is None:
        return ""
    row = claim["evidence"][claim["decided_by"]]
    if row.get("unit") == "bytes":
        return f"{row['comparison']}: {row['gap']:+,.0f} bytes"
    spread = "" if row["sd"] is None else f" ± {row['sd']:.3f}".replace("0.", ".")
    if interval := format_interval(row["gaps"]):
        spread = f", 95 % interval {interval}"
    paper = f" ({format_signed(row['paper'])})" if "paper" in row else ""
    return f"{row['comparison']}: {format_signed(row['gap'])}{spread}{paper}"


def list_cells(report: Mapping[str, Any]) -> list[str]:
    """One row per cell. Older reports have no costs, and few have a reference."""
    cells = report["cells"]
    columns = {
        "": lambda cell: cell["label"],
        "alpha": lambda cell: f"{cell['alpha']:g}",
        "accuracy": format_figure,
    }
    if any("gap" in cell for cell in cells):
        columns["against its reference, seeds ahead"] = format_gap
    if any(map(_format_interval_of, cells)):
        columns["95 % interval"] = _format_interval_of
    columns |= {
        "bytes per upload": lambda cell: f"{cell['uplink_bytes_per_upload']:,}",
        "the largest": lambda cell: f"{cell['uplink_bytes_largest']:,}",
    }
    if all("total_bytes" in cell for cell in cells):
        columns |= {
            "bytes per download": lambda cell: f"{cell['downlink_bytes_per_download']:,}",
            "both ways, MB": lambda cell: _format_megabytes(cell["total_bytes"]),
            "with broadcast": lambda cell: _format_megabytes(cell["total_bytes_broadcast"]),
            "client steps per round": lambda cell: _format_count(cell["client_steps_per_round"]),
            "server steps": lambda cell: _format_count(cell["server_steps_per_round"]),
        }
    rows = [f"| {' | '.join(columns)} |".replace("|  |", "| |"), "|---" * len(columns) + "|"]
    for cell in cells:
        rows.append(f"| {' | '.join(show(cell) for show in columns.values())} |")
    return rows


def list_best(report: Mapping[str, Any]) -> list[str]:
    """Budgets down, skews across: the best that fits."""
    best = report.get("best_by_budget")
    if not best:
        return []
    alphas = sorted({row["alpha"] for row in best})
    at = {(row["bytes"], row["alpha"]): row for row in best}
    titles = " | ".join(f"alpha = {alpha:g}" for alpha in alphas)
    lines = ["", "The best whose every upload fits the bytes:", ""]
    lines += [f"| bytes | {titles} |", "|---" * (len(alphas) + 1) + "|"]
    for most in sorted({row["bytes"] for row in best}):
        found = [_name_best(at.get((most, alpha))) for alpha in alphas]
        lines.append(f"| {most:,} | {' | '.join(found)} |")
    return lines


def _name_best(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['label']}: {format_accuracy(row['accuracy'], row['sd'])}"


def list_chosen(report: Mapping[str, Any]) -> list[str]:
    """What every system is given after its trials."""
    if not report.get("chosen"):
        return []
    lines = [
        "",
        "| system | trials | chosen | accuracy | of the first trial |",
        "|---|---|---|---|---|",
    ]
    for row in report["chosen"]:
        figures = [format_accuracy(row[key], None) for key in ("accuracy", "first")]
        words = [row["system"], str(row["trials"]), row["label"], *figures]
        lines.append(f"| {' | '.join(words)} |")
    return lines


def _format_interval_of(cell: Mapping[str, Any]) -> str:
    return format_interval(cell["gap"]["by_seed"]) if "gap" in cell else ""


def _format_megabytes(count: int) -> str:
    return f"{count / 1e6:,.2f}"


def _format_count(count: float | None) -> str:
    return "" if count is None else f"{round(count):,}"
