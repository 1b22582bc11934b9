"""What flows: samples, work, soft labels, rounds. Frozen dataclasses, no behaviour beyond views of
themselves.

Shapes in comments: N public samples, n private samples, m chosen samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from fedsift import seeding

Weights = dict[str, Tensor]  # a model's parameters and buffers, as `state_dict()` names them
Tree = dict[str, Any]  # nested dicts with tensors or arrays at the leaves: what a party remembers
Array = np.ndarray[Any, np.dtype[Any]]


class UserError(ValueError):
    """Something the user asked for cannot be done; the text says what to change."""


@dataclass(frozen=True)
class Model:
    """An architecture: equal fields, equal net. `factory(shape, classes, **options)` builds it."""

    name: str
    factory: Callable[..., nn.Module]
    shape: tuple[int, ...]
    classes: int
    options: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, inputs {self.shape}, {self.classes} classes)"

    def build(self) -> nn.Module:
        return self.factory(self.shape, self.classes, **dict(self.options))


# --- data: one store, many views ---


@dataclass(frozen=True, eq=False)
class Store:
    """Raw values kept once, uint8 if they came as uint8; normalised only when a batch is taken."""

    values: Tensor  # [S, channels, height, width] or [S, features]
    mean: Tensor  # [channels, 1, 1] or [features]
    std: Tensor

    def __repr__(self) -> str:
        values = self.values
        kind = str(values.dtype).removeprefix("torch.")
        return f"Store({len(values)} samples of shape {tuple(values.shape[1:])}, {kind})"

    def normalise(self, values: Tensor) -> Tensor:
        return (values.float() - self.mean.to(values.device)) / self.std.to(values.device)


@dataclass(frozen=True, eq=False)
class Samples:
    """A view: some rows of a store. It carries no labels, so the public set cannot leak any."""

    store: Store
    rows: Array  # [n] int64

    def __repr__(self) -> str:
        return f"Samples({len(self)} of shape {self.shape})"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, positions: Array) -> Samples:
        return Samples(self.store, self.rows[positions])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.store.values.shape[1:])

    def tensor(self) -> Tensor:
        """The samples themselves, normalised: float32 [n, ...]."""
        return self.store.normalise(self.store.values[torch.from_numpy(self.rows)])


@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples with a target distribution each; a hard label is a one-hot row: one loss for both."""

    samples: Samples
    targets: Tensor  # [n, C] float32

    def __repr__(self) -> str:
        return f"Labelled({len(self)} of shape {self.samples.shape}, {self.classes} classes)"

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, positions: Array) -> Labelled:
        return Labelled(self.samples[positions], self.targets[torch.from_numpy(positions)])

    @property
    def labels(self) -> Array:
        """The class of each sample, [n] int64."""
        return self.targets.argmax(1).numpy()

    @property
    def classes(self) -> int:
        return self.targets.shape[1]


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """Probability vectors on some public samples; `weight`: votes a row stands for (None: one)."""

    index: Array  # [m] int64, ascending, distinct: universal indexes into the public set
    probs: Array  # [m, C]
    weight: Array | None = None  # [m]

    def __repr__(self) -> str:
        votes = "" if self.weight is None else f", {self.weight.sum():g} votes"
        return f"SoftLabels({len(self)} samples, {self.probs.shape[-1]} classes{votes})"

    def __len__(self) -> int:
        return len(self.index)

    def on(self, public: Samples) -> Labelled:
        return Labelled(public[self.index], torch.from_numpy(self.probs.astype(np.float32)))


# --- work: what a turn asks an engine to do ---


OPTIMIZERS = ("adam", "adamw", "sgd")
AUGMENTATIONS = ("none", "crop-flip")


def option(
    default: Any,
    about: str,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> Any:
    """A field with a description, and for numbers the range they must be in."""
    return field(
        default=default,
        metadata={"about": about, "low": low, "above": above, "below": below},
    )


@dataclass(frozen=True)
class Recipe:
    """How to train: everything an optimiser run needs apart from model, data and randomness.

    The sections [local] and [distill] of an experiment have these keys, descriptions and ranges.
    """

    epochs: int = option(10, "passes over the samples per round", low=1)
    batch: int = option(16, "samples per step", low=1)
    lr: float = option(2e-3, "learning rate", above=0)
    optimizer: str = option("adam", "adam, adamw or sgd")
    momentum: float = option(0.9, "sgd only", low=0, below=1)
    nesterov: bool = option(False, "sgd only")
    weight_decay: float = option(0.0, "pull of the weights towards 0", low=0)
    augment: str = option("none", "none or crop-flip")
    milestones: tuple[int, ...] = option(
        (), "epochs, counted from round 0, at which lr is multiplied ..."
    )
    decay: float = option(0.1, "... by this", low=0)
    prior: float = option(
        0.0,
        "tau: train on softmax(z / temperature + tau log p), p the shares of classes",
        low=0,
    )
    prox: float = option(
        0.0, "mu: add mu / 2 ||w - w0||^2 to the loss, w0 the weights at the start", low=0
    )
    ntd: float = option(
        0.0, "beta of not-true distillation from the model received; local training only", low=0
    )
    mixup: float = option(
        0.0, "alpha: mix samples in pairs, with one share from Beta(alpha, alpha) a step", low=0
    )

    def __post_init__(self) -> None:
        if isinstance(self.milestones, list):  # a recipe can be hashed
            object.__setattr__(self, "milestones", tuple(self.milestones))
        problems = [*list_problems(self), *_unknown_words(self)]
        if not _are_epochs(self.milestones):
            problems.append(f"milestones must be epochs from 0 on, not {_shown(self.milestones)}")
        if self.nesterov and self.momentum == 0:
            problems.append("nesterov needs a momentum above 0")
        if problems:
            raise UserError("; ".join(problems))


def list_problems(options: Any) -> list[str]:
    """What is wrong with the numbers of a dataclass made of `option`s, in words."""
    return [text for f in fields(options) if (text := _problem(f, getattr(options, f.name)))]


def _problem(option: Field[Any], value: Any) -> str | None:
    """What is wrong with a number, in words."""
    if option.type not in ("int", "float"):
        return None
    whole, limits = option.type == "int", option.metadata
    low, above, below = limits["low"], limits["above"], limits["below"]
    fits = (_is_whole(value) if whole else isinstance(value, Real)) and math.isfinite(value)
    if fits and value >= low and value > above and value < below:
        return None
    words = [f"{low:g} or more"] if low > -math.inf else []
    words += [f"above {above:g}"] if above > -math.inf else []
    words += [f"below {below:g}"] if below < math.inf else []
    number = "a whole number, " if whole else ""
    return f"{option.name} must be {number}{' and '.join(words)}, not {value!r}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral)


def _are_epochs(milestones: Any) -> bool:
    known = isinstance(milestones, tuple)
    return known and all(_is_whole(epoch) and epoch >= 0 for epoch in milestones)


def _shown(milestones: Any) -> Any:
    return list(milestones) if isinstance(milestones, tuple) else milestones


def _unknown_words(recipe: Recipe) -> list[str]:
    words = (
        ("optimizer", recipe.optimizer, OPTIMIZERS),
        ("augment", recipe.augment, AUGMENTATIONS),
    )
    return [
        f"{key} must be one of {', '.join(known)}, not {word!r}"
        for key, word, known in words
        if word not in known
    ]


@dataclass(frozen=True, eq=False)
class Fit:
    """Train `state` on `data`; the answer is the new state."""

    model: Model
    state: Weights
    data: Labelled
    recipe: Recipe
    key: seeding.Names  # names the randomness, so every engine draws the same batches
    epoch: int = 0  # epochs trained in earlier rounds: where the learning-rate schedule stands
    temperature: float = 1.0  # of the student's softmax in the loss
    # [n, C]: logits of the model received on the samples as they are, needed where recipe.ntd > 0
    teacher: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Predict:
    """The answer is the model's outputs before the softmax, float32 [n, C]."""

    model: Model
    state: Weights
    samples: Samples


@runtime_checkable
class Pretext(Protocol):
    """A self-supervised task: it makes views of images, and knows how wrong the outputs on them
    are. Equal fields, equal task; it holds no data and no randomness.
    """

    @property
    def epochs(self) -> int: ...

    @property
    def batch(self) -> int:
        """Samples per step, at most."""
        ...

    @property
    def lr(self) -> float:
        """The largest learning rate."""
        ...

    @property
    def views(self) -> int:
        """Of each sample in a step."""
        ...

    @property
    def dice(self) -> int:
        """Random numbers that make a view."""
        ...

    @property
    def outputs(self) -> int:
        """Of the head."""
        ...

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse, in words, samples that this task is not for."""
        ...

    def make_head(self, features: int) -> nn.Module:
        """What takes the place of the network's last linear layer."""
        ...

    def make_view(self, x: Tensor, dice: Tensor) -> Tensor:
        """One view of each image; x [b, C, H, W] from 0 to 1, dice [b, dice] from 0 to below 1."""
        ...

    def gradient(self, outputs: Tensor, dice: Tensor) -> Tensor:
        """Of the loss of M networks by their outputs [M, views * B, outputs]; dice as for views.

        The first B rows are the first views of the samples, the next B their second views.
        """
        ...


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A training by Adam that can be continued: the network and Adam's running means."""

    state: Weights
    mean: Weights  # of the gradient, by parameter
    square: Weights


@dataclass(frozen=True, eq=False)
class Pretrain:
    """Train on a pretext for some of its epochs; the answer is the new `Snapshot`."""

    model: Model  # with the pretext's head
    snapshot: Snapshot
    samples: Samples
    pretext: Pretext
    key: seeding.Names  # names the randomness of the whole training
    epoch: int = 0  # epochs trained before
    epochs: int = 1  # to train now

    @property
    def state(self) -> Weights:
        return self.snapshot.state

    @property
    def is_last(self) -> bool:
        """Whether the training ends here: then batch norms take the statistics of plain images."""
        return self.epoch + self.epochs >= self.pretext.epochs


Work = Fit | Predict | Pretrain
R = TypeVar("R")
# Yields Work or a list of Work, is sent the answer or the list of answers, and returns an R.
Turn = Generator[Any, Any, R]


class Engine(Protocol):
    """Does heavy work; only it trains. Equal jobs, equal answers, whatever else is in the list."""

    def run(self, jobs: Sequence[Work]) -> list[Any]:
        """The answers, in the order of the jobs: weights for a Fit, logits for a Predict, a
        Snapshot for a Pretrain."""

    def describe(self, model: Model) -> str:
        """One line on how networks of this architecture are run, and why."""


# --- parties and rounds ---


@dataclass(frozen=True)
class Link:
    """What both ends of a message know without being told."""

    round: int
    samples: int  # N
    classes: int  # C
    drawn_from: tuple[seeding.Names, ...] = ()  # seeds from which a picked set may have been drawn
    votes: float = (
        1.0  # the most votes a row may stand for: 1 from a client, more from an edge server
    )
    before: bytes = b""  # what stands before the message: its checksum covers it
    fewest: int = 0  # rows
    most: int | None = None  # rows; None: all samples
    drawn: int | None = None  # the place in `drawn_from` of the only seed that picks; None: any set


@dataclass(frozen=True, eq=False)
class Draws:
    """A sampler's randomness: `shared` is equal at all clients of a round, `own` is not."""

    shared: np.random.Generator
    own: np.random.Generator


@dataclass(frozen=True, eq=False)
class Client:
    id: int
    model: Model
    data: Labelled

    def __repr__(self) -> str:
        return f"Client({self.id}, {len(self.data)} samples, model {self.model.name!r})"

    @property
    def label_counts(self) -> Array:
        return np.bincount(self.data.labels, minlength=self.data.classes)


@dataclass(frozen=True, eq=False)
class Round:
    """One round as every party sees it; randomness is named after it, never stored."""

    number: int
    seed: int
    public: Samples
    classes: int
    models: tuple[Model, ...]  # the architectures in the federation
    model_of: Callable[[int], Model]  # which of them a client has
    population: int = 1  # clients in the federation
    cohort: int = 0  # clients that take part in a round; 0 where nobody has said
    # weights that the students start from, by architecture: only the server has them, and only
    # before the first round; None where they start from random weights
    start: Mapping[str, Weights] | None = None

    def key(self, *names: int | str) -> seeding.Names:
        return (self.seed, self.number, *names)

    def rng(self, *names: int | str) -> np.random.Generator:
        return seeding.rng(*self.key(*names))

    def draws(self, client: int) -> Draws:
        return Draws(*(seeding.rng(*names) for names in self._picks(client)))

    def link(self, client: int) -> Link:
        return Link(self.number, len(self.public), self.classes, self._picks(client))

    def _picks(self, client: int) -> tuple[seeding.Names, seeding.Names]:
        return self.key("pick"), self.key("pick", client)


@dataclass(frozen=True)
class Verdict:
    """What an aggregator that judges clients thinks of one client in one round."""

    trust: float  # from 0 to 1
    rested: bool  # without a vote


@dataclass(frozen=True, eq=False)
class Server:
    """What the server keeps between rounds: one student per architecture, and its own memory.

    `counts` are figures of the last round that the algorithm wants in the metrics. `distilled` are
    the soft labels it taught its students in that round; a simulation scores them, nobody keeps
    them. `verdicts` are on the clients heard in that round.
    """

    students: dict[str, Weights]
    memory: Any = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    distilled: SoftLabels | None = None  # indexes are into the public set
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    def __repr__(self) -> str:
        students = ", ".join(
            f"{name} ({sum(value.numel() for value in weights.values()):,} weights)"
            for name, weights in self.students.items()
        )
        return f"Server(students: {students or 'none'}, memory: {type(self.memory).__name__})"


@runtime_checkable
class PeerToPeer(Protocol):
    """An algorithm without a server: a client's message goes to its `receivers`."""

    def receivers(self, client: int, r: Round) -> list[int]: ...


@runtime_checkable
class Forgets(Protocol):
    """An algorithm whose server keeps per-client state; `forget` drops that of one client."""

    def forget(self, server: Server, client: int) -> Server: ...


@runtime_checkable
class KeepsSecret(Protocol):
    """An algorithm whose server draws from a secret that clients must not know."""

    def set_secret(self, server: Server, secret: bytes) -> Server: ...


@runtime_checkable
class SharesLabels(Protocol):
    """An algorithm whose clients upload soft labels on public samples; a simulation scores them."""

    def uploaded_labels(self, upload: Any, r: Round) -> SoftLabels | None:
        """Those in a checked upload, with indexes into `r.public`; None where it has none."""
        ...


@dataclass(frozen=True, eq=False)
class LabelAnswer:
    """Soft labels before they are encoded: what a client says, and which rows of it it sends."""

    predicted: Array  # [N, C]: what its model predicts, read-only
    probs: Array  # [N, C]: what it says; an honest client says what its model predicts
    budget: int  # the most rows it sends
    max_bytes: int | None = None  # of the upload
    rows: Array | None = None  # the rows to send, the most wanted first; None: the sampler chooses
    chooses: bool = True  # whether it has a choice; else both ends know the rows
    received: Weights | None = None  # what its training started from
    memory: Any = None  # what the client remembers so far, as the algorithm defines
    asked: Array | None = None  # samples of an audit; its model answers, whatever it says elsewhere


@dataclass(frozen=True, eq=False)
class WeightAnswer:
    """Weights before they are encoded, and how many samples the client says are behind them."""

    received: Weights  # what its training started from
    weights: Weights
    samples: int
    memory: Any = None  # as of `LabelAnswer`


@runtime_checkable
class Attackable(Protocol):
    """An algorithm whose client turn has two halves, so that a simulation can alter an answer.

    `client_turn` is `answer_turn`, then `encode_answer`.
    """

    def answer_type(self, r: Round) -> type[LabelAnswer] | type[WeightAnswer]: ...

    def answer_turn(
        self, client: Client, memory: Any, download: bytes, r: Round
    ) -> Turn[LabelAnswer | WeightAnswer]:
        """What the client would upload: its training is done, nothing is encoded."""
        ...

    def encode_answer(self, client: Client, answer: Any, r: Round) -> tuple[Any, bytes]:
        """The client's memory, and its upload. An altered answer is encoded as any other."""
        ...

    def student_turn(self, client: Client, answer: Any, r: Round) -> Turn[Array]:
        """What the model that the client received predicts on the samples of its answer, [N, C]."""
        ...

    def overhear(self, upload: Any, r: Round) -> Any:
        """Of a checked upload: its SoftLabels with indexes as in answers, or (weights, samples)."""
        ...


class Algorithm(Protocol):
    """A federated algorithm: one turn for each kind of party. Only bytes cross between them.

    Memories are dataclasses that the algorithm names as `client_memory` and `server_memory`
    (see fedsift.memory), or plain dicts of arrays and tensors where it names none.
    """

    def start(self, r: Round) -> Server:
        """The server before the first round."""
        ...

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        """What each client of the cohort downloads at the start of the round."""
        ...

    def client_turn(
        self, client: Client, memory: Any, download: bytes, r: Round
    ) -> Turn[tuple[Any, bytes]]:
        """One client's round. Returns (memory, upload)."""
        ...

    def check_upload(self, server: Server, client: int, upload: bytes, r: Round) -> Any:
        """Decode an upload and check all that both ends know; WireError if it cannot be used.

        Returns what `server_turn` receives for this client.
        """
        ...

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, Any]], r: Round
    ) -> Turn[Server]:
        """The server's round, given each client's id and checked upload. Returns the new server.

        Uploads are decoded one at a time as they are read; reading them again decodes them again.
        """
        ...

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Any], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        """The models whose accuracy is reported, by name."""
        ...
