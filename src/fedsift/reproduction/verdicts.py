"""What is claimed, and whether runs bear it out. Runs are compared seed by seed: same split, same clients, same cohorts.

A comparison holds, or fails, only if every seed says so; where they disagree it is open. One seed decides nothing by
itself, so that is always said beside the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedsift.reproduction.curves import Cell

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "open", "not run"
PARTLY = "holds where it was run"
Figures = Mapping[Cell, Sequence[float]]  # a figure a seed, in the order of the seeds


@dataclass(frozen=True)
class Above:
    """`left` is above `right`; or, with a slack, not below it by more than that; or, below 0, above it by more."""

    left: Cell
    right: Cell
    slack: float = 0.0

    def verdict(self, gaps: Sequence[float]) -> str:
        if all(gap > -self.slack for gap in gaps):
            return HOLDS
        return FAILS if all(gap <= -self.slack for gap in gaps) else OPEN

    def __str__(self) -> str:
        if self.slack < 0:
            return f"{self.left} above {self.right} by more than {-self.slack:g}"
        return f"{self.left} {f'at least (within {self.slack:g})' if self.slack else 'above'} {self.right}"


@dataclass(frozen=True)
class Near:
    """The two differ by at most `within`."""

    left: Cell
    right: Cell
    within: float

    def verdict(self, gaps: Sequence[float]) -> str:
        near = [abs(gap) <= self.within for gap in gaps]
        return HOLDS if all(near) else FAILS if not any(near) else OPEN

    def __str__(self) -> str:
        return f"{self.left} within {self.within:g} of {self.right}"


@dataclass(frozen=True)
class Grows:
    """The gap between the first pair is wider than that between the second, by more than `by`."""

    wide: tuple[Cell, Cell]
    narrow: tuple[Cell, Cell]
    by: float = 0.0

    def verdict(self, gaps: Sequence[float]) -> str:
        if all(gap > self.by for gap in gaps):
            return HOLDS
        return FAILS if all(gap <= self.by for gap in gaps) else OPEN

    def __str__(self) -> str:
        (a, b), (c, d) = self.wide, self.narrow
        return f"({a} less {b}) wider than ({c} less {d})" + (f" by {self.by:g}" if self.by else "")


Comparison = Above | Near | Grows


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or what a prototype saw, as comparisons that can fail. `figure` is what is compared:
    "accuracy" over the last rounds, or "pace", the mean over all rounds."""

    text: str
    comparisons: tuple[Comparison, ...]
    figure: str = "accuracy"


def cells_in(comparison: Comparison) -> tuple[Cell, ...]:
    if isinstance(comparison, Grows):
        return (*comparison.wide, *comparison.narrow)
    return comparison.left, comparison.right


def gaps(comparison: Comparison, figures: Figures) -> list[float]:
    """Seed by seed, over the seeds all its cells have."""
    values = [figures[cell] for cell in cells_in(comparison)]
    rows = list(zip(*values, strict=True))
    return [a - b for a, b in rows] if len(values) == 2 else [(a - b) - (c - d) for a, b, c, d in rows]


def judged(claim: Claim, figures: Figures, paper: Mapping[Cell, float]) -> dict[str, Any]:
    """The claim with its evidence, ready to be written down."""
    rows = [_row(comparison, figures, paper) for comparison in claim.comparisons]
    found = [row["verdict"] for row in rows if row["verdict"] != NOT_RUN]
    overall = next((verdict for verdict in (FAILS, OPEN, HOLDS) if verdict in found), NOT_RUN)
    overall = PARTLY if overall == HOLDS and len(found) < len(rows) else overall
    return {"claim": claim.text, "verdict": overall, "figure": claim.figure, "evidence": rows}


def _row(comparison: Comparison, figures: Figures, paper: Mapping[Cell, float]) -> dict[str, Any]:
    cells = cells_in(comparison)
    row: dict[str, Any] = {"comparison": str(comparison)}
    if any(cell not in figures for cell in cells):
        return row | {"verdict": NOT_RUN}
    if all(cell in paper for cell in cells):
        row["paper"] = round(gaps(comparison, {cell: [paper[cell]] for cell in cells})[0], 4)
    found = gaps(comparison, figures)
    row |= {"verdict": comparison.verdict(found), "gap": round(fmean(found), 4), "gaps": [round(g, 4) for g in found]}
    return row | {"sd": round(stdev(found), 4) if len(found) > 1 else None}
