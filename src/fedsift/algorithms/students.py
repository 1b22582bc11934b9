"""A server with one student per architecture: its start, its averages and evaluation."""

from __future__ import annotations

from typing import TypeVar

import torch

from fedsift.checks import check_number
from fedsift.codecs.weights import find_not_finite
from fedsift.models import initial_state
from fedsift.types import Model, Round, Server, UserError, Weights

V = TypeVar("V")


def initial_students(r: Round) -> dict[str, Weights]:
    """One per architecture: the weights that the round starts from, or random ones."""
    given = r.start or {}
    return {model.name: given.get(model.name) or initial_state(model, r.seed) for model in r.models}


def refuse_others(r: Round, who: str, cure: str) -> None:
    """Where weights are uploaded, every client needs a network."""
    if r.others:
        names = ", ".join(model.name for model in r.others)
        raise UserError(f"{who} exchanges weights, and {names} has none to send; {cure}")


def check_distilled(weights: Weights) -> Weights:
    """The weights, where soft labels travel down: no later message would show what went wrong."""
    if name := find_not_finite(weights):
        raise UserError(f"weights {name!r} are not finite: distillation diverged; lower distill.lr")
    return weights


def apply_ema(old: Weights, new: Weights, ema: float) -> Weights:
    """Exponential moving average over rounds, `ema` of the old student. Counters: the new ones."""
    if not ema:
        return new
    return {n: torch.lerp(w, old[n], ema) if w.is_floating_point() else w for n, w in new.items()}


def apply_ema_to_all(
    old: dict[str, Weights], new: dict[str, Weights], ema: float
) -> dict[str, Weights]:
    return {name: apply_ema(old[name], weights, ema) for name, weights in new.items()}


def check_ema(ema: float) -> None:
    check_number("ema", ema)
    if not 0 <= ema < 1:
        raise UserError(f"ema is a share of the old weights, from 0 to below 1, not {ema}")


def models_to_evaluate(server: Server, r: Round) -> dict[str, tuple[Model, Weights]]:
    return {model.name: (model, server.students[model.name]) for model in r.models}


def drop(by_client: dict[int, V], client: int) -> dict[int, V]:
    """A table kept per client, without one of them."""
    return {id: value for id, value in by_client.items() if id != client}
