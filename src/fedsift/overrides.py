"""The meaning of `key.path=value` on a command line and of [sweep] keys, before any check."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from fedsift import registry
from fedsift.types import UserError

Axes = dict[str, list[Any]]  # full key path -> the values a sweep gives it

SHORT = {
    "alpha": "partition.alpha",
    "clients": "clients.count",
    "cohort": "clients.cohort",
    "model": "clients.model",
    "sampler": "algorithm.sampler",
    "budget": "algorithm.budget",
    "codec": "algorithm.codec",
    "aggregator": "algorithm.aggregator",
    "algorithm": "algorithm.name",
}
# Names that other libraries use, and the keys they mean here.
SYNONYMS = {
    "learning_rate": ("local.lr", "distill.lr"),
    "local_epochs": ("local.epochs",),
    "batch_size": ("local.batch", "distill.batch"),
    "dataset": ("data.name",),
    "num_clients": ("clients",),
    "n_clients": ("clients",),
    "num_rounds": ("rounds",),
    "n_rounds": ("rounds",),
    "clients_per_round": ("cohort",),
    "fraction_fit": ("cohort",),
    "dirichlet_alpha": ("alpha",),
    "random_seed": ("seed",),
    "method": ("algorithm",),
    "net": ("model",),
    "network": ("model",),
}
SWEPT = "sweep."
LONGEST = 60  # letters of a text that are quoted back
DEEPEST = 20  # tables and lists in each other
MODELS = ("clients.model", "clients.models")  # one takes the place of the other


def apply_override(values: dict[str, Any], axes: Axes, override: str) -> None:
    """Set a key, which then is no axis any more; or, with `sweep.` before it, make it an axis."""
    _, equals, text = override.partition("=")
    if not equals:
        raise UserError(
            f"cannot read {override!r}; an override is key=value, e.g. alpha=0.1 or local.lr=0.01"
        )
    path = full_path(override)
    if path == "sweep":
        axes |= read_axes(_toml_value(text.strip()))
    elif path.startswith(SWEPT):
        axes |= read_axes({path.removeprefix(SWEPT): _values(text.strip())})
    else:
        _drop_axis(axes, path)
        set_value(values, path, _toml_value(text.strip()))


def _drop_axis(axes: Axes, path: str) -> None:
    """A key with one value is no axis, nor is any key in its section."""
    for fixed in {path, *(MODELS if path in MODELS else ())}:
        for axis in [axis for axis in axes if axis == fixed or axis.startswith(f"{fixed}.")]:
            del axes[axis]


def set_value(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the key at a full path."""
    *sections, key = path.split(".")
    here = values
    for section in sections:
        here = here.setdefault(section, {})
        if not isinstance(here, dict):
            raise UserError(f"cannot set {path!r}: {section!r} is not a section")
    here[key] = value
    if path == "clients.model":
        here.pop("models", None)  # a model for all replaces a mixture


def full_path(override: str) -> str:
    """The key an override sets, short names spelt out."""
    path = override.partition("=")[0].strip()
    if path.startswith(SWEPT):
        return SWEPT + _long_name(path.removeprefix(SWEPT))
    return _long_name(path)


def _long_name(key: str) -> str:
    return SHORT.get(key, key)


def short_name(path: str) -> str:
    return next((short for short, full in SHORT.items() if full == path), path)


def read_axes(table: Any, section: str = "") -> Axes:
    """A [sweep] table, with dotted keys or tables in it, by full key path."""
    if not isinstance(table, dict):
        raise UserError(
            f"sweep is a table of keys with a list each, e.g. seed = [0, 1, 2], not {table!r}"
        )
    found: Axes = {}
    for key, value in table.items():
        inner = (
            read_axes(value, f"{section}{key}.")
            if isinstance(value, dict)
            else {_long_name(section + key): value}
        )
        for path, choices in inner.items():
            if not isinstance(choices, list) or not choices:
                raise UserError(
                    f"{SWEPT}{short_name(path)} is a list of values, e.g. [0.1, 1], not {choices!r}"
                )
            if path in found:
                raise UserError(f"{SWEPT}{path} is given twice")
            found[path] = choices
    return found


def _values(text: str) -> Any:
    """A TOML list, or one of bare words, as a shell leaves it of ["mixed", "random"]."""
    value = _toml_value(text)
    if isinstance(value, str) and text.startswith("[") and text.endswith("]"):
        return [_toml_value(piece.strip()) for piece in registry.split_arguments(text[1:-1])]
    return value


def _toml_value(text: str) -> Any:
    """As TOML would read it; a bare word is a string."""
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        value = None
    if value is None or is_too_deep(value):
        raise UserError(f"cannot read {text[:LONGEST]!r}...: it is nested too deeply")
    return value


def is_too_deep(value: Any) -> bool:
    """Whether tables and lists are nested deeper than any experiment needs. Level by level, as
    Python's own stack may not be deep enough.
    """
    level = [value]
    for _ in range(DEEPEST - 1):  # numbers and texts, which are many, are not looked into
        level = [
            inner for outer in level for inner in _children(outer) if isinstance(inner, dict | list)
        ]
    return any(level)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
