"""Sums that do not depend on the order: numbers by hand, and every order the same bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.aggregators import mean, sums
from fedsift.types import SoftLabels


def upload(index, rows, weight=None):
    votes = None if weight is None else np.array(weight)
    return SoftLabels(np.array(index), np.array(rows, np.float32), votes)


def test_ticks_by_hand():
    # .75 is 3 x 2^30 ticks of 2^-32. 2^-34 + 2^-40 is less than half a tick: it is 2^30 + 2^24
    # ticks of 2^-64.
    small = 2.0**-34 + 2.0**-40
    found = sums.add_up([(7, upload([2], [[0.75, small]], [1.0]))], 4, 2)
    assert found.index.tolist() == [2]
    assert found.high.tolist() == [[3 * 2**30, 0, 2**32]]
    assert found.low.tolist() == [[0, 2**30 + 2**24, 0]]


def test_a_sum_keeps_what_float64_would_round_away():
    # Of 1, 2^-60 and 2^-60 a running sum in float64 keeps the 1 alone; here 2 x 16 ticks stay.
    parts = [(k, upload([0], [[p, 0.0]], [1.0])) for k, p in enumerate((1.0, 2.0**-60, 2.0**-60))]
    found = sums.add_up(parts, 1, 2)
    assert (found.high[0, 0], found.low[0, 0]) == (2**32, 32)


def test_votes_below_the_last_tick_count_nothing():
    assert not len(mean([(0, upload([0], [[0.5, 0.5]], [2.0**-66]))], 1, 2))


uploads = st.lists(
    st.tuples(
        st.floats(0, 1, width=32),
        st.sampled_from([1.0, 0.7, 0.49, 1e-6, 2.0**-40, 4.0]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)


@given(uploads)
def test_every_order_and_every_grouping_give_the_same_bits(given):
    pairs = [(k, upload([i], [[p, 1 - p]], [w])) for k, (p, w, i) in enumerate(given)]
    whole = mean(pairs, 3, 2)
    for order in itertools.islice(itertools.permutations(pairs), 24):
        cut = len(order) // 2
        parts = [sums.add_up(some, 3, 2) for some in (order[:cut], order[cut:])]
        joined = sums.divide(sums.merge(parts, 3, 2))
        assert joined.index.tolist() == whole.index.tolist()
        assert joined.probs.tobytes() == whole.probs.tobytes()
        assert np.asarray(joined.weight).tobytes() == np.asarray(whole.weight).tobytes()


def test_the_mean_is_that_of_plain_float64_within_its_rounding():
    generator = np.random.default_rng(0)
    rows = generator.dirichlet(np.full(10, 0.05), (40, 5)).astype(np.float32)
    found = mean([(k, upload(range(5), some)) for k, some in enumerate(rows)], 5, 10)
    plain = rows.astype(np.float64).sum(0) / 40
    assert found.probs == pytest.approx(plain, rel=40 * 2.0**-53, abs=2.0**-64)
    assert np.asarray(found.weight).tolist() == [40.0] * 5
