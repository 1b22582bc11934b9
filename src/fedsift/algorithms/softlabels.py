"""The FD meta-algorithm (Algorithm 1 of the paper) and FAS. Axes: sampler x codec x aggregator x recipe x download."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedsift import shelf
from fedsift.aggregators import AGGREGATORS, Aggregator, mean
from fedsift.codecs import CODECS, WEIGHT_CODECS, SoftLabelCodec, WeightCodec
from fedsift.models import initial_state
from fedsift.samplers import SAMPLERS, Sampler
from fedsift.types import (
    Array,
    Client,
    Fit,
    Link,
    Mistake,
    Model,
    Predict,
    Recipe,
    Round,
    Server,
    SoftLabels,
    State,
    Tree,
    Turn,
)


@dataclass(frozen=True)
class SoftLabelFD:
    """Clients upload soft labels on chosen public samples; the server averages them per sample and distils."""

    sampler: Sampler
    budget: int
    aggregate: Aggregator = mean
    local: Recipe = Recipe()
    distill: Recipe = Recipe()
    temperature: float = 1.0
    up: SoftLabelCodec = CODECS["float32"]
    down: WeightCodec | SoftLabelCodec = WEIGHT_CODECS["float32"]  # what travels down is what this codec codes

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise Mistake(f"a budget of {self.budget} soft labels uploads nothing; give at least 1")
        if not self.temperature > 0:
            raise Mistake(f"temperature must be above 0, not {self.temperature}")

    def start(self, r: Round) -> Server:
        if self.budget > len(r.public):
            raise Mistake(f"budget {self.budget} is larger than the public set ({len(r.public)} samples)")
        return Server({model.name: initial_state(model, r.seed) for model in r.models})

    def announce(self, server: Server, cohort: Iterable[Client], r: Round) -> dict[int, bytes]:
        if isinstance(self.down, WeightCodec):
            weights = {name: self.down.encode(state, r.number) for name, state in server.students.items()}
            return {client.id: weights[client.model.name] for client in cohort}
        labels = self.down.encode(SoftLabels(**server.notes), _broadcast(r)) if server.notes else b""
        return {client.id: labels for client in cohort}  # an absent client hears, on its return, the latest only

    def client_turn(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        state = yield from self._download(client, memory, heard, r)
        state = yield Fit(
            client.model, state, client.data, self.local, r.key("local", client.id), self.local.epochs * r.number
        )
        logits = yield Predict(client.model, state, r.public)
        probs = softmax(logits, self.temperature)  # [N, C]
        picks = self.sampler(probs, client.label_counts, self.budget, r.draws(client.id))
        picks = checked(picks, self.budget, len(r.public))
        message = self.up.encode(SoftLabels(picks, probs[picks]), r.link(client.id))
        return ({} if isinstance(self.down, WeightCodec) else {"model": state}), message

    def server_turn(self, server: Server, said: Mapping[int, bytes], r: Round) -> Turn:
        uploads = (self.up.decode(message, r.link(client)) for client, message in said.items())
        labels = self.aggregate(uploads, len(r.public), r.classes)
        students = yield [  # one per architecture, side by side
            self._distil(model, server.students[model.name], labels, r, "server", r.number) for model in r.models
        ]
        notes = {} if isinstance(self.down, WeightCodec) else {"index": labels.index, "probs": labels.probs}
        return Server({model.name: state for model, state in zip(r.models, students, strict=True)}, notes)

    def evaluated(self, server: Server, memories: Mapping[int, Tree], r: Round) -> dict[str, tuple[Model, State]]:
        return {model.name: (model, server.students[model.name]) for model in r.models}

    def _download(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        """Weights down: take them. Soft labels down: distil them into the client's own model."""
        if isinstance(self.down, WeightCodec):
            return self.down.decode(heard, r.number, initial_state(client.model, r.seed))[0]
        state = memory.get("model") or initial_state(client.model, r.seed)
        if not heard:  # the first round: nothing has been said yet
            return state
        labels = self.down.decode(heard, _broadcast(r))
        state = yield self._distil(client.model, state, labels, r, client.id, r.number - 1)
        return state

    def _distil(self, model: Model, state: State, labels: SoftLabels, r: Round, who: Any, rounds: int) -> Fit:
        recipe = replace(self.distill, temperature=self.temperature)
        return Fit(model, state, labels.on(r.public), recipe, r.key("distill", who, model.name), recipe.epochs * rounds)


def softmax(logits: Array, temperature: float) -> Array:
    """t^n = exp(z^n / T) / sum_m exp(z^m / T), float64 [N, C]."""
    scaled = logits.astype(np.float64) / temperature
    exps = np.exp(scaled - scaled.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def checked(picks: Array, budget: int, samples: int) -> Array:
    """The picks as an ascending set, or a clear word to whoever wrote the sampler."""
    index = np.unique(np.asarray(picks, np.int64))
    if len(index) != len(picks) or not 0 < len(index) <= budget or index[0] < 0 or index[-1] >= samples:
        raise Mistake(
            f"the sampler returned {len(picks)} picks ({len(index)} distinct); "
            f"it must return 1 to {budget} distinct indexes below {samples}"
        )
    return index


def _broadcast(r: Round) -> Link:
    """What every client knows of the labels announced in this round: the last round's shared draw may be theirs."""
    return Link(r.number, len(r.public), r.classes, ((r.seed, r.number - 1, "pick"),))


def fd(
    budget: int,
    *,
    sampler: str | Sampler = "none",
    aggregator: str | Aggregator = "mean",
    codec: str | SoftLabelCodec = "float32",
    download: str = "weights",
    down_codec: str = "float32",
    temperature: float = 1.0,
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> SoftLabelFD:
    """The FD meta-algorithm: soft labels up, averaged per sample, distilled at the server; weights or soft labels down.

    `download` is "weights" or "soft-labels"; samplers, aggregators and codecs by name or as objects of your own.
    """
    downloads = {"weights": WEIGHT_CODECS, "soft-labels": CODECS}
    shelf_down = shelf.find(downloads, "download", download, "weights or soft-labels")
    return SoftLabelFD(
        shelf.take(SAMPLERS, "sampler", sampler) if isinstance(sampler, str) else sampler,
        budget,
        shelf.take(AGGREGATORS, "aggregator", aggregator) if isinstance(aggregator, str) else aggregator,
        local or Recipe(),
        distill or Recipe(),
        temperature,
        shelf.take(CODECS, "codec", codec) if isinstance(codec, str) else codec,
        shelf.take(shelf_down, "codec", down_codec),
    )


fas = partial(fd, sampler="mixed")  # FD with active sampling: the same algorithm, another default on one axis
