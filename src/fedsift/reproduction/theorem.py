"""Theorem 1 and the observations it is to explain, judged on the simulated grid."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from math import sqrt
from typing import Any

from fedsift import theory
from fedsift.reproduction.verdicts import FAILS, HOLDS

MISSED = 0.1  # of 95 % intervals, this share may miss by chance in a grid of 48 (expected: 0.05)


def report(
    dimension: int = theory.DIMENSION, trials: int = theory.TRIALS, seed: int = 0
) -> dict[str, Any]:
    """The grid of `fedsift theory`, and verdicts on it."""
    rows = theory.grid(p=dimension, trials=trials, seed=seed)
    inside = sum(row.inside for row in rows)
    wrong = sum(abs(row.misprinted - row.mean) > row.half_width for row in rows)
    larger, higher = _ahead(rows, "u_bar"), _ahead(rows, "gamma")
    distilled = sum(row.mean > row.alpha / sqrt(1 - row.alpha**2) for row in rows)
    count = len(rows)
    claims = [
        _judged("Theorem 1, with sqrt(2 pi) in Lambda, agrees with simulation", inside >= (1 - MISSED) * count, f"inside {inside} of {count} intervals of 95 %"),
        _judged("Theorem 1 as printed, with 2 pi in Lambda", wrong <= MISSED * count, f"outside {wrong} of {count}"),
        _judged("More unlabelled data (u_bar) bring the estimator nearer", larger[0] == larger[1], f"in {larger[0]} of {larger[1]} pairs simulated"),
        _judged("A higher threshold on confidence brings it nearer", higher[0] == higher[1], f"in {higher[0]} of {higher[1]} pairs simulated"),
        _judged("The distilled model is better than the one that teaches it", distilled == count, f"in {distilled} of {count} settings simulated"),
    ]  # fmt: skip
    return {
        "item": "theory",
        "title": "Theorem 1",
        "claims": claims,
        "rows": [asdict(row) for row in rows],
    }


def _ahead(rows: list[theory.Row], key: str) -> tuple[int, int]:
    """Of neighbours in one figure at an otherwise equal setting, how many have the larger one
    ahead, and how many there are."""
    settings: dict[Any, dict[float, float]] = {}
    for row in rows:
        figures = {"u_bar": row.u_bar, "gamma": row.gamma, "alpha": row.alpha, "sigma": row.sigma}
        settings.setdefault(tuple(figures[name] for name in figures if name != key), {})[
            figures[key]
        ] = row.mean
    pairs = [
        pair for of in settings.values() for pair in pairwise(of[figure] for figure in sorted(of))
    ]
    return sum(more > less for less, more in pairs), len(pairs)


def _judged(claim: str, holds: bool, evidence: str) -> dict[str, Any]:
    return {"claim": claim, "verdict": HOLDS if holds else FAILS, "evidence": evidence}


def markdown(report: dict[str, Any]) -> str:
    rows = [f"| {c['claim']} | **{c['verdict']}** | {c['evidence']} |" for c in report["claims"]]
    return (
        "\n".join(["## Theorem 1", "", "| claim | verdict | evidence |", "|---|---|---|", *rows])
        + "\n"
    )
