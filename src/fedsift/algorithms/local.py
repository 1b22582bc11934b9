"""A client's local training, the same for every algorithm: its own samples, and replay.

Replay adds public samples, drawn again every round, with the soft labels of the model the client
has just received. The client computes them itself, so they cost no bytes. It keeps the client from
forgetting classes it has no samples of (compare learning without forgetting, Li and Hoiem 2016, and
FedGKD, Yao et al. 2021).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedsift import seeding
from fedsift.checks import check_whole, warn_user
from fedsift.numerics import softmax
from fedsift.types import (
    Client,
    Fit,
    Labelled,
    Model,
    Predict,
    Recipe,
    Round,
    Samples,
    Turn,
    UserError,
    Weights,
)


def train_locally(
    client: Client,
    weights: Weights,
    recipe: Recipe,
    r: Round,
    replay: int | None = 0,
    lessons: Labelled | None = None,
    kept: bool = False,
) -> Turn[Weights]:
    """The client's weights after this round's training, from the weights it received.

    `replay` public samples are added; None: as many as the client has itself. A model that is no
    network is trained anew, on the client's samples and the `lessons`: it has received no weights,
    so there is nothing to replay. `kept`: whether the client remembers the weights.
    """
    data = client.data
    if not client.model.is_network:
        data = data if lessons is None else _add_lessons(data, lessons)
        key = r.key("local", client.id)
        return (yield Fit(client.model, weights, data, recipe, key, kept=kept))
    if len(data) == 1 and needs_two_samples(client.model):
        warn_user(
            f"client {client.id} has one sample, and batch norm needs two: its training is skipped"
        )
        return weights
    count = min(len(data), len(r.public)) if replay is None else replay
    if count and r.number:  # in round 0 nobody has learnt anything yet
        data = yield from _add_replay(client, weights, count, r)
    key, epoch = r.key("local", client.id), recipe.epochs * r.number
    teacher = None
    if recipe.ntd:
        teacher = torch.from_numpy((yield Predict(client.model, weights, data.samples)))
    fit = Fit(client.model, weights, data, recipe, key, epoch, teacher=teacher, kept=kept)
    return (yield fit)


@lru_cache(maxsize=32)
def needs_two_samples(model: Model) -> bool:
    """Whether a batch norm of this network has nothing to average over in one sample."""
    with seeding.TORCH, torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            model.build().train()(model.example(1))
        except ValueError as error:
            return "more than 1 value per channel" in str(error)
    return False


def check_replay(replay: int | None) -> None:
    if replay is None:
        return
    check_whole("replay", replay)
    if replay < 0:
        raise UserError(f"replay is a number of public samples, 0 or more, not {replay}")


def check_replay_fits(replay: int | None, r: Round) -> None:
    if replay is not None and replay > len(r.public):
        raise UserError(f"replay {replay} is larger than the public set ({len(r.public)} samples)")


def _add_replay(client: Client, weights: Weights, replay: int, r: Round) -> Turn[Labelled]:
    rows = seeding.subset(r.rng("replay", client.id), len(r.public), replay)
    logits = yield Predict(client.model, weights, r.public[rows])
    targets = torch.from_numpy(softmax(logits, 1.0).astype(np.float32))
    samples = join_samples(client.data.samples, r.public[rows])
    return Labelled(samples, torch.cat([client.data.targets, targets]))


def _add_lessons(data: Labelled, lessons: Labelled) -> Labelled:
    samples = join_samples(data.samples, lessons.samples)
    return Labelled(samples, torch.cat([data.targets, lessons.targets]))


def join_samples(one: Samples, other: Samples) -> Samples:
    """The samples of both, as a view of one store; two stores become one that holds both."""
    if one.store.values is other.store.values:
        return Samples(one.store, np.concatenate([one.rows, other.rows]))
    values = _join_values(one.store.values, other.store.values)
    rows = np.concatenate([one.rows, len(one.store.values) + other.rows])
    return Samples(replace(one.store, values=values), rows)


@lru_cache(maxsize=2)  # tensors compare by identity: made once for all clients and rounds
def _join_values(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([one, other])
