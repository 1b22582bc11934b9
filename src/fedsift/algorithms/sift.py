"""sift, fedsift's own algorithm: the best result for the bytes given.

It has two modes, each an algorithm of its own with good defaults.

labels      labels on the surest public samples of a client's own classes, remembered over rounds,
            distilled at the server
weights     quantised updates of the weights, where all clients have one architecture

Clients train with a local prior and replay in both. docs/sift.md explains the parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from fedsift import registry
from fedsift.aggregators import Aggregator, StatefulAggregator
from fedsift.algorithms import students
from fedsift.algorithms.averages import Averaging
from fedsift.algorithms.edges import Edges
from fedsift.algorithms.fd import fd
from fedsift.algorithms.soft_labels import ClientMemory, ServerMemory, SoftLabelFD
from fedsift.algorithms.weights import FedAvg
from fedsift.checks import check_recipe
from fedsift.codecs import (
    WEIGHT_CODECS,
    SoftLabelCodec,
    Updates,
    WeightCodec,
    WireError,
    soft_label_codec,
)
from fedsift.codecs.grid_updates import FEWEST, MOST
from fedsift.models import initial_state
from fedsift.samplers import Sampler
from fedsift.types import (
    Array,
    Client,
    LabelAnswer,
    Model,
    Recipe,
    Round,
    Server,
    SoftLabels,
    Turn,
    UserError,
    WeightAnswer,
    Weights,
)

MODES = ("auto", "labels", "weights")
# Of a sample and its hard label: no more samples than this allows are tried. With few classes they
# can fit, since a label is a bit or less, and indexes are free where all samples are labelled.
FEWEST_BITS, MANY = 3, 10
ENOUGH_BITS = 0.6  # per weight: with fewer, labels are the safer choice (docs/sift.md)
# The codec of labels by the bits there are for each public sample: what does not need to be spent
# on more samples is spent on softer labels. For ten classes; see _label_codec for others.
FINE_BITS, ROUGH_BITS = 3.0, 2.0
# What the weights mode has no use for: parameters and, by their names, recipes.
OF_WEIGHTS = ("counts", "clip", "average")  # what the labels mode has no use for
OF_LABELS = (
    *("sampler", "aggregator", "codec", "votes", "vote_bits", "public_weight"),
    *("mixup", "ema", "distill"),
)
OVERHEAD = 24  # bytes of a message of weights beside its payload, at most


@dataclass(frozen=True)
class Sift:
    """Soft labels or quantised weights, whichever is better for the bytes of an upload.

    The choice follows from what both ends know: the bytes, the models and the public set.
    """

    max_bytes: int
    mode: str
    labels: SoftLabelFD
    weights: FedAvg
    codec: SoftLabelCodec | None = None  # of the labels; None: by the bytes and the public set
    replaced: tuple[str, ...] = ()  # terms of recipes that were 0, where sift has its own values

    client_memory: ClassVar[type] = ClientMemory
    server_memory: ClassVar[type] = ServerMemory

    def __post_init__(self) -> None:
        registry.lookup(dict.fromkeys(MODES), "mode", self.mode, " or ".join(MODES))
        if self.mode == "weights" and isinstance(self.labels.down, SoftLabelCodec):
            raise UserError("mode=weights has no soft labels to download; set download=weights")
        if self.mode != "labels" and self.labels.audits.size:
            raise UserError("audit asks about labels; set mode=labels, or audit=0")

    @property
    def clients_keep_models(self) -> bool:
        return self.labels.clients_keep_models

    @property
    def edges(self) -> Edges | None:
        return self.labels.edges

    def over_edges(self, edges: Edges) -> Sift:
        return replace(self, labels=self.labels.over_edges(edges))

    def start(self, r: Round) -> Server:
        system = self._system(r)
        if self.edges is not None and not isinstance(system, SoftLabelFD):
            raise UserError(
                f"{self.max_bytes} bytes hold weights, and edge servers join soft labels: set"
                " mode=labels, or topology=flat"
            )
        server: Server = system.start(r)
        if isinstance(server.memory, ServerMemory):
            return server
        return replace(server, memory=ServerMemory())  # it has all that either mode needs

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        return self._system(r).prepare_downloads(server, cohort, r)

    def client_turn(
        self, client: Client, memory: Any, download: bytes, r: Round
    ) -> Turn[tuple[Any, bytes]]:
        answer = yield from self.answer_turn(client, memory, download, r)
        memory, upload = self.encode_answer(client, answer, r)
        if len(upload) > self.max_bytes:  # labels never are; weights of very many small tensors
            raise UserError(
                f"weights take {len(upload)} bytes at least; give more than {self.max_bytes}, or"
                " use mode=labels"
            )
        return memory, upload

    def answer_type(self, r: Round) -> type[LabelAnswer] | type[WeightAnswer]:
        system: SoftLabelFD | FedAvg = self._system(r)
        return system.answer_type(r)

    def answer_turn(
        self, client: Client, memory: Any, download: bytes, r: Round
    ) -> Turn[LabelAnswer | WeightAnswer]:
        return (yield from self._system(r).answer_turn(client, memory, download, r))

    def encode_answer(self, client: Client, answer: Any, r: Round) -> tuple[Any, bytes]:
        memory, upload = self._system(r).encode_answer(client, answer, r)
        return memory, upload

    def student_turn(self, client: Client, answer: Any, r: Round) -> Turn[Array]:
        return (yield from self._system(r).student_turn(client, answer, r))

    def overhear(self, upload: Any, r: Round) -> Any:
        return self._system(r).overhear(upload, r)

    def check_upload(self, server: Server, client: int, upload: bytes, r: Round) -> Any:
        if len(upload) > self.max_bytes:
            raise WireError(f"an upload of {len(upload)} bytes where {self.max_bytes} are allowed")
        return self._system(r).check_upload(server, client, upload, r)

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, Any]], r: Round
    ) -> Turn[Server]:
        return (yield from self._system(r).server_turn(server, uploads, r))

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Any], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return self._system(r).models_to_evaluate(server, memories, r)

    def uploaded_labels(self, upload: Any, r: Round) -> SoftLabels | None:
        system = self._system(r)
        return system.uploaded_labels(upload, r) if isinstance(system, SoftLabelFD) else None

    def explain_unused(self, r: Round) -> dict[str, str]:
        """Parameters without effect, and why."""
        system = self._system(r)
        if isinstance(system, SoftLabelFD):
            uploaded = dict.fromkeys(OF_WEIGHTS, "labels are uploaded; set mode=weights")
            return system.explain_unused(r) | uploaded | self._explain_replaced(self.replaced)
        chosen = f"{self.max_bytes} bytes hold weights; set mode=labels"
        unused = dict.fromkeys(OF_LABELS, "mode=weights" if self.mode == "weights" else chosen)
        return unused | self._explain_replaced(set(self.replaced) & {"local.prior"})

    def _explain_replaced(self, terms: Iterable[str]) -> dict[str, str]:
        return {
            term: f"0 leaves it to sift's own value; set algorithm.{term.partition('.')[2]}=0"
            for term in terms
        }

    def forget(self, server: Server, client: int) -> Server:
        return self.labels.forget(server, client)

    def set_secret(self, server: Server, secret: bytes) -> Server:
        return self.labels.set_secret(server, secret)

    def _system(self, r: Round) -> Any:
        """The algorithm that does the work."""
        if self.mode == "weights":
            students.refuse_others(r, "mode=weights", "use mode=labels")
        bits, samples = _bits_per_weight(r, self.max_bytes), len(r.public)
        labels_down = isinstance(self.labels.down, SoftLabelCodec)
        if self.mode == "weights" or (
            self.mode == "auto" and bits >= ENOUGH_BITS and not labels_down
        ):
            return replace(self.weights, up=Updates(min(self._check_bits(bits, r), MOST)))
        most = max(1, 8 * self.max_bytes // FEWEST_BITS) if r.classes >= MANY else samples
        codec = self.codec or _label_codec(8 * self.max_bytes / samples, r.classes)
        return replace(self.labels, budget=min(samples, most), up=codec)

    def _check_bits(self, bits: float, r: Round) -> float:
        if len(r.models) > 1:
            names = ", ".join(model.name for model in r.models)
            raise UserError(f"weights need one model for all clients, not {names}; use mode=labels")
        if bits < FEWEST:
            raise UserError(
                f"weights do not fit into {self.max_bytes} bytes; give more, or use mode=labels"
            )
        return bits


def _label_codec(bits: float, classes: int) -> SoftLabelCodec:
    """By the bits there are for each public sample, and by what a row of so many classes takes.

    A hard or 2-bit row grows with log C. One of 4 bits has C - 1 numbers, of which more are above 0
    the more classes share what the first one leaves.
    """
    by_log = math.log(classes) / math.log(10)
    if bits >= FINE_BITS * max(by_log, (classes - 1) / 9):
        return soft_label_codec("quantized(4)")
    return soft_label_codec("quantized(2)" if bits >= ROUGH_BITS * by_log else "hard")


def _bits_per_weight(r: Round, most: int) -> float:
    """What an upload of so many bytes has for each weight; 0 where there are several models."""
    alone = len(r.models) == 1 and not r.others
    return 8 * (most - OVERHEAD) / _count_weights(r.models[0]) if alone else 0.0


@lru_cache(maxsize=64)
def _count_weights(model: Model) -> int:
    return sum(value.numel() for value in initial_state(model, 0).values())


def sift(
    *,
    bytes: int = 1500,
    mode: str = "auto",
    codec: str | SoftLabelCodec | None = None,
    sampler: str | Sampler = "own-classes(spread=1)",
    aggregator: str | Aggregator | StatefulAggregator = "memory(era(0.1))",
    replay: int | None = None,
    prior: float = 1.0,
    mixup: float = 0.2,
    ema: float = 0.5,
    votes: str = "equal",
    vote_bits: int = 4,
    audit: int = 0,
    counts: str = "claimed",
    clip: float | None = None,
    average: str = "mean",
    public_weight: float = 1.0,
    download: str = "weights",
    down_codec: str | SoftLabelCodec | WeightCodec | Updates = "float32",
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> Sift:
    """sift, fedsift's own: labels of a client's own classes or quantised weights, by the bytes.

    bytes: the most bytes of an upload
    mode: "labels", "weights", or "auto": weights if the bytes are enough and weights travel down
    codec: of the labels (default: by the bytes there are for each public sample)
    sampler: which public samples a client labels (fedsift ls samplers)
    aggregator: how the server joins labels (fedsift ls aggregators)
    replay: public samples a client adds to its own, labelled by the model it got (default: as many)
    prior: strength of the local prior, 0: none; a local.prior above 0 wins
    mixup: of the distillation, 0: none; a distill.mixup above 0 wins
    ema: share of its old weights that the server keeps each round
    votes: how much a row counts: "equal", by "expertise", or by the client's label "histogram"
    vote_bits: bits per row in which expertise is sent, 4 to 8
    audit: mode=labels: samples of earlier uploads that all are asked about, 0 to 64; for trust
    counts: mode=weights: what a client counts in the average: the samples it has "claimed", or
        "equal"
    clip: mode=weights: the longest update, in medians of the cohort; longer shrink (default: none)
    average: mode=weights: "mean"; against hostile clients "median" or "trimmed-mean", a vote each
    public_weight: soft labels down, no network: what a public row counts in training; an own row: 1
    download: what travels down, "weights" or "soft-labels"
    down_codec: of the downlink
    local: how clients train
    distill: how the labels are distilled
    """
    local, distill = check_recipe("local", local), check_recipe("distill", distill)
    terms = (("local.prior", local.prior, prior), ("distill.mixup", distill.mixup, mixup))
    replaced = tuple(term for term, given, own in terms if own and not given)
    local = local if local.prior else replace(local, prior=prior)
    distill = distill if distill.mixup else replace(distill, mixup=mixup)
    labels = fd(
        1,
        sampler=sampler,
        aggregator=aggregator,
        download=download,
        down_codec=down_codec,
        ema=ema,
        bytes=bytes,
        votes=votes,
        vote_bits=vote_bits,
        audit=audit,
        public_weight=public_weight,
        local=local,
        distill=distill,
    )
    whole = WEIGHT_CODECS["float32"]
    down = whole if isinstance(labels.down, SoftLabelCodec) else labels.down
    averaging = Averaging(counts, clip, average)
    weights = FedAvg(local, Updates(), down, replay=replay, averaging=averaging)
    chosen = None if codec is None else soft_label_codec(codec)
    return Sift(bytes, mode, replace(labels, replay=replay), weights, chosen, replaced)
