"""How uploaded weights are averaged: by claimed sample counts, within bounds.

A count is a claim. It is fixed by a client's first accepted upload, and in an average no client
counts more than `MOST` lower medians of the cohort. Updates can be clipped to a multiple of the
cohort's lower median norm. A median or a trimmed mean of every weight needs no counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsift import registry
from fedsift.checks import check_number
from fedsift.codecs import WireError
from fedsift.codecs.weights import is_statistic
from fedsift.numerics import lower_median
from fedsift.types import Array, UserError, Weights

COUNTS = ("claimed", "equal")
AVERAGES = ("mean", "median", "trimmed-mean")
TRIMMED = 0.25  # of the values of a weight that a trimmed mean drops at each end, at least one
MOST = 3  # lower medians of the cohort's counts that one client may count

Uploads = Iterable[tuple[int, tuple[Weights, int]]]  # by client: weights and claimed samples


def check_count(samples: int, before: int | None) -> None:
    """A claimed number of samples, beside what this client has claimed before."""
    if samples == 0:
        raise WireError("weights of a client without samples")
    if before is not None and samples != before:
        raise WireError(f"a claim of {samples} samples; this client has claimed {before} before")


def check_stored_counts(counts: Mapping[int, int], clients: int) -> None:
    """Of a run folder: claims that these clients can have made."""
    for client, samples in counts.items():
        if not (0 <= client < clients and 0 < samples < 2**32):
            raise UserError(f"it has a client {client} that claimed {samples} samples")


def cap_counts(counts: Mapping[int, int]) -> dict[int, int]:
    """The counts, where none is more than `MOST` lower medians."""
    most = MOST * lower_median([*counts.values()]) if counts else 0
    return {client: min(samples, int(most)) for client, samples in counts.items()}


@dataclass(frozen=True)
class Averaging:
    counts: str = "claimed"  # what a client counts: its claimed samples, or "equal"
    clip: float | None = None  # lower medians of the cohort that an update may be long; None: any
    rule: str = "mean"  # the others count every client once, and hold all uploads at once

    def __post_init__(self) -> None:
        registry.lookup(dict.fromkeys(AVERAGES), "average", self.rule, " or ".join(AVERAGES))
        registry.lookup(dict.fromkeys(COUNTS), "counts", self.counts, " or ".join(COUNTS))
        if self.clip is not None:
            check_number("clip", self.clip)
            if not self.clip > 0:
                raise UserError(
                    f"clip is a multiple of the median update, above 0, not {self.clip}"
                )

    def average(self, uploads: Uploads, base: Weights) -> tuple[Weights, dict[int, int]]:
        """The average, and the claimed samples by client. `base`: what the updates are from.

        Honest counts take one pass. Clipping takes two, and so do counts that must be capped.
        """
        if isinstance(uploads, Iterator):  # it can be read once
            uploads = list(uploads)
        if self.clip is not None:
            uploads = _Clipped(uploads, base, self.clip)
        claimed: dict[int, int] = {}
        if self.rule != "mean":
            states = [state for state, _ in self._weigh(uploads, claimed)]
            return join_weights(states, self.rule), claimed
        found = average(self._weigh(uploads, claimed))
        counted = cap_counts(claimed)
        if self.counts == "equal" or counted == claimed:
            return found, claimed
        return average((state, counted[client]) for client, (state, _) in uploads), claimed

    def _weigh(self, uploads: Uploads, claimed: dict[int, int]) -> Iterator[tuple[Weights, int]]:
        """One upload at a time; what they claim is noted on the way."""
        for client, (state, samples) in uploads:
            claimed[client] = samples
            yield state, 1 if self.counts == "equal" else samples

    def clip_updates(
        self, uploads: Mapping[int, tuple[Weights, int]], base: Weights
    ) -> dict[int, tuple[Weights, int]]:
        """The uploads, with the long updates shortened."""
        return dict(uploads if self.clip is None else _Clipped(uploads.items(), base, self.clip))

    def average_outputs(self, outputs: Sequence[Array]) -> Array:
        """What the models of an ensemble say, by the rule for weights."""
        if self.rule == "mean":
            return np.asarray(np.mean(outputs, axis=0))
        return average_middle([torch.as_tensor(one) for one in outputs], self.rule).numpy()


class _Clipped:
    """Uploads whose updates are no longer than so many lower medians of the cohort."""

    def __init__(self, uploads: Uploads, base: Weights, clip: float) -> None:
        self._uploads, self._base = uploads, base
        self._norms = {client: measure_update(state, base) for client, (state, _) in uploads}
        self._most = clip * lower_median([*self._norms.values()]) if self._norms else 0.0

    def __iter__(self) -> Iterator[tuple[int, tuple[Weights, int]]]:
        for client, (state, samples) in self._uploads:
            norm = self._norms[client]
            if norm > self._most:
                state = shorten_update(state, self._base, self._most / norm)
            yield client, (state, samples)


def measure_update(state: Weights, base: Weights) -> float:
    """The norm of state - base over all parameters; running statistics have other units."""
    squares = [
        (value.double() - base[name].double()).square().sum()
        for name, value in state.items()
        if value.is_floating_point() and not is_statistic(name)
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def shorten_update(state: Weights, base: Weights, share: float) -> Weights:
    """base + share (state - base); counters stay."""
    return {
        name: torch.lerp(base[name].double(), value.double(), share).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in state.items()
    }


def average(uploads: Iterable[tuple[Weights, int]]) -> Weights:
    """Weighted mean in one pass, in float64. Of integer buffers (counters) the largest is kept."""
    total: Weights = {}
    types: dict[str, torch.dtype] = {}
    weight = 0
    for state, samples in uploads:
        weight += samples
        for name, value in state.items():
            types[name] = value.dtype
            if not value.is_floating_point():
                total[name] = torch.maximum(total.get(name, value), value)
            elif name in total:
                total[name].add_(value, alpha=samples)  # exact in float64
            else:
                total[name] = value.double() * samples
    if weight == 0:
        raise UserError("nothing to average: no client has any samples")
    return {
        name: (value / weight if types[name].is_floating_point else value).to(types[name])
        for name, value in total.items()
    }


def join_weights(states: Sequence[Weights], rule: str) -> Weights:
    """Weight by weight, the median or the trimmed mean; of counters the largest is kept."""
    if not states:
        raise UserError("nothing to average: no client has uploaded weights")
    return {
        name: average_middle([state[name] for state in states], rule).to(value.dtype)
        if value.is_floating_point()
        else torch.stack([state[name] for state in states]).amax(0)
        for name, value in states[0].items()
    }


def average_middle(values: Sequence[Tensor], rule: str) -> Tensor:
    """Number by number, the mean without the lowest and the highest, in float64.

    The median keeps one number or two. Of one or two values nobody can say which is off.
    """
    count = len(values)
    outer = (count - 1) // 2 if rule == "median" else max(1, int(TRIMMED * count))
    drop = outer if count > 2 else 0
    ordered = torch.stack([value.double() for value in values]).sort(0).values
    return ordered[drop : count - drop].mean(0)
