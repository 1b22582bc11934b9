"""What a turn asks an engine to do."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from fedsift import seeding
from fedsift.types.basics import Model, UserError, Weights
from fedsift.types.recipes import Recipe
from fedsift.types.samples import Labelled, Samples


@dataclass(frozen=True, eq=False)
class Fit:
    """Train `state` on `data`; the answer is the new state."""

    model: Model  # which network
    state: Weights  # the weights that training starts from
    data: Labelled  # samples with their targets
    recipe: Recipe  # epochs, batch, step size and so on
    key: seeding.Names  # names the randomness, so every engine draws the same batches
    epoch: int = 0  # epochs trained in earlier rounds: where the learning-rate schedule stands
    temperature: float = 1.0  # of the student's softmax in the loss
    # [n, C]: logits of the model received on the samples as they are, needed where recipe.ntd > 0
    teacher: Tensor | None = None
    kept: bool = False  # whether the client remembers the new state after its turn

    def __post_init__(self) -> None:
        if self.recipe.mixup and self.data.samples.vocabulary is not None:
            raise UserError(
                "mixup cannot mix token ids; set mixup to 0 in local, distill and algorithm"
            )


@dataclass(frozen=True, eq=False)
class Predict:
    """The answer is the model's outputs before the softmax, float32 [n, C]."""

    model: Model  # which network, estimator or black box
    state: Weights  # its weights
    samples: Samples  # what it is asked about, [n]


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
        Snapshot for a Pretrain. A ModelFailure stands for the answer of a model that failed."""

    def describe(self, model: Model) -> str:
        """One line on how networks of this architecture are run, and why."""
