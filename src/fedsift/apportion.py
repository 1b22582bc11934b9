"""Whole shares of a total, in proportion to weights."""

from __future__ import annotations

import numpy as np

from fedsift.types import Array


def apportion(weights: Array, total: int) -> Array:
    """`total` as whole numbers in proportion to `weights`, by largest remainder (the lower position wins a tie)."""
    exact = weights * (total / weights.sum())
    shares = np.floor(exact + 1e-9).astype(np.int64)
    remainders = np.round(exact - shares, 9)  # equal remainders must not be told apart by rounding errors
    shares[np.argsort(-remainders, kind="stable")[: total - shares.sum()]] += 1
    return shares
