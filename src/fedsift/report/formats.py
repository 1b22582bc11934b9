"""A comparison as text for other programs: CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from fedsift.report import Method
from fedsift.report.gaps import Gap, Pairing

NUMBERS = (
    "rounds",
    "accuracy",
    "accuracy_sd",
    "measured_on",
    "uplink_bytes_per_upload",
    "uplink_bytes",
    "downlink_bytes",
    "broadcast_bytes",
    "total_bytes",
    "client_steps_per_round",
    "server_steps_per_round",
    "seconds",
)
NO_GAP = {"against": None, "mean": None, "low": None, "high": None, "seeds": None, "ahead": None}
HEADINGS = ("method", "seeds", "accuracy", "gap", "per upload", "all up", "all down")
SIZES = ("uplink_bytes_per_upload", "uplink_bytes", "downlink_bytes")


def to_csv(compared: Sequence[Method], paired: Pairing) -> str:
    """Every figure in a column of its own, a row per method; bytes and accuracies as numbers."""
    rows = []
    for method in compared:
        row, gap = method.row(), _flatten_gap(paired.gaps.get(method.label))
        rows.append(
            {"method": method.label, "seeds": len(row["seeds"])}
            | {name: row[name] for name in NUMBERS}
            | {f"gap_{name}": value for name, value in gap.items()}
        )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flatten_gap(gap: Gap | None) -> dict[str, Any]:
    if gap is None:
        return NO_GAP
    row = gap.row()
    low, high = row["interval"] or (None, None)
    return {
        "against": gap.against,
        "mean": row["mean"],
        "low": low,
        "high": high,
        "seeds": len(gap.seeds),
        "ahead": gap.ahead,
    }


def to_markdown(compared: Sequence[Method], paired: Pairing) -> str:
    rows = _cells(compared, paired, str)
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
    table = "\n".join(f"| {' | '.join(_escape_pipes(cell) for cell in line)} |" for line in lines)
    return f"{table}\n\n{explain_figures(paired)}\n"


def _escape_pipes(cell: str) -> str:
    return cell.replace("|", r"\|")


def to_latex(compared: Sequence[Method], paired: Pairing) -> str:
    """A tabular that needs no package."""
    rows = _cells(compared, paired, _escape_latex)
    body = [r"\hline", " & ".join(HEADINGS) + r" \\", r"\hline"]
    body += [" & ".join(row) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(HEADINGS) - 1)}}}"
    lines = [f"% {explain_figures(paired)}", begin, *body, r"\hline", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def explain_figures(paired: Pairing) -> str:
    """What stands behind ± and in brackets."""
    told = ["accuracy: mean over seeds ± standard deviation"]
    if paired.gaps:
        to = " or ".join(paired.baselines)
        told.append(f"gap: mean over the same seeds to {to} (95 % interval, Student's t)")
    return "; ".join([*told, "sizes in bytes"]) + "."


def _cells(
    compared: Sequence[Method], paired: Pairing, escape: Callable[[str], str]
) -> list[tuple[str, ...]]:
    found = []
    for method in compared:
        row, gap = method.row(), paired.gaps.get(method.label)
        spread = "" if row["accuracy_sd"] is None else f" ± {row['accuracy_sd']:.3f}"
        cells = (method.label, str(len(row["seeds"])), f"{row['accuracy']:.3f}{spread}")
        told = "" if gap is None else format_gap(gap)
        found.append((*map(escape, (*cells, told)), *(f"{row[name]:,}" for name in SIZES)))
    return found


def format_gap(gap: Gap) -> str:
    """ "+.068 (+.036 to +.100)": the mean and its 95 % interval, which one seed does not have."""
    mean, interval = format_signed(gap.mean), gap.interval
    if interval is None:
        return mean
    return f"{mean} ({' to '.join(map(format_signed, interval))})"


def format_signed(value: float) -> str:
    """ "+.068", as gaps are written in tables."""
    return re.sub(r"^([+-])0\.", r"\1.", f"{value:+.3f}")


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {letter: rf"\{letter}" for letter in "&%$#_{}"} | {"±": r"$\pm$"}


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
