"""What survives a round, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fedsift import registry
from fedsift.data import TEST
from fedsift.evaluation import DistilledLabels, Quality, UploadedLabels
from fedsift.federation.clients import ModelLike
from fedsift.federation.conversations import Conversation
from fedsift.ledger import RoundBytes
from fedsift.types import Model, Server, UserError, Verdict, Weights


@dataclass(frozen=True, eq=False)
class FederationState:
    """All that survives a round."""

    round: int  # rounds finished
    server: Server  # students, and what the algorithm keeps
    memories: dict[int, Any] = field(default_factory=dict)  # by client, as the algorithm defines
    # of clients on other machines, which keep their memories and models to themselves:
    last_rounds: dict[int, int] = field(default_factory=dict)  # the last round a memory is of
    reported_accuracies: dict[int, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        models = ", ".join(self.server.students) or "none"
        memories = len(self.memories)
        return f"FederationState(round={self.round}, students: {models}, {memories} memories)"


@dataclass(frozen=True, eq=False)
class Record:
    """One round: what it cost and what came of it. `state` is enough to resume from here."""

    round: int  # from 0 on
    accuracies: dict[str, float]  # by model, on the test samples
    bytes: RoundBytes = field(repr=False)  # of every message, by client and direction
    state: FederationState = field(repr=False)  # give it to `federate` to resume from here
    models: dict[str, tuple[Model, Weights]] = field(repr=False)  # what was evaluated
    client_accuracy: float | None = None  # mean over the models that clients keep of their own
    disagreement: float | None = None  # how often two of those differ on a test sample
    counts: dict[str, int] = field(
        default_factory=dict
    )  # what the algorithm counts (Server.counts)
    measured_on: str = TEST  # what all accuracies are of: the test or the validation samples
    quality: Quality | None = None  # more on the models that are reported, where they are here
    losses: dict[str, float] = field(default_factory=dict)  # after training, see fedsift.losses
    # of a simulation where the public samples' classes are known:
    uploaded_labels: UploadedLabels | None = None  # how right the uploads are (simulation)
    distilled_labels: DistilledLabels | None = None  # how right the aggregate is (simulation)
    steps: dict[int, int] = field(default_factory=dict)  # training steps of each simulated client
    verdicts: dict[int, Verdict] = field(default_factory=dict)  # on the clients heard, if judged
    server_steps: int = 0  # training steps of the server
    reported_by_clients: tuple[str, ...] = ()  # which of these figures nobody else has measured
    hostile: tuple[int, ...] = ()  # the hostile clients that took part, in a simulation
    conversation: Conversation | None = field(default=None, repr=False)  # where it is recorded

    def __repr__(self) -> str:
        up, down = self.bytes.uplink, self.bytes.downlink
        name = "accuracy" if self.measured_on == TEST else f"{self.measured_on}_accuracy"
        return f"Record(round={self.round}, {name}={self.accuracy:.4f}, up={up} B, down={down} B)"

    @property
    def accuracy(self) -> float:
        """The mean over the models the algorithm reports: its students, or else its clients'."""
        return sum(self.accuracies.values()) / len(self.accuracies)

    def network(self, name: ModelLike | None = None) -> nn.Module:
        """A trained model, ready to predict: give it `task.normalise(x)`.

        name: which one, where there are several: its name, or what makes it
        """
        return build_network(self.models, name, "this record")

    @property
    def uplink_bytes(self) -> int:
        return self.bytes.uplink

    @property
    def downlink_bytes(self) -> int:
        return self.bytes.downlink


def build_network(
    models: Mapping[str, tuple[Model, Weights]], name: ModelLike | None, whose: str
) -> nn.Module:
    """The one of these models that is asked for, or the only one, with its weights."""
    return load_weights(*choose_model(models, name, whose))


def choose_model(
    models: Mapping[str, tuple[Model, Weights]], name: ModelLike | None, whose: str
) -> tuple[Model, Weights]:
    """The one of these models that is asked for, or the only one."""
    there = ", ".join(models)
    if not models:
        raise UserError(f"{whose} has no model: its clients keep theirs to themselves")
    if name is None and len(models) > 1:
        raise UserError(f"{whose} has {there}; name one")
    wanted = next(iter(models)) if name is None else getattr(name, "__name__", name)
    found: tuple[Model, Weights] = registry.lookup(
        models, "model", str(wanted), f"{whose} has {there}"
    )
    return found


def load_weights(model: Model, weights: Weights) -> nn.Module:
    """A network of this architecture with these weights, ready to predict."""
    net = model.build()
    net.load_state_dict(weights)
    return net.eval()
