"""The trained models that a run folder keeps: those of its last round, and of its best one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import nn

from fedsift import config
from fedsift.checkpoints import restore_state, restore_students
from fedsift.config import Experiment
from fedsift.data import Task
from fedsift.federation import Federation, FederationState, ModelLike, choose_model, load_weights
from fedsift.memory import model_in
from fedsift.runs.folder import BEST, CHECKPOINT
from fedsift.runs.states import best_state, describe_error, last_state
from fedsift.types import Model, UserError, Weights

LAST_ROUND, BEST_ROUND = "last", "best"
Read = TypeVar("Read")


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model of a run with its weights, and the data that it was trained on."""

    model: Model
    weights: Weights
    name: str  # as in the accuracies of a round: of an architecture, or "client 3"
    rounds: int  # played until then
    task: Task

    def build(self) -> nn.Module:
        if not self.model.is_network:
            raise UserError(f"{self.name} has a {self.model.name}, which is no network to load")
        return load_weights(self.model, self.weights)


def load_model(
    folder: Path, experiment: Experiment, name: ModelLike | None = None, round: str = LAST_ROUND
) -> TrainedModel:
    """A model that a run folder keeps. Plug-ins that the config names are imported.

    name: which one, where there are several
    round: "last" or "best"
    """
    if round not in (LAST_ROUND, BEST_ROUND):
        raise UserError(f"round is {LAST_ROUND!r} or {BEST_ROUND!r}, not {round!r}")
    if round == BEST_ROUND:
        check_has_best(folder, experiment)
    federation = config.build_federation(experiment)
    if round == BEST_ROUND:
        rounds, students = _read_best(folder, federation)
        owned: dict[str, tuple[Model, Weights]] = {}
    else:
        rounds, students, owned = _read_last(folder, federation)
    models = {
        m.name: (m, students[m.name]) for m in federation.clients.students if m.name in students
    }
    if name is None and not models:
        _explain_no_student(folder, experiment, owned)
    wanted = models if name is None else models | owned
    model, weights = choose_model(wanted, name, str(folder))
    called = next(key for key, found in wanted.items() if found[1] is weights)
    if not model.is_network:
        raise UserError(
            f"{called} has {model.name}, which is no network; only networks can be handed on, "
            "such as those of the server"
        )
    return TrainedModel(model, weights, called, rounds, federation.task)


def check_has_best(folder: Path, experiment: Experiment) -> None:
    """Refuse to choose a round by the test samples, which would make its accuracy too good."""
    if experiment.data.validation is None:
        raise UserError(
            f"{folder} has no validation samples to choose its best round by, and test samples "
            "must not be used for that; run it with data.validation=100, or take the last round"
        )


def _read_best(folder: Path, federation: Federation) -> tuple[int, dict[str, Weights]]:
    state = best_state(folder)
    if state is None:
        raise UserError(
            f"{folder} has no {BEST}: the models of its best round are not kept; "
            "take the last round"
        )
    students = _fit(folder / BEST, lambda: restore_students(state, federation))
    return state.round, students


def _read_last(
    folder: Path, federation: Federation
) -> tuple[int, dict[str, Weights], dict[str, tuple[Model, Weights]]]:
    state = last_state(folder)
    if state is None:
        raise UserError(f"{folder} has no {CHECKPOINT}, so its model is lost")
    restored: FederationState = _fit(folder / CHECKPOINT, lambda: restore_state(state, federation))
    owned = {
        f"client {id}": (federation.clients.model_of(id), weights)
        for id, memory in sorted(restored.memories.items())
        if (weights := model_in(memory))
    }
    return state.round, restored.server.students, owned


def _fit(path: Path, restore: Callable[[], Read]) -> Read:
    try:
        return restore()
    except Exception as error:  # a damaged file fails in many ways; the user needs one answer
        raise UserError(f"cannot read {path}: {describe_error(error)}") from None


def _explain_no_student(
    folder: Path, experiment: Experiment, owned: dict[str, tuple[Model, Weights]]
) -> None:
    named = f"; name one of them, such as {next(iter(owned))!r}" if owned else ""
    raise UserError(
        f"{folder} has no model: with {experiment.algorithm.name} the server keeps none, only "
        f"the clients do{named}"
    )
