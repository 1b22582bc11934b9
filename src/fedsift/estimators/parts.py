"""A trained scikit-learn estimator as plain values and arrays, and back. Nothing is unpickled.

Objects are taken apart into their attributes. Only classes of scikit-learn's own modules are put
together again, by name, without calling any code of the file. The nodes of trees are checked: the
library follows them without looking.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedsift.types import Array, UserError

DEEPEST = 30
# Modules whose objects are kept. Those with C code that trusts what it is given (svm, neighbors)
# are left out.
MODULES = tuple(
    f"sklearn.{name}"
    for name in (
        "ensemble",
        "tree",
        "linear_model",
        "naive_bayes",
        "neural_network",
        "preprocessing",
        "pipeline",
        "decomposition",
        "impute",
        "feature_selection",
        "discriminant_analysis",
        "calibration",
        "dummy",
        "_loss",
        "utils._bunch",
    )
)
CALLED = ("sklearn._loss._loss", "sklearn.linear_model._sgd_fast")  # C classes made from numbers
# Ensembles whose trees take their input without another look.
TRUSTING = ("sklearn.ensemble._forest", "sklearn.ensemble._gb")
TREE = "sklearn.tree._tree.Tree"
PREDICTOR = "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"


class Around(NamedTuple):
    """The object that holds a part: how many features it takes, and whether its trees trust it."""

    width: int | None = None
    trusting: bool = False


NOTHING = Around()


class CannotKeep(Exception):
    """There is something in a trained estimator that has no place in a file."""


# --- to values and arrays ---


def take_apart(thing: Any, keep: Callable[[Array], int], depth: int = 0) -> Any:
    """What JSON can say; arrays go to `keep`, which numbers them."""
    if depth > DEEPEST:
        raise CannotKeep("its parts are nested too deeply")
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    inner = _Inner(keep, depth + 1)
    if isinstance(thing, np.random.RandomState | np.random.Generator):
        return None  # only training draws from it
    if isinstance(thing, np.ndarray):
        return _take_array(thing, inner)
    if isinstance(thing, np.generic):
        return {"number": keep(np.array(thing))}
    if isinstance(thing, type) and issubclass(thing, np.generic):
        return {"type": np.dtype(thing).str}
    if isinstance(thing, np.dtype):
        return {"type": thing.str}
    if type(thing) in (list, tuple):
        return {type(thing).__name__: [inner(value) for value in thing]}
    if type(thing) is dict:
        return {"dict": [[inner(key), inner(value)] for key, value in thing.items()]}
    return _take_object(thing, inner)


class _Inner:
    """One level deeper."""

    def __init__(self, keep: Callable[[Array], int], depth: int) -> None:
        self.keep, self.depth = keep, depth

    def __call__(self, thing: Any) -> Any:
        return take_apart(thing, self.keep, self.depth)


def _take_array(array: Array, inner: _Inner) -> Any:
    if array.dtype.kind in "biufU":
        return {"array": inner.keep(array)}
    if array.dtype.kind == "O":
        return {"objects": [list(array.shape), [inner(value) for value in array.flat]]}
    if array.dtype.names:  # field by field: what lies between the fields is chance
        fields = [[name, inner.keep(np.array(array[name]))] for name in array.dtype.names]
        return {"record": fields}
    raise CannotKeep(f"it holds an array of {array.dtype}")


def _take_object(thing: Any, inner: _Inner) -> Any:
    kind = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not _is_known(kind.__module__):
        raise CannotKeep(f"it holds an object of type {name}")
    if name == TREE:
        _, (features, classes, outputs), state = thing.__reduce__()
        parts = {"features": features, "outputs": outputs, "depth": state["max_depth"]}
        arrays = {"classes": classes, "nodes": state["nodes"], "values": state["values"]}
        return {"tree": parts | {key: inner(value) for key, value in arrays.items()}}
    if isinstance(thing, dict):  # a Bunch
        return {"object": [name, inner(dict(thing))]}
    if hasattr(thing, "__dict__"):
        return {"object": [name, inner(dict(vars(thing)))]}
    args = _list_arguments(thing)
    if args is None or kind.__module__ not in CALLED:
        raise CannotKeep(f"it holds an object of type {name}")
    return {"made": [name, inner(args)]}


def _list_arguments(thing: Any) -> list[Any] | None:
    """What a C object is made from; None where it has a state beside that."""
    make, args, *state = thing.__reduce__()
    if make is type(thing):
        return list(args)
    generated = getattr(make, "__name__", "").startswith("__pyx_unpickle")
    plain = generated and args[0] is type(thing) and args[2:] == ((),) and not state
    return [] if plain else None


def _is_known(module: str) -> bool:
    return any(module == known or module.startswith(f"{known}.") for known in MODULES)


# --- and back ---


def put_together(told: Any, arrays: list[Array], around: Around = NOTHING, depth: int = 0) -> Any:
    """The object; `around` is the object that holds it.

    What does not fit is a UserError.
    """
    if depth > DEEPEST:
        raise UserError("its parts are nested too deeply")
    if told is None or isinstance(told, bool | int | float | str):
        return told
    if not isinstance(told, dict) or len(told) != 1:
        raise UserError("it is no list of parts")
    ((kind, value),) = told.items()
    if kind not in _MAKERS:
        raise UserError(f"it has a part of kind {str(kind)[:40]!r}")
    return _MAKERS[kind](value, arrays, around, depth + 1)


def _array(value: Any, arrays: list[Array], around: Around, depth: int) -> Array:
    return arrays[value]


def _number(value: Any, arrays: list[Array], around: Around, depth: int) -> Any:
    return arrays[value][()]


def _type(value: Any, arrays: list[Array], around: Around, depth: int) -> Any:
    dtype = np.dtype(str(value))
    if dtype.kind not in "biuf":
        raise UserError("it has an unusual type of numbers")
    return dtype.type


def _list(value: Any, arrays: list[Array], around: Around, depth: int) -> list[Any]:
    return [put_together(one, arrays, around, depth) for one in value]


def _tuple(value: Any, arrays: list[Array], around: Around, depth: int) -> tuple[Any, ...]:
    return tuple(_list(value, arrays, around, depth))


def _dict(value: Any, arrays: list[Array], around: Around, depth: int) -> dict[Any, Any]:
    return dict(zip(*(_list(side, arrays, around, depth) for side in _sides(value)), strict=True))


def _sides(pairs: list[Any]) -> tuple[list[Any], list[Any]]:
    return [key for key, _ in pairs], [value for _, value in pairs]


def _objects(value: Any, arrays: list[Array], around: Around, depth: int) -> Array:
    shape, items = value
    made = np.empty(len(items), object)
    made[:] = _list(items, arrays, around, depth)
    return made.reshape(shape)


def _record(value: Any, arrays: list[Array], around: Around, depth: int) -> dict[str, Array]:
    """The fields by name; who holds the record knows its layout."""
    return {name: arrays[place] for name, place in value}


def _object(value: Any, arrays: list[Array], around: Around, depth: int) -> Any:
    name, state = value
    kind = _find_class(name)
    around = _look_inside(name, state, around)
    content = put_together(state, arrays, around, depth)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"its {kind.__name__} has no attributes")
    if issubclass(kind, dict):
        return kind(**content)
    if name == PREDICTOR:
        content["nodes"] = _check_predictor(content, around.width)
    made = kind.__new__(kind)
    vars(made).update(content)
    if hasattr(kind, "_raw_predict_init"):
        _check_stages(made, around.width)
    return made


def _check_stages(boosting: Any, width: int | None) -> None:
    """Gradient boosting writes a column for each tree of a stage, and does not look where."""
    stages = vars(boosting).get("estimators_")
    try:
        room = boosting._raw_predict_init(np.zeros((1, width or 0), np.float32)).shape
    except Exception:  # whatever a wrong part raises
        raise UserError("it has gradient boosting that cannot begin") from None
    if not isinstance(stages, np.ndarray) or stages.ndim != 2 or room != (1, stages.shape[1]):
        raise UserError("it has gradient boosting with another number of trees than classes")


def _look_inside(name: str, state: Any, around: Around) -> Around:
    """This object, for the parts inside it."""
    pairs = state.get("dict") if isinstance(state, dict) else None
    keys = [key for key, _ in pairs or []]
    if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
        raise UserError("it has attributes that are named twice, or not by a word")
    told = next((value for key, value in pairs or [] if key == "n_features_in_"), None)
    if told is None:
        return around
    if not isinstance(told, int):
        raise UserError("the number of its features is no number")
    if around.trusting and told != around.width:
        raise UserError(f"it has a tree for {told} features among others for {around.width}")
    return Around(told, name.rpartition(".")[0] in TRUSTING)


def _made(value: Any, arrays: list[Array], around: Around, depth: int) -> Any:
    name, args = value
    kind = _find_class(name)
    given = put_together(args, arrays, around, depth)
    if name.rpartition(".")[0] not in CALLED or not all(isinstance(a, int | float) for a in given):
        raise UserError(f"its {kind.__name__} is not made from numbers")
    return kind(*given)


def _find_class(name: Any) -> Any:
    module, _, last = str(name).rpartition(".")
    if not _is_known(module):
        raise UserError(f"it holds an object of type {str(name)[:100]}")
    try:
        kind = getattr(importlib.import_module(module), last)
    except (ImportError, AttributeError):
        raise UserError(f"{name[:100]} is not in this version of scikit-learn") from None
    if not isinstance(kind, type) or kind.__module__ != module:
        raise UserError(f"{name[:100]} is no class")
    return kind


def _tree(value: Any, arrays: list[Array], around: Around, depth: int) -> Any:
    from sklearn.tree._tree import NODE_DTYPE, Tree

    classes = put_together(value["classes"], arrays, around, depth)
    values = put_together(value["values"], arrays, around, depth)
    nodes = _layout(put_together(value["nodes"], arrays, around, depth), NODE_DTYPE)
    count, outputs, features = len(nodes), value["outputs"], value["features"]
    one = classes.shape == (1,) and classes.dtype.kind in "iu" and outputs == 1
    if not one or classes[0] < 1:
        raise UserError("it has a tree with several outputs, or none")
    shape = (count, 1, int(classes[0]))
    if values.dtype != np.float64 or values.shape != shape or type(value["depth"]) is not int:
        raise UserError(f"it has a tree whose values are {values.dtype} {values.shape}")
    left, right, used = (nodes[key] for key in ("left_child", "right_child", "feature"))
    _check_nodes(left == -1, left, right, used, around.width)
    if (right[left == -1] != -1).any():
        raise UserError("it has a tree with half a leaf")
    made = Tree(features, classes.astype(np.intp), 1)
    state = {"max_depth": value["depth"], "node_count": count, "nodes": nodes}
    made.__setstate__(state | {"values": np.ascontiguousarray(values)})
    return made


def _check_predictor(content: dict[str, Any], width: int | None) -> Array:
    """The nodes of a tree of histogram gradient boosting."""
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE

    nodes = _layout(content.get("nodes"), PREDICTOR_RECORD_DTYPE)
    if nodes["is_categorical"].any():
        raise UserError("it has a tree with categories")
    leaf = nodes["is_leaf"] != 0
    _check_nodes(leaf, nodes["left"], nodes["right"], nodes["feature_idx"], width)
    return nodes


def _layout(fields: Any, dtype: Any) -> Array:
    """The record with the library's own layout."""
    if not isinstance(fields, dict) or tuple(fields) != tuple(dtype.names):
        raise UserError("it has a tree of another version of scikit-learn")
    lengths = {array.shape for array in fields.values()}
    if len(lengths) != 1 or any(fields[name].dtype != dtype[name] for name in fields):
        raise UserError("it has a tree of another version of scikit-learn")
    made = np.zeros(lengths.pop(), dtype)
    for name, array in fields.items():
        made[name] = array
    return made


def _check_nodes(leaf: Array, left: Array, right: Array, used: Array, width: int | None) -> None:
    """Children come after their parent, so that nobody walks in circles or out of the tree."""
    place, inner = np.arange(len(leaf)), ~leaf
    if leaf.ndim != 1 or not len(leaf) or width is None:
        raise UserError("it has a tree without nodes or features")
    for child in (left, right):
        low, high = child[inner] <= place[inner], child[inner] >= len(leaf)
        if low.any() or high.any():
            raise UserError("it has a tree whose branches lead nowhere")
    if (used[inner] < 0).any() or (used[inner] >= width).any():
        raise UserError(f"it has a tree that looks at more than {width} features")


_MAKERS: dict[str, Callable[[Any, list[Array], Around, int], Any]] = {
    "array": _array,
    "number": _number,
    "type": _type,
    "list": _list,
    "tuple": _tuple,
    "dict": _dict,
    "objects": _objects,
    "record": _record,
    "object": _object,
    "made": _made,
    "tree": _tree,
}
