"""Theorem 1 and the two observations it is to explain, judged like the rest."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Any

from fedsift import theory
from fedsift.reproduction.verdicts import FAILS, HOLDS

MISSED = 0.1  # of 95 % intervals, this share may miss by chance in a grid of 48 (expected: 0.05)


def report(dimension: int = theory.DIMENSION, trials: int = theory.TRIALS, seed: int = 0) -> dict[str, Any]:
    """The grid of `fedsift theory`, and verdicts on it."""
    rows = theory.grid(p=dimension, trials=trials, seed=seed)
    inside = sum(row.inside for row in rows)
    wrong = sum(abs(row.misprinted - row.mean) > row.half_width for row in rows)
    larger, lower = _more_data(rows), _threshold(rows)
    count = len(rows)
    claims = [
        _judged("Theorem 1, with sqrt(2 pi) in Lambda, agrees with simulation", inside >= (1 - MISSED) * count, f"inside {inside} of {count} intervals of 95 %"),
        _judged("Theorem 1 as printed, with 2 pi in Lambda", wrong <= MISSED * count, f"outside {wrong} of {count}"),
        _judged("More unlabelled data (u_bar) bring the estimator nearer", larger[0] == larger[1], f"in {larger[0]} of {larger[1]} pairs simulated"),
        _judged("A threshold on confidence does better than none", lower[0] == lower[1], f"in {lower[0]} of {lower[1]} settings, by the closed form"),
    ]  # fmt: skip
    return {"item": "theory", "title": "Theorem 1", "claims": claims, "rows": [asdict(row) for row in rows]}


def _more_data(rows: list[theory.Row]) -> tuple[int, int]:
    """Of neighbours in u_bar at an equal setting, how many have the larger u_bar ahead, and how many there are."""
    at = {(row.sigma, row.alpha, row.gamma, row.u_bar): row.mean for row in rows}
    sizes = sorted({row.u_bar for row in rows})
    pairs = [
        (at[*setting, more], at[*setting, less])
        for setting in {(row.sigma, row.alpha, row.gamma) for row in rows}
        for less, more in pairwise(sizes)
    ]
    return sum(more > less for more, less in pairs), len(pairs)


def _threshold(rows: list[theory.Row]) -> tuple[int, int]:
    """In how many settings the best threshold of the closed form does better than none, and how many there are."""
    settings = {(row.u_bar, row.alpha, row.sigma) for row in rows}
    better = [
        theory.closed_form(theory.best_threshold(*setting), *setting).cot > theory.closed_form(0.0, *setting).cot
        for setting in settings
    ]
    return sum(better), len(better)


def _judged(claim: str, holds: bool, evidence: str) -> dict[str, Any]:
    return {"claim": claim, "verdict": HOLDS if holds else FAILS, "evidence": evidence}


def markdown(report: dict[str, Any]) -> str:
    rows = [f"| {c['claim']} | **{c['verdict']}** | {c['evidence']} |" for c in report["claims"]]
    return "\n".join(["## Theorem 1", "", "| claim | verdict | evidence |", "|---|---|---|", *rows]) + "\n"
