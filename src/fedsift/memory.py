"""What parties remember between rounds: dataclasses, and how they become trees of arrays and back.

An algorithm names its dataclasses as `client_memory` and `server_memory`. A field may be a number,
bytes, an array, a tensor, another dataclass, a dict of these, or None. A field at its default is
not stored, so a memory without anything in it is an empty tree. An algorithm that names no
dataclass gets plain dicts with arrays or tensors at the leaves.
"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from fedsift.checks import describe
from fedsift.types import Tree, UserError, Weights

_NUMBERS = (bool, int, float)
_KINDS = {bool: "b", int: "iu", float: "iuf"}  # of arrays that each may be stored as


def to_tree(memory: Any) -> Tree:
    """Nested dicts with arrays or tensors at the leaves; only what differs from the defaults."""
    if memory is None:
        return {}
    if isinstance(memory, dict):
        return _to_table(memory)
    if not is_dataclass(memory):
        kinds = "numbers, bytes, arrays, tensors, dicts and dataclasses"
        raise UserError(f"a memory holds {kinds}, not {type(memory).__name__}")
    found = {field.name: getattr(memory, field.name) for field in fields(memory)}
    kind: Any = type(memory)
    defaults = _defaults(kind)
    kept = {
        name: _to_value(value)
        for name, value in found.items()
        if not (isinstance(value, (*_NUMBERS, type(None))) and value == defaults.get(name, MISSING))
    }
    return {name: value for name, value in kept.items() if not _is_empty_tree(value)}


def from_tree(kind: Any, tree: Any, path: str = "memory") -> Any:
    """The memory that `to_tree` stored; a tree that does not fit is refused with its path."""
    kind = _without_none(kind)
    origin = typing.get_origin(kind) or kind
    if kind is Any:
        return tree
    if origin is dict:
        key_kind, value_kind = typing.get_args(kind) or (str, Any)
        return {
            _to_key(key_kind, key, path): from_tree(value_kind, value, f"{path}.{key}")
            for key, value in _items(tree, path).items()
        }
    if is_dataclass(kind):
        return _build(kind, _items(tree, path), path)
    if not isinstance(tree, np.ndarray | torch.Tensor) or (
        isinstance(tree, torch.Tensor) != (origin is torch.Tensor)
    ):
        raise UserError(f"{path} should be {getattr(origin, '__name__', origin)}")
    if origin in _NUMBERS:
        if tree.size != 1 or tree.dtype.kind not in _KINDS[origin]:
            raise UserError(
                f"{path} should be one {origin.__name__}, not {tree.dtype} {tree.shape}"
            )
        return origin(tree.item())
    return tree.tobytes() if origin is bytes and isinstance(tree, np.ndarray) else tree


def is_empty(memory: Any) -> bool:
    """Whether there is nothing to remember."""
    return not to_tree(memory)


def model_in(memory: Any) -> Weights | None:
    """The client's own model, where its memory holds one."""
    found = memory.get("model") if isinstance(memory, dict) else getattr(memory, "model", None)
    return found or None


def _to_table(memory: Tree) -> Tree:
    table = {str(key): _to_value(value) for key, value in memory.items()}
    if len(table) < len(memory):
        twice = [str(key) for key in memory if sum(str(k) == str(key) for k in memory) > 1]
        raise UserError(
            f"a memory has the key {twice[0]} as a number and as text;"
            " after a round keys are text: use str(client), or a dataclass with dict[int, ...]"
        )
    return table


def _to_value(value: Any) -> Any:
    if isinstance(value, np.ndarray | torch.Tensor):
        return value
    if isinstance(value, np.generic):
        return np.array(value)
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8).copy()
    return np.array(value) if isinstance(value, _NUMBERS) else to_tree(value)


def _is_empty_tree(value: Any) -> bool:
    return isinstance(value, dict) and not value


def _build(kind: Any, tree: Tree, path: str) -> Any:
    hints = _hints(kind)
    if odd := sorted(tree.keys() - hints.keys()):
        raise UserError(
            f"{path} has {', '.join(map(repr, odd))[:200]}, which this version does not know"
        )
    given = {name: from_tree(hints[name], value, f"{path}.{name}") for name, value in tree.items()}
    try:
        return kind(**given)
    except TypeError:
        missing = sorted(hints.keys() - given.keys() - _defaults(kind).keys())
        raise UserError(f"{path} lacks {', '.join(missing)}") from None


def _items(tree: Any, path: str) -> Tree:
    if not isinstance(tree, dict):
        raise UserError(f"{path} should be a table")
    return tree


def _to_key(kind: Any, key: str, path: str) -> Any:
    try:
        return kind(key)
    except ValueError:
        raise UserError(f"{path} has the key {describe(key)}, which is not a number") from None


def _without_none(kind: Any) -> Any:
    """X | None -> X."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (one for one in typing.get_args(kind) if one is not type(None))
    return kind


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {
        field.name: field.default
        for field in fields(kind)
        if field.default is not MISSING or field.default_factory is not MISSING
    }
