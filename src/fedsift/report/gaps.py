"""By how much one method is ahead of another, seed by seed.

Runs of one seed have the same samples, clients and cohorts. So their difference is free of the luck
of the draw that both have had, and its spread is smaller than that of each accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

from fedsift import config, evaluation, registry
from fedsift.report import Method, first_name
from fedsift.runs import History
from fedsift.types import UserError

# What runs must share to be paired. Other lengths may be compared: a round's cohort is the same.
SHARED = ("data.", "partition.", "clients.count", "clients.cohort")
CONFIDENCE = 0.95
# Student's t for a two-sided interval of that confidence, by degrees of freedom from 1 on
STUDENT = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def find_student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; beyond the table by the series of Cornish and Fisher."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def find_interval(gaps: Sequence[float], fewest: int = 2) -> tuple[float, float] | None:
    """The confidence interval of the mean of paired gaps, of `fewest` seeds at least."""
    if len(gaps) < fewest:
        return None
    mean, half = fmean(gaps), find_student_t(len(gaps) - 1) * stdev(gaps) / math.sqrt(len(gaps))
    return mean - half, mean + half


@dataclass(frozen=True)
class Gap:
    """The accuracy of a method minus that of a baseline, for each seed that both have."""

    against: str
    seeds: tuple[int, ...]
    by_seed: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.by_seed)

    @property
    def sd(self) -> float | None:
        """The standard deviation of the gaps, of which one alone has none."""
        return stdev(self.by_seed) if len(self.by_seed) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean, if gaps are about normal; of one there is none.

        It says what other seeds would change, not what other data would.
        """
        return find_interval(self.by_seed)

    @property
    def ahead(self) -> int:
        """On how many seeds the method is above the baseline."""
        return sum(gap > 0 for gap in self.by_seed)

    def row(self) -> dict[str, Any]:
        sd = self.sd
        error = None if sd is None else round(sd / math.sqrt(len(self.seeds)), 6)
        return {
            "against": self.against,
            "seeds": list(self.seeds),
            "mean": round(self.mean, 6),
            "sd": None if sd is None else round(sd, 6),
            "standard_error": error,
            "interval": [round(end, 6) for end in self.interval] if self.interval else None,
            "confidence": CONFIDENCE,
            "ahead": self.ahead,
            "by_seed": [round(gap, 6) for gap in self.by_seed],
        }


@dataclass(frozen=True)
class Pairing:
    """By label: the gap of each method that has one, and why another has none."""

    gaps: dict[str, Gap]
    refusals: dict[str, str]

    @property
    def baselines(self) -> list[str]:
        return list(dict.fromkeys(gap.against for gap in self.gaps.values()))


def pair_methods(compared: Sequence[Method], against: str | None = None) -> Pairing:
    """Every method against the first baseline that it shares data, clients and cohorts with.

    All can be baselines, or those called `against`: the one with this label, or those of this name,
    as one per skew has it in a sweep.
    """
    candidates = compared if against is None else _find_baselines(compared, against)
    gaps: dict[str, Gap] = {}
    refusals: dict[str, str] = {}
    for method in compared:
        for baseline in candidates:
            if baseline is method:
                break
            try:
                gaps[method.label] = pair(method, baseline)
                break
            except UserError as error:
                refusals.setdefault(method.label, str(error))
    needless = gaps.keys() | {gap.against for gap in gaps.values()}
    return Pairing(gaps, {label: why for label, why in refusals.items() if label not in needless})


def _find_baselines(compared: Sequence[Method], name: str) -> list[Method]:
    labels = [method.label for method in compared]
    named = [method for method in compared if name in (method.label, first_name(method.runs[0]))]
    exact = [method for method in named if method.label == name]
    if not named:
        where = f"there are {', '.join(labels)}"
        raise UserError(registry.unknown_name("method", name, labels, where))
    return exact or named


def pair(method: Method, baseline: Method) -> Gap:
    """The gap between two methods; UserError where no fair pairs can be made, and why."""
    ours, theirs = _by_seed(method), _by_seed(baseline)
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    why = "they have no seed in common"
    if seeds:
        why = next(filter(None, (_obstacle(ours[seed], theirs[seed]) for seed in seeds)), "")
    if why:
        raise UserError(f"{method.label} is not paired with {baseline.label}: {why}")
    gaps = (_settled(ours[seed]) - _settled(theirs[seed]) for seed in seeds)
    return Gap(baseline.label, seeds, tuple(gaps))


def _by_seed(method: Method) -> dict[int, History]:
    return {run.experiment.seed: run for run in method.runs}


def _settled(run: History) -> float:
    return evaluation.average_last(run.accuracies)


def _obstacle(one: History, other: History) -> str:
    """What two runs of one seed do not share, in words."""
    differing = config.differences(one.experiment, other.experiment)
    told = [
        f"{key} is {ours!r}, not {theirs!r}"
        for key, (ours, theirs) in differing.items()
        if key.startswith(SHARED)
    ]
    if not told and _have_other_data(one, other):
        told = [f"the data of seed {one.experiment.seed} are others"]
    return ", ".join(told)


def _have_other_data(one: History, other: History) -> bool:
    """Whether what was loaded differs, as when a file has changed. Where clients are on machines of
    their own, a folder knows less of the data, and nothing follows.
    """
    sizes, others = (
        {key: value for key, value in run.data.items() if key != "sha256"} for run in (one, other)
    )
    return sizes == others and one.data.get("sha256") != other.data.get("sha256")
