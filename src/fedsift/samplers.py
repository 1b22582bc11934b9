"""Which public samples a client uploads. A sampler is a function

    (probs [N, C], label_counts [C], budget, draws) -> distinct indexes below N, at most `budget`

`probs` are the client's own soft labels on the public set, `label_counts` its private label
histogram. To add one: write the function, add a line to SAMPLERS (or pass the function itself to
`fas(sampler=...)`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsift import seeding
from fedsift.numerics import apportion
from fedsift.numerics import entropy as entropy
from fedsift.types import Array, Draws

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
    rest = np.setdiff1d(np.arange(len(probs)), sure)
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


SAMPLERS: dict[str, Sampler] = {
    "none": none,
    "random": random,
    "low-entropy": low_entropy,
    "mixed": mixed,
    "high-entropy": high_entropy,
    "margin": margin,
    "class-balanced": class_balanced,
}
