"""What the paper shows, item by item: the cells to run, the published figures, and the claims."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fedsift.reproduction.paper import Item
from fedsift.reproduction.plans import Cell, Plan, make_cells
from fedsift.reproduction.verdicts import Above, Beats, Cheaper, Claim, Comparison, Grows, Near

ALPHAS = (100.0, 1.0, 0.1)
SAMPLERS = ("none", "random", "low-entropy", "mixed")
WITHIN = 0.01  # "comparable": a point of accuracy
CLEARLY = 0.02  # "clearly", "greatly": more than two points

PUBLISHED = {
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


def _list_published(table: str) -> dict[Cell, float]:
    rows = PUBLISHED[table].items()
    return {
        Cell(f"{table}-{s}", alpha): v
        for alpha, row in rows
        for s, v in zip(SAMPLERS, row, strict=True)
    }


def _table(name: str, title: str) -> Item:
    curves = [f"{name}-{sampler}" for sampler in SAMPLERS]
    none, random, low, mixed = curves

    def make_claims(plan: Plan) -> list[Claim]:
        others, worse = (none, random, low), (none, random)
        ahead = [Above(Cell(c, 0.1), Cell(o, 0.1)) for c in (low, mixed) for o in worse]
        best = [Above(Cell(mixed, 0.1), Cell(o, 0.1)) for o in others]
        mild = [Above(Cell(mixed, 100), Cell(none, 100), WITHIN)]
        worst = [Above(Cell(o, 100), Cell(low, 100)) for o in (none, random, mixed)]
        gains = [Grows((Cell(low, 0.1), Cell(none, 0.1)), (Cell(low, 100), Cell(none, 100)))]
        suffers = [Above(Cell(random, mild), Cell(random, a)) for mild, a in pairwise(ALPHAS)]
        sampled = [Above(Cell(c, a), Cell(none, a)) for c in (random, low, mixed) for a in ALPHAS]
        level = [Above(Cell(mixed, a), Cell(o, a), WITHIN) for a in ALPHAS for o in others]
        claims: dict[str, Sequence[Comparison]] = {
            "Strong skew (alpha = 0.1): low-entropy and mixed are ahead of none and random": ahead,
            "Strong skew: mixed is the best": best,
            "Mild skew (alpha = 100): mixed is at least as good as none": mild,
            "Mild skew: low-entropy is the worst": worst,
            "Low-entropy gains on none as the skew grows": gains,
            "Random sampling suffers from skew": suffers,
            "All methods with data sampling are better than none, at every skew": sampled,
            "Mixed is better than or comparable to all others, at every skew": level,
        }
        return [Claim(text, tuple(comparisons)) for text, comparisons in claims.items()]

    return Item(
        title,
        lambda plan: make_cells(curves, ALPHAS),
        make_claims,
        _list_published(name),
        layout="table",
    )


def _fig_data() -> Item:
    same, fedavg = Cell("table2-none", 100), Cell("fedavg", 100)

    def shifted(plan: Plan) -> list[Cell]:
        return make_cells(plan.curves("public-*"), [100.0])

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
        return make_cells(plan.curves("size-*"), [100.0])

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
        lambda plan: make_cells(["table2-none", "era"], ALPHAS),
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
    cells = make_cells(["table1-none", "soft-labels-down"], ALPHAS)
    labels = {"table1-none": "weights down"}
    return Item(
        "Weights down against soft labels down",
        lambda plan: cells,
        lambda plan: claims,
        labels=labels,
    )


CHEAP = ("-best", "-more", "-wide")  # the curves that are to beat the paper with fewer bytes


def _beyond(name: str, table: str) -> Item:
    base, published = Cell(f"{table}-mixed", 0.1), _list_published(table)
    best = max(figure for cell, figure in published.items() if cell.alpha == 0.1)

    def cells(plan: Plan) -> list[Cell]:
        return [
            base,
            Cell(f"{table}-low-entropy", 0.1),
            *make_cells(plan.curves(f"{name}-*"), [0.1]),
        ]

    def claims(plan: Plan) -> list[Claim]:
        ours = [(plan.label(cell.curve), cell) for cell in cells(plan)[1:]]
        better = [
            Claim(f"{label} is better than mixed with a plain mean", (Above(cell, base),))
            for label, cell in ours
        ]
        fewer = [
            (label, cell) for label, cell in ours if plan.comparable and cell.curve.endswith(CHEAP)
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
        published,
        layout="variants",
    )


def _budget() -> Item:
    def cells(plan: Plan) -> list[Cell]:
        return make_cells([*plan.curves("budget-*"), "beyond-best", "fedavg"], [100.0, 0.1])

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
MAIN = ("table1", "table2", "fig-data", "fig-size", "fig-aggregation", "download")
