"""Small numerical functions against numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.numerics import distinct, lower_median, softmax


def test_a_softmax_by_hand():
    # exp(0), exp(log 3) are 1 and 3; at temperature 2, exp(log 9 / 2) is 3 too.
    assert softmax(np.array([[0.0, np.log(3)]]), 1.0) == pytest.approx(np.array([[0.25, 0.75]]))
    assert softmax(np.array([[0.0, np.log(9)]]), 2.0) == pytest.approx(np.array([[0.25, 0.75]]))


@pytest.mark.parametrize(
    "shape", [(0, 3), (1, 40_000), (3, 40_000), (1_000, 316), (16_384, 2), (16_385, 2), (7_000, 10)]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_softmax_in_blocks_has_the_bits_of_one_at_once(shape, order):
    logits = np.random.default_rng(0).normal(0, 5, shape).astype(np.float32, order=order)
    scaled = logits.astype(np.float64) / 0.7
    exps = np.exp(scaled - scaled.max(-1, keepdims=True))
    assert softmax(logits, 0.7).tobytes() == (exps / exps.sum(-1, keepdims=True)).tobytes()


def test_the_lower_median_of_four_is_the_second():
    assert lower_median([7.0, 1.0, 5.0, 3.0]) == 3.0
    assert lower_median([7.0, 1.0, 5.0]) == 5.0


def test_weights_move_the_median():
    """Of 10 in all, 6 lie at 5: half is reached there, not at the middle value."""
    assert lower_median(np.array([1.0, 2.0, 5.0]), np.array([2.0, 2.0, 6.0])) == 5.0
    assert lower_median(np.array([1.0, 2.0, 5.0]), np.array([5.0, 2.0, 3.0])) == 1.0


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_equal_weights_give_the_middle_one_or_the_smaller_of_two(values):
    assert lower_median(values) == sorted(values)[(len(values) - 1) // 2]


def test_distinct_values_by_hand():
    assert distinct([3, 1, 3, 2, 1]).tolist() == [1, 2, 3]
    assert distinct([]).tolist() == []
    assert distinct([[5, 5], [4, 5]]).tolist() == [4, 5]


@given(st.lists(st.integers(-9, 9)))
def test_distinct_is_what_unique_gives(values):
    array = np.array(values, np.int64)
    assert np.array_equal(distinct(array), np.unique(array))
