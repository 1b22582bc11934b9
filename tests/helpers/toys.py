"""A federation small enough to work out by hand, and networks whose every number is known."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsift.codecs import CODECS
from fedsift.types import (
    Algorithm,
    Client,
    Labelled,
    Model,
    Round,
    Samples,
    Server,
    SoftLabels,
    Store,
    Turn,
)


def linear(shape, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(torch.Size(shape).numel()), classes, bias=False)
    )


def with_batch_norm(shape, classes):
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))


def with_dropout(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 16), nn.Dropout(0.5), nn.Linear(16, classes))


def model(factory=linear, shape=(2,), classes=2, name=None):
    return Model(name or factory.__name__, factory, shape, classes)


def samples(values):
    """Rows as they are: mean 0, deviation 1."""
    x = torch.tensor(values, dtype=torch.float32)
    return Samples(Store(x, torch.tensor(0.0), torch.tensor(1.0)), np.arange(len(x)))


def labelled(values, labels, classes=2):
    return Labelled(samples(values), torch.eye(classes)[list(labels)])


def client(id=0, values=((1.0, 0.0), (0.0, 1.0)), labels=(0, 1), factory=linear):
    return Client(id, model(factory), labelled(values, labels))


def a_round(number=0, public=((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)), seed=0, models=None):
    models = tuple(models or [model()])
    return Round(
        number, seed, samples(public), 2, models, lambda client: models[client % len(models)]
    )


def serve(
    algorithm: Algorithm, server: Server, uploads: Mapping[int, bytes], r: Round
) -> Turn[Server]:
    """The server's turn on these uploads, each checked first; they can be read once."""
    checked = [
        (client, algorithm.check_upload(server, client, upload, r))
        for client, upload in uploads.items()
    ]
    return algorithm.server_turn(server, iter(checked), r)


def no_memory(algorithm: Algorithm) -> Any:
    """What a client has before its first turn."""
    return getattr(algorithm, "client_memory", dict)()


def gaussians(n, classes=3, features=4, seed=0):
    """Well separated classes: rows [n, features] and labels [n]."""
    generator = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = 2.0 * np.eye(classes, features)
    return (centres[y] + 0.5 * generator.standard_normal((n, features))).astype(np.float32), y


def weights(value):
    return {"1.weight": torch.full((2, 2), float(value))}


def upload(index, probs, r, client):
    return CODECS["float32"].encode(SoftLabels(np.array(index), np.array(probs)), r.link(client))
