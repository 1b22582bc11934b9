"""Theorem 1 and the observations it is to explain, judged on the simulated grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

from fedsift.papers.fas_icc2022 import theory, theory_plot
from fedsift.reproduction.verdicts import FAILS, HOLDS

MISSED = 0.1  # of 95 % intervals, this share may miss by chance in a grid of 48 (expected: 0.05)


def make_report(
    dimension: int = theory.DIMENSION, trials: int = theory.TRIALS, seed: int = 0
) -> dict[str, Any]:
    """The grid of `fedsift theory`, and verdicts on it."""
    rows = theory.grid(p=dimension, trials=trials, seed=seed)
    count = len(rows)
    inside = sum(row.inside for row in rows)
    wrong = sum(abs(row.misprinted - row.mean) > row.half_width for row in rows)
    larger, larger_of = _count_ahead(rows, "u_bar")
    higher, higher_of = _count_ahead(rows, "gamma")
    distilled = sum(row.mean > row.alpha / sqrt(1 - row.alpha**2) for row in rows)
    judged = [
        (
            "Theorem 1, with sqrt(2 pi) in Lambda, agrees with simulation",
            inside >= (1 - MISSED) * count,
            f"inside {inside} of {count} intervals of 95 %",
        ),
        (
            "Theorem 1 as printed, with 2 pi in Lambda",
            wrong <= MISSED * count,
            f"outside {wrong} of {count}",
        ),
        (
            "More unlabelled data (u_bar) bring the estimator nearer",
            larger == larger_of,
            f"in {larger} of {larger_of} pairs simulated",
        ),
        (
            "A higher threshold on confidence brings it nearer",
            higher == higher_of,
            f"in {higher} of {higher_of} pairs simulated",
        ),
        (
            "The distilled model is better than the one that teaches it",
            distilled == count,
            f"in {distilled} of {count} settings simulated",
        ),
    ]
    claims = [
        {"claim": text, "verdict": HOLDS if holds else FAILS, "evidence": evidence}
        for text, holds, evidence in judged
    ]
    return {
        "item": "theory",
        "title": "Theorem 1",
        "claims": claims,
        "rows": [asdict(row) for row in rows],
    }


def _count_ahead(rows: list[theory.Row], key: str) -> tuple[int, int]:
    """Pairs of neighbours in one figure, at an otherwise equal setting: how many have the larger
    figure ahead, and how many there are.
    """
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


def markdown(report: Mapping[str, Any]) -> str:
    rows = [f"| {c['claim']} | **{c['verdict']}** | {c['evidence']} |" for c in report["claims"]]
    return (
        "\n".join(["## Theorem 1", "", "| claim | verdict | evidence |", "|---|---|---|", *rows])
        + "\n"
    )


def draw(report: Mapping[str, Any], file: Path) -> None:
    theory_plot.plot([theory.Row(**row) for row in report["rows"]], file)
