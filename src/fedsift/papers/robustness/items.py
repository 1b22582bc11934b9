"""What the study shows, item by item: the cells to run, and what they must show.

A curve is an algorithm and a rule, "fas+trust", and with hostile clients also an attack and their
share, "fas+trust+wrong+share-20". Every cell is compared with honest clients under the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedsift.papers.robustness import tables
from fedsift.reproduction.paper import Item
from fedsift.reproduction.plans import Cell, Plan, make_cells
from fedsift.reproduction.verdicts import Claim, Keeps
from fedsift.runs import History

ALPHAS = (100.0, 1.0, 0.1)
USUAL = 1.0
# Rules that look at one sample need several votes for it: they apply where all answer the same.
RULES = {
    "fd": ("mean", "era", "trust", "geometric", "trimmed"),
    "fas": ("mean", "era", "trust"),
    "sift": ("memory-mean", "memory-era", "memory-trust"),
}
ATTACKS = (
    *("random", "fixed", "flipped", "runner-up", "lma", "cpa", "hips-lma", "hips-cpa"),
    *("wrong", "colluding", "hollow", "adaptive", "adaptive-bold", "over-budget", "sleeper"),
    *("poison", "persistent"),
)
# of one client of five or ten, beside `wrong`: those that know the rule, and the worst of the rest
OTHERS = (
    *("adaptive", "adaptive-bold", "adaptive-rarest", "hollow", "colluding", "poison"),
    *("persistent", "persistent-turns"),
)
# in items of their own, not in the grid
CLASSICAL = ("mean", "median", "trimmed", "geometric", "cronus", "filter", "expguard")
JUDGES = ("trust", "trust-cap")
AUDIT_ATTACKS = ("sleeper", "colluding", "wrong", "false-answers")
WEIGHT_RULES = ("plain", "clip", "equal", "equal-clip", "weight-median", "weight-trimmed")
WEIGHT_ATTACKS = ("sign-flip", "scale", "inflated-counts")
BOUNDS = ("plain", "clip", "equal", "equal-clip")
BOUNDED_ATTACKS = ("scale", "inflated-counts")  # no bound stops a turned update
LARGE_RULES = {  # on CIFAR-10
    "fas": (*RULES["fas"], "trust-unlimited"),
    "sift": (*RULES["sift"], "memory-trust-unlimited"),
}
LARGE_ATTACKS = ("wrong", "adaptive", "adaptive-bold", "poison", "persistent")
SHARES = ("share-10", "share-20", "share-30", "share-45")
FIFTH, TENTH = "share-20", "share-10"


def _is_small(plan: Plan) -> bool:
    return plan.setting == plan.paper.quick


def list_rules(algorithms: Sequence[str] = tuple(RULES)) -> list[str]:
    """ "fd+mean", ...: every algorithm with every rule that applies."""
    return [f"{algorithm}+{rule}" for algorithm in algorithms for rule in RULES[algorithm]]


def honest_curve(curve: str) -> str:
    """The same algorithm and rule, and the same setting, with honest clients."""
    hostile = {*ATTACKS, *OTHERS, *AUDIT_ATTACKS, *WEIGHT_ATTACKS, *SHARES}
    return "+".join(part for part in curve.split("+") if part not in hostile)


# --- the grid ---


def _grid() -> Item:
    def cells(plan: Plan) -> list[Cell]:
        if _is_small(plan):
            few = [f"fas+{rule}{end}" for rule in RULES["fas"] for end in ("", f"+wrong+{FIFTH}")]
            return make_cells(few, [USUAL])
        found = make_cells(list_rules(), ALPHAS)
        for rule in list_rules():
            for attack in ATTACKS:
                found += make_cells([f"{rule}+{attack}+{FIFTH}"], ALPHAS)
                others = [share for share in SHARES if share != FIFTH]
                found += make_cells([f"{rule}+{attack}+{share}" for share in others], [USUAL])
        return found

    return _make_grid("Every attack against every rule that applies", cells, 2)


def _make_grid(title: str, cells: Callable[[Plan], list[Cell]], seeds: int) -> Item:
    """Points lost, in tables of attacks and rules and as a picture."""
    return Item(
        title,
        cells,
        lambda plan: [],
        layout="variants",
        seeds={"digits": range(seeds), "digits-small": range(1)},
        reference=honest_curve,
        figures=count_alarms,
        tables=tables.list_grid,
        draw=tables.draw_grid,
    )


# --- what it must show ---


def _must(title: str, rules: Sequence[str], attacks: Sequence[str]) -> Item:
    """All are compared with honest clients under the mean. The last rule is the one judged."""
    sizes = {"five": ("5", FIFTH, 0.05), "ten": ("10", TENTH, 0.02)}

    def curves(plan: Plan) -> list[str]:
        found = []
        for size, (_, share, _) in sizes.items():
            ends = [
                "",
                *(f"+{attack}+{share}" for attack in attacks[: 1 if _is_small(plan) else None]),
            ]
            found += [f"fas+mean+{size}"]
            found += [f"fas+{rule}+{size}{end}" for rule in rules for end in ends]
        return list(dict.fromkeys(found))

    def claims(plan: Plan) -> list[Claim]:
        found, run = [], curves(plan)
        for size, (count, share, loss) in sizes.items():
            honest = Cell(f"fas+mean+{size}", USUAL)
            trusted = f"fas+{rules[-1]}+{size}"
            for attack in attacks:
                if (curve := f"{trusted}+{attack}+{share}") in run:
                    what = f"1 of {count} `{attack}` costs at most {loss * 100:g} points"
                    keeps = Keeps(Cell(curve, USUAL), honest, loss)
                    found.append(Claim(f"Must: {what}", (keeps,)))
            keeps = Keeps(Cell(trusted, USUAL), honest, 0.01)
            found.append(Claim(f"Must: {count} honest clients lose at most 1 point", (keeps,)))
        return found

    return Item(
        title,
        lambda plan: make_cells(curves(plan), [USUAL]),
        claims,
        layout="variants",
        seeds={"digits": range(20), "digits-small": range(2)},
        reference=lambda curve: f"fas+mean+{curve.split('+')[2]}",
        figures=count_alarms,
    )


# --- smaller grids, each for one question ---


def _small_grid(
    title: str,
    algorithm: str,
    rules: Sequence[str],
    attacks: Sequence[str],
    alphas: Sequence[float],
    variant: str = "",
) -> Item:
    """These attacks by a fifth of the clients against these rules, under a variant of all."""

    def cells(plan: Plan) -> list[Cell]:
        few = _is_small(plan)
        found = []
        for rule in rules:
            said = ["", *(f"+{attack}+{FIFTH}" for attack in attacks[: 1 if few else None])]
            base = f"{algorithm}+{rule}" + (f"+{variant}" if variant else "")
            found += make_cells([base + end for end in said], [USUAL] if few else alphas)
        return found

    return _make_grid(title, cells, 3)


def _classical() -> Item:
    attacks = ("wrong", "lma", "cpa", "hips-lma", "adaptive")
    title = "Rules that look at one sample at a time, where all clients answer the same samples"
    return _small_grid(title, "fd", (*CLASSICAL, *JUDGES), attacks, (1.0, 0.1))


def _weights() -> Item:
    title = "Attacks on weights, and what bounds on counts and updates do"
    return _small_grid(title, "fedavg", WEIGHT_RULES, WEIGHT_ATTACKS, (1.0, 0.1))


def _sizes() -> Item:
    title = "Bounds on counts and updates where clients have very different numbers of samples"
    return _small_grid(title, "fedavg", BOUNDS, BOUNDED_ATTACKS, (1.0, 0.1), "free-sizes")


def _audits() -> Item:
    title = "Trust without and with audit rows"
    return _small_grid(title, "fas", ("trust", "trust-audit"), AUDIT_ATTACKS, (1.0, 0.1))


# --- the same on CIFAR-10: whole for a GPU, short for two cores ---


def _heart(
    title: str,
    rules: Mapping[str, Sequence[str]] = LARGE_RULES,
    attacks: Sequence[str] = LARGE_ATTACKS,
    schedule: str = "",
) -> Item:
    """A fifth of the clients hostile, at the usual skew. Every rule that judges has its claims."""

    def cell(algorithm: str, rule: str, attack: str = "") -> Cell:
        end = f"+{attack}+{FIFTH}" if attack else ""
        return Cell(f"{algorithm}+{rule}+cifar10+large-{algorithm}{schedule}{end}", USUAL)

    def list_algorithms(plan: Plan) -> Sequence[str]:
        return ("fas",) if _is_small(plan) else tuple(rules)

    def cells(plan: Plan) -> list[Cell]:
        return [
            cell(algorithm, rule, attack)
            for algorithm in list_algorithms(plan)
            for rule in rules[algorithm]
            for attack in ("", *attacks)
        ]

    def claims(plan: Plan) -> list[Claim]:
        found = []
        for algorithm in list_algorithms(plan):
            honest = cell(algorithm, {"fas": "mean", "sift": "memory-era"}[algorithm])
            for rule in rules[algorithm]:
                if "trust" not in rule:
                    continue
                for attack in attacks[: 1 if rule.endswith("unlimited") else None]:
                    what = f"with a fifth `{attack}`, {rule} costs {algorithm} at most 3 points"
                    keeps = Keeps(cell(algorithm, rule, attack), honest, 0.03)
                    found.append(Claim(f"Must: {what}", (keeps,)))
        return found

    return Item(
        title,
        cells,
        claims,
        layout="variants",
        data={"digits": "CIFAR-10"},
        seeds={"digits": range(3), "digits-small": range(1)},
        reference=honest_curve,
        figures=count_alarms,
    )


# --- alarms ---


def count_alarms(runs: Sequence[History]) -> Mapping[str, Any]:
    """How often honest clients had no vote, and how often hostile ones, under a rule that judges.

    Both are shares of their turns; None where no client was judged.
    """
    turns, voteless = {True: 0, False: 0}, {True: 0, False: 0}
    for run in runs:
        for row in run.metrics:
            hostile, without_vote = set(row.get("hostile", [])), set(row.get("voteless", []))
            for client in map(int, row.get("trust", {})):
                turns[client in hostile] += 1
                voteless[client in hostile] += client in without_vote
    return {
        "false_alarms": round(voteless[False] / turns[False], 6) if turns[False] else None,
        "caught": round(voteless[True] / turns[True], 6) if turns[True] else None,
    }


ITEMS = {
    "must": _must(
        "One hostile client of five and of ten, all of them in every round",
        RULES["fas"],
        ("wrong",),
    ),
    "must-others": _must(
        "One of five and one of ten with other attacks, all clients in every round",
        ("trust",),
        OTHERS,
    ),
    "must-unlimited": _must(
        "One of five and one of ten, trust without the limit on contradictions",
        ("trust-unlimited",),
        ("wrong", *OTHERS),
    ),
    "grid": _grid(),
    "classical": _classical(),
    "weights": _weights(),
    "sizes": _sizes(),
    "audits": _audits(),
    "heart": _heart("A fifth of the clients hostile on CIFAR-10"),
    "heart-short": _heart(
        "The same with a seventh of the training, for two cores",
        {"fas": ("mean", "trust")},
        ("wrong", "persistent"),
        "+short",
    ),
}
