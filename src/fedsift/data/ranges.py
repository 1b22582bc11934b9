"""Whether private inputs look like the public ones: another unit trains without a word."""

from __future__ import annotations

import numpy as np

from fedsift.checks import count
from fedsift.types import Array, Samples

LOOKED_AT = 1000  # samples of each part, evenly spread
MARGIN = 1.0  # widths of the public range that a value may be outside of it
SHARE = 0.01  # of private values that may be further outside
FARTHEST = 10.0  # widths of the public range: not a single value may be further outside
SPREAD = 20.0  # the public deviation may be so many times the private one
ENOUGH = 20  # values, for their range or deviation to say something
NAMED = 3  # columns that are named


def compare_inputs(private: Samples, public: Samples) -> list[str]:
    """What is odd about private inputs beside the public ones, in words; nothing if all is well.

    Both are looked at as a network sees them, normalised. Columns of a table are held against
    their own; images as a whole.
    """
    if private.shape != public.shape:
        return [f"private samples have shape {private.shape}, public ones {public.shape}"]
    if not len(private) or not len(public):
        return []
    own, known = _take(private), _take(public)
    if bad := int((~np.isfinite(own)).any(1).sum()):
        return [f"{count(bad, 'private sample')} with inputs that are not finite"]
    if len(private.shape) == 1:
        return _compare_columns(own, known)
    said = _compare(own.ravel(), known.ravel())
    return [f"private inputs {said}"] if said else []


def _take(samples: Samples) -> Array:
    """[n, values]"""
    rows = np.linspace(0, len(samples) - 1, min(len(samples), LOOKED_AT)).astype(int)
    taken: Array = samples[rows].tensor().double().numpy().reshape(len(rows), -1)
    return taken


def _compare_columns(own: Array, known: Array) -> list[str]:
    found = {
        column: said
        for column in range(own.shape[1])
        if (said := _compare(own[:, column], known[:, column]))
    }
    told = [f"column {column} of private inputs {said}" for column, said in found.items()]
    more = len(told) - NAMED
    return told[:NAMED] + ([f"{count(more, 'more column')} of this kind"] if more > 0 else [])


def _compare(own: Array, known: Array) -> str | None:
    if known.size < ENOUGH:
        return None
    low, high = float(known.min()), float(known.max())
    width = (high - low) or max(1.0, abs(high))
    away = np.maximum(low - own, own - high) / width
    ranges = f"go from {own.min():.3g} to {own.max():.3g}, public ones from {low:.3g} to {high:.3g}"
    if away.max() > FARTHEST or (away > MARGIN).mean() > SHARE:
        return f"{ranges}: another unit or another scaling?"
    if own.size >= ENOUGH and known.std() > SPREAD * own.std():
        return f"{ranges}, and hardly differ: another unit or another scaling?"
    return None
