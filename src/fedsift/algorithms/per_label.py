"""Algorithms without a public set: per-label mean soft labels cross (FD of Jeong et al. 2018,
Mix2FLD of Oh et al. 2020).

A per-label upload is a SoftLabels whose "samples" are the classes: row l is the client's mean
softmax over its samples of label l, and only labels it has are sent. So every soft-label codec
works here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fedsift.aggregators import mean
from fedsift.algorithms import students
from fedsift.codecs import (
    CODECS,
    WEIGHT_CODECS,
    SoftLabelCodec,
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
    Tree,
    Turn,
    UserError,
    Weights,
)


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

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise UserError(f"gamma must be 0 or more, not {self.gamma}")

    def start(self, r: Round) -> Server:
        return Server({})

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        return {
            client.id: self.down.encode(others(server.notes, client.id, r), _link(r))
            for client in cohort
        }

    def client_turn(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        pull = self.down.decode(heard, _link(r))
        data = Labelled(client.data.samples, pulled(client.data, pull, self.gamma))
        state = memory.get("model") or initial_state(client.model, r.seed)
        state = yield Fit(
            client.model,
            state,
            data,
            self.local,
            r.key("local", client.id),
            self.local.epochs * r.number,
        )
        logits = yield Predict(client.model, state, client.data.samples)
        return {"model": state}, self.up.encode(
            by_label(softmax(logits, 1.0), client.data.labels), _link(r)
        )

    def server_turn(self, server: Server, said: Mapping[int, bytes], r: Round) -> Turn:
        return Server(
            {},
            {
                str(client): _tree(self.up.decode(message, _link(r)))
                for client, message in said.items()
            },
        )
        yield  # nothing to compute, but a turn is a generator

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Tree], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return {
            f"client {id}": (r.model_of(id), memory["model"])
            for id, memory in sorted(memories.items())
        }


@dataclass(frozen=True)
class Mix2FLD:
    """Per-label soft labels up, weights down; the server learns on samples un-mixed from the
    clients' mixed-up seeds.

    With its first upload a client sends mixtures lam x_a + (1 - lam) x_b of two private samples of
    different labels. The server joins mirrored mixtures of different clients so that the label
    becomes one-hot again (`unmix`), trains on CE(s, y) + gamma CE(s, G_y), and sends the weights.
    Raw samples never leave a client.
    """

    local: Recipe = Recipe()
    distill: Recipe = Recipe()
    gamma: float = 1.0
    lam: float = 0.2
    seeds: int = 10
    up: SoftLabelCodec = CODECS["float32"]
    down: WeightCodec = WEIGHT_CODECS["float32"]

    def __post_init__(self) -> None:
        if not 0 < self.lam < 0.5:
            raise UserError(f"lam must be above 0 and below 1/2, not {self.lam}")
        if self.seeds < 1 or not self.gamma >= 0:
            raise UserError(
                f"mix2fld needs at least one seed and gamma >= 0, not {self.seeds} and {self.gamma}"
            )

    def start(self, r: Round) -> Server:
        return Server(students.initial_students(r))

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        return students.encode_weights(self.down, server, cohort, r)

    def client_turn(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        state = students.decode_weights(self.down, client.model, heard, r)
        key = r.key("local", client.id)
        state = yield Fit(
            client.model, state, client.data, self.local, key, self.local.epochs * r.number
        )
        logits = yield Predict(client.model, state, client.data.samples)
        message = self.up.encode(by_label(softmax(logits, 1.0), client.data.labels), _link(r))
        seeds = (
            b"" if memory else self._codec(r).encode(mix(client, self.seeds, self.lam, r), r.number)
        )
        return {"seeded": np.ones(1)}, len(message).to_bytes(4, "little") + message + seeds

    def server_turn(self, server: Server, said: Mapping[int, bytes], r: Round) -> Turn:
        seeds: Tree = dict(server.notes.get("seeds", {}))
        pull = mean(self._uploads(said, seeds, r), r.classes, r.classes)
        made, targets, alone = unmix(
            {int(id): Mixtures(**tree) for id, tree in seeds.items()}, self.lam, r.classes
        )
        notes = {"seeds": seeds, "counts": {"unpaired_seeds": np.array(alone)}}
        plain = Samples(
            Store(torch.from_numpy(made), torch.tensor(0.0), torch.tensor(1.0)),
            np.arange(len(made)),
        )
        data = Labelled(plain, torch.from_numpy(targets))
        data = Labelled(plain, pulled(data, pull, self.gamma))
        fits = [
            Fit(
                m,
                server.students[m.name],
                data,
                self.distill,
                r.key("distill", m.name),
                self.distill.epochs * r.number,
            )
            for m in r.models
        ]
        states = (yield fits) if len(made) else [server.students[m.name] for m in r.models]
        return Server(
            {model.name: state for model, state in zip(r.models, states, strict=True)}, notes
        )

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Tree], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return students.models_to_evaluate(server, r)

    def forget(self, server: Server, client: int) -> Server:
        """A client that does not know it has sent its seeds will send them again."""
        return Server(server.students, students.forget_client(server.notes, client, "seeds"))

    def _codec(self, r: Round) -> MixtureCodec:
        return MixtureCodec(r.public.shape, r.classes, self.seeds)

    def _uploads(self, said: Mapping[int, bytes], notes: Tree, r: Round) -> Iterator[SoftLabels]:
        """Decode per-label means one by one; seeds of clients heard for the first time are noted on
        the way.
        """
        for client, both in said.items():
            end = 4 + int.from_bytes(both[:4], "little")
            if len(both) < end:
                raise WireError("truncated message: the per-label means are cut short")
            first_time = str(client) not in notes
            if first_time != bool(both[end:]):
                raise WireError("seeds are sent with the first upload of a client, and only then")
            if first_time:
                notes[str(client)] = self._codec(r).decode(both[end:], r.number).to_tree()
            yield self.up.decode(both[4:end], _link(r))


# --- the arithmetic
#
#
# ----------------------------------------------------------------------------------------------------


def by_label(probs: Array, labels: Array) -> SoftLabels:
    """F_l = mean of the soft labels of the samples with label l, for the labels that occur.
    [labels, C]
    """
    index = np.unique(labels)
    return SoftLabels(index, np.stack([probs[labels == label].mean(0) for label in index]))


def others(notes: Tree, client: int, r: Round) -> SoftLabels:
    """G_l over the *other* clients that uploaded label l in the last round; labels nobody else has
    are left out.
    """
    uploads = (SoftLabels(**tree) for id, tree in notes.items() if id != str(client))
    return mean(uploads, r.classes, r.classes)


def pulled(data: Labelled, pull: SoftLabels, gamma: float) -> torch.Tensor:
    """Targets y + gamma G_y, whose cross-entropy is CE(s, y) + gamma CE(s, G_y); only y where there
    is no G_y. [n, C]

    A soft label y is pulled to the mixture sum_l y_l G_l.
    """
    table = np.zeros((data.classes, data.classes), np.float32)
    table[pull.index] = pull.probs
    return data.targets + gamma * (data.targets @ torch.from_numpy(table))


def mix(client: Client, count: int, lam: float, r: Round) -> Mixtures:
    """`count` mixtures lam x_a + (1 - lam) x_b of private samples with different labels; none for a
    single class.
    """
    generator = r.rng("mix", client.id)
    labels, x = client.data.labels, client.data.samples.tensor().numpy()
    if len(np.unique(labels)) < 2:
        return Mixtures(
            np.empty((0, *x.shape[1:]), np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
        )
    a = generator.integers(0, len(labels), count)
    b = np.array([generator.choice(np.flatnonzero(labels != labels[i])) for i in a])
    return Mixtures((lam * x[a] + (1 - lam) * x[b]).astype(np.float32), labels[a], labels[b])


def unmix(seeds: Mapping[int, Mixtures], lam: float, classes: int) -> tuple[Array, Array, int]:
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
    for client, lot in sorted(seeds.items()):
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
    shape = next((lot.x.shape[1:] for lot in seeds.values()), (0,))
    made = np.stack(x).astype(np.float32) if x else np.empty((0, *shape), np.float32)
    return made, np.stack(y) if y else np.empty((0, classes), np.float32), len(alone)


def _tree(labels: SoftLabels) -> Tree:
    return {"index": labels.index, "probs": labels.probs}


def _link(r: Round) -> Link:
    return Link(r.number, r.classes, r.classes)


def fd_jeong(
    *,
    codec: str | SoftLabelCodec = "float32",
    down_codec: str | SoftLabelCodec = "float32",
    gamma: float = 1.0,
    local: Recipe | None = None,
) -> JeongFD:
    """Per-label mean soft labels up, the mean of the others down as a regulariser; no public set
    (Jeong et al. 2018).
    """
    return JeongFD(local or Recipe(), gamma, _stateless(codec), _stateless(down_codec))


def mix2fld(
    *,
    codec: str | SoftLabelCodec = "float32",
    down_codec: str | WeightCodec = "float32",
    gamma: float = 1.0,
    lam: float = 0.2,
    seeds: int = 10,
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> Mix2FLD:
    """Per-label soft labels up, mixed-up seeds up once; the server learns on what it un-mixes;
    weights down (Oh et al. 2020).
    """
    down = down_weight_codec(down_codec)
    return Mix2FLD(
        local or Recipe(), distill or Recipe(), gamma, lam, seeds, _stateless(codec), down
    )


def _stateless(what: str | SoftLabelCodec) -> SoftLabelCodec:
    codec = soft_label_codec(what)
    if codec.keeps_reference:
        raise UserError(
            f"{what}: per-label means are few and change every round; use a codec without delta"
        )
    return codec
