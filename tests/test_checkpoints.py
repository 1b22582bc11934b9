"""A state and its bytes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedsift import runs
from fedsift.federation import FederationState
from fedsift.types import Server


def leaves() -> st.SearchStrategy[Any]:
    kinds = st.sampled_from([np.int64, np.float64, np.float32])
    shapes = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    values = st.builds(lambda k, s: arrays(k, s), kinds, shapes).flatmap(lambda strategy: strategy)
    return st.one_of(values.map(np.asarray), values.map(lambda a: torch.from_numpy(np.array(a))))


names = st.text(min_size=1, max_size=5)


trees = st.recursive(
    st.dictionaries(names, leaves(), min_size=1, max_size=3),
    lambda inner: st.dictionaries(names, inner, min_size=1, max_size=2),
    max_leaves=4,
)


states = st.builds(
    FederationState,
    st.integers(0, 10**6),
    st.builds(
        Server,
        st.dictionaries(
            names,
            st.dictionaries(names, leaves().map(torch.as_tensor), min_size=1, max_size=2),
            max_size=2,
        ),
        st.one_of(st.just({}), trees),
    ),
    st.dictionaries(st.integers(0, 10**6), trees, max_size=2),
)


def spelt_out(tree: Any) -> Any:
    """A tree as plain values: kind, type, shape and bytes of every leaf."""
    if isinstance(tree, dict):
        return {key: spelt_out(value) for key, value in tree.items()}
    array = tree.numpy() if isinstance(tree, torch.Tensor) else tree
    return type(tree).__name__, str(array.dtype), array.shape, array.tobytes()


def assert_survives(state: FederationState) -> None:
    back = runs.from_bytes(runs.to_bytes(state))
    assert back.round == state.round
    assert spelt_out(back.server.students) == spelt_out(state.server.students)
    assert spelt_out(back.server.memory) == spelt_out(state.server.memory)
    assert spelt_out(back.memories) == spelt_out(state.memories)


@settings(max_examples=60)
@given(states)
def test_a_state_survives_the_checkpoint_exactly(state):
    assert_survives(state)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (2, 3)])
@pytest.mark.parametrize("make", [np.ones, torch.ones])
def test_a_leaf_of_any_shape_survives_the_checkpoint(make, shape):
    assert_survives(
        FederationState(1, Server({}, {"a": {"b": make(shape)}}), {7: {"m": make(shape)}})
    )


def test_views_and_names_with_dots_slashes_and_quotes_survive_the_checkpoint():
    square = np.arange(9.0).reshape(3, 3)
    notes = {
        "a.b": square.T,
        "a": {"b": square[::2]},
        'a/"b"\n': torch.arange(9).view(3, 3).t(),
        "": square[0],
    }
    assert_survives(FederationState(3, Server({}, notes), {}))


def test_equal_states_give_equal_bytes():
    def state(names: str) -> FederationState:
        return FederationState(
            2, Server({"cnn": {name: torch.full((2,), float(ord(name))) for name in names}}), {}
        )

    assert runs.to_bytes(state("ab")) == runs.to_bytes(state("ab"))
