"""A server with one student per architecture: how it starts, sends weights down, and is
evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch

from fedsift.codecs import WeightCodec
from fedsift.models import initial_state
from fedsift.types import Client, Model, Round, Server, State, Tree


def fresh(r: Round) -> dict[str, State]:
    return {model.name: initial_state(model, r.seed) for model in r.models}


def weights_down(
    codec: WeightCodec, server: Server, cohort: Iterable[Client], r: Round
) -> dict[int, bytes]:
    """Every client gets the weights of its own architecture."""
    weights = {name: codec.encode(state, r.number) for name, state in server.students.items()}
    return {client.id: weights[client.model.name] for client in cohort}


def weights_heard(codec: WeightCodec, model: Model, heard: bytes, r: Round) -> State:
    """What a client was sent. Clients of one architecture are sent the same bytes, which are read
    once.
    """
    return {
        name: value.clone() for name, value in _read(codec, model, heard, r.number, r.seed).items()
    }


@lru_cache(maxsize=1)
def _read(codec: WeightCodec, model: Model, heard: bytes, number: int, seed: int) -> State:
    return codec.decode(heard, number, initial_state(model, seed))[0]


def moved(old: State, new: State, ema: float) -> State:
    """An exponential moving average of a student over the rounds: ema of what it was. Counters are
    the new ones.
    """
    if not ema:
        return new
    return {n: torch.lerp(w, old[n], ema) if w.is_floating_point() else w for n, w in new.items()}


def reported(server: Server, r: Round) -> dict[str, tuple[Model, State]]:
    return {model.name: (model, server.students[model.name]) for model in r.models}


def without(notes: Tree, client: int, *kinds: str) -> Tree:
    """Notes that are kept per client, less those of one."""
    gone = str(client)
    return notes | {
        kind: {id: note for id, note in notes[kind].items() if id != gone}
        for kind in kinds
        if kind in notes
    }
