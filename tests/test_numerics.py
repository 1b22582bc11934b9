"""Small numerical functions against numbers worked by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsift.numerics import distinct, lower_median


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
