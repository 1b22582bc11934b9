"""Whole shares of a total, in proportion to weights."""

from __future__ import annotations

import numpy as np

from fedsift.types import Array


def apportion(weights: Array, total: int) -> Array:
    """`total` as whole numbers in proportion to `weights`, by largest remainder (the lower position wins a tie)."""
    exact = weights * (total / weights.sum())
    shares = np.floor(exact).astype(np.int64)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return shares
