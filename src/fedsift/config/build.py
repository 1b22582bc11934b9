"""An experiment as parts. Config stops here: the parts never see it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fedsift import data, engines, registry
from fedsift.algorithms import ALGORITHMS
from fedsift.algorithms.edges import place_algorithm
from fedsift.attacks import read_threat
from fedsift.config.schema import Experiment
from fedsift.config.sources import load_section
from fedsift.data import Task
from fedsift.data.partition import PARTITIONS
from fedsift.federation import Clients, Federation, make_clients
from fedsift.starts import read_start
from fedsift.types import Algorithm, UserError


@dataclass(frozen=True)
class Built:
    """What an experiment became, and the keys that have a value which it does not use."""

    federation: Federation
    unused: list[str]


def build_parts(experiment: Experiment) -> Built:
    """The federation of an experiment, checked before any work is done, and its unused keys."""
    e = experiment
    check_patience(e)
    algorithm, partition = _plan_algorithm(e), _plan_partition(e)
    made = place_algorithm(algorithm.build(), e.topology)
    engines.check_engine(e.engine, e.device, e.precision)
    federation = Federation(
        made,
        build_clients(e),
        build_task(e),
        e.clients.cohort,
        e.seed,
        read_start(e.start),
        read_threat(e.attack, e.attackers),
        e.record,
    )
    return Built(federation, _list_unused(e, algorithm, partition))


def check_patience(experiment: Experiment) -> None:
    """Test samples must not decide when a run stops."""
    if experiment.patience is not None and experiment.data.validation is None:
        raise UserError(
            "patience stops a run by its validation samples, and there are none; "
            "set data.validation=100, or leave patience out"
        )


def build_federation(experiment: Experiment) -> Federation:
    """The federation that an experiment describes. Plug-ins that it names are imported.

    experiment: what `read_experiment` gave
    """
    return build_parts(experiment).federation


def build_task(experiment: Experiment) -> Task:
    """The private, public and held-out samples. Made once per data section and seed."""
    d = experiment.data
    sizes = d.private, d.public, d.test
    found = load_section(d, experiment.clients)
    return _split(found, *sizes, experiment.seed, d.normalise, d.validation)


def build_clients(experiment: Experiment) -> Clients:
    """The clients with their models and data; as `build_task`, made once."""
    which = experiment.model_dump_json(include={"seed", "partition", "clients"})
    return _make_clients(build_task(experiment), which)


def build_algorithm(experiment: Experiment) -> Algorithm:
    """As it is played in the topology of the experiment."""
    return place_algorithm(_plan_algorithm(experiment).build(), experiment.topology)


def list_unused(experiment: Experiment) -> list[str]:
    """Keys with a value this experiment does not use; a whole section is named with its dot."""
    return _list_unused(experiment, _plan_algorithm(experiment), _plan_partition(experiment))


def explain_unused(experiment: Experiment) -> dict[str, str]:
    """As `list_unused`, with what the algorithm knows itself not to use here; and why.

    Where the reason is empty, the parts have no such option.
    """
    plan = _plan_algorithm(experiment)
    found = dict.fromkeys(_list_unused(experiment, plan, _plan_partition(experiment)), "")
    federation = build_federation(experiment)
    explain = getattr(federation.algorithm, "explain_unused", None)
    told: dict[str, str] = explain(federation.round(0)) if explain else {}
    for key, why in told.items():
        section, _, term = key.partition(".")
        whole = section in ("local", "distill")
        found.setdefault(f"{section}.{term}" if whole else f"algorithm.{key}", why)
    return found


_split = lru_cache(maxsize=32)(data.split)  # the cells of a table share their seeds' splits


@lru_cache(maxsize=8)
def _make_clients(task: Task, which: str) -> Clients:
    e = Experiment.model_validate_json(which)
    how = _plan_partition(e).build()
    how = task.given or how if e.partition.kind == GIVEN else how
    models = e.clients.models or e.clients.model
    return make_clients(task.private, e.clients.count, how, models, e.seed, e.clients.student)


GIVEN = "given"


def _plan_algorithm(e: Experiment) -> registry.Plan:
    axes = e.algorithm.model_dump(exclude={"name"}, exclude_none=True)
    recipes = {"local": e.local, "distill": e.distill}
    return registry.plan(ALGORITHMS, "algorithm", e.algorithm.name, axes | recipes)


def _plan_partition(e: Experiment) -> registry.Plan:
    return registry.plan(
        PARTITIONS, "partition", e.partition.kind, e.partition.model_dump(exclude={"kind"})
    )


def _list_unused(e: Experiment, algorithm: registry.Plan, partition: registry.Plan) -> list[str]:
    sections = [key for key in ("local", "distill") if key in algorithm.unused]
    keys = [f"algorithm.{key}" for key in algorithm.unused if key not in sections]
    keys += [f"partition.{key}" for key in partition.unused]
    keys += ["clients.model"] if e.clients.models else []
    keys += ["memory"] if e.memory and e.engine == "sequential" else []
    return keys + [f"{section}." for section in sections]
