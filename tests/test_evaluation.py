"""Accuracy is a plain share of right answers, and a run is judged by its last five rounds, never by
its best.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.evaluation import (
    Scores,
    accuracy,
    average_last,
    calibration_error,
    evaluate,
    measure_quality,
    roc_area,
)
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


# --- more than accuracy ---

# true 0, 0, 1, 1, 2; said 0, 1, 1, 1, 0
SAID, TRUE = np.array([0, 1, 1, 1, 0]), np.array([0, 0, 1, 1, 2])


def test_quality_by_hand():
    found = measure_quality([np.eye(4)[SAID] * 50], TRUE, 4)
    assert found is not None
    assert found.class_accuracy == (0.5, 1.0, 0.0, None)
    assert found.confusion == ((1, 1, 0, 0), (0, 2, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0))
    # F1: class 0 2*1/(2+2), class 1 2*2/(3+2), class 2 0; class 3 does not occur
    assert found.macro_f1 == pytest.approx((0.5 + 0.8 + 0) / 3)
    assert found.calibration_error == pytest.approx(2 / 5)  # sure of all, 3 of 5 right
    assert found.auc is None


def test_quality_of_several_models_is_their_mean_and_the_sum_of_their_tables():
    right, wrong = np.eye(2) * 50, np.eye(2)[::-1] * 50
    found = measure_quality([right, wrong], np.array([0, 1]), 2)
    assert found is not None
    assert found.class_accuracy == (0.5, 0.5) and found.confusion == ((1, 1), (1, 1))
    assert (found.macro_f1, found.auc) == (0.5, 0.5)


def test_calibration_error_by_hand():
    # confidences .62 and .65 share a bin (9 of 15): |(.62 + .65) - 1| = .27; .9 is alone: .1
    probs = np.array([[0.62, 0.38], [0.35, 0.65], [0.9, 0.1]])
    assert calibration_error(probs, np.array([0, 0, 0])) == pytest.approx((0.27 + 0.1) / 3)


def test_the_roc_area_by_hand():
    labels = np.array([0, 1, 0, 1])
    assert roc_area(np.array([0.1, 0.4, 0.35, 0.8]), labels) == 1.0
    assert roc_area(np.array([0.1, 0.3, 0.35, 0.8]), labels) == 0.75  # one of four pairs is wrong
    assert roc_area(np.array([0.5, 0.5, 0.5, 0.5]), labels) == 0.5
    assert roc_area(np.array([0.1, 0.9]), np.array([1, 1])) is None


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_quality_agrees_with_its_confusion_matrix(seed, classes):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(40, classes))
    labels = generator.integers(0, classes, 40)
    found = measure_quality([logits], labels, classes)
    assert found is not None and found.confusion is not None and found.class_accuracy is not None
    table = np.array(found.confusion)
    assert table.sum() == 40 and table.trace() / 40 == pytest.approx(accuracy(logits, labels))
    for share, row, own in zip(found.class_accuracy, table, table.diagonal(), strict=True):
        assert share is None if not row.sum() else share == pytest.approx(own / row.sum())
    assert 0 <= found.macro_f1 <= 1 and 0 <= found.calibration_error <= 1


def test_large_numbers_of_classes_have_no_tables():
    labels = np.arange(5)
    hundred = measure_quality([np.eye(5, 100)], labels, 100)
    assert hundred is not None and hundred.confusion is None
    assert hundred.class_accuracy is not None and len(hundred.class_accuracy) == 100
    many = measure_quality([np.eye(5, 2000)], labels, 2000)
    assert many is not None and many.class_accuracy is None and many.macro_f1 == 1.0


def test_a_model_that_cannot_predict_has_no_quality():
    spoiled = np.array([[np.nan, 0.0]])
    assert measure_quality([spoiled], np.array([0]), 2) is None
    found = measure_quality([spoiled, np.array([[-np.inf, 0.0]])], np.array([1]), 2)
    assert found is not None and found.class_accuracy == (None, 1.0)
