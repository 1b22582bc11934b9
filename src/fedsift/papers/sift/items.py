"""What the study shows, item by item: the cells to run, and what they must show.

"With parts" is a system that has been given every part it can use: the local prior, replay, mixup
where it distils, and on CIFAR-10 the self-supervised start.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedsift.reproduction.paper import Item
from fedsift.reproduction.plans import Cell, Plan, make_cells
from fedsift.reproduction.verdicts import Above, Claim, Comparison, Fits, Keeps, Reaches

ALPHAS = (0.1, 1.0, 100.0)
STRONG = 0.1
FEDAVG, FAS = "fedavg", "fas"
WITH_PARTS = (
    "fedavg-parts",
    "fedprox-parts",
    "fedntd-parts",
    "fedpaq-4-parts",
    "fedpaq-2-parts",
    "feddf-parts",
    "ds-fl-parts",
    "cfd-parts",
    "fas-parts",
)
PARTS_OUT = ("prior", "replay", "memory", "ema", "quotas", "spread", "era", "mixup", "start")
PARTS_IN = ("prior", "replay", "memory", "era", "ema", "quotas", "mixup", "hard", "start")
BUDGETS = (50, 100, 150, 300, 600, 1500, 3000, 9000, 30_000, 100_000, 320_000)
SMALL, LARGE = ("sift-1500", "sift-150"), ("sift-9000", "sift-600")

# Every system gets five trials: as it is, and four changes.
WEIGHT_TRIALS = ("", "ema-3", "ema-5", "lr-half", "lr-double")
LABEL_TRIALS = ("", "ema-0", "ema-7", "lr-half", "lr-double")
UPDATE_TRIALS = ("", "prior-5", "replay-half", "lr-half", "lr-double")  # sift's weights: no EMA
# Where step sizes decay, that is tried instead of one that was not chosen on the digits. The labels
# of `sift` have no decays.
INSTEAD = {"ema-5": "no-decays", "ema-7": "decays", "replay-half": "no-decays"}
TRIALS: dict[str, Sequence[str]] = {
    FEDAVG: WEIGHT_TRIALS,
    "fedavg-parts": WEIGHT_TRIALS,
    "fedprox-parts": ("", "prox-1", "prox-001", "ema-5", "lr-half"),
    "fedntd-parts": ("", "ntd-1", "ntd-01", "ema-5", "lr-half"),
    "fedpaq-4-parts": WEIGHT_TRIALS,
    "fedpaq-2-parts": WEIGHT_TRIALS,
    "feddf-parts": WEIGHT_TRIALS,
    "ds-fl-parts": ("", "era-5", "ema-5", "lr-half", "lr-double"),
    "cfd-parts": WEIGHT_TRIALS,
    "fas-parts": ("", "ema-0", "ema-5", "lr-half", "lr-double"),
}

REFINED = {
    "sift-1500": (
        *("", "decays", "all-uploads"),
        *("decays+all-uploads", "decays+all-uploads+spread-3"),
    ),
    "sift-150": ("", "spread-3", "all-uploads", "all-uploads+spread-3", "all-uploads+ema-7"),
}


def _pick(plan: Plan, names: Sequence[str]) -> str:
    """The one that this setting has."""
    known = plan.paper.curves(plan.setting)
    return next(name for name in names if name in known)


def _is_large(plan: Plan) -> bool:
    """Whether it is the large setting: it has a self-supervised start, and its runs are dear."""
    return plan.comparable


def _seeds(
    images: int, digits: int, first_images: int = 0, first_digits: int = 0
) -> dict[str, range]:
    return {
        "cifar10": range(first_images, first_images + images),
        "digits": range(first_digits, first_digits + digits),
    }


# --- main ---


def _main() -> Item:
    def cells(plan: Plan) -> list[Cell]:
        small, large = _pick(plan, SMALL), _pick(plan, LARGE)
        without = [f"{small}+no-start"] * _is_large(plan)
        return make_cells([small, large, *without, FAS, FEDAVG, *WITH_PARTS], ALPHAS)

    def claims(plan: Plan) -> list[Claim]:
        small, large = _pick(plan, SMALL), _pick(plan, LARGE)
        found = _image_claims() if _is_large(plan) else _digit_claims()
        found += [
            Claim(
                f"{plan.label(curve)}: ahead of plain FedAvg in every seed at alpha = {alpha:g}",
                (Above(Cell(curve, alpha), Cell(FEDAVG, alpha)),),
            )
            for curve in (small, large)
            for alpha in ALPHAS
        ]
        return found + [
            Claim(
                f"{plan.label(curve)}: ahead of every opponent with every part, alpha = {alpha:g}",
                tuple(Above(Cell(curve, alpha), Cell(other, alpha)) for other in WITH_PARTS),
            )
            for curve in (small, large)
            for alpha in ALPHAS
        ]

    return Item(
        "sift against opponents that have every part they can use",
        cells,
        claims,
        layout="budget",
        seeds=_seeds(5, 10),
        reference=lambda curve: FEDAVG,
    )


def _image_claims() -> list[Claim]:
    def claim(curve: str, alpha: float, least: float, word: str, *fits: Comparison) -> Claim:
        size = {"sift-1500": "1.5 kB", "sift-9000": "9 kB"}[curve]
        text = f"{word}: {least:.2f} in {size} at alpha = {alpha:g}".replace("0.", ".", 1)
        return Claim(text, (Reaches(Cell(curve, alpha), least), *fits))

    small, large = Cell("sift-1500", STRONG), Cell("sift-9000", STRONG)
    return [
        claim("sift-1500", 0.1, 0.67, "Must", Fits(small, 1500), Fits(small, 2000, "largest")),
        claim("sift-9000", 0.1, 0.69, "Must", Fits(large, 9000)),
        claim("sift-1500", 0.1, 0.70, "Aim"),
        claim("sift-9000", 0.1, 0.72, "Aim"),
        claim("sift-1500", 1.0, 0.70, "Aim"),
        claim("sift-1500", 100.0, 0.72, "Aim"),
    ]


def _digit_claims() -> list[Claim]:
    return [
        Claim(
            f"Must: {least:.2f} in at most {most} bytes at alpha = {alpha:g}".replace("0.", ".", 1),
            (Reaches(Cell(curve, alpha), least), Fits(Cell(curve, alpha), most, "largest")),
        )
        for curve, least, most in (("sift-150", 0.92, 150), ("sift-600", 0.95, 600))
        for alpha in ALPHAS
    ]


# --- which part brings what ---


def _ablation() -> Item:
    def variants(plan: Plan, parts: Sequence[str]) -> list[str]:
        return [part for part in parts if part != "start" or _is_large(plan)]

    def out(plan: Plan) -> list[Cell]:
        whole = _pick(plan, SMALL)
        names = [f"{whole}+no-{part}" for part in variants(plan, PARTS_OUT)]
        return make_cells([*names, f"{whole}+four-bits"], [STRONG])

    def into(plan: Plan) -> list[Cell]:
        return make_cells([f"{FAS}+{part}" for part in variants(plan, PARTS_IN)], [STRONG])

    def claims(plan: Plan) -> list[Claim]:
        whole, plain = Cell(_pick(plan, SMALL), STRONG), Cell(FAS, STRONG)
        return [
            Claim(f"{plan.label(cell.curve)}: below the whole", (Above(whole, cell),))
            for cell in out(plan)
        ] + [
            Claim(f"{plan.label(cell.curve)}: above plain FAS", (Above(cell, plain),))
            for cell in into(plan)
        ]

    def cells(plan: Plan) -> list[Cell]:
        whole, plain = Cell(_pick(plan, SMALL), STRONG), Cell(FAS, STRONG)
        return [whole, *out(plan), plain, *into(plan)]

    return Item(
        "Each part out of the whole, and each part into plain FAS",
        cells,
        claims,
        layout="variants",
        seeds=_seeds(3, 10),
        reference=lambda curve: curve.partition("+")[0],
    )


# --- more rounds, equal steps ---


def _more_rounds() -> Item:
    long = f"{FEDAVG}+long"

    def cells(plan: Plan) -> list[Cell]:
        ours = [f"{_pick(plan, names)}+long-labels" for names in (SMALL, LARGE)]
        return make_cells([*ours, long, "fedavg-parts+long", "fedpaq-4-parts+long"], ALPHAS)

    def claims(plan: Plan) -> list[Claim]:
        ours = f"{_pick(plan, SMALL)}+long-labels"
        ahead = tuple(Above(Cell(ours, alpha), Cell(long, alpha)) for alpha in ALPHAS)
        return [Claim(f"{plan.label(ours)}: ahead of plain FedAvg at every skew", ahead)]

    return Item(
        "More rounds: a curve long enough for FedAvg to settle",
        cells,
        claims,
        seeds=_seeds(3, 10),
        reference=lambda curve: long,
    )


def _equal_steps() -> Item:
    def cells(plan: Plan) -> list[Cell]:
        small = _pick(plan, SMALL)
        ours = [small, f"{small}+half-labels"]
        doubled = ["fedavg-parts", "fedpaq-4-parts"]
        halves = [name for curve in doubled for name in (curve, f"{curve}+half")]
        return make_cells([FEDAVG, FAS, *ours, *halves], [STRONG])

    def claims(plan: Plan) -> list[Claim]:
        half, plain = Cell(f"{_pick(plan, SMALL)}+half-labels", STRONG), Cell(FEDAVG, STRONG)
        text = "sift is ahead of plain FedAvg at equal steps of the clients"
        return [Claim(text, (Above(half, plain),))]

    return Item(
        "Equal steps: replay doubles them, half the epochs take that back",
        cells,
        claims,
        layout="variants",
        seeds=_seeds(3, 10),
        reference=lambda curve: FEDAVG,
    )


# --- the frontier ---


# Bytes per upload of each mode. Weights need some bits each, and labels end where all are sent.
MODES = {
    "cifar10": {
        "labels": (100, 150, 300, 600, 1500, 3000, 9000, 30_000),
        "labels-4-bits": (100, 150, 300, 600, 1500, 3000, 9000, 30_000),
        "weights": (1500, 3000, 9000, 30_000),
    },
    "digits": {
        "labels": (50, 100, 150, 300),
        "labels-4-bits": (50, 100, 150, 300, 600, 1500),
        "weights": (150, 300, 600, 1500, 3000),
    },
}
# What the method chooses by itself, so that it is not run twice.
CHOSEN = {
    "labels+bytes-1500": "sift-1500",
    "weights+bytes-9000": "sift-9000",
    "labels+bytes-150": "sift-150",
    "weights+bytes-600": "sift-600",
}
NAMES = {
    "sift-1500": "sift labels, 1,500 B",
    "sift-9000": "sift weights, 9,000 B",
    "sift-150": "sift labels, 150 B",
    "sift-600": "sift weights, 600 B",
}


def _frontier() -> Item:
    def name(plan: Plan, mode: str, size: int) -> str:
        plain = f"{mode}+bytes-{size}"
        chosen = CHOSEN.get(plain, plain)
        return chosen if chosen in plan.paper.curves(plan.setting) else plain

    def cells(plan: Plan) -> list[Cell]:
        modes = MODES[plan.setting]
        ours = [name(plan, mode, size) for mode, sizes in modes.items() for size in sizes]
        weights = ["fedpaq-2-parts", "fedpaq-4-parts", "fedavg-parts+bits-8"]
        weights += ["fedavg-parts+float16", "fedavg-parts"]
        others = ["fas-parts", "ds-fl-parts", "cfd-parts", FAS, FEDAVG]
        return make_cells([*ours, *weights, *others], ALPHAS)

    return Item(
        "The frontier: the best accuracy for the bytes of an upload",
        cells,
        lambda plan: [],
        labels=NAMES,
        layout="budget",
        seeds=_seeds(3, 10),
        budgets=BUDGETS,
    )


# --- other data ---


def _other_data(title: str, variant: str, alphas: Sequence[float]) -> Item:
    """The method in several sizes and its strongest opponents, on data that chose nothing."""
    plain = f"{FEDAVG}+{variant}"

    def cells(plan: Plan) -> list[Cell]:
        large = _is_large(plan)
        more = ["labels-4-bits+bytes-9000", "weights+bytes-3000"]
        more = more if large else ["labels-4-bits+bytes-300", "weights+bytes-300"]
        curves = [_pick(plan, SMALL), _pick(plan, LARGE), *more]
        curves += ["fedavg-parts", "fedpaq-4-parts", "fas-parts", FAS, FEDAVG]
        return make_cells([f"{curve}+{variant}" for curve in curves], alphas)

    def claims(plan: Plan) -> list[Claim]:
        ours = f"{_pick(plan, SMALL)}+{variant}"
        ahead = tuple(Above(Cell(ours, alpha), Cell(plain, alpha)) for alpha in alphas)
        return [Claim(f"{plan.label(ours)}: ahead of plain FedAvg in every seed", ahead)]

    return Item(
        title,
        cells,
        claims,
        layout="budget",
        seeds=_seeds(3, 10),
        reference=lambda curve: plain,
        budgets=BUDGETS,
    )


# --- choosing ---


def _choose() -> Item:
    def cells(plan: Plan) -> list[Cell]:
        ours = {_pick(plan, SMALL): LABEL_TRIALS, _pick(plan, LARGE): UPDATE_TRIALS}
        instead = INSTEAD if _is_large(plan) else {}
        curves = [
            "+".join(filter(None, (system, instead.get(trial, trial), "held-out")))
            for system, trials in (ours | TRIALS).items()
            for trial in trials
        ]
        return make_cells(curves, [STRONG] if _is_large(plan) else ALPHAS)

    return Item(
        "Choosing, on training samples set aside and seeds of their own: five trials each",
        cells,
        lambda plan: [],
        layout="choice",
        seeds=_seeds(2, 4, 10, 100),
    )


def _refine() -> Item:
    """The labels of `sift` at every skew: what suits one must not cost at another."""

    def cells(plan: Plan) -> list[Cell]:
        whole = _pick(plan, SMALL)
        names = ["+".join(filter(None, (whole, trial, "held-out"))) for trial in REFINED[whole]]
        return make_cells(names, ALPHAS)

    return Item(
        "Five trials of sift's memory, picks and step size, on training samples set aside",
        cells,
        lambda plan: [],
        layout="choice",
        seeds=_seeds(2, 4, 10, 100),
    )


# --- the way down ---


def _down() -> Item:
    def cells(plan: Plan) -> list[Cell]:
        whole = _pick(plan, SMALL)
        return make_cells([whole, f"{whole}+down-updates"], [STRONG])

    def claims(plan: Plan) -> list[Claim]:
        whole, few = cells(plan)
        text = "Aim: a download of one bit per weight costs at most half a point"
        return [Claim(text, (Keeps(few, whole, 0.005),))]

    return Item(
        "The way down: updates of one bit per weight instead of whole weights",
        cells,
        claims,
        layout="variants",
        seeds=_seeds(3, 10),
        reference=lambda curve: curve.partition("+")[0],
    )


ITEMS = {
    "main": _main(),
    "ablation": _ablation(),
    "more-rounds": _more_rounds(),
    "equal-steps": _equal_steps(),
    "frontier": _frontier(),
    "classes": _other_data(
        "Two classes per client, in shards; the alpha in the table has no effect",
        "two-classes",
        [STRONG],
    ),
    "fashion": _other_data("Fashion-MNIST, with nothing chosen on it", "fashion", ALPHAS),
    "elsewhere": _other_data("Public images of another data set", "elsewhere", ALPHAS),
    "choose": _choose(),
    "refine": _refine(),
    "down": _down(),
}
MAIN = ("main", "ablation", "more-rounds", "equal-steps", "frontier")
