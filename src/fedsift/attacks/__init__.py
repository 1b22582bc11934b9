"""Hostile clients in a simulation: attacks by name, and who carries them out.

`attack=wrong attackers=0.2` in an experiment makes a fifth of the clients hostile. To write an
attack of your own, see `fedsift.attacks.scene`.
"""

from __future__ import annotations

from fedsift.attacks import threat
from fedsift.attacks.labels import (
    Adaptive,
    Fixed,
    Hips,
    Hollow,
    OverBudget,
    Persistent,
    colluding,
    cpa,
    flipped,
    lma,
    random,
    runner_up,
    wrong,
)
from fedsift.attacks.others import FalseAnswers, Poison, Sleeper
from fedsift.attacks.scene import Attack, Scene
from fedsift.attacks.threat import Threat, hostile_clients
from fedsift.attacks.weights import Huge, InflatedCounts, NanVariance, Scale, SignFlip

__all__ = ["ATTACKS", "Attack", "Scene", "Threat", "hostile_clients", "read_threat"]

ATTACKS: dict[str, Attack | type[Attack]] = {
    "random": random,
    "fixed": Fixed,
    "flipped": flipped,
    "runner-up": runner_up,
    "lma": lma,
    "cpa": cpa,
    "hips": Hips,
    "wrong": wrong,
    "colluding": colluding,
    "hollow": Hollow,
    "adaptive": Adaptive,
    "persistent": Persistent,
    "over-budget": OverBudget,
    "sleeper": Sleeper,
    "false-answers": FalseAnswers,
    "poison": Poison,
    "sign-flip": SignFlip,
    "scale": Scale,
    "inflated-counts": InflatedCounts,
    "huge": Huge,
    "nan-variance": NanVariance,
}


def read_threat(attack: str | Attack | None, attackers: float | None) -> Threat | None:
    """The hostile clients of a federation; None where all are honest.

    attack: a name (fedsift ls attacks), or a function of your own
    attackers: the share of the clients that is hostile
    """
    return threat.read_threat(ATTACKS, attack, attackers)
