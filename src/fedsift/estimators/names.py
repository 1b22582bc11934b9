"""What makes an estimator: a name of scikit-learn, XGBoost or LightGBM, your own class or object.

    sklearn:RandomForestClassifier(n_estimators=200)
    sklearn:make_pipeline(StandardScaler, LogisticRegression(C=2))
    xgboost:XGBClassifier    lightgbm:LGBMClassifier    mine:MyModel(depth=3)

A maker is called as any model factory, with (shape, classes).
"""

from __future__ import annotations

import copy
import difflib
import importlib
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from fedsift import registry
from fedsift.types import UserError

LIBRARIES = ("sklearn", "xgboost", "lightgbm")
PACKAGES = {"sklearn": "scikit-learn", "xgboost": "xgboost", "lightgbm": "lightgbm"}
# Where scikit-learn keeps classifiers, and what a pipeline has before one.
CLASSIFIERS = (
    "ensemble",
    "linear_model",
    "tree",
    "naive_bayes",
    "neural_network",
    "neighbors",
    "svm",
    "discriminant_analysis",
    "gaussian_process",
    "calibration",
    "dummy",
)
STEPS = (*CLASSIFIERS, "preprocessing", "decomposition", "feature_selection", "impute")
PIPELINE = "make_pipeline"


@dataclass(frozen=True)
class Named:
    """Makes the estimator that a text names."""

    text: str

    def __call__(self, shape: tuple[int, ...], classes: int) -> Any:
        return build(self.text)


@dataclass(frozen=True)
class Made:
    """Makes an estimator by calling a class, or a partial of one, without shape and classes."""

    make: Any

    def __call__(self, shape: tuple[int, ...], classes: int) -> Any:
        return self.make()


@dataclass(frozen=True, eq=False)
class Copied:
    """Makes copies of an estimator that is not trained yet."""

    estimator: Any

    def __call__(self, shape: tuple[int, ...], classes: int) -> Any:
        return copy.deepcopy(self.estimator)


def is_estimator(thing: Any) -> bool:
    """Whether it, or what it makes, has `fit` and `predict_proba`. No network is one."""
    made = thing.func if isinstance(thing, partial) else thing
    if isinstance(made, nn.Module) or (isinstance(made, type) and issubclass(made, nn.Module)):
        return False
    return all(_has(made, name) for name in ("fit", "predict_proba"))


def _has(thing: Any, name: str) -> bool:
    """Some classes have a method only with certain parameters: SVC is asked when it is built."""
    return name in dir(thing) if isinstance(thing, type) else callable(getattr(thing, name, None))


def is_library_name(text: str) -> bool:
    return text.partition(":")[0].strip() in LIBRARIES and ":" in text


def find_maker(what: Any) -> Any:
    """What makes the estimator, or None where `what` is none."""
    if isinstance(what, str):
        return Named(what) if is_library_name(what) or _names_class(what) else None
    if not is_estimator(what):
        return None
    return Made(what) if isinstance(what, type | partial) else Copied(what)


def _names_class(text: str) -> bool:
    """Whether a plug-in is a class of estimators."""
    name, _, _ = registry.parse_spec(text)
    if ":" not in name:
        return False
    found = registry.import_name("model", name)
    return isinstance(found, type) and is_estimator(found)


def build(text: str) -> Any:
    """The estimator that a text names, new."""
    name, positional, options = registry.parse_spec(text)
    library, _, inner = name.partition(":")
    if library not in LIBRARIES:
        return _call(text, registry.import_name("model", name), positional, options)
    if inner == PIPELINE and library == "sklearn":
        return _build_pipeline(text, positional, options)
    if positional:
        raise UserError(f"model {text!r}: write options as key=value")
    found = _call(text, find_class(library, inner, CLASSIFIERS), [], options)
    if not is_estimator(found):
        raise UserError(f"model {text!r} has no predict_proba; {_cure(inner)}")
    return found


def _cure(name: str) -> str:
    if name == "SVC":
        return "set probability=True"
    return "choose a classifier that gives probabilities"


def _build_pipeline(text: str, steps: list[Any], options: dict[str, Any]) -> Any:
    from sklearn.pipeline import make_pipeline

    if options or not steps or not all(isinstance(step, str) for step in steps):
        raise UserError(f"model {text!r}: name the steps, as in make_pipeline(PCA(8), GaussianNB)")
    made = []
    for step in steps:
        name, positional, given = registry.parse_spec(step)
        made.append(_call(text, find_class("sklearn", name, STEPS), positional, given))
    pipeline = make_pipeline(*made)
    if not is_estimator(pipeline):
        raise UserError(f"model {text!r} has no predict_proba; end it with a classifier")
    return pipeline


def _call(text: str, make: Any, positional: list[Any], options: dict[str, Any]) -> Any:
    try:
        return make(*positional, **options)
    except Exception as error:  # of a library or a user: whatever it is, the user needs one answer
        raise UserError(f"model {text!r}: {' '.join(str(error).split())}") from None


def find_class(library: str, name: str, places: tuple[str, ...]) -> Any:
    """A class of a library by its name alone."""
    modules = _import_library(library, places)
    for module in modules:
        if name in getattr(module, "__all__", vars(module)):
            return getattr(module, name)
    known = [other for module in modules for other in getattr(module, "__all__", vars(module))]
    known = [other for other in known if not other.endswith("Regressor")]  # no probabilities
    near = [other for other in known if other.startswith(name)]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    guess = f"; did you mean {library}:{near[0]}?" if near else ""
    raise UserError(f"unknown model '{library}:{name}'{guess} (docs/any-client.md)")


def _import_library(library: str, places: tuple[str, ...]) -> list[ModuleType]:
    try:
        top = importlib.import_module(library)
        if library != "sklearn":
            return [top]
        return [importlib.import_module(f"sklearn.{place}") for place in places]
    except ImportError as error:
        raise UserError(
            f"models {library}:... need {PACKAGES[library]}, which cannot be imported ({error});"
            f" install it with: pip install 'fedsift[{library}]'"
        ) from None
