"""Small numerical functions that several algorithms share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedsift.types import Array

_BLOCK = 2**15  # numbers that are worked on at once: three such arrays fit a cache


def softmax(logits: Array, temperature: float) -> Array:
    """t^n = exp(z^n / T) / sum_m exp(z^m / T), float64 [N, C].

    logits: [N, C] outputs of a network
    temperature: T, above 0; 1 leaves them as they are, above 1 makes them less sure
    """
    probs = np.empty_like(logits, dtype=np.float64)
    rows = max(1, _BLOCK // logits.shape[-1] if logits.flags.c_contiguous else len(logits))
    for start in range(0, len(logits), rows):  # where a row lies in one piece, its bits are equal
        part = slice(start, start + rows)
        scaled = logits[part].astype(np.float64) / temperature
        exps = np.exp(scaled - scaled.max(-1, keepdims=True))
        probs[part] = exps / exps.sum(-1, keepdims=True)
    return probs


def apportion(weights: Array, total: int) -> Array:
    """`total` split in whole numbers by `weights`, by largest remainder (ties: lower position)."""
    exact = weights * (total / weights.sum())
    shares = np.floor(exact + 1e-9).astype(np.int64)
    remainders = np.round(exact - shares, 9)  # rounding must not make equal ones differ
    shares[np.argsort(-remainders, kind="stable")[: total - shares.sum()]] += 1
    return shares


def distinct(values: ArrayLike) -> Array:
    """The different values, ascending. np.unique gives the same, but it hashes first, which takes
    ten times as long as sorting does.
    """
    ordered = np.sort(np.asarray(values), axis=None)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]]


def entropy(probs: Array) -> Array:
    """-sum p log p along the last axis, with 0 log 0 = 0.

    probs: [..., C] probabilities
    """
    p = probs.astype(np.float64)
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def lower_median(values: ArrayLike, weights: ArrayLike | None = None) -> float:
    """The smallest value that has half of the weight at it or below; all weigh 1 if not told."""
    found = np.asarray(values)
    order = np.argsort(found, kind="stable")
    total = (np.ones(len(found)) if weights is None else np.asarray(weights)[order]).cumsum()
    return float(found[order][np.searchsorted(total, total[-1] / 2)])
