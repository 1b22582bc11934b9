"""Files of XGBoost and LightGBM are checked before the library follows them."""

import json
import re
from typing import Any

import numpy as np
import pytest

from fedsift.estimators import adapters, boosters, state
from fedsift.models import make_model
from fedsift.types import UserError

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 6))
TWO = (X[:, 0] > 0).astype(int)
FOUR = TWO * 2 + (X[:, 1] > 0.5)
XGB, LGBM = "xgboost:XGBClassifier(n_estimators=8)", "lightgbm:LGBMClassifier(n_estimators=8)"


def train(text, y):
    pytest.importorskip(text.partition(":")[0])
    model = make_model(text, (6,), 4)
    return model, adapters.train(model.build(), X, np.eye(4, dtype=np.float32)[y], 1)


@pytest.mark.parametrize("y", [TWO, FOUR], ids=["two", "four"])
@pytest.mark.parametrize("text", [XGB, LGBM])
def test_a_checked_model_predicts_the_same_to_the_last_bit(text, y):
    model, fitted = train(text, y)
    back = state.decode(state.encode(fitted), model)
    new = rng.normal(size=(500, 6))
    found, expected = (adapters.predict(one, new, 4) for one in (back, fitted))
    assert np.array_equal(found, expected) and (found[:, 3] > 0).any() == (y is FOUR)


def xgboost_raw() -> Any:
    _, fitted = train(XGB, FOUR)
    return json.loads(bytes(fitted.estimator.get_booster().save_raw("json")))


def first_tree(raw: Any) -> Any:
    return raw["learner"]["gradient_booster"]["model"]["trees"][0]


def set_first(key, value):
    def change(raw):
        first_tree(raw)[key][0] = value

    return change


def drop_last(key):
    return lambda raw: first_tree(raw)[key].pop()


def set_param(key, value):
    return lambda raw: raw["learner"]["learner_model_param"].update({key: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_first("left_children", 10**9), "points to what is not there"),
        (set_first("left_children", 0), "branches lead nowhere"),
        (set_first("left_children", -1), "half a leaf"),
        (set_first("split_indices", 6), "points to what is not there"),
        (set_first("split_indices", -1), "points to what is not there"),
        (set_first("split_conditions", float("nan")), "no model of XGBoost"),
        (set_first("split_type", 1), "points to what is not there"),
        (set_first("default_left", "x"), "points to what is not there"),
        (lambda raw: first_tree(raw)["categories"].append(1), "categories"),
        (drop_last("base_weights"), "too long or too short"),
        (drop_last("right_children"), "too long or too short"),
        (lambda raw: first_tree(raw)["tree_param"].update(num_nodes="99999"), "too long or"),
        (lambda raw: raw["learner"]["gradient_booster"]["model"]["trees"].pop(), "too long or"),
        (lambda raw: raw["learner"]["gradient_booster"].update(name="dart"), "another kind"),
        (lambda raw: raw["learner"]["objective"].update(name="rank:ndcg"), "rank:ndcg"),
        (set_param("num_feature", "7"), "takes 7 features"),
        (set_param("num_class", "400"), "other classes"),
        (set_param("base_score", "[1,2]"), "other classes"),
        (lambda raw: raw.pop("learner"), "no model of XGBoost"),
    ],
)
def test_a_changed_file_of_xgboost_is_refused(change, said):
    raw = xgboost_raw()
    boosters.check_xgboost(json.dumps(raw).encode(), 6, 4)
    change(raw)
    with pytest.raises(UserError, match=said):
        boosters.check_xgboost(json.dumps(raw).encode(), 6, 4)


def test_a_name_that_stands_twice_is_refused():
    raw = json.dumps(xgboost_raw()).replace('"id": 0', '"id": 0, "id": 1', 1)
    with pytest.raises(UserError, match="no model of XGBoost"):
        boosters.check_xgboost(raw.encode(), 6, 4)


def lightgbm_text() -> str:
    _, fitted = train(LGBM, FOUR)
    return fitted.estimator.booster_.model_to_string()


def first(key, value):
    return lambda text: re.sub(rf"(?m)^{key}=\S+", f"{key}={value}", text, count=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (first("left_child", 99999), "points to what is not there"),
        (first("left_child", 0), "branches lead nowhere"),
        (first("right_child", -9999), "points to what is not there"),
        (first("split_feature", 6), "points to what is not there"),
        (first("decision_type", 99), "points to what is not there"),
        (first("num_leaves", 4000), "too long or too short"),
        (first("num_cat", 1), "categories"),
        (first("is_linear", 1), "categories"),
        (first("threshold", "nan"), "a number is none"),
        (first("leaf_value", "x"), "no model of LightGBM"),
        (first("max_feature_idx", 400), "other features"),
        (first("num_class", 2), "other classes"),
        (first("objective", "custom"), "objective is not known"),
        (lambda text: text.replace("label_index=0", "average_output"), "average_output"),
        (lambda text: text[: len(text) // 3], "cut short"),
        (lambda text: text.replace("num_cat=0", "num_cat=0\nnum_cat=1", 1), "no model of Light"),
    ],
)
def test_a_changed_file_of_lightgbm_is_refused(change, said):
    text = lightgbm_text()
    boosters.check_lightgbm(text, 6, 4)
    with pytest.raises(UserError, match=said):
        boosters.check_lightgbm(change(text), 6, 4)


@pytest.mark.parametrize("wrong", ["tree_sizes=1 999999999", "tree_sizes=-5"])
def test_what_lightgbm_would_believe_unseen_is_written_anew(wrong):
    text = re.sub(r"tree_sizes=.*", wrong, lightgbm_text())
    sizes = re.search(r"tree_sizes=(.*)", boosters.check_lightgbm(text, 6, 4))
    assert sizes and [int(size) > 100 for size in sizes[1].split()] == [True] * 32


@pytest.mark.parametrize(
    "text",
    [
        "xgboost:XGBClassifier(n_estimators=3, booster=dart)",
        "lightgbm:LGBMClassifier(n_estimators=3, objective=multiclassova)",
    ],
)
def test_a_kind_that_could_not_be_checked_is_not_kept(text):
    model, fitted = train(text, FOUR)
    with pytest.raises(UserError, match="was not kept"):
        state.decode(state.encode(fitted), model)
