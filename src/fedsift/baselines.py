"""What the same models reach without a federation: each client alone, and all data pooled.

Both train for as many epochs as a client that takes part in every round, by the same recipe and
from the same first weights. Nothing is exchanged. Pooled data are what a federation may not have:
it is the bar above, and each client alone is the bar below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from fedsift.data import TEST, VALIDATION
from fedsift.evaluation import accuracy
from fedsift.federation import Federation, FederationState
from fedsift.models import initial_state
from fedsift.turns import Missing, batch_turns, try_turn
from fedsift.types import REMOTE, Fit, Labelled, Model, Predict, Recipe, Turn, UserError

MOST = 1_000  # clients: each is trained for the length of the whole run


@dataclass(frozen=True)
class Baselines:
    """Accuracies on the samples that the run is measured on."""

    alone: dict[str, float]  # by client id, as text
    pooled: dict[str, float]  # by model
    measured_on: str

    @property
    def mean_alone(self) -> float:
        return fmean(self.alone.values())

    @property
    def best_alone(self) -> float:
        return max(self.alone.values())

    @property
    def best_pooled(self) -> float:
        return max(self.pooled.values())

    def to_json(self) -> dict[str, Any]:
        figures = {name: round(getattr(self, name), 6) for name in FIGURES}
        return asdict(self) | figures


FIGURES = ("mean_alone", "best_alone", "best_pooled")


def read_baselines(found: Any) -> Baselines:
    """What `to_json` made, from a file that may be damaged: ValueError for anything else."""
    if not isinstance(found, dict):
        raise ValueError("it must be an object")
    if found.get("measured_on") not in (TEST, VALIDATION):
        raise ValueError("it must say on what samples they were measured")
    alone, pooled = (_check_table(found.get(key)) for key in ("alone", "pooled"))
    return Baselines(alone, pooled, found["measured_on"])


def _check_table(table: Any) -> dict[str, float]:
    if not isinstance(table, dict) or not table or not all(map(_is_share, table.values())):
        raise ValueError("it must have accuracies of clients alone and of pooled data")
    return table


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def check_baselines(federation: Federation) -> None:
    if len(federation.clients) > MOST:
        raise UserError(
            f"baselines train every client alone, and there are {len(federation.clients)}; "
            f"leave them out, or have at most {MOST} clients"
        )


def baselines_turn(
    federation: Federation, recipe: Recipe, rounds: int, first: FederationState
) -> Turn[Baselines]:
    """Train and test them, from the weights of the `first` state where it has some.

    The step size falls at the same epochs as in the federation. Nothing is received, so terms that
    follow a received model are left out.
    """
    check_baselines(federation)
    task, clients = federation.task, list(federation.clients)
    recipe = replace(recipe, epochs=recipe.epochs * rounds, prox=0.0, ntd=0.0)
    weights = {
        model.name: first.server.students.get(model.name) or initial_state(model, federation.seed)
        for model in federation.clients.models
    }
    key = federation.round(0).key("baseline")

    def train(name: str, model: Model, data: Labelled) -> Turn[float]:
        fit = Fit(model, weights[model.name], data, recipe, (*key, name))
        logits = yield Predict(model, (yield fit), task.held_out.samples)
        return accuracy(logits, task.held_out.labels)

    models = [model for model in federation.clients.models if model.kind != REMOTE]
    alone = {f"{c.id}": (c.model, c.data) for c in clients if c.model in models and len(c.data)}
    pooled = {model.name: (model, task.private) for model in models}
    jobs = [*alone.items(), *pooled.items()]
    found = yield from batch_turns([try_turn(train(name, *what)) for name, what in jobs])
    count = len(alone)
    return Baselines(
        _drop_failed(dict(zip(alone, found[:count], strict=True))),
        _drop_failed(dict(zip(pooled, found[count:], strict=True))),
        task.measured_on,
    )


def _drop_failed(found: Mapping[str, float | Missing]) -> dict[str, float]:
    """Without models that failed; if that is all of them, there is nothing to compare with."""
    kept = {name: figure for name, figure in found.items() if not isinstance(figure, Missing)}
    if not kept:
        reasons = [figure.why for figure in found.values() if isinstance(figure, Missing)]
        why = f": {reasons[0]}" if reasons else ": black boxes cannot be trained"
        raise UserError(f"baselines cannot be trained{why}; leave them out")
    return kept
