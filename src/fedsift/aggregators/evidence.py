"""From counts of agreement to the probability that a client is honest."""

from __future__ import annotations

from math import lgamma

import numpy as np

from fedsift.aggregators.agreement import HINDSIGHT, KINDS, MOST, NEGLIGIBLE, Counts

PRIOR = float(np.log(9))  # log odds before any evidence: nine of ten clients are honest


def find_evidence(counts: Counts, alike: float, classes: int) -> float:
    """log P(agreed | honest) - log P(agreed | hostile), summed over the kinds.

    Answers cost nothing to get right, so they can only speak against a client.
    """
    evidence = 0.0
    for kind, n, a, usual in zip(KINDS, *counts.parts, strict=True):
        if n > NEGLIGIBLE:
            honest = _beta_binomial(a, n, alike, usual / n)
            hostile = _beta_binomial(a, n, alike, 1 / classes)
            evidence += min(honest - hostile, 0.0 if kind == "answers" else np.inf)
    return evidence


def find_error_rate(counts: Counts, alike: float) -> float:
    """How often others say otherwise, later, than the client did.

    Before there are comparisons it is the usual rate, which counts as `alike` of them.
    """
    compared, agreed, usual = (float(part[HINDSIGHT]) for part in counts.parts)
    rate = usual / compared if compared > NEGLIGIBLE else MOST
    return 1 - (agreed + alike * rate) / (compared + alike)


def find_trust(evidence: float) -> float:
    """The probability that a client is honest."""
    return float(1 / (1 + np.exp(-np.clip(evidence + PRIOR, -30, 30))))


def _beta_binomial(agreed: float, compared: float, alike: float, mean: float) -> float:
    """log of B(a + s p, n - a + s (1 - p)) / B(s p, s (1 - p)), s = alike, p = mean."""
    a, b = alike * mean, alike * (1 - mean)
    return _log_beta(agreed + a, compared - agreed + b) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
