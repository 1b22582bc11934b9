"""All that survives a round, held against the federation that goes on from it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedsift
from fedsift.checkpoints import from_bytes, restore_state, to_bytes
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Federation, FederationState
from fedsift.models import initial_state
from fedsift.starts import StartFile
from fedsift.turns import run_turn
from fedsift.types import Server, UserError

RECIPE = fedsift.Recipe(epochs=1, batch=16)


def a_federation(algorithm):
    task = fedsift.split(fedsift.load_dataset("digits"), private=80, public=30, test=50)
    clients = fedsift.make_clients(task.private, 4, model="mlp")
    return Federation(algorithm, clients, task, cohort=3, seed=0)


def after(rounds, federation):
    records = fedsift.federate(
        federation.algorithm, federation.clients, federation.task, rounds=rounds, cohort=3
    )
    return [record.state for record in records][-1]


ALGORITHMS = {
    "fas": lambda: fedsift.fas(10, local=RECIPE, distill=RECIPE),
    "cfd": lambda: fedsift.cfd(10, local=RECIPE, distill=RECIPE),
    "missed": lambda: fedsift.ds_fl(10, absent="missed", local=RECIPE, distill=RECIPE),
    "updates": lambda: fedsift.fas(10, down_codec="updates(1)", local=RECIPE, distill=RECIPE),
    "fedavg, updates": lambda: fedsift.fedavg(down_codec="updates(1)", local=RECIPE),
    "fd_jeong": lambda: fedsift.fd_jeong(local=RECIPE),
    "mix2fld": lambda: fedsift.mix2fld(local=RECIPE, distill=RECIPE),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_state_comes_back_bit_for_bit_and_with_its_types(name):
    federation = a_federation(ALGORITHMS[name]())
    state = after(2, federation)
    restored = restore_state(from_bytes(to_bytes(state)), federation)
    assert to_bytes(restored) == to_bytes(state)
    assert type(restored.server.memory) is type(state.server.memory)
    assert {id: type(m) for id, m in restored.memories.items()} == {
        id: type(m) for id, m in state.memories.items()
    }


def test_figures_of_clients_elsewhere_are_kept():
    state = FederationState(3, Server({}), {}, {2: 1, 0: 2}, {2: 0.125})
    back = from_bytes(to_bytes(state))
    assert back.round == 3 and back.last_rounds == {2: 1, 0: 2}
    assert back.reported_accuracies == {2: 0.125}


def test_a_checkpoint_that_does_not_fit_the_federation_is_refused():
    federation = a_federation(ALGORITHMS["cfd"]())
    state = after(1, federation)
    stored = from_bytes(to_bytes(state))
    students = stored.server.students
    name, weights = next(iter(students.items()))
    tensor = next(iter(weights))
    far = {"sent": {"0": {"index": np.array([2**40]), "probs": np.zeros((1, 10), np.float32)}}}
    wide = {"sent": {"0": {"index": np.array([1]), "probs": np.zeros((1, 9), np.float32)}}}
    short = {key: value for key, value in weights.items() if key != tensor}
    bad = {
        "model mlp lacks": Server({name: short}, stored.server.memory),
        "is float64": Server(
            {name: weights | {tensor: weights[tensor].double()}}, stored.server.memory
        ),
        "soft labels that do not fit": Server(students, far),
        "soft labels that do not fit 30 samples": Server(students, wide),
        "has 'lessons', which this version does not know": Server(students, {"lessons": {}}),
    }
    for complaint, server in bad.items():
        with pytest.raises(UserError, match=complaint):
            restore_state(replace(stored, server=server), federation)
    with pytest.raises(UserError, match="it has no model, the experiment mlp"):
        restore_state(replace(stored, server=Server({}, stored.server.memory)), federation)
    with pytest.raises(UserError, match="it has a client 9 of 4"):
        restore_state(replace(stored, last_rounds={9: 0}), federation)


def test_updates_that_do_not_fit_are_refused():
    federation = a_federation(ALGORITHMS["updates"]())
    state = after(3, federation)
    stored = from_bytes(to_bytes(state))
    restore_state(stored, federation)
    weights = stored.server.memory["weights"]
    posted = weights["posted"]["mlp"]
    code = np.frombuffer(b"\1nonsense", np.uint8)
    bad = {
        "update that does not fit model mlp": {"posted": {"mlp": posted | {"ticks": code}}},
        "update that does not fit model mlp: ": {
            "posted": {"mlp": posted | {"updates": {"1": code}}}
        },
        "updates of a model cnn, which nobody has": {"posted": {"cnn": posted}},
        "a client 9 that received round 1": {"received": {"9": np.array(1)}},
        "client 0 that received round 3": {"received": {"0": np.array(3)}},
        "client 1 that received round -1": {"received": {"1": np.array(-1)}},
        "lacks updates that client 0 has not received": {"received": {"0": np.array(0)}},
    }
    for complaint, part in bad.items():
        memory = stored.server.memory | {"weights": weights | part}
        if "lacks" in complaint:
            memory["weights"]["posted"] = {"mlp": {"ticks": posted["ticks"]}}
        with pytest.raises(UserError, match=complaint):
            restore_state(
                replace(stored, server=Server(stored.server.students, memory)), federation
            )
    with pytest.raises(UserError, match="does not fit model mlp"):
        restore_state(replace(stored, memories={0: {"held": {"ticks": code}}}), federation)


def test_first_weights_that_do_not_fit_are_refused():
    algorithm = fedsift.ds_fl(10, local=RECIPE, distill=RECIPE)
    federation = replace(a_federation(algorithm), start_from=StartFile("any.safetensors"))
    (model,) = federation.clients.models
    first = federation.start({model.name: initial_state(model, 5)})
    state = run_turn(federation.round_turn(first), SequentialEngine()).state
    stored = from_bytes(to_bytes(state))
    restore_state(stored, federation)
    weights = stored.server.memory["first"]["weights"]["mlp"]
    short = dict(list(weights.items())[1:])
    for complaint, first in {
        "it has no model, the experiment mlp": {},
        "model mlp lacks": {"weights": {"mlp": short}},
    }.items():
        memory = stored.server.memory | {"first": first}
        server = Server(stored.server.students, memory)
        with pytest.raises(UserError, match=complaint):
            restore_state(replace(stored, server=server), federation)


def test_a_checkpoint_of_another_version_is_named():
    from fedsift.checkpoints import tree_to_bytes

    blob = tree_to_bytes({"students": {}, "notes": {"sent": torch.ones(1)}}, 2)
    with pytest.raises(UserError, match="saved by another version of fedsift: it has 'notes'"):
        from_bytes(blob)
