"""Algorithms whose clients upload weights: FedAvg; with quantised updates, FedPAQ; with
distillation after it, FedDF.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedsift.algorithms import students
from fedsift.codecs import WEIGHT_CODECS, Qsgd, WeightCodec, down_weight_codec, weight_codec
from fedsift.numerics import softmax
from fedsift.types import (
    Client,
    Fit,
    Model,
    Predict,
    Recipe,
    Round,
    Server,
    SoftLabels,
    Tree,
    Turn,
    UserError,
    Weights,
)


@dataclass(frozen=True)
class FedAvg:
    """w <- sum_i D_i w_i / sum_i D_i over the cohort, batch-norm statistics included (McMahan et
    al. 2017).

    With `distill` it is FedDF (Lin et al. 2020): the average, one per architecture, then learns on
    the public set from softmax(mean of the client models' outputs). With a `Qsgd` uplink it is
    FedPAQ (Reisizadeh et al. 2020).
    """

    local: Recipe = Recipe()
    up: WeightCodec | Qsgd = WEIGHT_CODECS["float32"]
    down: WeightCodec = WEIGHT_CODECS["float32"]
    distill: Recipe | None = None

    def start(self, r: Round) -> Server:
        if len(r.models) > 1 and not self.distill:
            names = ", ".join(model.name for model in r.models)
            raise UserError(
                f"to average weights all clients need one model, not {names}; use fd or fas, or feddf"
            )
        return Server(students.initial_students(r))

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        return students.encode_weights(self.down, server, cohort, r)

    def client_turn(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        base = students.decode_weights(self.down, client.model, heard, r)
        key = r.key("local", client.id)
        state = yield Fit(
            client.model, base, client.data, self.local, key, self.local.epochs * r.number
        )
        if isinstance(self.up, Qsgd):
            return {}, self.up.encode(state, r.number, len(client.data), base, key)
        return {}, self.up.encode(state, r.number, len(client.data))

    def server_turn(self, server: Server, said: Mapping[int, bytes], r: Round) -> Turn:
        if not self.distill:
            (name,) = server.students
            base = self._announced(server.students[name], r)
            return Server(
                {name: average(self._decode(message, base, r) for message in said.values())}
            )
        bases = {name: self._announced(student, r) for name, student in server.students.items()}
        uploads = {
            client: self._decode(message, bases[r.model_of(client).name], r)
            for client, message in said.items()
        }
        averages = {}
        for model in r.models:
            mine = [upload for client, upload in uploads.items() if r.model_of(client) == model]
            averages[model.name] = average(mine) if mine else server.students[model.name]
        outputs = yield [
            Predict(r.model_of(client), state, r.public) for client, (state, _) in uploads.items()
        ]
        teacher = SoftLabels(np.arange(len(r.public)), softmax(np.mean(outputs, axis=0), 1.0)).on(
            r.public
        )
        taught = yield [
            Fit(
                m,
                averages[m.name],
                teacher,
                self.distill,
                r.key("distill", m.name),
                self.distill.epochs * r.number,
            )
            for m in r.models
        ]
        return Server({model.name: state for model, state in zip(r.models, taught, strict=True)})

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Tree], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return students.models_to_evaluate(server, r)

    def _announced(self, student: Weights, r: Round) -> Weights:
        """The weights as the clients got them, a narrow downlink codec's rounding included: what
        updates refer to.
        """
        return self.down.decode(self.down.encode(student, r.number), r.number, student)[0]

    def _decode(self, message: bytes, base: Weights, r: Round) -> tuple[Weights, int]:
        return self.up.decode(message, r.number, base)


def average(uploads: Iterable[tuple[Weights, int]]) -> Weights:
    """Weighted mean in one pass, float64 inside. Integer buffers (counters) are not averaged: the
    largest is kept.
    """
    total: Weights = {}
    types: dict[str, torch.dtype] = {}
    weight = 0
    for state, samples in uploads:
        weight += samples
        for name, value in state.items():
            types[name] = value.dtype
            if not value.is_floating_point():
                total[name] = torch.maximum(total.get(name, value), value)
            elif name in total:
                total[name].add_(
                    value, alpha=samples
                )  # a float32 times a count is exact in float64
            else:
                total[name] = value.double() * samples
    if weight == 0:
        raise UserError("nothing to average: no client has any samples")
    return {
        name: (value / weight if types[name].is_floating_point else value).to(types[name])
        for name, value in total.items()
    }


def fedavg(
    *,
    codec: str | WeightCodec | Qsgd = "float32",
    down_codec: str | WeightCodec = "float32",
    local: Recipe | None = None,
) -> FedAvg:
    """Weights up and down, averaged by data size (McMahan et al. 2017)."""
    return FedAvg(local or Recipe(), weight_codec(codec), down_weight_codec(down_codec))


fedpaq = partial(fedavg, codec="qsgd(4)")


def feddf(
    *,
    codec: str | WeightCodec | Qsgd = "float32",
    down_codec: str | WeightCodec = "float32",
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> FedAvg:
    """Weights up, averaged per architecture, then distilled from the ensemble of all client models
    (Lin et al. 2020).
    """
    return FedAvg(
        local or Recipe(), weight_codec(codec), down_weight_codec(down_codec), distill or Recipe()
    )
