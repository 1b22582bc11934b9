"""A trained estimator as one tensor of bytes, which a run folder keeps, and back. Never pickle.

The bytes are a head in JSON and the arrays that it names. scikit-learn's objects are taken apart
(see `parts`), XGBoost and LightGBM write their own formats (see `boosters`), and a class of your
own gives its arrays by `get_state` and takes them by `set_state`. What has none of these cannot be
kept: the state then says why, and a run with it cannot be resumed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from fedsift.estimators import boosters, parts
from fedsift.estimators.adapters import Fitted, library_of
from fedsift.types import Array, Model, UserError, Weights

NAME = "estimator"  # of the tensor in a client's state
MAGIC = b"fsE1"
LARGEST = 2**31  # bytes
_LENGTH = struct.Struct("<I")


def write_nothing() -> bytes:
    """The state of an estimator that nobody remembers after its turn."""
    return _write("none", "nobody was to remember it", np.zeros(1, np.int64), [])


def encode(fitted: Fitted) -> bytes:
    """Equal estimators, equal bytes."""
    arrays: list[Array] = []

    def keep(array: Array) -> int:
        arrays.append(array)
        return len(arrays) - 1

    try:
        form, content = _describe(fitted.estimator, keep)
    except parts.CannotKeep as error:
        form, content = "none", str(error)
        arrays.clear()
    return _write(form, content, fitted.seen, arrays)


def _write(form: str, content: Any, seen: Array, arrays: list[Array]) -> bytes:
    about = [_describe_array(array) for array in arrays]
    head = {"form": form, "seen": seen.tolist(), "content": content, "arrays": about}
    text = json.dumps(head, separators=(",", ":")).encode()
    pieces = [
        array.astype(kind, copy=False).tobytes(order)
        for array, (kind, _, order) in zip(arrays, about, strict=True)
    ]
    return b"".join([MAGIC, _LENGTH.pack(len(text)), text, *pieces])


def _describe_array(array: Array) -> tuple[str, list[int], Literal["C", "F"]]:
    """Type, shape and order: sums over the same numbers in another order differ in the last bit."""
    flags = array.flags
    order: Literal["C", "F"] = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    return array.dtype.newbyteorder("<").str, list(array.shape), order


def _describe(estimator: Any, keep: Callable[[Array], int]) -> tuple[str, Any]:
    """The form of a state, and what it says."""
    if estimator is None:
        return "constant", None
    library = library_of(estimator)
    if library == "sklearn":
        return "sklearn", parts.take_apart(estimator, keep)
    if library == "xgboost":
        raw = bytes(estimator.get_booster().save_raw("json"))
        _check_before(boosters.check_xgboost, raw, estimator)
        return "xgboost", keep(np.frombuffer(raw, np.uint8))
    if isinstance(estimator, Booster):
        return "lightgbm", keep(np.frombuffer(estimator.text.encode(), np.uint8))
    if library == "lightgbm":
        text = estimator.booster_.model_to_string()
        _check_before(boosters.check_lightgbm, text, estimator)
        return "lightgbm", keep(np.frombuffer(text.encode(), np.uint8))
    if hasattr(estimator, "get_state") and hasattr(estimator, "set_state"):
        return "own", {name: keep(_plain(value)) for name, value in estimator.get_state().items()}
    raise parts.CannotKeep(f"{type(estimator).__name__} has no get_state and set_state")


def _check_before(check: Callable[[Any, int, int], Any], content: Any, estimator: Any) -> None:
    """What could not be read again is not kept."""
    try:
        check(content, estimator.n_features_in_, estimator.n_classes_)
    except UserError as error:
        raise parts.CannotKeep(str(error)) from None


def _plain(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biufU":
        raise parts.CannotKeep(f"its get_state gives an array of {array.dtype}")
    return array


def decode(blob: bytes, model: Model) -> Fitted:
    """The trained estimator of this model; bytes from a file may say anything."""
    try:
        return _decode(blob, model)
    except UserError:
        raise
    except Exception as error:  # a library's own reader, or a part that is not what it seems
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(f"a trained {model.name} cannot be read: {told}") from None


def _decode(blob: bytes, model: Model) -> Fitted:
    head, arrays = _open(blob)
    form, content = head["form"], head["content"]
    seen = np.array(head["seen"], np.int64)
    if seen.ndim != 1 or not len(seen) or (np.diff(seen) <= 0).any():
        raise UserError("its classes are not in order")
    if seen[0] < 0 or seen[-1] >= model.classes:
        raise UserError(f"it has classes that are not from 0 to {model.classes - 1}")
    if form == "none":
        raise UserError(f"a trained {model.name} was not kept: {str(content)[:200]}")
    if form == "constant":
        return Fitted(None, seen)
    template = model.build()
    if form == "own":
        template.set_state({str(name): arrays[place] for name, place in content.items()})
        return Fitted(template, seen)
    if form != library_of(template):
        raise UserError(f"it is of {str(form)[:40]!r}, not a {type(template).__name__}")
    if form == "sklearn":
        return Fitted(_restore_sklearn(content, arrays, template, math.prod(model.shape)), seen)
    raw, width = arrays[content].tobytes(), math.prod(model.shape)
    if form == "xgboost":
        template.load_model(bytearray(boosters.check_xgboost(raw, width, len(seen))))
        return Fitted(template, seen)
    return Fitted(Booster(raw.decode(), seen, width), seen)


def _restore_sklearn(content: Any, arrays: list[Array], template: Any, width: int) -> Any:
    made = parts.put_together(content, arrays)
    if type(made) is not type(template):
        raise UserError(f"it is a {type(made).__name__}, not a {type(template).__name__}")
    if made.n_features_in_ != width:
        raise UserError(f"it takes {made.n_features_in_} features, not {width}")
    return made


def _open(blob: bytes) -> tuple[dict[str, Any], list[Array]]:
    start = len(MAGIC) + _LENGTH.size
    if len(blob) > LARGEST or len(blob) < start or blob[: len(MAGIC)] != MAGIC:
        raise UserError("it is no trained estimator")
    end = start + _LENGTH.unpack_from(blob, len(MAGIC))[0]
    try:
        head = json.loads(blob[start:end])
    except (ValueError, RecursionError):
        raise UserError("its head cannot be read") from None
    arrays = []
    for kind, shape, order in head["arrays"]:
        dtype, size = np.dtype(str(kind)), math.prod(shape)
        if dtype.kind not in "biufU" or not all(type(n) is int and n >= 0 for n in shape):
            raise UserError("it has an array of an unusual kind")
        length = size * dtype.itemsize
        if end + length > len(blob):
            raise UserError("it is cut short")
        flat = np.frombuffer(blob, dtype, size, end).copy()
        arrays.append(flat.reshape(shape, order="F" if order == "F" else "C"))
        end += length
    if end != len(blob):
        raise UserError(f"it has {len(blob) - end} bytes too many")
    return head, arrays


class Booster:
    """A LightGBM model from its own text, once that is checked."""

    def __init__(self, text: str, seen: Array, width: int) -> None:
        import lightgbm

        self.text, self.classes_ = text, seen
        self._booster = lightgbm.Booster(model_str=boosters.check_lightgbm(text, width, len(seen)))

    def predict_proba(self, x: Array) -> Array:
        found = np.asarray(self._booster.predict(x, num_threads=1))
        return found if found.ndim == 2 else np.stack([1 - found, found], axis=1)


def to_weights(blob: bytes) -> Weights:
    """What a client remembers: the bytes as one tensor."""
    return {NAME: torch.frombuffer(bytearray(blob), dtype=torch.uint8)}


def from_weights(state: Weights) -> bytes:
    return state[NAME].contiguous().numpy().tobytes()


def check_state(model: Model, found: Any) -> None:
    """A client's state from a run folder; UserError says what is wrong with it."""
    whole = isinstance(found, dict) and list(found) == [NAME]
    tensor = found[NAME] if whole else None
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise UserError(f"it is no trained {model.name}")
    decode(from_weights(found), model)
