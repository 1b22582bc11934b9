"""What is claimed, and whether runs confirm it.

Runs are compared seed by seed: same split, same clients, same cohorts. A comparison holds, or
fails, only if every seed says so; where they disagree it is open. One seed is no final verdict,
which the report says beside it. A gap of one seed that rounding alone could cause is open. What is
said of the mean is judged by the mean, with the interval of it that reaches beyond the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, ClassVar, Protocol

from fedsift.report.gaps import find_interval
from fedsift.reproduction.plans import Cell

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "open", "not run"
PARTLY = "holds where it was run"
# the same experiment, batched with others, may differ by so much or a little more
ROUNDING = 0.015
ENOUGH = 3  # seeds of which a 95 % interval is told
Figures = Mapping[Cell, Sequence[float]]  # one figure per seed, in order


class Comparison(Protocol):
    """Some cells, what is compared of them, and how far it is above (> 0) or below its bound."""

    @property
    def cells(self) -> tuple[Cell, ...]: ...

    def gap(self, *figures: float) -> float: ...

    def margin(self, gap: float) -> float: ...


@dataclass(frozen=True)
class _Pair:
    left: Cell
    right: Cell

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.left, self.right

    def gap(self, *figures: float) -> float:
        left, right = figures
        return left - right


@dataclass(frozen=True)
class Above(_Pair):
    """`left` is above `right`; slack > 0: not below by more than it; slack < 0: above by more."""

    slack: float = 0.0

    def margin(self, gap: float) -> float:
        return gap + self.slack

    def __str__(self) -> str:
        if self.slack < 0:
            return f"{self.left} above {self.right} by more than {-self.slack:g}"
        how = f"at least (within {self.slack:g})" if self.slack else "above"
        return f"{self.left} {how} {self.right}"


@dataclass(frozen=True)
class Near(_Pair):
    """The two differ by less than `within`."""

    within: float

    def margin(self, gap: float) -> float:
        return self.within - abs(gap)

    def __str__(self) -> str:
        return f"{self.left} within {self.within:g} of {self.right}"


@dataclass(frozen=True)
class Keeps(_Pair):
    """In the mean of all seeds `left` is at most `loss` below `right`."""

    loss: float = 0.0

    of_mean: ClassVar[bool] = True

    def margin(self, gap: float) -> float:
        return gap + self.loss

    def __str__(self) -> str:
        return f"{self.left} at most {self.loss:g} below {self.right} in the mean"


@dataclass(frozen=True)
class Cheaper(_Pair):
    """An upload of `left` has fewer bytes than one of `right`."""

    bytes_of: ClassVar[str] = "mean"

    def margin(self, gap: float) -> float:
        return -gap

    def __str__(self) -> str:
        return f"{self.left} with fewer bytes than {self.right}"


@dataclass(frozen=True)
class Grows:
    """The gap between the first pair is wider than that between the second, by more than `by`."""

    wide: tuple[Cell, Cell]
    narrow: tuple[Cell, Cell]
    by: float = 0.0

    @property
    def cells(self) -> tuple[Cell, ...]:
        return *self.wide, *self.narrow

    def gap(self, *figures: float) -> float:
        a, b, c, d = figures
        return (a - b) - (c - d)

    def margin(self, gap: float) -> float:
        return gap - self.by

    def __str__(self) -> str:
        (a, b), (c, d) = self.wide, self.narrow
        return f"({a} less {b}) wider than ({c} less {d})" + (f" by {self.by:g}" if self.by else "")


@dataclass(frozen=True)
class Beats:
    """The cell is above a figure that is given."""

    cell: Cell
    given: float

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    def gap(self, *figures: float) -> float:
        return figures[0] - self.given

    def margin(self, gap: float) -> float:
        return gap

    def __str__(self) -> str:
        return f"{self.cell} above {self.given:g}"


@dataclass(frozen=True)
class Reaches(Beats):
    """The mean of all seeds is at least a figure that is given."""

    of_mean: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.cell} at least {self.given:g} in the mean"


@dataclass(frozen=True)
class Fits:
    """Uploads have at most so many bytes: the mean one ("mean") or every one ("largest")."""

    cell: Cell
    most: int
    bytes_of: str = "mean"

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    def gap(self, *figures: float) -> float:
        return figures[0] - self.most

    def margin(self, gap: float) -> float:
        return 1e-6 - gap  # as many as are allowed still fit

    def __str__(self) -> str:
        which = "the mean upload" if self.bytes_of == "mean" else "every upload"
        return f"{which} of {self.cell} in {self.most:,} bytes"


def judge_comparison(comparison: Comparison, gaps: Sequence[float]) -> str:
    """What all seeds say, given one gap per seed; or their mean, where the comparison is of it."""
    if getattr(comparison, "of_mean", False):
        return HOLDS if comparison.margin(fmean(gaps)) >= 0 else FAILS
    margins = [comparison.margin(gap) for gap in gaps]
    if getattr(comparison, "bytes_of", None):
        return _agree(margins)
    if len(margins) == 1 and abs(margins[0]) < ROUNDING:
        return OPEN
    return _agree(margins)


def find_reach(comparison: Comparison, gaps: Sequence[float]) -> float | None:
    """The end of the interval that is on the other side of the limit than the mean is."""
    if not getattr(comparison, "of_mean", False):
        return None
    held = comparison.margin(fmean(gaps)) >= 0
    ends = find_interval(gaps, ENOUGH) or ()
    return next((end for end in ends if (comparison.margin(end) >= 0) != held), None)


def _agree(margins: Sequence[float]) -> str:
    if all(margin > 0 for margin in margins):
        return HOLDS
    return FAILS if all(margin <= 0 for margin in margins) else OPEN


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or an expectation, as comparisons that can fail.

    `figure` is what is compared: "accuracy" over the last rounds, or "pace", the mean over all
    rounds.
    """

    text: str
    comparisons: tuple[Comparison, ...]
    figure: str = "accuracy"


def compute_gaps(comparison: Comparison, figures: Figures) -> list[float]:
    """One gap per seed."""
    values = [figures[cell] for cell in comparison.cells]
    return [comparison.gap(*row) for row in zip(*values, strict=True)]


def judge_claim(
    claim: Claim,
    figures: Figures,
    paper: Mapping[Cell, float],
    uploads: Mapping[str, Figures] | None = None,
) -> dict[str, Any]:
    """The claim with its evidence, as it stands in the JSON.

    What decides is, of the comparisons with the overall verdict, the one furthest from holding.
    `uploads` are the "mean" and the "largest" bytes per upload, for the comparisons of bytes.
    """
    rows = [
        _describe_comparison(comparison, (uploads or {}).get(kind, {}), {}) | {"unit": "bytes"}
        if (kind := getattr(comparison, "bytes_of", None))
        else _describe_comparison(comparison, figures, paper)
        for comparison in claim.comparisons
    ]
    run = [n for n, row in enumerate(rows) if row["verdict"] != NOT_RUN]
    overall = next(
        (v for v in (FAILS, OPEN, HOLDS) if any(rows[n]["verdict"] == v for n in run)), NOT_RUN
    )
    deciding = [n for n in run if rows[n]["verdict"] == overall]
    return {
        "claim": claim.text,
        "verdict": PARTLY if overall == HOLDS and len(run) < len(rows) else overall,
        "figure": claim.figure,
        "decided_by": min(
            deciding, key=lambda n: claim.comparisons[n].margin(rows[n]["gap"]), default=None
        ),
        "evidence": rows,
    }


def _describe_comparison(
    comparison: Comparison, figures: Figures, paper: Mapping[Cell, float]
) -> dict[str, Any]:
    cells = comparison.cells
    row: dict[str, Any] = {"comparison": str(comparison)}
    if any(cell not in figures for cell in cells):
        return row | {"verdict": NOT_RUN}
    if all(cell in paper for cell in cells):
        (gap,) = compute_gaps(comparison, {cell: [paper[cell]] for cell in cells})
        row["paper"] = round(gap, 6)
    found = compute_gaps(comparison, figures)
    row |= {
        "verdict": judge_comparison(comparison, found),
        "gap": round(fmean(found), 6),
        "gaps": [round(g, 6) for g in found],
    }
    reach = find_reach(comparison, found)
    row |= {} if reach is None else {"reaches": round(reach, 6)}
    return row | {"sd": round(stdev(found), 6) if len(found) > 1 else None}
