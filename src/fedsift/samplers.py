"""Which public samples a client uploads. A sampler is a function

    (probs [N, C], label_counts [C], budget, draws) -> distinct indexes below N, at most `budget`

`probs` are the client's own soft labels on the public set, `label_counts` its private label
histogram. To add one: write the function, add a line to SAMPLERS (or pass the function itself to
`fas(sampler=...)`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsift import seeding
from fedsift.checks import check_number
from fedsift.numerics import apportion
from fedsift.numerics import entropy as entropy
from fedsift.types import Array, Draws, UserError

Sampler = Callable[[Array, Array, int, Draws], Array]


def margin_of(probs: Array) -> Array:
    """Top-1 minus top-2."""
    top = np.partition(probs.astype(np.float64), -2, axis=-1)
    return top[..., -1] - top[..., -2]


def none(probs: Array, label_counts: Array, budget: int, draws: Draws) -> Array:
    """One random subset per round, the same at every client: no active sampling."""
    return seeding.subset(draws.shared, len(probs), budget)


def random(probs: Array, label_counts: Array, budget: int, draws: Draws) -> Array:
    """Each client its own random subset."""
    return seeding.subset(draws.own, len(probs), budget)


def low_entropy(probs: Array, label_counts: Array, budget: int, draws: Draws) -> Array:
    """The samples the client is most sure of."""
    return np.argsort(entropy(probs), kind="stable")[:budget]


def high_entropy(probs: Array, label_counts: Array, budget: int, draws: Draws) -> Array:
    """The samples the client is least sure of."""
    return np.argsort(-entropy(probs), kind="stable")[:budget]


def margin(probs: Array, label_counts: Array, budget: int, draws: Draws) -> Array:
    """The samples with least margin between the two likeliest classes, as in active learning."""
    return np.argsort(margin_of(probs), kind="stable")[:budget]


def class_balanced(probs: Array, label_counts: Array, budget: int, draws: Draws) -> Array:
    """Lowest entropy with equal quotas per pseudo-label."""
    return by_quota(probs, apportion(np.ones(len(label_counts)), budget))


def mixed(probs: Array, label_counts: Array, budget: int, draws: Draws) -> Array:
    """FAS: half lowest entropy, pseudo-labels distributed as own labels; half random from rest."""
    sure = by_quota(probs, apportion(label_counts, (budget + 1) // 2))
    left = np.ones(len(probs), bool)
    left[sure] = False
    rest = np.flatnonzero(left)
    return np.concatenate([sure, draws.own.choice(rest, budget - len(sure), replace=False)])


def by_quota(probs: Array, shares: Array) -> Array:
    """Per class, the `shares[c]` lowest-entropy samples with that pseudo-label; quotas that cannot
    be filled pass on to the lowest entropy overall."""
    order = np.argsort(entropy(probs), kind="stable")
    pseudo = probs.argmax(-1)[order]
    chosen = np.zeros(len(order), bool)
    for label, share in enumerate(shares):
        chosen[np.flatnonzero(pseudo == label)[:share]] = True
    chosen[np.flatnonzero(~chosen)[: shares.sum() - chosen.sum()]] = True
    return order[chosen]


@dataclass(frozen=True)
class OwnClasses:
    """The surest samples of the classes the client has, with a quota per class.

    power: a class of n samples gets a share of n^power: 1 in proportion, 0.5 by square root, 0 even
    least: a class is the client's own from this share of an even split on (n / C samples)
    spread: of each class as many samples as 1 + spread quotas are drawn, and the surest sent

    Only samples predicted as an own class are chosen. What a class cannot fill is not sent. Without
    a draw, clients of equal skill choose the same samples. The draw keeps them apart where classes
    are shared, and changes little where a client has its classes almost to itself.
    """

    power: float = 0.5
    least: float = 0.2
    spread: float = math.inf

    def __post_init__(self) -> None:
        check_number("power", self.power)
        check_number("least", self.least)
        check_number("spread", self.spread)
        if not self.power >= 0 or not 0 <= self.least <= 1 or not self.spread >= 0:
            raise UserError(
                "own-classes takes a power and a spread of 0 or more and a least share from 0 to 1,"
                f" not {self.power}, {self.spread} and {self.least}"
            )

    def __call__(self, probs: Array, label_counts: Array, budget: int, draws: Draws) -> Array:
        own = find_own_classes(label_counts, self.least)
        weights = np.where(own, label_counts, 0).astype(float) ** self.power * own
        pseudo = probs.argmax(-1)
        if not own[pseudo].any():  # an upload is never empty: the likeliest of an own class
            return probs[:, own].sum(-1).argmax(keepdims=True)
        shares = apportion(weights, budget)
        drawn = self._draw(pseudo, shares, draws)
        order = drawn[np.argsort(entropy(probs[drawn]), kind="stable")]
        picks = _first_of_each(order, pseudo[order], shares)
        if len(picks):
            return picks
        mine = np.flatnonzero(own[pseudo])  # of few picks its lesser classes have no share
        return mine[np.argsort(entropy(probs[mine]), kind="stable")[:1]]

    def _draw(self, pseudo: Array, shares: Array, draws: Draws) -> Array:
        """The samples to choose from, ascending."""
        if math.isinf(self.spread):
            return np.arange(len(pseudo))
        order = draws.own.permutation(len(pseudo))
        most = np.ceil(shares * (1 + self.spread)).astype(np.int64)
        return np.sort(_first_of_each(order, pseudo[order], most))


def find_own_classes(label_counts: Array, least: float) -> Array:
    """Which classes a client really has, [C] bool: enough for its own size, and never none."""
    even = label_counts.sum() / len(label_counts)
    threshold = min(max(1.0, least * even), label_counts.max())
    return label_counts >= threshold


def _first_of_each(order: Array, pseudo: Array, shares: Array) -> Array:
    """Of samples in this order, the first `shares[c]` of every class c."""
    chosen = np.zeros(len(order), bool)
    for label, share in enumerate(shares):
        chosen[np.flatnonzero(pseudo == label)[:share]] = True
    return order[chosen]


SAMPLERS: dict[str, Sampler | type[Sampler]] = {
    "none": none,
    "random": random,
    "low-entropy": low_entropy,
    "mixed": mixed,
    "high-entropy": high_entropy,
    "margin": margin,
    "class-balanced": class_balanced,
    "own-classes": OwnClasses,
}
DERIVED = (none, random)  # both ends draw the same rows, so a client has no choice
