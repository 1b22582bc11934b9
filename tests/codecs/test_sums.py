"""Partial sums as bytes: by hand, back again without loss, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.aggregators import sums
from fedsift.codecs import wire
from fedsift.codecs.sums import ExactSums
from fedsift.codecs.wire import WireError
from fedsift.types import LabelSums, Link, SoftLabels, UserError

LINK = Link(3, 24, 5, votes=6.0)
CODEC = ExactSums()


def joined(count, seed=0, weight=1.0):
    generator = np.random.default_rng(seed)
    pairs = []
    for client in range(count):
        index = np.sort(generator.permutation(24)[:8])
        rows = generator.dirichlet(np.full(5, 0.3), 8).astype(np.float32)
        pairs.append((client, SoftLabels(index, rows, np.full(8, weight))))
    return sums.add_up(pairs, 24, 5)


def as_numbers(found):
    """Ticks of 2^-64, as whole numbers of Python."""
    ticks = zip(found.high.ravel().tolist(), found.low.ravel().tolist(), strict=True)
    return [int(high) * 2**32 + int(low) for high, low in ticks]


@pytest.mark.parametrize("weight", [1.0, 0.7, 2.0**-40])
def test_sums_arrive_as_they_were(weight):
    sent = joined(6, weight=weight)
    found = CODEC.decode(CODEC.encode(sent, LINK), LINK)
    assert found.index.tolist() == sent.index.tolist()
    assert as_numbers(found) == as_numbers(sent)


def test_a_message_by_hand():
    # One row of 24 takes a byte. 3 votes, of which 2 for the first class and 1 for the last: the
    # numbers are 3, 2, 0, 0, 0, 1 times 2^64, so of 12 bytes only the ninth is sent.
    labels = LabelSums(np.array([7]), np.array([[2, 0, 0, 0, 1, 3]]) * 2.0**32, np.zeros((1, 6)))
    payload = CODEC.encode(labels, LINK)[wire.HEADER_BYTES :]
    assert payload == bytes([1, 0, 0, 0, 1, 0, 0, 0, 7, 8, 9, 3, 8, 9, 2, 0, 0, 0, 1])


def test_hard_labels_take_a_byte_each_and_others_at_most_twelve():
    rows = np.eye(5, dtype=np.float32)[np.arange(24) % 5]
    hard = sums.add_up([(k, SoftLabels(np.arange(24), rows)) for k in range(6)], 24, 5)
    assert len(CODEC.encode(hard, LINK)) == wire.HEADER_BYTES + 8 + 2 * 2 + 24 * 6
    assert len(CODEC.encode(joined(6), LINK)) <= wire.HEADER_BYTES + CODEC.max_bytes(24, 5)


def test_nothing_heard_is_a_message_without_rows():
    nothing = LabelSums(np.empty(0, np.int64), np.empty((0, 6)), np.empty((0, 6)))
    assert len(CODEC.decode(CODEC.encode(nothing, LINK), LINK)) == 0


def changed(name, value, row=0, column=0):
    sent = joined(2)
    numbers = getattr(sent, name).copy()
    numbers[row, column] = value
    return replace(sent, **{name: numbers})


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (changed("high", 7 * 2.0**32, column=-1), "more than 6 votes"),
        (changed("high", 2.0**33), "not of probabilities"),
        (changed("high", 0.0, column=-1), "not of probabilities"),
    ],
)
def test_sums_that_cannot_be_are_refused(bad, why):
    with pytest.raises(WireError, match=why):
        CODEC.decode(CODEC.encode(bad, LINK), LINK)


def test_the_rounding_of_faint_votes_is_not_taken_for_a_lie():
    # 2^-40 of the least vote, 10^-6, are 16.8 ticks of 2^-64: 17. A tenth of it, 1.68, is 2 ten
    # times: 20 ticks of labels on 17 of votes. Two such uploads have 40 on 34.
    link = replace(LINK, classes=10)
    even = SoftLabels(np.array([7]), np.full((1, 10), 0.1), np.array([2.0**-40 * 1e-6]))
    for count in (1, 2):
        sent = sums.add_up([(k, even) for k in range(count)], 24, 10)
        assert as_numbers(sent) == [2 * count] * 10 + [17 * count]
        found = CODEC.decode(CODEC.encode(sent, link), link)
        assert as_numbers(found) == as_numbers(sent)


@given(st.lists(st.floats(-66, 2), min_size=1, max_size=6), st.integers(2, 30), st.integers(0, 99))
def test_honest_votes_of_any_size_arrive_as_they_were(faint, classes, seed):
    link, generator = Link(3, 4, classes, votes=4.0 * len(faint)), np.random.default_rng(seed)
    pairs = []
    for client, power in enumerate(faint):
        rows = generator.dirichlet(np.full(classes, 0.3), 4).astype(np.float32)
        pairs.append((client, SoftLabels(np.arange(4), rows, np.full(4, 2.0**power))))
    sent = sums.add_up(pairs, 4, classes)
    assert as_numbers(CODEC.decode(CODEC.encode(sent, link), link)) == as_numbers(sent)


@pytest.mark.parametrize(
    "ticks",
    [
        [60, 0, 0, 0, 0, 40],  # a label of 60 where 40.44 and 6 are the most
        [30, 30, 30, 30, 30, 40],  # 150 in all, where 40.44 and 6 x 3 are the most
        [0, 0, 0, 0, 10, 40],  # votes for nothing
        [3, 0, 0, 0, 0, 1],  # of one upload, where 1.01 and 1 are the most
    ],
)
def test_faint_sums_that_rounding_cannot_make_are_refused(ticks):
    bad = LabelSums(np.array([7]), np.zeros((1, 6)), np.array([ticks], np.float64))
    with pytest.raises(WireError, match="not of probabilities"):
        CODEC.decode(CODEC.encode(bad, LINK), LINK)


def test_a_message_of_another_round_or_public_set_is_refused():
    message = CODEC.encode(joined(2), LINK)
    for other in (replace(LINK, round=4), replace(LINK, samples=25), replace(LINK, classes=4)):
        with pytest.raises(WireError):
            CODEC.decode(message, other)


def test_more_votes_than_can_be_counted_are_not_sent():
    with pytest.raises(UserError, match="more edge servers"):
        CODEC.encode(changed("high", 2.0**53), LINK)
