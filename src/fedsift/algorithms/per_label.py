"""Algorithms without a public set: per-label mean soft labels cross (FD of Jeong et al. 2018,
Mix2FLD of Oh et al. 2020).

A per-label upload is a SoftLabels whose "samples" are the classes: row l is the client's mean
softmax over its samples of label l, and only labels it has are sent. So every soft-label codec
works here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from fedsift.aggregators import mean
from fedsift.algorithms import students, weight_downlink
from fedsift.algorithms.local import check_replay, check_replay_fits, train_locally
from fedsift.algorithms.weight_downlink import (
    WeightDownlink,
    WeightDownlinkMemory,
    WeightsHeld,
)
from fedsift.checks import check_number, check_recipe, check_whole
from fedsift.codecs import (
    CODECS,
    WEIGHT_CODECS,
    SoftLabelCodec,
    Updates,
    WeightCodec,
    WireError,
    down_weight_codec,
    soft_label_codec,
)
from fedsift.codecs.mixtures import MixtureCodec, Mixtures
from fedsift.models import initial_state
from fedsift.numerics import softmax
from fedsift.types import (
    Array,
    Client,
    Fit,
    Labelled,
    Link,
    Model,
    Predict,
    Recipe,
    Round,
    Samples,
    Server,
    SoftLabels,
    Store,
    Turn,
    UserError,
    Weights,
)


@dataclass(frozen=True, eq=False)
class JeongClientMemory:
    model: Weights | None = None


@dataclass(frozen=True, eq=False)
class JeongServerMemory:
    """The per-label means of the last round, by client."""

    means: dict[int, SoftLabels] = field(default_factory=dict)


@dataclass(frozen=True)
class JeongFD:
    """Every client keeps its own model and is pulled, label by label, to the mean soft label of the
    *other* clients.

    loss = CE(s, y) + gamma CE(s, G_y); the accuracy reported is the mean over the clients that have
    taken part.
    """

    local: Recipe = Recipe()
    gamma: float = 1.0
    up: SoftLabelCodec = CODECS["float32"]
    down: SoftLabelCodec = CODECS["float32"]

    client_memory: ClassVar[type] = JeongClientMemory
    server_memory: ClassVar[type] = JeongServerMemory

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma)
        if not self.gamma >= 0:
            raise UserError(f"gamma must be 0 or more, not {self.gamma}")

    def start(self, r: Round) -> Server:
        return Server({}, JeongServerMemory())

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        means = server.memory.means
        return {c.id: self.down.encode(mean_of_others(means, c.id, r), _link(r)) for c in cohort}

    def client_turn(
        self, client: Client, memory: JeongClientMemory, download: bytes, r: Round
    ) -> Turn[tuple[JeongClientMemory, bytes]]:
        targets = pull_targets(client.data, self.down.decode(download, _link(r)), self.gamma)
        pulled = replace(client, data=Labelled(client.data.samples, targets))
        weights = memory.model or initial_state(client.model, r.seed)
        weights = yield from train_locally(pulled, weights, self.local, r, kept=True)
        logits = yield Predict(client.model, weights, client.data.samples)
        means = mean_by_label(softmax(logits, 1.0), client.data.labels)
        return JeongClientMemory(weights), self.up.encode(means, _link(r))

    def check_upload(self, server: Server, client: int, upload: bytes, r: Round) -> SoftLabels:
        return self.up.decode(upload, _upload_link(r))

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, SoftLabels]], r: Round
    ) -> Turn[Server]:
        return Server({}, JeongServerMemory(dict(uploads)))
        yield  # nothing to compute, but a turn is a generator

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Any], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return {f"client {id}": (r.model_of(id), m.model) for id, m in sorted(memories.items())}


@dataclass(frozen=True, eq=False)
class MixtureSent:
    """A Mix2FLD client's: whether it has sent its mixtures, and the model it was sent."""

    sent: bool = False
    held: WeightsHeld = field(default_factory=WeightsHeld)


@dataclass(frozen=True, eq=False)
class MixturesReceived:
    """A Mix2FLD server's: the mixtures of every client heard so far."""

    mixtures: dict[int, Mixtures] = field(default_factory=dict)
    downlink: WeightDownlinkMemory = field(default_factory=WeightDownlinkMemory)


@dataclass(frozen=True, eq=False)
class Mix2FLDUpload:
    means: SoftLabels
    mixtures: Mixtures | None  # with a client's first upload


@dataclass(frozen=True)
class Mix2FLD:
    """Per-label soft labels up, weights down; the server learns on samples un-mixed from the
    clients' mixtures.

    With its first upload a client sends mixtures lam x_a + (1 - lam) x_b of two private samples of
    different labels. The server joins mirrored mixtures of different clients so that the label
    becomes one-hot again (`unmix`), trains on CE(s, y) + gamma CE(s, G_y), and sends the weights.
    Raw samples never leave a client.
    """

    local: Recipe = Recipe()
    distill: Recipe = Recipe()
    gamma: float = 1.0
    lam: float = 0.2
    mixtures: int = 10
    up: SoftLabelCodec = CODECS["float32"]
    down: WeightCodec | Updates = WEIGHT_CODECS["float32"]
    replay: int = 0  # public samples that a client adds to its own, labelled by its model

    clients_keep_models: ClassVar[bool] = False
    client_memory: ClassVar[type] = MixtureSent
    server_memory: ClassVar[type] = MixturesReceived

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma)
        check_number("lam", self.lam)
        check_whole("mixtures", self.mixtures)
        check_replay(self.replay)
        if not 0 < self.lam < 0.5:
            raise UserError(f"lam must be above 0 and below 1/2, not {self.lam}")
        if self.mixtures < 1 or not self.gamma >= 0:
            raise UserError(
                f"mix2fld needs at least one mixture and gamma >= 0, not {self.mixtures} and"
                f" {self.gamma}"
            )

    def start(self, r: Round) -> Server:
        check_replay_fits(self.replay, r)
        return Server(students.initial_students(r), MixturesReceived())

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        return WeightDownlink(self.down).encode(server.memory.downlink, server, cohort, r)

    def client_turn(
        self, client: Client, memory: MixtureSent, download: bytes, r: Round
    ) -> Turn[tuple[MixtureSent, bytes]]:
        downlink = WeightDownlink(self.down)
        weights, held = downlink.decode(memory.held, client.model, download, r)
        weights = yield from train_locally(client, weights, self.local, r, self.replay)
        logits = yield Predict(client.model, weights, client.data.samples)
        means = mean_by_label(softmax(logits, 1.0), client.data.labels)
        message, mixtures = self.up.encode(means, _link(r)), b""
        if not memory.sent:
            mixed = mix_samples(client, self.mixtures, self.lam, r)
            mixtures = self._codec(r).encode(mixed, r.number)
        return MixtureSent(True, held), len(message).to_bytes(4, "little") + message + mixtures

    def check_upload(self, server: Server, client: int, upload: bytes, r: Round) -> Mix2FLDUpload:
        end = 4 + int.from_bytes(upload[:4], "little")
        if len(upload) < end:
            raise WireError("truncated message: the per-label means are cut short")
        first_time = client not in server.memory.mixtures
        if first_time != bool(upload[end:]):
            raise WireError("mixtures are sent with the first upload of a client, and only then")
        mixtures = self._codec(r).decode(upload[end:], r.number) if first_time else None
        return Mix2FLDUpload(self.up.decode(upload[4:end], _upload_link(r)), mixtures)

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, Mix2FLDUpload]], r: Round
    ) -> Turn[Server]:
        mixtures, heard = dict(server.memory.mixtures), list[int]()
        pull = mean(_means_of(uploads, mixtures, heard), r.classes, r.classes)
        made, targets, alone = unmix(mixtures, self.lam, r.classes)
        store = Store(torch.from_numpy(made), torch.tensor(0.0), torch.tensor(1.0))
        samples = Samples(store, np.arange(len(made)))
        hard = Labelled(samples, torch.from_numpy(targets))
        data = Labelled(samples, pull_targets(hard, pull, self.gamma))
        epoch = self.distill.epochs * r.number
        fits = [
            Fit(m, server.students[m.name], data, self.distill, r.key("distill", m.name), epoch)
            for m in r.models
        ]
        taught = (yield fits) if len(made) else [server.students[m.name] for m in r.models]
        new = {model.name: weights for model, weights in zip(r.models, taught, strict=True)}
        WeightDownlink(self.down).check_students(new)
        downlink = WeightDownlink(self.down).record(server.memory.downlink, server, heard, r)
        return Server(new, MixturesReceived(mixtures, downlink), {"unpaired_mixtures": alone})

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Any], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return students.models_to_evaluate(server, r)

    def forget(self, server: Server, client: int) -> Server:
        """A client that does not know it has sent its mixtures will send them again."""
        left = students.drop(server.memory.mixtures, client)
        downlink = weight_downlink.forget(server.memory.downlink, client)
        return Server(server.students, MixturesReceived(left, downlink))

    def _codec(self, r: Round) -> MixtureCodec:
        return MixtureCodec(r.public.shape, r.classes, self.mixtures, *_find_range(r.public))


def _means_of(
    uploads: Iterable[tuple[int, Mix2FLDUpload]], mixtures: dict[int, Mixtures], heard: list[int]
) -> Iterator[tuple[int, SoftLabels]]:
    """The per-label means one by one; mixtures of new clients are added on the way."""
    for client, upload in uploads:
        heard.append(client)
        if upload.mixtures is not None:
            mixtures[client] = upload.mixtures
        yield client, upload.means


# --- the arithmetic ---


def mean_by_label(probs: Array, labels: Array) -> SoftLabels:
    """F_l = mean soft label of the samples with label l, for the labels that occur. [labels, C]"""
    index = np.unique(labels)
    return SoftLabels(index, np.stack([probs[labels == label].mean(0) for label in index]))


def mean_of_others(means: Mapping[int, SoftLabels], client: int, r: Round) -> SoftLabels:
    """G_l over *other* clients that uploaded l last round; labels nobody else has are left out."""
    uploads = ((id, labels) for id, labels in means.items() if id != client)
    labels = mean(uploads, r.classes, r.classes)
    return SoftLabels(labels.index, labels.probs)


def pull_targets(data: Labelled, pull: SoftLabels, gamma: float) -> torch.Tensor:
    """Targets y + gamma G_y, whose cross-entropy is CE(s, y) + gamma CE(s, G_y); only y where there
    is no G_y. [n, C]

    A soft label y is pulled to the mixture sum_l y_l G_l.
    """
    table = np.zeros((data.classes, data.classes), np.float32)
    table[pull.index] = pull.probs
    return data.targets + gamma * (data.targets @ torch.from_numpy(table))


def mix_samples(client: Client, count: int, lam: float, r: Round) -> Mixtures:
    """`count` mixtures lam x_a + (1 - lam) x_b of private samples of two classes; 0 if only one."""
    generator = r.rng("mix", client.id)
    labels, x = client.data.labels, client.data.samples.tensor().numpy()
    if len(np.unique(labels)) < 2:
        return Mixtures(
            np.empty((0, *x.shape[1:]), np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
        )
    a = generator.integers(0, len(labels), count)
    b = np.array([generator.choice(np.flatnonzero(labels != labels[i])) for i in a])
    return Mixtures((lam * x[a] + (1 - lam) * x[b]).astype(np.float32), labels[a], labels[b])


def unmix(mixtures: Mapping[int, Mixtures], lam: float, classes: int) -> tuple[Array, Array, int]:
    """Samples and targets the server can train on, and how many mixtures found no partner.

    Two mixtures of different clients with mirrored labels (a, b) and (b, a) give mu x_1 + (1 - mu)
    x_2, mu = lam / (2 lam - 1), of label a exactly, and by exchange one of label b. One without a
    partner stays mixed, with its soft label.
    """
    mu = lam / (2 * lam - 1)
    waiting: dict[tuple[int, int], list[tuple[int, Array]]] = {}
    x: list[Array] = []
    y: list[Array] = []
    eye = np.eye(classes, dtype=np.float32)
    for client, lot in sorted(mixtures.items()):
        for image, a, b in zip(lot.x, lot.a.tolist(), lot.b.tolist(), strict=True):
            partners = waiting.get((b, a), [])
            mate = next((i for i, (owner, _) in enumerate(partners) if owner != client), None)
            if mate is None:
                waiting.setdefault((a, b), []).append((client, image))
                continue
            _, other = partners.pop(mate)
            x += [mu * image + (1 - mu) * other, mu * other + (1 - mu) * image]
            y += [eye[a], eye[b]]
    alone = [(image, pair) for pair, lot in waiting.items() for _, image in lot]
    x += [image for image, _ in alone]
    y += [lam * eye[a] + (1 - lam) * eye[b] for _, (a, b) in alone]
    shape = next((lot.x.shape[1:] for lot in mixtures.values()), (0,))
    made = np.stack(x).astype(np.float32) if x else np.empty((0, *shape), np.float32)
    return made, np.stack(y) if y else np.empty((0, classes), np.float32), len(alone)


def _link(r: Round) -> Link:
    return Link(r.number, r.classes, r.classes)


def _upload_link(r: Round) -> Link:
    """A client has at least one label."""
    return replace(_link(r), fewest=1)


@lru_cache(maxsize=8)  # samples compare by identity
def _find_range(public: Samples) -> tuple[float, float]:
    """The least and the largest input of the public samples; none are there: any."""
    if not len(public):
        return -math.inf, math.inf
    starts = range(0, len(public), 1000)
    ends = [
        torch.aminmax(public[np.arange(start, min(start + 1000, len(public)))].tensor())
        for start in starts
    ]
    return min(float(low) for low, _ in ends), max(float(high) for _, high in ends)


def fd_jeong(
    *,
    codec: str | SoftLabelCodec = "float32",
    down_codec: str | SoftLabelCodec = "float32",
    gamma: float = 1.0,
    local: Recipe | None = None,
) -> JeongFD:
    """FD of Jeong et al. 2018: per-label mean soft labels up, those of others down; no public set.

    What comes down pulls on a client's training.

    codec: of the uplink (fedsift ls codecs)
    down_codec: of the downlink
    gamma: weight of the pull to the other clients' means
    local: how clients train
    """
    recipe = check_recipe("local", local)
    return JeongFD(recipe, gamma, _stateless(codec), _stateless(down_codec))


def mix2fld(
    *,
    codec: str | SoftLabelCodec = "float32",
    down_codec: str | WeightCodec | Updates = "float32",
    gamma: float = 1.0,
    lam: float = 0.2,
    mixtures: int = 10,
    replay: int = 0,
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> Mix2FLD:
    """Mix2FLD (Oh et al. 2020): per-label soft labels and, once, mixed samples up; weights down.

    The server learns on what it un-mixes.

    codec: of the uplink (fedsift ls codecs)
    down_codec: of the downlink: float32, float16 or updates(bits)
    gamma: weight of the pull to the clients' mean soft labels
    lam: share of the first sample in a mixture
    mixtures: mixtures a client uploads once
    replay: public samples a client adds to its own in training, labelled by the model it received
    local: how clients train
    distill: how the server trains
    """
    down = down_weight_codec(down_codec)
    recipes = check_recipe("local", local), check_recipe("distill", distill)
    return Mix2FLD(*recipes, gamma, lam, mixtures, _stateless(codec), down, replay)


def _stateless(what: str | SoftLabelCodec) -> SoftLabelCodec:
    codec = soft_label_codec(what)
    if codec.keeps_reference:
        raise UserError(
            f"{what}: per-label means are few and change every round; use a codec without delta"
        )
    return codec
