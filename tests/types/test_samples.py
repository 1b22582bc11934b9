"""Samples and labels."""

import numpy as np
import pytest

from fedsift.types import SoftLabels

INDEX = np.array([2, 5, 7])
PROBS = np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]])


@pytest.mark.parametrize("rows", [[0, 2], [True, False, True]], ids=["positions", "mask"])
def test_rows_are_kept_with_their_samples_and_votes(rows):
    kept = SoftLabels(INDEX, PROBS, np.array([1.0, 0.5, 3.0])).keep(np.array(rows))
    assert kept.index.tolist() == [2, 7]
    assert kept.probs.tolist() == [[0.5, 0.5], [0.25, 0.75]]
    assert kept.weight is not None and kept.weight.tolist() == [1.0, 3.0]


def test_where_each_row_is_one_vote_that_stays_so_and_all_rows_may_go():
    labels = SoftLabels(INDEX, PROBS)
    assert labels.keep(np.array([1])).weight is None
    nothing = labels.keep(np.arange(0))
    assert (nothing.index.dtype, nothing.probs.shape) == (INDEX.dtype, (0, 2))
