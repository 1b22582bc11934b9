"""Attacks on weights and on private data: hand-worked tensors, then small federations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedsift
from fedsift import registry
from fedsift.attacks import ATTACKS, Scene, read_threat
from fedsift.engines.sequential import SequentialEngine
from fedsift.types import Labelled, UserError, WeightAnswer
from tests.helpers.federations import RECIPE, a_federation, run_rounds, same_records

ENGINE = SequentialEngine("cpu", threads=1)
FEDERATION = a_federation(fedsift.fedavg(local=RECIPE))
SCENE = Scene(FEDERATION.clients[0], FEDERATION.round(0))
RECEIVED = {
    "w": torch.tensor([1.0, 2.0]),
    "n.running_mean": torch.tensor([0.5]),
    "n.running_var": torch.tensor([2.0]),
    "n.num_batches_tracked": torch.tensor(3),
}
TRAINED = {
    "w": torch.tensor([1.5, 1.0]),
    "n.running_mean": torch.tensor([0.7]),
    "n.running_var": torch.tensor([1.0]),
    "n.num_batches_tracked": torch.tensor(9),
}


def attack(text: str) -> Any:
    return registry.build(ATTACKS, "attack", text)


def alter(text: str) -> WeightAnswer:
    altered: WeightAnswer = attack(text)(WeightAnswer(RECEIVED, TRAINED, 40), SCENE)
    return altered


@pytest.mark.parametrize(
    ("text", "w"),
    [
        ("sign-flip", [0.5, 3.0]),
        ("sign-flip(2)", [0.0, 4.0]),
        ("scale", [6.0, -8.0]),
        ("scale(-10)", [-4.0, 12.0]),
        ("huge(1e30)", [1e30, 1e30]),
    ],
)
def test_an_update_is_changed_and_statistics_are_not(text, w):
    altered = alter(text)
    assert altered.weights["w"].tolist() == pytest.approx(w)
    assert altered.samples == 40
    for name in ("n.running_mean", "n.running_var", "n.num_batches_tracked"):
        assert torch.equal(altered.weights[name], TRAINED[name])


def test_inflated_counts_carry_another_attack():
    altered = alter("inflated-counts(scale(-10))")
    assert altered.samples == 4294967295
    assert altered.weights["w"].tolist() == pytest.approx([-4.0, 12.0])
    assert alter("inflated-counts").weights["w"].tolist() == pytest.approx([0.5, 3.0])


def test_nan_variance_makes_variances_negative_and_needs_some():
    altered = alter("nan-variance(-1)")
    assert altered.weights["n.running_var"].tolist() == [-1.0]
    assert torch.equal(altered.weights["w"], TRAINED["w"])
    with pytest.raises(UserError, match="needs a model with batch norms, such as resnet8"):
        attack("nan-variance")(WeightAnswer({"w": RECEIVED["w"]}, {"w": TRAINED["w"]}, 1), SCENE)


def test_poison_moves_the_labels_and_keeps_the_samples():
    client = FEDERATION.clients[0]
    data = Labelled(client.data.samples[np.arange(3)], torch.eye(3)[torch.tensor([0, 2, 1])])
    assert attack("poison")(data, SCENE).labels.tolist() == [1, 0, 2]
    assert attack("poison(2)")(data, SCENE).labels.tolist() == [2, 1, 0]
    assert attack("poison")(data, SCENE).samples is data.samples


def attacked(algorithm: Any, text: str) -> Any:
    return replace(a_federation(algorithm, cohort=6), threat=read_threat(text, 0.5))


WEIGHTS = {
    "fedavg": lambda: fedsift.fedavg(local=RECIPE),
    "fedpaq": lambda: fedsift.fedpaq(local=RECIPE),
    "feddf": lambda: fedsift.feddf(local=RECIPE, distill=RECIPE),
    "sift": lambda: fedsift.sift(bytes=400, mode="weights", local=RECIPE, distill=RECIPE),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("text", ["sign-flip", "scale(-3)"])
def test_weights_can_be_attacked_wherever_they_are_uploaded(name, text):
    honest = run_rounds(a_federation(WEIGHTS[name](), cohort=6), 2, ENGINE)
    hostile = run_rounds(attacked(WEIGHTS[name](), text), 2, ENGINE)
    assert hostile[-1].accuracy < honest[-1].accuracy
    again = run_rounds(attacked(WEIGHTS[name](), text), 2, ENGINE, hostile[0].state)
    assert same_records(hostile[1:], again)


def test_poison_needs_nothing_of_the_algorithm():
    for algorithm in (fedsift.fd_jeong(local=RECIPE), fedsift.fas(8, local=RECIPE)):
        honest = run_rounds(a_federation(algorithm, cohort=6), 1, ENGINE)
        poisoned = run_rounds(attacked(algorithm, "poison"), 1, ENGINE)
        assert len(poisoned[0].hostile) == 3
        assert not same_records(honest, poisoned)


def test_an_attack_that_a_codec_cannot_say_is_refused_in_words():
    with pytest.raises(UserError, match="attack 'huge' cannot be encoded: weights"):
        run_rounds(attacked(WEIGHTS["sift"](), "huge"), 1, ENGINE)
    with pytest.raises(UserError, match="alters weights, but this algorithm uploads labels"):
        attacked(fedsift.fas(8), "sign-flip")
