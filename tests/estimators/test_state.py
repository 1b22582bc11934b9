"""A trained estimator as bytes: exact, equal for equal models, and safe to read."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.estimators import adapters, parts, state
from fedsift.estimators.adapters import Fitted
from fedsift.models import make_model
from fedsift.types import ModelFailure, UserError

pytest.importorskip("sklearn")

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 6))
Y = (X[:, 0] > 0).astype(int) * 2 + (X[:, 1] > 0.5)  # classes 0 to 3 of five
T = np.eye(5, dtype=np.float32)[Y]

KEPT = [
    "sklearn:RandomForestClassifier(n_estimators=5)",
    "sklearn:ExtraTreesClassifier(n_estimators=3)",
    "sklearn:DecisionTreeClassifier",
    "sklearn:GradientBoostingClassifier(n_estimators=3)",
    "sklearn:HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5)",
    "sklearn:LogisticRegression",
    "sklearn:GaussianNB",
    "sklearn:AdaBoostClassifier(n_estimators=3)",
    "sklearn:BaggingClassifier(n_estimators=3, max_features=3)",
    "sklearn:SGDClassifier(loss=log_loss)",
    "sklearn:LinearDiscriminantAnalysis",
    "sklearn:make_pipeline(StandardScaler, PCA(4), RandomForestClassifier(n_estimators=3))",
    "sklearn:make_pipeline(PolynomialFeatures, ExtraTreesClassifier(n_estimators=3))",
    "xgboost:XGBClassifier(n_estimators=3)",
    "lightgbm:LGBMClassifier(n_estimators=3, min_child_samples=5)",
]


def trained(text, seed=1):
    library = text.partition(":")[0]
    pytest.importorskip(library)
    model = make_model(text, (6,), 5)
    return model, adapters.train(model.build(), X, T, seed)


@pytest.mark.parametrize("text", KEPT)
def test_a_model_that_was_written_and_read_predicts_the_same_to_the_last_bit(text):
    model, fitted = trained(text)
    blob = state.encode(fitted)
    assert blob == state.encode(trained(text)[1])  # equal models, equal bytes
    back = state.decode(blob, model)
    found, expected = (adapters.predict(one, X, 5) for one in (back, fitted))
    assert np.array_equal(found, expected) and (found[:, 4] == 0).all()
    assert (found.argmax(1) == Y).mean() > 0.5
    assert state.encode(back) == blob
    weights = state.to_weights(blob)
    assert state.from_weights(weights) == blob
    state.check_state(model, weights)


def test_nothing_of_the_file_is_a_pickle():
    for module in (state, parts):
        assert not {"pickle", "joblib", "marshal"} & vars(module).keys()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sklearn:KNeighborsClassifier", "object of type sklearn.neighbors"),
        ("sklearn:GaussianProcessClassifier", "object of type sklearn.gaussian_process"),
    ],
)
def test_what_cannot_be_kept_says_why_when_it_is_wanted(text, why):
    model, fitted = trained(text)
    with pytest.raises(UserError, match=f"was not kept: it holds an {why}"):
        state.decode(state.encode(fitted), model)


class Own:
    def fit(self, x, y, sample_weight=None):
        self.means = np.array([x[y == c].mean(0) for c in (0, 1)])

    def predict_proba(self, x):
        near = ((x[:, None] - self.means) ** 2).sum(2).argmin(1)
        return np.eye(2)[near]


class Kept(Own):
    def get_state(self):
        return {"means": self.means}

    def set_state(self, arrays):
        self.means = arrays["means"]


def test_a_class_of_ones_own_gives_and_takes_its_arrays():
    targets = np.eye(2, dtype=np.float32)[(X[:, 0] > 0).astype(int)]
    model = make_model(Kept, (6,), 2)
    fitted = adapters.train(model.build(), X, targets, 0)
    back = state.decode(state.encode(fitted), model)
    assert np.array_equal(adapters.predict(back, X, 2), adapters.predict(fitted, X, 2))
    other = make_model(Own, (6,), 2)
    lost = state.encode(adapters.train(other.build(), X, targets, 0))
    with pytest.raises(UserError, match="Own has no get_state and set_state"):
        state.decode(lost, other)


# --- hostile files ---


def altered(blob, change):
    """The bytes with another head."""
    size = int.from_bytes(blob[4:8], "little")
    head = json.loads(blob[8 : 8 + size])
    head = change(head) or head
    text = json.dumps(head).encode()
    return blob[:4] + len(text).to_bytes(4, "little") + text + blob[8 + size :]


def set_form(form):
    return lambda head: head.update(form=form)


def name_class(name):
    return lambda head: head.update(content={"object": [name, {"dict": []}]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (name_class("os.system"), "holds an object of type os.system"),
        (name_class("sklearn.utils.estimator_checks.parametrize"), "holds an object of type"),
        (name_class("sklearn.ensemble.joblib"), "not in this version"),
        (name_class("sklearn.ensemble._forest.np"), "is no class"),
        (name_class("sklearn.ensemble._forest.RandomForestRegressor"), "is a RandomForestReg"),
        (name_class("sklearn.svm._classes.SVC"), "holds an object of type sklearn.svm"),
        (set_form("pickle"), "it is of 'pickle', not a RandomForestClassifier"),
        (set_form("own"), "cannot be read"),
        (lambda head: head.update(seen=[0, 9]), "classes that are not from 0 to 4"),
        (lambda head: head.update(seen=[2, 1]), "not in order"),
        (lambda head: head.update(arrays=head["arrays"][:-1]), "bytes too many|cannot be read"),
        (lambda head: head["arrays"][0].__setitem__(1, [10**9]), "cut short"),
        (lambda head: head["arrays"][0].__setitem__(0, "|O"), "unusual kind"),
        (lambda head: head.update(content={"list": [[1]]}), "no list of parts"),
        (lambda head: head.update(content={"eval": "1"}), "part of kind 'eval'"),
        (lambda head: {"form": 1}, "cannot be read"),
    ],
)
def test_a_state_that_names_other_things_is_refused(change, said):
    model, fitted = trained(KEPT[0])
    with pytest.raises(UserError, match=said):
        state.decode(altered(state.encode(fitted), change), model)


def deep(head):
    inner: object = 1
    for _ in range(40):
        inner = {"list": [inner]}
    head.update(content=inner)


def test_parts_within_parts_have_an_end():
    model, fitted = trained(KEPT[0])
    with pytest.raises(UserError, match="nested too deeply"):
        state.decode(altered(state.encode(fitted), deep), model)


@pytest.mark.parametrize("field", ["left_child", "right_child", "feature"])
@pytest.mark.parametrize("text", [KEPT[0], KEPT[2], KEPT[3]])
def test_trees_that_lead_out_of_themselves_are_refused(text, field):
    """scikit-learn follows the numbers of a node without looking."""
    model, fitted = trained(text)
    trees = getattr(fitted.estimator, "estimators_", [fitted.estimator])
    tree = np.asarray(trees, object).reshape(-1)[0].tree_
    for bad in (0, 10**6):
        if field == "feature" and bad == 0:
            continue
        getattr(
            tree, {"left_child": "children_left", "right_child": "children_right"}.get(field, field)
        )[0] = bad
        with pytest.raises(UserError, match=r"lead nowhere|looks at more than 6 features"):
            state.decode(state.encode(fitted), model)


def test_trees_of_histogram_boosting_are_looked_at_too():
    for field, bad in (("left", 0), ("right", 10**6), ("feature_idx", 77)):
        model, fitted = trained(KEPT[4])
        fitted.estimator._predictors[0][0].nodes[field][0] = bad
        with pytest.raises(UserError, match=r"lead nowhere|looks at more than 6 features"):
            state.decode(state.encode(fitted), model)


def attributes(head):
    return head["content"]["object"][1]["dict"]


def widen(head):
    """A hundred trees in every stage, where there are four classes."""
    pair = next(pair for pair in attributes(head) if pair[0] == "estimators_")
    pair[1]["objects"] = [[1, 100], pair[1]["objects"][1][:1] * 100]


def count_features_twice(head):
    """The first count is for the check of trees, the last one would be kept."""
    attributes(head).insert(0, ["n_features_in_", 10**9])


def name_by_number(head):
    attributes(head).append([{"number": 0}, 1])


@pytest.mark.parametrize(
    ("text", "change", "said"),
    [
        (KEPT[3], widen, "another number of trees than classes"),
        (KEPT[3], lambda head: attributes(head).clear(), "gradient boosting that cannot begin"),
        (KEPT[0], count_features_twice, "named twice"),
        (KEPT[4], count_features_twice, "named twice"),
        (KEPT[0], name_by_number, "not by a word"),
    ],
)
def test_what_would_make_scikit_learn_write_or_read_elsewhere_is_refused(text, change, said):
    model, fitted = trained(text)
    with pytest.raises(UserError, match=said):
        state.decode(altered(state.encode(fitted), change), model)


def test_a_forest_for_other_samples_is_refused():
    _, fitted = trained(KEPT[0])
    with pytest.raises(UserError, match="it takes 6 features, not 9"):
        state.decode(state.encode(fitted), make_model(KEPT[0], (9,), 5))
    with pytest.raises(UserError, match="is a RandomForestClassifier, not a GaussianNB"):
        state.decode(state.encode(fitted), make_model("sklearn:GaussianNB", (6,), 5))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_are_an_error_in_words_or_a_model(data):
    """Never a crash: what is read can be asked."""
    model, fitted = trained("sklearn:RandomForestClassifier(n_estimators=2, max_depth=3)")
    blob = bytearray(state.encode(fitted))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(blob) - 1))
        blob[place] = data.draw(st.integers(0, 255))
    del blob[data.draw(st.integers(len(blob) // 2, len(blob))) :]
    try:
        back = state.decode(bytes(blob), model)
    except UserError:
        return
    try:
        adapters.predict(back, X, 5)
    except ModelFailure:
        return


def test_one_class_needs_no_estimator():
    model = make_model(KEPT[0], (6,), 5)
    back = state.decode(state.encode(Fitted(None, np.array([3]))), model)
    assert back.estimator is None and back.seen.tolist() == [3]
