"""Weights down: whole, or as updates against what each client holds.

Whole weights need no memory. With updates the server has, for each architecture, a public model v:
the model that clients hold. Everybody has its first weights, which are drawn from the seed. After
each round the server adds an update, v <- v + Q(w - v), where w is its student. What Q rounds away
stays in w - v and is sent later. A client downloads the sum of the updates it has not received,
which is one update on the same grid. (Compare error feedback, Seide et al. 2014; a server that
keeps its own model unrounded, Philippenko and Dieuleveut 2021.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from fedsift.algorithms.students import drop
from fedsift.codecs import Updates, WeightCodec, WireError, grid
from fedsift.codecs.grid import Ticks
from fedsift.models import initial_state
from fedsift.types import Client, Model, Round, Server, UserError, Weights

FIRST_BITS = 3.0  # per weight, at least, for a start that cannot be drawn from the seed


@dataclass(frozen=True, eq=False)
class WeightsHeld:
    """A client's: how far its copy of the public model is from the first weights (`grid` code)."""

    ticks: bytes | None = None


@dataclass(frozen=True, eq=False)
class Posted:
    """The server's, of one architecture: where v is, and the last updates by round."""

    ticks: bytes
    updates: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class WeightDownlinkMemory:
    """The server's: posted updates by architecture, and the last round each client received."""

    posted: dict[str, Posted] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)


class Public(NamedTuple):
    """What clients of one architecture hold once they have downloaded this round's message."""

    ticks: Ticks
    update: Ticks  # since the last round
    weights: Weights


@dataclass(frozen=True)
class WeightDownlink:
    codec: WeightCodec | Updates

    def encode(
        self, memory: WeightDownlinkMemory, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        """Every client's download: the weights of its own architecture."""
        messages: dict[tuple[str, int], bytes] = {}
        downloads = {}
        for client in cohort:
            if not client.model.is_network:  # it has no use for weights: it only uploads
                downloads[client.id] = b""
                continue
            whole = isinstance(self.codec, WeightCodec)
            last = -1 if whole else memory.received.get(client.id, -1)
            key = client.model.name, last
            if key not in messages:
                messages[key] = self._message(memory, server, client.model, last, r)
            downloads[client.id] = messages[key]
        return downloads

    def decode(
        self, held: WeightsHeld, model: Model, download: bytes, r: Round
    ) -> tuple[Weights, WeightsHeld]:
        """The weights in a download, and what the client remembers of them."""
        if not model.is_network:
            return {}, held
        if isinstance(self.codec, WeightCodec):
            return _copy(_read(self.codec, model, download, r.number, r.seed)), held
        start = initial_state(model, r.seed)
        ticks = grid.nothing(start) if held.ticks is None else grid.decode(held.ticks, start)
        weights, ticks, _ = self.codec.open(download, start, ticks, r.number)
        return weights, WeightsHeld(grid.encode(ticks, start))

    def held_by_clients(
        self, memory: WeightDownlinkMemory, server: Server, model: Model, r: Round
    ) -> Weights:
        """The weights that clients of this round start from, with all rounding."""
        if isinstance(self.codec, WeightCodec):
            return _announced(self.codec, server, model.name, r.number)
        return _publish(self.codec, _posted(memory, model), server, model, r.seed).weights

    def record(
        self, memory: WeightDownlinkMemory, server: Server, receivers: Iterable[int], r: Round
    ) -> WeightDownlinkMemory:
        """The memory after a round in which `receivers` have used their downloads."""
        if isinstance(self.codec, WeightCodec):
            return memory
        received = memory.received | dict.fromkeys(receivers, r.number)
        oldest = min(received.values(), default=r.number)
        posted = {}
        for model in r.models:
            before = _posted(memory, model)
            public = _publish(self.codec, before, server, model, r.seed)
            start = initial_state(model, r.seed)
            updates = {} if before is None else before.updates
            updates = updates | {r.number: grid.encode(public.update, start)}
            kept = {number: code for number, code in updates.items() if number > oldest}
            posted[model.name] = Posted(grid.encode(public.ticks, start), kept)
        return WeightDownlinkMemory(posted, received)

    def check_students(self, students: Mapping[str, Weights]) -> None:
        """Students that could not be sent down in the next round are refused in this one."""
        if isinstance(self.codec, Updates):
            limit = grid.TICK * grid.FARTHEST / 2
        else:
            limit = torch.finfo(self.codec.dtype).max
        for model, weights in students.items():
            for name, value in weights.items():
                if value.is_floating_point() and (value.abs() > limit).any():
                    raise UserError(
                        f"weights {name!r} of model {model} are too large to be sent down;"
                        " lower the learning rate, or use down_codec=float32"
                    )

    def add_remainder(
        self,
        memory: WeightDownlinkMemory,
        server: Server,
        model: Model,
        average: Weights,
        r: Round,
        share: float = 1.0,
    ) -> Weights:
        """The average of weights that started from v, moved by a share of what v lacked: w - v.

        Statistics are left alone: training replaces them.
        """
        if isinstance(self.codec, WeightCodec):
            return average
        held, student = self.held_by_clients(memory, server, model, r), server.students[model.name]
        return {
            name: (value.double() + share * (student[name].double() - held[name].double())).to(
                value.dtype
            )
            if value.is_floating_point() and not name.rpartition(".")[2].startswith("running_")
            else value
            for name, value in average.items()
        }

    def _message(
        self, memory: WeightDownlinkMemory, server: Server, model: Model, last: int, r: Round
    ) -> bytes:
        """For clients of this architecture whose last download was in round `last`; -1: none."""
        if isinstance(self.codec, WeightCodec):
            return self.codec.encode(server.students[model.name], r.number, cause="distill.lr")
        posted = _posted(memory, model)
        public = _publish(self.codec, posted, server, model, r.seed)
        if last < 0 or posted is None:
            return self.codec.seal(public.ticks, public.weights, r.number)
        missed = public.update
        for number in range(last + 1, r.number):
            missed = grid.add(missed, grid.decode(posted.updates[number], public.weights))
        return self.codec.seal(missed, public.weights, r.number)


def forget(memory: WeightDownlinkMemory, client: int) -> WeightDownlinkMemory:
    """A client without memory has the first weights."""
    return replace(memory, received=drop(memory.received, client))


def check_memory(memory: WeightDownlinkMemory, r: Round) -> None:
    """A memory from a run folder, before round `r`: whole, and of these models."""
    models = {model.name: model for model in r.models}
    for name, posted in memory.posted.items():
        if name not in models:
            raise UserError(f"it has updates of a model {name}, which nobody has")
        check_held(WeightsHeld(posted.ticks), models[name], r.seed)
        for update in posted.updates.values():
            _decode_stored(update, models[name], r.seed)
    for client, last in memory.received.items():
        if not (0 <= client < r.population and 0 <= last < r.number):
            raise UserError(f"it has a client {client} that received round {last}")
        posted_to = memory.posted.get(r.model_of(client).name, Posted(b""))
        if not posted_to.updates.keys() >= set(range(last + 1, r.number)):
            raise UserError(f"it lacks updates that client {client} has not received")


def check_held(held: WeightsHeld, model: Model, seed: int) -> None:
    """What a client holds leads to weights of its model."""
    if held.ticks is None:
        return
    ticks = _decode_stored(held.ticks, model, seed)
    try:
        grid.move(initial_state(model, seed), ticks)
    except WireError as error:
        raise UserError(f"it has an update that does not fit model {model.name}: {error}") from None


def _decode_stored(code: bytes, model: Model, seed: int) -> Ticks:
    try:
        return grid.decode(code, initial_state(model, seed))
    except WireError as error:
        raise UserError(f"it has an update that does not fit model {model.name}: {error}") from None


def _posted(memory: WeightDownlinkMemory, model: Model) -> Posted | None:
    return memory.posted.get(model.name)


@lru_cache(maxsize=64)  # found once for a round: `Posted` and `Server` compare by identity
def _publish(
    codec: Updates, posted: Posted | None, server: Server, model: Model, seed: int
) -> Public:
    """The public model of this round: the last one and the update towards the student."""
    start = initial_state(model, seed)
    held = grid.nothing(start) if posted is None else grid.decode(posted.ticks, start)
    if posted is None:  # nothing to send, unless the server starts from other weights
        codec = replace(codec, bits=max(codec.bits, FIRST_BITS))
    update = codec.choose(start, held, server.students[model.name], "distill.lr")
    ticks = grid.add(held, update)
    return Public(ticks, update, grid.move(start, ticks))


@lru_cache(maxsize=1)
def _read(codec: WeightCodec, model: Model, download: bytes, number: int, seed: int) -> Weights:
    """Clients of one architecture get the same bytes, decoded once."""
    return codec.decode(download, number, initial_state(model, seed))[0]


@lru_cache(maxsize=8)
def _announced(codec: WeightCodec, server: Server, name: str, round: int) -> Weights:
    """A student as clients got it, with the downlink codec's rounding: what updates refer to."""
    student = server.students[name]
    return codec.decode(codec.encode(student, round), round, student)[0]


def _copy(weights: Weights) -> Weights:
    return {name: value.clone() for name, value in weights.items()}
