"""Partial sums as bytes: by hand, back again without loss, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

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


def test_a_message_of_another_round_or_public_set_is_refused():
    message = CODEC.encode(joined(2), LINK)
    for other in (replace(LINK, round=4), replace(LINK, samples=25), replace(LINK, classes=4)):
        with pytest.raises(WireError):
            CODEC.decode(message, other)


def test_more_votes_than_can_be_counted_are_not_sent():
    with pytest.raises(UserError, match="more edge servers"):
        CODEC.encode(changed("high", 2.0**53), LINK)
