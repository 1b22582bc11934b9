"""What the paper shows, item by item: the cells to be run, the paper's figures, and the claims to
be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from fedsift.reproduction.curves import PAPERS, Cell, Plan, cells_of
from fedsift.reproduction.verdicts import Above, Beats, Cheaper, Claim, Grows, Near

ALPHAS = (100.0, 1.0, 0.1)
SAMPLERS = ("none", "random", "low-entropy", "mixed")
WITHIN, CLEARLY = (
    0.01,
    0.02,
)  # "comparable": a point of accuracy; "clearly", "greatly": more than two

PAPER = {
    "table1": {
        100.0: (0.6835, 0.6956, 0.6694, 0.7058),
        1.0: (0.6376, 0.6516, 0.6468, 0.6506),
        0.1: (0.4644, 0.468, 0.5219, 0.5498),
    },
    "table2": {
        100.0: (0.7314, 0.7381, 0.7031, 0.7400),
        1.0: (0.6947, 0.6827, 0.7014, 0.6947),
        0.1: (0.5511, 0.5308, 0.5573, 0.5788),
    },
}


@dataclass(frozen=True)
class Item:
    """One table or figure: `cells` and `claims` are functions of the plan, since settings have
    curves of their own.
    """

    title: str
    cells: Callable[[Plan], list[Cell]]
    claims: Callable[[Plan], list[Claim]]
    paper: Mapping[Cell, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(
        default_factory=dict
    )  # what curves are called here, where not by their own name
    # or "table": curves across and skew down; "budget": accuracy against bytes; "variants": a row
    # each
    layout: str = "curves"


def _paper(table: str) -> dict[Cell, float]:
    rows = PAPER[table].items()
    return {
        Cell(f"{table}-{s}", alpha): v
        for alpha, row in rows
        for s, v in zip(SAMPLERS, row, strict=True)
    }


def _table(name: str, title: str) -> Item:
    curves = [f"{name}-{sampler}" for sampler in SAMPLERS]
    none, random, low, mixed = curves

    def claims(plan: Plan) -> list[Claim]:
        sampled = [
            Above(Cell(curve, a), Cell(none, a)) for curve in (random, low, mixed) for a in ALPHAS
        ]
        worst = [Above(Cell(other, 100), Cell(low, 100)) for other in (none, random, mixed)]
        ahead = [
            Above(Cell(sure, 0.1), Cell(other, 0.1))
            for sure in (low, mixed)
            for other in (none, random)
        ]
        level = [
            Above(Cell(mixed, a), Cell(other, a), WITHIN)
            for a in ALPHAS
            for other in (none, random, low)
        ]
        return [
            Claim("Strong skew (alpha = 0.1): low-entropy and mixed are ahead of none and random", tuple(ahead)),
            Claim("Strong skew: mixed is the best", tuple(Above(Cell(mixed, 0.1), Cell(other, 0.1)) for other in (none, random, low))),
            Claim("Mild skew (alpha = 100): mixed is at least as good as none", (Above(Cell(mixed, 100), Cell(none, 100), WITHIN),)),
            Claim("Mild skew: low-entropy is the worst", tuple(worst)),
            Claim("Low-entropy gains on none as the skew grows", (Grows((Cell(low, 0.1), Cell(none, 0.1)), (Cell(low, 100), Cell(none, 100))),)),
            Claim("Random sampling suffers from skew", (Above(Cell(random, 100), Cell(random, 1)), Above(Cell(random, 1), Cell(random, 0.1)))),
            Claim("All methods with data sampling are better than none, at every skew", tuple(sampled)),
            Claim("Mixed is better than or comparable to all others, at every skew", tuple(level)),
        ]  # fmt: skip

    return Item(title, lambda plan: cells_of(curves, ALPHAS), claims, _paper(name), layout="table")


def _fig_data() -> Item:
    same, fedavg = Cell("table2-none", 100), Cell("fedavg", 100)

    def shifted(plan: Plan) -> list[Cell]:
        return cells_of(plan.curves("public-*"), [100.0])

    def claims(plan: Plan) -> list[Claim]:
        below = tuple(Above(same, other, slack=-CLEARLY) for other in shifted(plan))
        return [
            Claim(
                "Public data of another distribution: clearly below the same distribution", below
            ),
            Claim(
                "Public data of the same distribution: comparable to FedAvg",
                (Near(same, fedavg, 0.03),),
            ),
        ]

    title = "Figure (a): the distribution of the public data"
    labels = {same.curve: "public: the same distribution"}
    return Item(title, lambda plan: [same, *shifted(plan), fedavg], claims, labels=labels)


def _fig_size() -> Item:
    def cells(plan: Plan) -> list[Cell]:
        return cells_of(plan.curves("size-*"), [100.0])

    def claims(plan: Plan) -> list[Claim]:
        sizes = cells(plan)
        more = [Above(above, below) for below, above in pairwise(sizes[:-1])]
        return [
            Claim("More uploaded soft labels are better", tuple(more)),
            Claim("... and converge faster", tuple(more), figure="pace"),
            Claim("The last doubling brings little", (Near(sizes[-1], sizes[-2], 0.015),)),
            Claim(
                "... and less than the first step",
                (Grows((sizes[1], sizes[0]), (sizes[-1], sizes[-2])),),
            ),
        ]

    return Item("Figure (b): how many soft labels are uploaded", cells, claims)


def _fig_aggregation() -> Item:
    def pair(alpha: float) -> tuple[Cell, Cell]:
        return Cell("era", alpha), Cell("table2-none", alpha)

    claims = [
        Claim("Strong skew (alpha = 0.1): ERA helps greatly", (Above(*pair(0.1), slack=-CLEARLY),)),
        Claim(
            "ERA helps where data are not i.i.d. (alpha = 1 and 0.1)",
            (Above(*pair(1)), Above(*pair(0.1))),
        ),
        Claim("ERA helps more the stronger the skew", (Grows(pair(0.1), pair(100)),)),
    ]
    title = "Figure (c): the mean against entropy reduction (ERA)"
    labels = {"table2-none": "mean", "era": "ERA"}
    return Item(
        title,
        lambda plan: cells_of(["table2-none", "era"], ALPHAS),
        lambda plan: claims,
        labels=labels,
    )


def _download() -> Item:
    faster = tuple(
        Above(Cell("table1-none", alpha), Cell("soft-labels-down", alpha)) for alpha in ALPHAS
    )
    claims = [
        Claim("Weights down converge faster than soft labels down", faster, figure="pace"),
        Claim("... and end higher", faster),
    ]
    cells = cells_of(["table1-none", "soft-labels-down"], ALPHAS)
    labels = {"table1-none": "weights down"}
    return Item(
        "Weights down against soft labels down",
        lambda plan: cells,
        lambda plan: claims,
        labels=labels,
    )


CHEAP = ("-best", "-more", "-wide")  # the curves that are to beat the paper with fewer bytes


def _beyond(name: str, table: str) -> Item:
    base, paper = Cell(f"{table}-mixed", 0.1), _paper(table)
    best = max(figure for cell, figure in paper.items() if cell.alpha == 0.1)

    def cells(plan: Plan) -> list[Cell]:
        return [base, Cell(f"{table}-low-entropy", 0.1), *cells_of(plan.curves(f"{name}-*"), [0.1])]

    def claims(plan: Plan) -> list[Claim]:
        ours = [(plan.label(cell.curve), cell) for cell in cells(plan)[1:]]
        better = [
            Claim(f"{label} is better than mixed with a plain mean", (Above(cell, base),))
            for label, cell in ours
        ]
        fewer = [
            (label, cell)
            for label, cell in ours
            if plan.setting == PAPERS and cell.curve.endswith(CHEAP)
        ]
        return better + [
            Claim(
                f"{label} beats the paper's best figure, {best}, with fewer bytes",
                (Beats(cell, best), Cheaper(cell, base)),
            )
            for label, cell in fewer
        ]

    size = {"table1": "I", "table2": "II"}[table]
    return Item(
        f"Beyond the paper: what else helps at alpha = 0.1 (samples of Table {size})",
        cells,
        claims,
        paper,
        layout="variants",
    )


def _budget() -> Item:
    def cells(plan: Plan) -> list[Cell]:
        return cells_of([*plan.curves("budget-*"), "beyond-best", "fedavg"], [100.0, 0.1])

    return Item(
        "All systems: accuracy against bytes of an upload", cells, lambda plan: [], layout="budget"
    )


ITEMS = {
    "table1": _table("table1", "Table I (in the paper: 400 of 2,000 public samples)"),
    "table2": _table("table2", "Table II (in the paper: 2,000 of 8,000 public samples)"),
    "fig-data": _fig_data(),
    "fig-size": _fig_size(),
    "fig-aggregation": _fig_aggregation(),
    "download": _download(),
    "budget": _budget(),
    "beyond": _beyond("beyond", "table1"),
    "beyond2": _beyond("beyond2", "table2"),
}
OF_THE_PAPER = ("table1", "table2", "fig-data", "fig-size", "fig-aggregation", "download")
