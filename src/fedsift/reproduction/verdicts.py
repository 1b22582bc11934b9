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
class _Pair:
    left: Cell
    right: Cell

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.left, self.right

    def gap(self, left: float, right: float) -> float:
        return left - right


@dataclass(frozen=True)
class Above(_Pair):
    """`left` is above `right`; or, with a slack, not below it by more than that; or, below 0, above it by more."""

    slack: float = 0.0

    def verdict(self, gaps: Sequence[float]) -> str:
        return _over(-self.slack, gaps)

    def __str__(self) -> str:
        if self.slack < 0:
            return f"{self.left} above {self.right} by more than {-self.slack:g}"
        return f"{self.left} {f'at least (within {self.slack:g})' if self.slack else 'above'} {self.right}"


@dataclass(frozen=True)
class Near(_Pair):
    """The two differ by at most `within`."""

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

    @property
    def cells(self) -> tuple[Cell, ...]:
        return *self.wide, *self.narrow

    def gap(self, a: float, b: float, c: float, d: float) -> float:
        return (a - b) - (c - d)

    def verdict(self, gaps: Sequence[float]) -> str:
        return _over(self.by, gaps)

    def __str__(self) -> str:
        (a, b), (c, d) = self.wide, self.narrow
        return f"({a} less {b}) wider than ({c} less {d})" + (f" by {self.by:g}" if self.by else "")


@dataclass(frozen=True)
class Beats:
    """The cell is above a figure that is given."""

    cell: Cell
    figure: float

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    def gap(self, found: float) -> float:
        return found - self.figure

    def verdict(self, gaps: Sequence[float]) -> str:
        return _over(0, gaps)

    def __str__(self) -> str:
        return f"{self.cell} above {self.figure:g}"


Comparison = Above | Near | Grows | Beats


def _over(least: float, gaps: Sequence[float]) -> str:
    if all(gap > least for gap in gaps):
        return HOLDS
    return FAILS if all(gap <= least for gap in gaps) else OPEN


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or what a prototype saw, as comparisons that can fail. `figure` is what is compared:
    "accuracy" over the last rounds, or "pace", the mean over all rounds."""

    text: str
    comparisons: tuple[Comparison, ...]
    figure: str = "accuracy"


def gaps(comparison: Comparison, figures: Figures) -> list[float]:
    """Seed by seed."""
    values = [figures[cell] for cell in comparison.cells]
    return [comparison.gap(*row) for row in zip(*values, strict=True)]


def judged(claim: Claim, figures: Figures, paper: Mapping[Cell, float]) -> dict[str, Any]:
    """The claim with its evidence, ready to be written down."""
    rows = [_row(comparison, figures, paper) for comparison in claim.comparisons]
    found = [row["verdict"] for row in rows if row["verdict"] != NOT_RUN]
    overall = next((verdict for verdict in (FAILS, OPEN, HOLDS) if verdict in found), NOT_RUN)
    overall = PARTLY if overall == HOLDS and len(found) < len(rows) else overall
    return {"claim": claim.text, "verdict": overall, "figure": claim.figure, "evidence": rows}


def _row(comparison: Comparison, figures: Figures, paper: Mapping[Cell, float]) -> dict[str, Any]:
    cells = comparison.cells
    row: dict[str, Any] = {"comparison": str(comparison)}
    if any(cell not in figures for cell in cells):
        return row | {"verdict": NOT_RUN}
    if all(cell in paper for cell in cells) and not isinstance(comparison, Beats):
        row["paper"] = round(gaps(comparison, {cell: [paper[cell]] for cell in cells})[0], 4)
    found = gaps(comparison, figures)
    row |= {"verdict": comparison.verdict(found), "gap": round(fmean(found), 4), "gaps": [round(g, 4) for g in found]}
    return row | {"sd": round(stdev(found), 4) if len(found) > 1 else None}
