"""How to train: the numbers of an optimiser run, each with a description and a range."""

from __future__ import annotations

import math
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from fedsift.types.basics import UserError

OPTIMIZERS = ("adam", "adamw", "sgd")
AUGMENTATIONS = ("none", "crop-flip")


def option(
    default: Any,
    about: str,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> Any:
    """A field with a description, and for numbers the range they must be in."""
    return field(
        default=default,
        metadata={"about": about, "low": low, "above": above, "below": below},
    )


@dataclass(frozen=True)
class Recipe:
    """How to train: everything an optimiser run needs apart from model, data and randomness.

    The sections [local] and [distill] of an experiment have these keys, descriptions and ranges.
    """

    epochs: int = option(10, "passes over the samples per round", low=1)
    batch: int = option(16, "samples per step", low=1)
    lr: float = option(2e-3, "learning rate", above=0)
    optimizer: str = option("adam", "adam, adamw or sgd")
    momentum: float = option(0.9, "sgd only", low=0, below=1)
    nesterov: bool = option(False, "sgd only")
    weight_decay: float = option(0.0, "pull of the weights towards 0", low=0)
    augment: str = option("none", "none or crop-flip")
    milestones: tuple[int, ...] = option(
        (), "epochs, counted from round 0, at which lr is multiplied ..."
    )
    decay: float = option(0.1, "... by this", low=0)
    prior: float = option(
        0.0,
        "tau: train on softmax(z / temperature + tau log p), p the shares of classes",
        low=0,
    )
    prox: float = option(
        0.0, "mu: add mu / 2 ||w - w0||^2 to the loss, w0 the weights at the start", low=0
    )
    ntd: float = option(
        0.0, "beta of not-true distillation from the model received; local training only", low=0
    )
    mixup: float = option(
        0.0, "alpha: mix samples in pairs, with one share from Beta(alpha, alpha) a step", low=0
    )

    def __post_init__(self) -> None:
        if isinstance(self.milestones, list):  # a recipe can be hashed
            object.__setattr__(self, "milestones", tuple(self.milestones))
        problems = [*list_problems(self), *_unknown_words(self)]
        if not _are_epochs(self.milestones):
            problems.append(f"milestones must be epochs from 0 on, not {_shown(self.milestones)}")
        if self.nesterov and self.momentum == 0:
            problems.append("nesterov needs a momentum above 0")
        if problems:
            raise UserError("; ".join(problems))


def list_problems(options: Any) -> list[str]:
    """What is wrong with the numbers of a dataclass made of `option`s, in words."""
    return [text for f in fields(options) if (text := _problem(f, getattr(options, f.name)))]


def _problem(option: Field[Any], value: Any) -> str | None:
    """What is wrong with a number, in words."""
    if option.type not in ("int", "float"):
        return None
    whole, limits = option.type == "int", option.metadata
    low, above, below = limits["low"], limits["above"], limits["below"]
    fits = (_is_whole(value) if whole else isinstance(value, Real)) and math.isfinite(value)
    if fits and value >= low and value > above and value < below:
        return None
    words = [f"{low:g} or more"] if low > -math.inf else []
    words += [f"above {above:g}"] if above > -math.inf else []
    words += [f"below {below:g}"] if below < math.inf else []
    number = "a whole number, " if whole else ""
    return f"{option.name} must be {number}{' and '.join(words)}, not {value!r}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral)


def _are_epochs(milestones: Any) -> bool:
    known = isinstance(milestones, tuple)
    return known and all(_is_whole(epoch) and epoch >= 0 for epoch in milestones)


def _shown(milestones: Any) -> Any:
    return list(milestones) if isinstance(milestones, tuple) else milestones


def _unknown_words(recipe: Recipe) -> list[str]:
    words = (
        ("optimizer", recipe.optimizer, OPTIMIZERS),
        ("augment", recipe.augment, AUGMENTATIONS),
    )
    return [
        f"{key} must be one of {', '.join(known)}, not {word!r}"
        for key, word, known in words
        if word not in known
    ]
