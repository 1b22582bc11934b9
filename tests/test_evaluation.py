"""Accuracy is a plain share of right answers, and a run is judged by its last five rounds, never by
its best.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.evaluation import Scores, accuracy, average_last, evaluate
from fedsift.models import initial_state, make_model
from fedsift.types import Labelled, Predict, Samples, Store

LOGITS = np.array(
    [[2.0, 1.0, 0.0], [-5.0, -4.0, -6.0], [0.0, 0.1, 0.2], [9.0, 0.0, 0.0]]
)  # say 0, 1, 2, 0


def test_accuracy_by_hand():
    assert accuracy(LOGITS, np.array([0, 1, 2, 0])) == 1.0
    assert accuracy(LOGITS, np.array([0, 1, 0, 2])) == 0.5
    assert accuracy(LOGITS, np.array([0, 0, 0, 1])) == 0.25
    assert accuracy(LOGITS, np.array([1, 2, 0, 1])) == 0.0


def test_accuracy_is_a_plain_float():
    assert type(accuracy(LOGITS.astype(np.float32), np.array([0, 1, 2, 1]))) is float


def test_settled_is_the_mean_of_the_last_five():
    # 0.9 and 0.1 are older than five rounds; (0.3 + 0.4 + 0.5 + 0.6 + 0.7) / 5 = 0.5.
    assert average_last([0.9, 0.1, 0.3, 0.4, 0.5, 0.6, 0.7]) == pytest.approx(0.5)
    assert average_last([0.9, 0.2, 0.2, 0.2, 0.2, 0.2]) == pytest.approx(0.2)


def test_settled_over_fewer_rounds_is_the_mean_of_all():
    assert average_last([0.25]) == 0.25
    assert average_last([0.5, 0.75, 0.25]) == pytest.approx(0.5)


def test_settled_over_no_round_is_not_a_number():
    assert math.isnan(average_last([]))


def test_evaluate_asks_for_predictions_of_every_model_and_names_the_answers():
    store = Store(torch.zeros(4, 3), torch.zeros(3), torch.ones(3))
    test = Labelled(Samples(store, np.arange(4)), torch.eye(3)[[0, 1, 0, 2]])
    networks = {
        name: make_model(f"mlp(width={width})", (3,), 3)
        for name, width in (("small", 0.5), ("large", 1.0))
    }
    states = {name: initial_state(network, 0) for name, network in networks.items()}
    turn = evaluate({name: (networks[name], states[name]) for name in networks}, test)

    asked = next(turn)
    assert all(isinstance(job, Predict) and job.samples is test.samples for job in asked)
    assert [job.model for job in asked] == [networks["small"], networks["large"]]
    assert [job.state for job in asked] == [states["small"], states["large"]]

    with pytest.raises(StopIteration) as done:
        turn.send([LOGITS, LOGITS[[3, 1, 3, 2]]])  # say 0 1 2 0 and 0 1 0 2; right is 0 1 0 2
    assert done.value.value == Scores({"small": 0.5, "large": 1.0}, None)


shares = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(shares)
@settings(deadline=None)
def test_settled_lies_between_the_worst_and_the_best_of_the_last_five(accuracies):
    last = accuracies[-5:]
    assert min(last) - 1e-12 <= average_last(accuracies) <= max(last) + 1e-12


@given(shares, st.lists(st.floats(0, 1), min_size=5, max_size=5))
@settings(deadline=None)
def test_settled_forgets_what_is_older_than_five_rounds(older, last):
    assert average_last(older + last) == average_last(last) == pytest.approx(math.fsum(last) / 5)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
@settings(deadline=None)
def test_accuracy_counts_the_right_answers(pairs):
    said, labels = map(np.array, zip(*pairs, strict=True))
    right = sum(a == b for a, b in pairs)
    assert accuracy(np.eye(5)[said], labels) == pytest.approx(right / len(pairs))
