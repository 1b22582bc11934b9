"""What the same models reach without a federation: each client alone, and all data pooled.

Both train for as many epochs as a client that takes part in every round, by the same recipe and
from the same first weights. Nothing is exchanged. Pooled data are what a federation may not have:
it is the bar above, and each client alone is the bar below.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from fedsift.data import TEST, VALIDATION
from fedsift.evaluation import accuracy
from fedsift.federation import Federation, FederationState
from fedsift.models import initial_state
from fedsift.types import Fit, Predict, Recipe, Turn, UserError

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
    jobs = [
        *((f"{c.id}", c.model, c.data) for c in clients),
        *((model.name, model, task.private) for model in federation.clients.models),
    ]
    key = federation.round(0).key("baseline")
    trained = yield [
        Fit(model, weights[model.name], data, recipe, (*key, name)) for name, model, data in jobs
    ]
    held_out = task.held_out
    answers = yield [
        Predict(model, fitted, held_out.samples)
        for (_, model, _), fitted in zip(jobs, trained, strict=True)
    ]
    found = [accuracy(logits, held_out.labels) for logits in answers]
    names = [name for name, _, _ in jobs]
    count = len(clients)
    return Baselines(
        dict(zip(names[:count], found[:count], strict=True)),
        dict(zip(names[count:], found[count:], strict=True)),
        task.measured_on,
    )
