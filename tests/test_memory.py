"""Memories as trees of arrays and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift.memory import from_tree, is_empty, model_in, to_tree
from fedsift.types import Array, SoftLabels, UserError, Weights


@dataclass(frozen=True, eq=False)
class Inner:
    last: int = -1
    labels: SoftLabels | None = None


@dataclass(frozen=True, eq=False)
class Outer:
    model: Weights | None = None
    inner: Inner = field(default_factory=Inner)
    by_client: dict[int, Inner] = field(default_factory=dict)
    mail: dict[int, bytes] = field(default_factory=dict)
    share: float = 0.0
    done: bool = False


@dataclass(frozen=True, eq=False)
class Needed:
    x: Array


def labels() -> SoftLabels:
    return SoftLabels(np.array([1, 4]), np.array([[0.25, 0.75], [1.0, 0.0]], np.float32))


def test_a_memory_at_its_defaults_is_an_empty_tree():
    assert to_tree(Outer()) == {} and is_empty(Outer()) and is_empty(None) and is_empty({})
    assert from_tree(Outer, {}).inner.last == -1


def test_every_kind_of_field_comes_back():
    memory = Outer(
        {"w": torch.tensor([1.0, 2.0])},
        Inner(3, labels()),
        {7: Inner(0), 12: Inner(-1, labels())},
        {5: b"\x00\xffab"},
        0.5,
        True,
    )
    back = from_tree(Outer, to_tree(memory))
    assert torch.equal(back.model["w"], torch.tensor([1.0, 2.0]))
    assert back.inner.last == 3 and back.inner.labels.index.tolist() == [1, 4]
    assert sorted(back.by_client) == [7, 12] and back.by_client[7].last == 0
    assert back.by_client[12].labels.probs.tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert back.mail == {5: b"\x00\xffab"} and (back.share, back.done) == (0.5, True)
    assert not is_empty(memory)


def test_leaves_are_arrays_and_tensors_and_keys_are_strings():
    tree = to_tree(Outer(by_client={7: Inner(2)}, mail={1: b"a"}))
    assert tree["by_client"]["7"]["last"].tolist() == 2
    assert tree["mail"]["1"].tolist() == [97]
    assert tree.keys() == {"by_client", "mail"}


@given(st.dictionaries(st.integers(0, 99), st.integers(-(2**40), 2**40)))
def test_plain_dicts_get_string_keys_and_arrays(table):
    tree = to_tree(table)
    assert {int(key): value.item() for key, value in tree.items()} == table
    assert from_tree(dict[int, int], tree) == table
    assert from_tree(dict, tree) == tree


@pytest.mark.parametrize(
    ("kind", "tree", "complaint"),
    [
        (Outer, {"other": np.array(1)}, "has 'other', which this version does not know"),
        (Outer, {"inner": np.array(1)}, "memory.inner should be a table"),
        (Outer, {"share": np.array([1.0, 2.0])}, "memory.share should be one float"),
        (Outer, {"share": np.array("1")}, "memory.share should be one float"),
        (Outer, {"share": np.array(1j)}, "memory.share should be one float"),
        (dict[int, int], {"1": np.array(float("nan"))}, "memory.1 should be one int"),
        (dict[int, int], {"1": np.array(True)}, "memory.1 should be one int"),
        (Outer, {"share": {"a": np.array(1)}}, "memory.share should be float"),
        (Outer, {"by_client": {"x": {}}}, "has the key 'x', which is not a number"),
        (Outer, {"model": {"w": np.array(1.0)}}, "memory.model.w should be Tensor"),
        (Needed, {}, "memory lacks x"),
        (Needed, {"x": torch.ones(1)}, "memory.x should be ndarray"),
    ],
)
def test_a_tree_that_does_not_fit_is_refused_with_its_path(kind, tree, complaint):
    with pytest.raises(UserError, match=complaint):
        from_tree(kind, tree)


def test_a_model_is_found_in_dataclasses_and_dicts():
    weights: dict[str, Any] = {"w": torch.ones(1)}
    assert model_in(Outer(weights)) is weights and model_in({"model": weights}) is weights
    assert model_in(Outer()) is None and model_in({}) is None and model_in(None) is None


def test_numbers_of_numpy_are_numbers():
    assert to_tree({"n": np.array(2) + 1})["n"].tolist() == 3


@pytest.mark.parametrize("value", ["text", [1, 2], {1, 2}])
def test_a_memory_refuses_what_it_cannot_hold(value):
    with pytest.raises(UserError, match=f"a memory holds .* not {type(value).__name__}"):
        to_tree({"x": value})


def test_a_key_as_number_and_as_text_is_refused():
    """After a round keys are text, so a number would be counted again beside it."""
    with pytest.raises(UserError, match="the key 5 as a number and as text"):
        to_tree({"5": np.array(1), 5: 1})
