"""The loss after training: by hand, by its kind, and on a bounded sample."""

import math

import numpy as np
import pytest
import torch

from fedsift.engines import choose_engine
from fedsift.losses import DISTILL, LOCAL, FitLog, cross_entropy, kind_of, losses_turn, spread
from fedsift.models import initial_state, make_model
from fedsift.runs import METRICS
from fedsift.turns import run_turn, watch_turn
from fedsift.types import Fit, Labelled, Predict, Recipe, Samples, Store
from tests.helpers.runs import lines, straight, tiny

MLP = make_model("mlp", (3,), 2)


def fit(targets: list[list[float]], name: str = "train", temperature: float = 1.0) -> Fit:
    values = torch.arange(3.0 * len(targets)).view(-1, 3)
    samples = Samples(Store(values, torch.tensor(0.0), torch.tensor(1.0)), np.arange(len(targets)))
    data = Labelled(samples, torch.tensor(targets))
    weights = initial_state(MLP, 0)
    return Fit(MLP, weights, data, Recipe(), (0, 0, name, 1), temperature=temperature)


def test_cross_entropy_by_hand():
    # softmax(0, log 3) = (1/4, 3/4); the targets are class 1, then half and half
    logits = np.array([[0.0, math.log(3)], [0.0, math.log(3)]])
    targets = np.array([[0.0, 1.0], [0.5, 0.5]])
    by_hand = (-math.log(3 / 4) - (math.log(1 / 4) + math.log(3 / 4)) / 2) / 2
    assert cross_entropy(logits, targets) == pytest.approx(by_hand)
    assert cross_entropy(2 * logits, targets, temperature=2.0) == pytest.approx(by_hand)
    assert math.isnan(cross_entropy(np.array([[np.nan, 0.0]]), targets[:1]))


def test_a_kind_is_told_by_its_key_or_its_labels():
    soft, hard = [[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]
    assert kind_of(fit(soft, "local")) == LOCAL  # with replayed soft labels
    assert kind_of(fit(hard, "revisit")) == LOCAL
    assert kind_of(fit(soft, "digest")) == DISTILL
    assert kind_of(fit(hard, "distill")) == DISTILL  # soft labels in one bit are hard


def test_positions_are_spread_and_bounded():
    assert spread(3, 32).tolist() == [0, 1, 2]
    assert spread(10, 4).tolist() == [0, 3, 6, 9]
    assert spread(0, 4).tolist() == []


def test_a_watched_turn_has_the_mean_loss_of_its_last_trainings():
    first, second = fit([[0.0, 1.0]] * 40), fit([[0.3, 0.7]] * 2, "distill", 3.0)

    def turn():
        yield first
        yield [Predict(MLP, first.state, first.data.samples), first]
        yield second

    log, engine = FitLog(), choose_engine("sequential")[0]
    run_turn(watch_turn(turn(), lambda job: None, log), engine)
    found = run_turn(losses_turn([log]), engine)
    assert list(log.fits) == [(LOCAL, "mlp"), (DISTILL, "mlp")]
    for job, positions in ((first, spread(40, 32)), (second, spread(2, 32))):
        (weights,) = engine.run([job])
        part = job.data[positions]
        (logits,) = engine.run([Predict(MLP, weights, part.samples)])
        expected = cross_entropy(logits, part.targets.numpy(), job.temperature)
        assert found[kind_of(job)] == pytest.approx(expected)
    assert run_turn(losses_turn([]), engine) == {}


def test_training_longer_makes_both_losses_smaller(tmp_path):
    more = ["local.epochs=20", "distill.epochs=20"]
    short = lines(straight(tmp_path / "short", tiny(rounds=1)) / METRICS)[0]
    long = lines(straight(tmp_path / "long", tiny("digits-fas", *more, rounds=1)) / METRICS)[0]
    assert long["local_loss"] < short["local_loss"]
    assert 0 < long["distill_loss"] < math.log(10) < short["local_loss"] + 1


def test_what_is_not_trained_has_no_loss(tmp_path):
    (row,) = lines(straight(tmp_path / "run", tiny("digits-fedavg", rounds=1)) / METRICS)
    assert "local_loss" in row and "distill_loss" not in row
