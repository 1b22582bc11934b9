"""Federations of six clients on separable data, their rounds, and whether two are the same."""

from dataclasses import is_dataclass, replace

import torch

import fedsift
from fedsift import runs
from fedsift.federation import Federation
from fedsift.memory import to_tree
from fedsift.turns import run_turn
from tests.helpers import toys

RECIPE = fedsift.Recipe(epochs=1, batch=4, lr=0.05)


def a_task(seed=0):
    x, y = toys.gaussians(150)
    return fedsift.split(fedsift.make_dataset(x, y), private=60, public=40, seed=seed)


def a_federation(algorithm, model="mlp", seed=0, cohort=3, alpha=1.0):
    task = a_task(seed)
    clients = fedsift.make_clients(task.private, 6, fedsift.Dirichlet(alpha), model, seed)
    return Federation(algorithm, clients, task, cohort, seed)


def run_rounds(federation, rounds, engine, state=None):
    state, records = state or federation.start(), []
    while state.round < rounds:
        records.append(run_turn(federation.round_turn(state), engine))
        state = records[-1].state
    return records


def equal(a, b):
    """Bit for bit, whatever is nested in what; memories by what is stored of them."""
    if is_dataclass(a) or is_dataclass(b):
        return type(a) is type(b) and equal(to_tree(a), to_tree(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return bool(torch.equal(torch.as_tensor(a), torch.as_tensor(b)))


def same_records(one, other):
    return all(
        a.accuracies == b.accuracies
        and a.bytes == b.bytes
        and equal(a.state.server.students, b.state.server.students)
        and equal(a.state.server.memory, b.state.server.memory)
        and a.state.server.counts == b.state.server.counts
        and equal(a.state.memories, b.state.memories)
        for a, b in zip(one, other, strict=True)
    )


class OneByOne:
    """Hands the engine one job at a time, as a device would that has only itself."""

    def __init__(self, engine):
        self.engine = engine

    def run(self, jobs):
        return [self.engine.run([job])[0] for job in jobs]


def stored(records):
    """Records whose states went through a checkpoint: what survives, in one form."""
    return [
        replace(record, state=runs.from_bytes(runs.to_bytes(record.state))) for record in records
    ]


def same_when_stored(one, other):
    return same_records(stored(one), stored(other)) and all(
        a.disagreement == b.disagreement for a, b in zip(one, other, strict=True)
    )
