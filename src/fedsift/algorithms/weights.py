"""Algorithms whose clients upload weights: FedAvg."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from fedsift import shelf
from fedsift.codecs import WEIGHT_CODECS, WeightCodec
from fedsift.models import initial_state
from fedsift.types import Client, Fit, Mistake, Model, Recipe, Round, Server, State, Tree, Turn


@dataclass(frozen=True)
class FedAvg:
    """w <- sum_i D_i w_i / sum_i D_i over the cohort, batch-norm statistics included (McMahan et al. 2017)."""

    local: Recipe = Recipe()
    up: WeightCodec = WEIGHT_CODECS["float32"]
    down: WeightCodec = WEIGHT_CODECS["float32"]

    def start(self, r: Round) -> Server:
        if len(r.models) > 1:
            names = ", ".join(model.name for model in r.models)
            raise Mistake(f"fedavg averages weights, so all clients need one model, not {names}; use fd or fas")
        return Server({model.name: initial_state(model, r.seed) for model in r.models})

    def announce(self, server: Server, cohort: Iterable[Client], r: Round) -> dict[int, bytes]:
        weights = {name: self.down.encode(state, r.number) for name, state in server.students.items()}
        return {client.id: weights[client.model.name] for client in cohort}

    def client_turn(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        state, _ = self.down.decode(heard, r.number, initial_state(client.model, r.seed))
        state = yield Fit(
            client.model, state, client.data, self.local, r.key("local", client.id), self.local.epochs * r.number
        )
        return {}, self.up.encode(state, r.number, samples=len(client.data))

    def server_turn(self, server: Server, said: Mapping[int, bytes], r: Round) -> Turn:
        (name, like), *_ = server.students.items()
        return Server({name: average(self.up.decode(message, r.number, like) for message in said.values())})
        yield  # averaging asks the engine for nothing, but a turn is a generator

    def evaluated(self, server: Server, memories: Mapping[int, Tree], r: Round) -> dict[str, tuple[Model, State]]:
        return {model.name: (model, server.students[model.name]) for model in r.models}


def average(uploads: Iterable[tuple[State, int]]) -> State:
    """Weighted mean in one pass, float64 inside. Integer buffers (counters) are not averaged: the largest is kept."""
    total: State = {}
    types: dict[str, torch.dtype] = {}
    weight = 0
    for state, samples in uploads:
        weight += samples
        for name, value in state.items():
            types[name] = value.dtype
            if not value.is_floating_point():
                total[name] = torch.maximum(total.get(name, value), value)
            else:
                total[name] = total.get(name, 0.0) + value.double() * samples
    if weight == 0:
        raise Mistake("nothing to average: no client has any samples")
    return {
        name: (value / weight if types[name].is_floating_point else value).to(types[name])
        for name, value in total.items()
    }


def fedavg(*, codec: str = "float32", down_codec: str = "float32", local: Recipe | None = None) -> FedAvg:
    """Weights up and down, averaged by data size (McMahan et al. 2017)."""
    up, down = (shelf.take(WEIGHT_CODECS, "codec", name) for name in (codec, down_codec))
    return FedAvg(local or Recipe(), up, down)
