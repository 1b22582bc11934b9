"""An experiment as parts. Config stops here: the parts never see it."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

from fedsift import data, engines, registry
from fedsift.algorithms import ALGORITHMS
from fedsift.config.read import flat
from fedsift.config.schema import DataSection, Experiment
from fedsift.data.partition import PARTITIONS
from fedsift.federation import Federation, make_clients
from fedsift.types import Algorithm, UserError


def build_federation(experiment: Experiment) -> Federation:
    """The federation an experiment describes: plain parts, checked before any work is done."""
    e = experiment
    algorithm, _ = _algorithm(e)
    engines.check_engine(e.engine, e.device, e.precision)
    task = _split(
        _dataset(e.data), e.data.private, e.data.public, e.data.test, e.seed, e.data.normalise
    )
    how = registry.lookup(PARTITIONS, "partition", e.partition.kind)
    if isinstance(how, type):
        how = how(**{key: getattr(e.partition, key) for key in inspect.signature(how).parameters})
    everyone = make_clients(
        task.private, e.clients.count, how, e.clients.models or e.clients.model, e.seed
    )
    return Federation(algorithm, everyone, task, e.clients.cohort, e.seed)


_split = lru_cache(maxsize=32)(data.split)  # the cells of a table share their seeds' splits


def _dataset(part: DataSection) -> data.Dataset:
    if part.public_from is None:
        return data.load_dataset(part.name)
    if part.public_from == part.name:
        raise UserError(
            f"data.public_from is {part.name} itself; leave it out, and the two parts will not overlap"
        )
    return data.with_public(data.load_dataset(part.name), part.public_from)


def algorithm(experiment: Experiment) -> Algorithm:
    return _algorithm(experiment)[0]


def unused(experiment: Experiment) -> list[str]:
    """The keys that have a value which this experiment does not use; a whole section is named with
    its dot.
    """
    e = experiment
    how = registry.lookup(PARTITIONS, "partition", e.partition.kind)
    wanted = inspect.signature(how).parameters if isinstance(how, type) else ()
    keys = [f"algorithm.{key}" for key in _algorithm(e)[1]]
    keys += [f"partition.{key}" for key in ("alpha", "shards", "samples") if key not in wanted]
    keys += ["clients.model"] if e.clients.models else []
    keys += ["memory"] if e.memory and e.engine == "sequential" else []
    return keys + (
        []
        if "distill" in inspect.signature(ALGORITHMS[e.algorithm.name]).parameters
        else ["distill."]
    )


def _algorithm(e: Experiment) -> tuple[Algorithm, list[str]]:
    make = registry.lookup(ALGORITHMS, "algorithm", e.algorithm.name)
    axes = e.algorithm.model_dump(exclude={"name"}, exclude_none=True)
    recipes = {"local": e.local.recipe(), "distill": e.distill.recipe()}
    known = inspect.signature(make).parameters
    algorithm = make(**{key: value for key, value in (axes | recipes).items() if key in known})
    return algorithm, [key for key in axes if key not in known]


def resolved(experiment: Experiment) -> dict[str, Any]:
    """Every value by its full path; what was left to the algorithm, as the algorithm has it."""
    values = flat(experiment.model_dump())
    for key, parameter in inspect.signature(
        ALGORITHMS[experiment.algorithm.name]
    ).parameters.items():
        if values.get(f"algorithm.{key}", 0) is None and parameter.default is not parameter.empty:
            values[f"algorithm.{key}"] = parameter.default
    return values
