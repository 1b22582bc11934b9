"""The FD meta-algorithm (Algorithm 1 of the paper) and FAS. Axes: sampler x codec x aggregator x
recipe x download.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedsift import registry, seeding
from fedsift.aggregators import AGGREGATORS, Aggregator, mean
from fedsift.algorithms import students
from fedsift.algorithms.soft_label_downlink import ABSENT, SoftLabelDownlink
from fedsift.algorithms.students import forget_client
from fedsift.codecs import (
    CODECS,
    WEIGHT_CODECS,
    SoftLabelCodec,
    WeightCodec,
    down_weight_codec,
    soft_label_codec,
)
from fedsift.models import initial_state
from fedsift.numerics import softmax
from fedsift.samplers import SAMPLERS, Sampler
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
    Tree,
    Turn,
    UserError,
    Weights,
)

TEACH = ("aggregate", "predictions")


@dataclass(frozen=True)
class SoftLabelFD:
    """Clients upload soft labels on chosen public samples; the server averages them per sample and
    distils.
    """

    sampler: Sampler
    budget: int
    aggregate: Aggregator = mean
    local: Recipe = Recipe()
    distill: Recipe = Recipe()
    temperature: float = 1.0
    up: SoftLabelCodec = CODECS["float32"]
    down: WeightCodec | SoftLabelCodec = WEIGHT_CODECS[
        "float32"
    ]  # what travels down is what this codec codes
    teach: str = (
        "aggregate"  # soft labels down: the aggregate, or the server's own "predictions" (CFD)
    )
    absent: str = (
        "latest"  # soft labels down: a client that returns hears the latest, or all it "missed"
    )
    ema: float = 0.0  # how much of its students' old weights the server keeps after each round
    pool: int | None = (
        None  # samples to choose from, drawn anew every round; None: the whole public set
    )

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise UserError(
                f"a budget of {self.budget} soft labels uploads nothing; give at least 1"
            )
        if not self.temperature > 0:
            raise UserError(f"temperature must be above 0, not {self.temperature}")
        if not 0 <= self.ema < 1:
            raise UserError(f"ema is a share of the old weights, from 0 to below 1, not {self.ema}")
        if self.pool is not None and (
            isinstance(self.down, SoftLabelCodec) or self.up.keeps_reference
        ):
            raise UserError(
                "a pool is another one every round: it needs weights down and a codec that is not delta"
            )
        for kind, name, known in (("teach", self.teach, TEACH), ("absent", self.absent, ABSENT)):
            registry.lookup(dict.fromkeys(known), kind, name, " or ".join(known))

    def start(self, r: Round) -> Server:
        if self.pool is not None and not self.budget <= self.pool <= len(r.public):
            known = f"the budget ({self.budget}) to the public set ({len(r.public)} samples)"
            raise UserError(
                f"a pool of {self.pool} samples will not do; give a number from {known}"
            )
        if self.budget > len(r.public):
            raise UserError(
                f"budget {self.budget} is larger than the public set ({len(r.public)} samples)"
            )
        return Server(students.initial_students(r))

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        if isinstance(self.down, SoftLabelCodec):
            return {
                client.id: SoftLabelDownlink(self.down, self.absent).encode_for(
                    server.notes, client.id, r
                )
                for client in cohort
            }
        return students.encode_weights(self.down, server, cohort, r)

    def client_turn(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        r = self._with_pool(r)
        state, memory = yield from self._download(client, memory, heard, r)
        state = yield Fit(
            client.model,
            state,
            client.data,
            self.local,
            r.key("local", client.id),
            self.local.epochs * r.number,
        )
        logits = yield Predict(client.model, state, r.public)
        probs = softmax(logits, self.temperature)  # [N, C]
        probs.setflags(write=False)  # a sampler looks at what is to be sent
        picks = self.sampler(probs, client.label_counts, self.budget, r.draws(client.id))
        picks = checked(picks, self.budget, len(r.public))
        message, sent = self.up.encode_stateful(
            SoftLabels(picks, probs[picks]), r.link(client.id), memory.get("sent", {})
        )
        return kept(
            memory | {"sent": sent}, {} if isinstance(self.down, WeightCodec) else {"model": state}
        ), message

    def server_turn(self, server: Server, said: Mapping[int, bytes], r: Round) -> Turn:
        r, sent = self._with_pool(r), dict(server.notes.get("sent", {}))
        labels = self.aggregate(self._uploads(said, sent, r), len(r.public), r.classes)
        taught = yield [  # one per architecture, side by side
            self._distil(model, server.students[model.name], labels, r, "server", r.number)
            for model in r.models
        ]
        taught = [
            students.apply_ema(server.students[model.name], state, self.ema)
            for model, state in zip(r.models, taught, strict=True)
        ]
        notes = kept({"sent": sent})
        if isinstance(self.down, SoftLabelCodec):
            if self.teach == "predictions":
                labels = yield from self._predictions(taught, r)
            notes |= SoftLabelDownlink(self.down, self.absent).record(server.notes, labels, said, r)
        return Server(
            {model.name: state for model, state in zip(r.models, taught, strict=True)}, notes
        )

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Tree], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return students.models_to_evaluate(server, r)

    def forget(self, server: Server, client: int) -> Server:
        """As if nothing had ever been said to or by this client: the references of delta codecs
        go.
        """
        return Server(server.students, forget_client(server.notes, client, "sent", "heard"))

    def _with_pool(self, r: Round) -> Round:
        """The round with its own part of the public set for all of it; both ends draw the same, so
        nothing is sent.
        """
        if self.pool is None:
            return r
        return replace(r, public=r.public[seeding.subset(r.rng("pool"), len(r.public), self.pool)])

    def _download(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        """Weights down: take them. Soft labels down: distil them into the client's own model."""
        if isinstance(self.down, WeightCodec):
            return students.decode_weights(self.down, client.model, heard, r), memory
        state = memory.get("model") or initial_state(client.model, r.seed)
        lessons, kept_lessons = SoftLabelDownlink(self.down, self.absent).decode(
            memory.get("heard", {}), heard, r
        )
        for (
            number,
            labels,
        ) in lessons.items():  # none in the first round, one, or all that were missed
            state = yield self._distil(client.model, state, labels, r, client.id, number)
        return state, memory | {"heard": kept_lessons}

    def _uploads(self, said: Mapping[int, bytes], sent: Tree, r: Round) -> Iterator[SoftLabels]:
        """Decode one upload at a time; `sent`, what each client has said so far, is brought up to
        date on the way.
        """
        for client, message in said.items():
            labels, memory = self.up.decode_stateful(
                message, r.link(client), sent.get(str(client), {})
            )
            sent |= kept({str(client): memory})
            yield labels

    def _predictions(self, taught: Sequence[Weights], r: Round) -> Turn:
        """The students' own soft labels on the whole public set, averaged over the
        architectures.
        """
        answers = yield [
            Predict(model, state, r.public) for model, state in zip(r.models, taught, strict=True)
        ]
        probs = np.mean([softmax(logits, self.temperature) for logits in answers], axis=0)
        return SoftLabels(np.arange(len(r.public)), probs)

    def _distil(
        self,
        model: Model,
        state: Weights,
        labels: SoftLabels,
        r: Round,
        who: int | str,
        lesson: int,
    ) -> Fit:
        key, recipe = (r.seed, lesson, "distill", who, model.name), self.distill
        return Fit(
            model, state, labels.on(r.public), recipe, key, recipe.epochs * lesson, self.temperature
        )


def checked(picks: Array, budget: int, samples: int) -> Array:
    """The picks as an ascending set, or a clear word to whoever wrote the sampler."""
    try:
        index = np.unique(np.asarray(picks, np.int64))
    except (TypeError, ValueError):
        raise UserError(
            f"the sampler returned {type(picks).__name__}, not indexes of public samples"
        ) from None
    if (
        len(index) != len(picks)
        or not 0 < len(index) <= budget
        or index[0] < 0
        or index[-1] >= samples
    ):
        raise UserError(
            f"the sampler returned {len(picks)} picks ({len(index)} distinct); "
            f"it must return 1 to {budget} distinct indexes below {samples}"
        )
    return index


def kept(*parts: Tree) -> Tree:
    """What is worth remembering: parts joined, empty ones left out."""
    return {name: value for part in parts for name, value in part.items() if len(value)}


def fd(
    budget: int,
    *,
    sampler: str | Sampler = "none",
    aggregator: str | Aggregator = "mean",
    codec: str | SoftLabelCodec = "float32",
    download: str = "weights",
    down_codec: str | SoftLabelCodec | WeightCodec = "float32",
    temperature: float = 1.0,
    teach: str = "aggregate",
    absent: str = "latest",
    ema: float = 0.0,
    pool: int | None = None,
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> SoftLabelFD:
    """The FD meta-algorithm: soft labels up, averaged per sample, distilled at the server; weights
    or soft labels down.

    `download` is "weights" or "soft-labels"; `pool` samples are drawn for all to choose from every
    round; samplers, aggregators and codecs by name or as objects of your own.
    """
    downloads = {"weights": down_weight_codec, "soft-labels": soft_label_codec}
    down = registry.lookup(downloads, "download", download, "weights or soft-labels")
    return SoftLabelFD(
        registry.build(SAMPLERS, "sampler", sampler) if isinstance(sampler, str) else sampler,
        budget,
        registry.build(AGGREGATORS, "aggregator", aggregator)
        if isinstance(aggregator, str)
        else aggregator,
        local or Recipe(),
        distill or Recipe(),
        temperature,
        soft_label_codec(codec),
        down(down_codec),
        teach,
        absent,
        ema,
        pool,
    )


# Values, not classes: each is the same algorithm with other defaults on its axes.
fas = partial(fd, sampler="mixed")
ds_fl = partial(fd, aggregator="era", download="soft-labels")
cfd = partial(
    fd,
    codec="delta(quantized(1))",
    download="soft-labels",
    down_codec="delta(quantized(1))",
    teach="predictions",
)
