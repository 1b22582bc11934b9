"""A model by its name, as a class, an object or a factory."""

from functools import partial

import pytest
from torch import nn

from fedsift.estimators import names
from fedsift.models import check_model, initial_state, make_model
from fedsift.types import ESTIMATOR, NETWORK, REMOTE, UserError

sklearn = pytest.importorskip("sklearn")
from sklearn.ensemble import RandomForestClassifier  # noqa: E402

SHAPE = (4,)


def model(what):
    return make_model(what, SHAPE, 3)


def test_a_name_of_scikit_learn_makes_the_estimator_with_its_options():
    forest = model("sklearn:RandomForestClassifier(n_estimators=7, max_depth=None)")
    assert (forest.kind, forest.is_network) == (ESTIMATOR, False)
    made = forest.build()
    assert isinstance(made, RandomForestClassifier) and made.n_estimators == 7
    assert forest == model("sklearn:RandomForestClassifier(n_estimators=7, max_depth=None)")
    assert forest != model("sklearn:RandomForestClassifier(n_estimators=8)")
    assert initial_state(forest, 0) == {}
    sizes = model("sklearn:MLPClassifier(hidden_layer_sizes=(5, 3))").build()
    assert sizes.hidden_layer_sizes == (5, 3)


def test_a_pipeline_by_name():
    made = model("sklearn:make_pipeline(StandardScaler, PCA(2), LogisticRegression(C=2))").build()
    assert [name for name, _ in made.steps] == ["standardscaler", "pca", "logisticregression"]
    assert made.steps[1][1].n_components == 2 and made.steps[2][1].C == 2


@pytest.mark.parametrize(
    ("library", "name"), [("xgboost", "XGBClassifier"), ("lightgbm", "LGBMClassifier")]
)
def test_other_libraries_by_name(library, name):
    pytest.importorskip(library)
    assert model(f"{library}:{name}(n_estimators=4)").build().n_estimators == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sklearn:RandomForest", "did you mean sklearn:RandomForestClassifier"),
        ("sklearn:RandomForrest", "did you mean sklearn:RandomForestClassifier"),
        ("sklearn:RandomForestClassifier(trees=5)", "unexpected keyword argument 'trees'"),
        ("sklearn:RandomForestClassifier(5)", "write options as key=value"),
        ("sklearn:LinearSVC", "has no predict_proba; choose a classifier"),
        ("sklearn:make_pipeline(StandardScaler)", "end it with a classifier"),
        ("sklearn:make_pipeline", "name the steps"),
    ],
)
def test_wrong_names_are_told_before_any_training(text, said):
    with pytest.raises(UserError, match=said):
        check_model(model(text))


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(UserError, match=r"pip install 'fedsift\[lightgbm\]'"):
        names.build("lightgbm:LGBMClassifier")


def test_objects_classes_and_partials_are_models():
    given = RandomForestClassifier(n_estimators=3)
    copied = model(given)
    assert copied.name == "RandomForestClassifier(n_estimators=3)" and copied.kind == ESTIMATOR
    assert copied.build() is not given and copied.build().n_estimators == 3
    assert model(RandomForestClassifier).build().n_estimators == 100
    assert model(partial(RandomForestClassifier, n_estimators=2)).build().n_estimators == 2


def test_a_factory_is_called_once_to_know_what_it_makes():
    def forest(shape, classes):
        return RandomForestClassifier(n_estimators=shape[0])

    def net(shape, classes):
        return nn.Linear(shape[0], classes)

    assert model(forest).kind == ESTIMATOR and model(forest).build().n_estimators == 4
    assert model(net).kind == NETWORK
    assert model("http://127.0.0.1:9/predict").kind == REMOTE


OWN = """
class Mine:
    def __init__(self, depth=1):
        self.depth = depth
    def fit(self, x, y, sample_weight=None):
        return self
    def predict_proba(self, x):
        return [[1.0, 0.0, 0.0]] * len(x)

def make(shape, classes):
    return Mine(shape[0])
"""


def test_a_class_or_a_function_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    mine, made = model("own_models:Mine(depth=4)"), model("own_models:make")
    assert mine.kind == made.kind == ESTIMATOR
    assert mine.build().depth == made.build().depth == 4


def test_a_black_box_without_an_address_is_refused_here():
    with pytest.raises(UserError, match="a black box without an address here"):
        check_model(model("remote"))
