"""Attacks on private data, attacks that wait, and lies to audits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from fedsift.attacks.scene import DATA, LABELS, Scene, altered_part, next_class, resolve_inner
from fedsift.checks import check_whole
from fedsift.types import LabelAnswer, Labelled, UserError


@dataclass(frozen=True)
class Poison:
    """Trains on private data whose labels are moved: class c becomes (c + shift) mod C.

    shift: by how many classes

    It follows the protocol in everything else, so every algorithm can be attacked.
    """

    shift: int = 1

    alters: ClassVar[str] = DATA

    def __post_init__(self) -> None:
        check_whole("shift", self.shift)

    def __call__(self, data: Labelled, scene: Scene) -> Labelled:
        return Labelled(data.samples, torch.roll(data.targets, self.shift, dims=1))


class Sleeper:
    """Honest at first; from a round on it carries out another attack.

    inner: the attack
    round: the first round of it, counted from 0
    """

    def __init__(self, inner: Any = "wrong", round: int = 5) -> None:
        check_whole("round", round)
        if round < 0:
            raise UserError(f"sleeper takes a round, 0 or more, not {round}")
        self.inner, self.round = resolve_inner("sleeper", inner), round
        self.alters = altered_part(self.inner)
        self.sees_student = bool(getattr(self.inner, "sees_student", False))

    def __call__(self, answer: Any, scene: Scene) -> Any:
        return answer if scene.r.number < self.round else self.inner(answer, scene)


class FalseAnswers:
    """Another attack on labels, by a client that also answers audits wrongly.

    inner: the attack

    It answers the class after the likeliest of p(x). All other attackers answer honestly.
    """

    def __init__(self, inner: Any = "wrong") -> None:
        self.inner = resolve_inner("false-answers", inner, LABELS)
        self.sees_student = bool(getattr(self.inner, "sees_student", False))

    def __call__(self, answer: LabelAnswer, scene: Scene) -> LabelAnswer:
        altered: LabelAnswer = self.inner(answer, scene)
        return replace(altered, answers=next_class(answer.predicted))
