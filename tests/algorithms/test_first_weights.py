"""Starting weights: every algorithm that sends a model down takes them, and hostile bytes are
refused.
"""

import pytest
import torch

from fedsift import config, models
from fedsift.algorithms import ALGORITHMS
from fedsift.algorithms.first_weights import FirstWeights, split_download
from fedsift.checkpoints import from_bytes, restore_state, to_bytes
from fedsift.codecs import WireError
from fedsift.engines import choose_engine
from fedsift.federation import FederationState, start_federations
from fedsift.memory import from_tree, to_tree
from fedsift.turns import run_turn
from fedsift.types import UserError
from tests.helpers import federations
from tests.helpers.parity import same
from tests.helpers.runs import KINDS

pytestmark = pytest.mark.usefixtures("own_data_folder")
WITHOUT = {"fd-jeong", "gossip"}  # no model travels down


def federation(*overrides):
    settings = [*KINDS["digits-fas"], "start=rotation(epochs=2)", *overrides]
    return config.build_federation(config.read_experiment("digits-fas", settings))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - WITHOUT))
def test_students_start_from_the_weights_and_a_round_survives_a_checkpoint(algorithm):
    here, engine = federation(f"algorithm={algorithm}"), choose_engine()[0]
    (state,) = start_federations([here], engine)
    assert isinstance(state, FederationState)
    (model,) = here.clients.models
    student = state.server.students[model.name]
    assert not same(student, models.initial_state(model, here.seed))
    live = stored = state
    for _ in range(3):
        records = [run_turn(here.round_turn(state), engine) for state in (live, stored)]
        assert federations.same_when_stored(*([record] for record in records))
        live, stored = records[0].state, restore_state(from_bytes(to_bytes(records[1].state)), here)


@pytest.mark.parametrize("algorithm", sorted(WITHOUT))
def test_an_algorithm_that_sends_no_model_down_refuses(algorithm):
    with pytest.raises(UserError, match="sends no model down"):
        federation(f"algorithm={algorithm}", "cohort=4").start()


# --- soft labels down ---


def first_round():
    """The round, its cohort, and what the server remembers of the weights."""
    here = federation("algorithm=ds-fl")
    r = here.round(0)
    (model,) = here.clients.models
    weights = models.initial_state(model, 7)
    return r, here.draw_cohort(r), FirstWeights({model.name: weights})


def test_a_client_that_was_heard_is_sent_nothing_more_and_one_that_was_forgotten_all():
    r, (one, other), memory = first_round()
    first = memory.encode_for([one, other], r)
    assert len(first[one.id]) == len(first[other.id]) > 1000
    later = memory.add_receivers([one.id], r)
    assert later.encode_for([one, other], r) == {one.id: b"", other.id: first[other.id]}
    assert later.forget(one.id).encode_for([one], r) == {one.id: first[one.id]}
    again = from_tree(FirstWeights, to_tree(later))
    assert again.received == {one.id: True} and same(again.weights["mlp"], memory.weights["mlp"])


def test_a_download_is_the_weights_and_what_follows():
    r, (one, _), memory = first_round()
    download = memory.encode_for([one], r)[one.id]
    weights, rest = split_download(one.model, download + b"labels", r)
    assert same(weights, memory.weights["mlp"]) and rest == b"labels"


@pytest.mark.parametrize(
    "damage",
    [
        lambda download: b"",
        lambda download: download[:3],
        lambda download: download[:-1],
        lambda download: b"\xff\xff\xff\xff" + download[4:],
        lambda download: b"\0\0\0\0" + download[4:],
        lambda download: download[:40] + b"?" + download[41:],
    ],
)
def test_a_damaged_download_is_refused(damage):
    r, (one, _), memory = first_round()
    with pytest.raises(WireError):
        split_download(one.model, damage(memory.encode_for([one], r)[one.id]), r)


def test_weights_of_another_model_are_refused():
    r, (one, _), _ = first_round()
    other = models.make_model("cnn", (1, 8, 8), 10)
    foreign = FirstWeights({one.model.name: models.initial_state(other, 0)})
    with pytest.raises(WireError, match="message of 24793 bytes; at most 21357 can be right"):
        split_download(one.model, foreign.encode_for([one], r)[one.id], r)


def test_weights_that_are_not_finite_are_refused():
    r, (one, _), memory = first_round()
    bad = {name: value * torch.nan for name, value in memory.weights["mlp"].items()}
    with pytest.raises(UserError, match="not finite"):
        FirstWeights({"mlp": bad}).encode_for([one], r)
