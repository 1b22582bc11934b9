"""Soft targets become weighted rows; answers become columns of the right classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.estimators import adapters
from fedsift.estimators.adapters import Fitted
from fedsift.types import ModelFailure

X = np.array([[0.0], [1.0], [2.0], [3.0]])


class Recorder:
    """Remembers what it is trained on; says what it is told to say."""

    def __init__(self, answer=None, classes=None):
        self.answer, self.random_state = answer, None
        if classes is not None:
            self.classes_ = np.array(classes)

    def fit(self, x, y, sample_weight=None):
        self.x, self.y, self.weights = x.tolist(), y.tolist(), sample_weight
        return self

    def predict_proba(self, x):
        return self.answer


def test_a_soft_label_is_a_row_for_each_class_with_its_share_as_weight():
    targets = np.array([[1, 0, 0], [0, 0.25, 0.75], [0.5, 0, 0]], np.float32)
    rows, classes, weights = adapters.spread_targets(targets)
    assert rows.tolist() == [0, 1, 1, 2]
    assert classes.tolist() == [0, 1, 2, 0]
    assert weights.tolist() == [1, 0.25, 0.75, 0.5]
    model = Recorder()
    fitted = adapters.train(model, X[:3], targets, seed=7)
    assert model.x == [[0.0], [1.0], [1.0], [2.0]] and model.y == [0, 1, 2, 0]
    assert model.weights.tolist() == [1, 0.25, 0.75, 0.5]
    assert fitted.seen.tolist() == [0, 1, 2] and model.random_state == 7


def test_hard_labels_need_no_weights():
    model = Recorder()
    adapters.train(model, X[:2], np.array([[0, 1, 0], [0, 0, 1]], np.float32), 0)
    assert model.weights is None and model.y == [1, 2]


@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3), max_size=6))
def test_no_share_is_lost_or_made(targets):
    table = np.array(targets, np.float32).reshape(-1, 3)
    rows, classes, weights = adapters.spread_targets(table)
    back = np.zeros(table.shape)
    np.add.at(back, (rows, classes), weights)
    assert np.array_equal(back, table) and (weights > 0).all()


def test_classes_never_seen_have_probability_0_in_their_own_columns():
    """Trained on classes 1 and 3 of five: its two columns are theirs."""
    answer = [[0.25, 0.75], [1.0, 0.0]]
    for model in (Recorder(answer), Recorder(answer, classes=[1, 3])):
        found = adapters.predict(Fitted(model, np.array([1, 3])), X[:2], 5)
        assert found.tolist() == [[0, 0.25, 0, 0.75, 0], [0, 1, 0, 0, 0]]
    turned = Recorder(answer, classes=[3, 1])  # it says which column is which
    found = adapters.predict(Fitted(turned, np.array([1, 3])), X[:2], 5)
    assert found.tolist() == [[0, 0.75, 0, 0.25, 0], [0, 0, 0, 1, 0]]


def test_an_answer_with_a_column_for_every_class_is_taken_as_it_is():
    answer = [[0.5, 0.25, 0.25]]
    found = adapters.predict(Fitted(Recorder(answer), np.array([0, 2])), X[:1], 3)
    assert found.tolist() == answer


def test_a_client_with_one_class_says_that_class_and_trains_nothing():
    model = Recorder()
    fitted = adapters.train(model, X[:2], np.array([[0, 0, 1], [0, 0, 1]], np.float32), 0)
    assert fitted.estimator is None and not hasattr(model, "x")
    assert adapters.predict(fitted, X[:2], 3).tolist() == [[0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[0.5, 0.4]], "rows that do not sum to 1, but for example to 0.9"),
        ([[float("nan"), 1.0]], "not finite"),
        ([[-0.5, 1.5]], "below 0"),
        ([[0.5, 0.5], [1, 0]], r"it gives \(2, 2\) for 1 samples, not \(1, 2\)"),
        ([0.5, 0.5], r"it gives \(2,\) for 1 samples"),
        ([[0.2, 0.3, 0.5]], r"it gives \(1, 3\) for 1 samples"),
        ([["a", "b"]], "Recorder.predict_proba raised ValueError"),
        (None, "it gives|raised"),
    ],
)
def test_answers_that_are_no_probabilities_are_failures(answer, said):
    with pytest.raises(ModelFailure, match=said):
        adapters.predict(Fitted(Recorder(answer), np.array([0, 1])), X[:1], 4)


def test_classes_that_are_not_there_are_a_failure():
    with pytest.raises(ModelFailure, match="classes_ are not classes from 0 to 3"):
        model = Recorder([[0.5, 0.5]], classes=[0, 9])
        adapters.predict(Fitted(model, np.array([0, 1])), X[:1], 4)


def test_what_a_model_raises_is_told_apart_from_what_may_be_private():
    class Broken(Recorder):
        def fit(self, x, y, sample_weight=None):
            raise ValueError("patient 17 has no age")

    with pytest.raises(ModelFailure) as caught:
        adapters.train(Broken(), X[:2], np.eye(2, dtype=np.float32), 0)
    assert str(caught.value) == "Broken.fit raised ValueError: patient 17 has no age"
    assert caught.value.what == "Broken.fit raised ValueError"


def test_a_model_without_sample_weight_learns_hard_labels_alone():
    sklearn = pytest.importorskip("sklearn.neighbors")
    hard = np.eye(2, dtype=np.float32)[[0, 1, 0, 1]]
    fitted = adapters.train(sklearn.KNeighborsClassifier(1), X, hard, 0)
    assert adapters.predict(fitted, X[:1], 2).tolist() == [[1, 0]]
    with pytest.raises(ModelFailure, match=r"fit takes no sample_weight.*set download=weights"):
        adapters.train(sklearn.KNeighborsClassifier(1), X, 0.5 * hard, 0)


def test_weights_and_seeds_reach_the_last_step_of_a_pipeline():
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    soft = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]], np.float32)
    piped = adapters.train(make_pipeline(StandardScaler(), LogisticRegression()), X, soft, 0)
    scaler = StandardScaler().fit(np.repeat(X, 2, axis=0))
    alone = LogisticRegression().fit(
        scaler.transform(np.repeat(X, 2, axis=0)), [0, 1] * 4, sample_weight=soft.reshape(-1)
    )
    expected = alone.predict_proba(scaler.transform(X))
    assert np.allclose(adapters.predict(piped, X, 2), expected, atol=1e-6)
    tree = make_pipeline(StandardScaler(), DecisionTreeClassifier())
    adapters.prepare(tree, 5)
    assert tree.steps[1][1].random_state == 5
    chosen = DecisionTreeClassifier(random_state=3)
    adapters.prepare(chosen, 5)
    assert chosen.random_state == 3


def test_xgboost_is_given_classes_without_gaps():
    xgboost = pytest.importorskip("xgboost")
    targets = np.eye(6, dtype=np.float32)[[2, 5, 2, 5]]
    model = xgboost.XGBClassifier(n_estimators=5, min_child_weight=0)
    found = adapters.predict(adapters.train(model, X, targets, 0), X, 6)
    assert found.argmax(1).tolist() == [2, 2, 2, 2] or found[:, [0, 1, 3, 4]].max() == 0
    assert np.allclose(found.sum(1), 1) and model.n_jobs == 1
