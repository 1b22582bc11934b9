"""Clients upload weights: FedAvg; FedPAQ with quantised updates; FedDF with distillation after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedsift.algorithms import students, weight_downlink
from fedsift.algorithms.averages import Averaging, check_count
from fedsift.algorithms.local import check_replay, check_replay_fits, train_locally
from fedsift.algorithms.presets import preset
from fedsift.algorithms.weight_bounds import check_weights
from fedsift.algorithms.weight_downlink import (
    WeightDownlink,
    WeightDownlinkMemory,
    WeightsHeld,
)
from fedsift.checks import check_recipe
from fedsift.codecs import (
    WEIGHT_CODECS,
    Qsgd,
    Updates,
    WeightCodec,
    down_weight_codec,
    weight_codec,
)
from fedsift.numerics import softmax
from fedsift.types import (
    Array,
    Client,
    Fit,
    Model,
    Predict,
    Recipe,
    Round,
    Server,
    SoftLabels,
    Turn,
    UserError,
    WeightAnswer,
    Weights,
)


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """Empty where whole weights travel down."""

    held: WeightsHeld = field(default_factory=WeightsHeld)


@dataclass(frozen=True, eq=False)
class ServerMemory:
    weights: WeightDownlinkMemory = field(default_factory=WeightDownlinkMemory)
    counts: dict[int, int] = field(default_factory=dict)  # samples, as each client first claimed


@dataclass(frozen=True)
class FedAvg:
    """w <- sum_i D_i w_i / sum_i D_i over the cohort, batch-norm statistics included (McMahan et
    al. 2017).

    With `distill` it is FedDF (Lin et al. 2020): the average, one per architecture, then learns on
    the public set from softmax(mean of the client models' outputs). With a `Qsgd` uplink it is
    FedPAQ (Reisizadeh et al. 2020).
    """

    local: Recipe = Recipe()
    up: WeightCodec | Qsgd | Updates = WEIGHT_CODECS["float32"]
    down: WeightCodec | Updates = WEIGHT_CODECS["float32"]
    distill: Recipe | None = None
    replay: int | None = 0  # public samples a client adds to its own; None: as many as it has
    ema: float = 0.0  # how much of its old weights the server keeps after each round
    # what a client counts, and how far it may move the average
    averaging: Averaging = field(default_factory=Averaging)

    clients_keep_models: ClassVar[bool] = False
    client_memory: ClassVar[type] = ClientMemory
    server_memory: ClassVar[type] = ServerMemory

    def __post_init__(self) -> None:
        check_replay(self.replay)
        students.check_ema(self.ema)

    def start(self, r: Round) -> Server:
        name = "feddf" if self.distill else "fedavg"
        students.refuse_others(r, name, "use an algorithm that uploads soft labels: fd, fas, sift")
        if len(r.models) > 1 and not self.distill:
            names = ", ".join(model.name for model in r.models)
            raise UserError(
                f"to average weights all clients need one model, not {names}; use fd or fas, or"
                " feddf"
            )
        check_replay_fits(self.replay, r)
        return Server(students.initial_students(r), ServerMemory())

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        return WeightDownlink(self.down).encode(server.memory.weights, server, cohort, r)

    def client_turn(
        self, client: Client, memory: Any, download: bytes, r: Round
    ) -> Turn[tuple[Any, bytes]]:
        answer = yield from self.answer_turn(client, memory, download, r)
        return self.encode_answer(client, answer, r)

    def answer_type(self, r: Round) -> type[WeightAnswer]:
        return WeightAnswer

    def answer_turn(
        self, client: Client, memory: Any, download: bytes, r: Round
    ) -> Turn[WeightAnswer]:
        base, held = WeightDownlink(self.down).decode(memory.held, client.model, download, r)
        memory = replace(memory, held=held)
        weights = yield from train_locally(client, base, self.local, r, self.replay)
        return WeightAnswer(base, weights, len(client.data), memory)

    def encode_answer(self, client: Client, answer: WeightAnswer, r: Round) -> tuple[Any, bytes]:
        weights, samples = answer.weights, answer.samples
        if isinstance(self.up, Qsgd | Updates):
            key = r.key("local", client.id)
            upload = self.up.encode(weights, r.number, samples, answer.received, key)
        else:
            upload = self.up.encode(weights, r.number, samples)
        return answer.memory, upload

    def student_turn(self, client: Client, answer: WeightAnswer, r: Round) -> Turn[Array]:
        return softmax((yield Predict(client.model, answer.received, r.public)), 1.0)

    def overhear(self, upload: tuple[Weights, int], r: Round) -> tuple[Weights, int]:
        return upload

    def check_upload(
        self, server: Server, client: int, upload: bytes, r: Round
    ) -> tuple[Weights, int]:
        model = r.model_of(client)
        base = self._base(server, model, r)
        weights, samples = self.up.decode(upload, r.number, base)
        check_count(samples, server.memory.counts.get(client))
        check_weights(weights, base, model, r.seed)
        return weights, samples

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, tuple[Weights, int]]], r: Round
    ) -> Turn[Server]:
        if not self.distill:
            (model,) = r.models
            found, claimed = self.averaging.average(uploads, self._base(server, model, r))
            averages = self._add_remainders(server, {model.name: found}, r)
            return self._finish(server, averages, claimed, r)
        by_client, averages, claimed = dict(uploads), {}, dict[int, int]()
        for model in r.models:
            base = self._base(server, model, r)
            mine = {id: upload for id, upload in by_client.items() if r.model_of(id) == model}
            by_client |= self.averaging.clip_updates(mine, base)
            if mine:
                whole = replace(self.averaging, clip=None)
                lot = [(id, by_client[id]) for id in mine]
                averages[model.name], counts = whole.average(lot, base)
                claimed |= counts
        averages = server.students | self._add_remainders(server, averages, r)
        outputs = yield [
            Predict(r.model_of(client), weights, r.public)
            for client, (weights, _) in by_client.items()
        ]
        probs = softmax(self.averaging.average_outputs(outputs), 1.0)
        labels = SoftLabels(np.arange(len(r.public)), probs)
        teacher = labels.on(r.public)
        epoch = self.distill.epochs * r.number
        taught = yield [
            Fit(m, averages[m.name], teacher, self.distill, r.key("distill", m.name), epoch)
            for m in r.models
        ]
        new = {m.name: weights for m, weights in zip(r.models, taught, strict=True)}
        return replace(self._finish(server, new, claimed, r), distilled=labels)

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Any], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return students.models_to_evaluate(server, r)

    def forget(self, server: Server, client: int) -> Server:
        """As if this client had never downloaded anything; what it claimed still holds."""
        left = weight_downlink.forget(server.memory.weights, client)
        return replace(server, memory=replace(server.memory, weights=left))

    def _base(self, server: Server, model: Model, r: Round) -> Weights:
        """What clients of this round train from."""
        return WeightDownlink(self.down).held_by_clients(server.memory.weights, server, model, r)

    def _add_remainders(
        self, server: Server, averages: dict[str, Weights], r: Round
    ) -> dict[str, Weights]:
        """The averages with what rounding on the way down had left out.

        Where uploads are rounded too, what is left out is mostly their noise: half of it is kept.
        """
        downlink, memory = WeightDownlink(self.down), server.memory.weights
        share = 0.5 if isinstance(self.up, Qsgd | Updates) else 1.0
        return {
            model.name: downlink.add_remainder(
                memory, server, model, averages[model.name], r, share
            )
            for model in r.models
            if model.name in averages
        }

    def _finish(
        self, server: Server, new: dict[str, Weights], claimed: Mapping[int, int], r: Round
    ) -> Server:
        downlink, memory = WeightDownlink(self.down), server.memory
        new = students.apply_ema_to_all(server.students, new, self.ema)
        downlink.check_students(new)
        weights = downlink.record(memory.weights, server, claimed, r)
        return Server(new, replace(memory, weights=weights, counts=memory.counts | dict(claimed)))


def fedavg(
    *,
    codec: str | WeightCodec | Qsgd | Updates = "float32",
    down_codec: str | WeightCodec | Updates = "float32",
    replay: int = 0,
    ema: float = 0.0,
    counts: str = "claimed",
    clip: float | None = None,
    average: str = "mean",
    local: Recipe | None = None,
) -> FedAvg:
    """FedAvg: weights up and down, averaged by data size (McMahan et al. 2017).

    codec: of the uplink: float32, float16, qsgd(bits) or updates(bits)
    down_codec: of the downlink: float32, float16 or updates(bits)
    replay: public samples a client adds to its own in training, labelled by the model it received
    ema: share of its old weights that the server keeps each round
    counts: what a client counts in the average: the samples it has "claimed", or "equal"
    clip: the longest update, in medians of the cohort; longer ones are shortened (default: none)
    average: of a weight: "mean"; against hostile clients "median" or "trimmed-mean", a vote each
    local: how clients train
    """
    down = down_weight_codec(down_codec)
    averaging = Averaging(counts, clip, average)
    recipe = check_recipe("local", local)
    return FedAvg(recipe, weight_codec(codec), down, None, replay, ema, averaging)


fedpaq = preset(
    fedavg, "fedpaq", "FedPAQ (Reisizadeh et al. 2020): quantised updates up.", codec="qsgd(4)"
)


def feddf(
    *,
    codec: str | WeightCodec | Qsgd | Updates = "float32",
    down_codec: str | WeightCodec | Updates = "float32",
    replay: int = 0,
    ema: float = 0.0,
    counts: str = "claimed",
    clip: float | None = None,
    average: str = "mean",
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> FedAvg:
    """FedDF: weights up, averaged per architecture, then distilled from all client models
    (Lin et al. 2020).

    codec: of the uplink: float32, float16, qsgd(bits) or updates(bits)
    down_codec: of the downlink: float32, float16 or updates(bits)
    replay: public samples a client adds to its own in training, labelled by the model it received
    ema: share of its old weights that the server keeps each round
    counts: what a client counts in the average: the samples it has "claimed", or "equal"
    clip: the longest update, in medians of the cohort; longer ones are shortened (default: none)
    average: of a weight: "mean"; against hostile clients "median" or "trimmed-mean", a vote each
    local: how clients train
    distill: how the ensemble of client models is distilled
    """
    down = down_weight_codec(down_codec)
    recipes = check_recipe("local", local), check_recipe("distill", distill)
    averaging = Averaging(counts, clip, average)
    return FedAvg(recipes[0], weight_codec(codec), down, recipes[1], replay, ema, averaging)
