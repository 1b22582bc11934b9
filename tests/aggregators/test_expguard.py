"""ExpGuard: weights of clients shrink with their distance from what the rule makes of all."""

from math import exp
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.aggregators import ExpGuard, forget_client, run_aggregator
from fedsift.types import SoftLabels, UserError
from tests.helpers import toys

R = toys.a_round()


def votes(*shares: float, sample: int = 2) -> list[tuple[int, SoftLabels]]:
    """One client for each share of class 0, all for one sample."""
    return [
        (i, SoftLabels(np.array([sample]), np.array([[p, 1 - p]]))) for i, p in enumerate(shares)
    ]


def test_weights_by_hand():
    # The mean of 1, 1, 0 is 2/3: distances 1/3, 1/3, 2/3. With eta = 3: losses 1, 1, 2. Weights
    # relative to the best: 1, 1, 1/e.
    labels, memory = run_aggregator(ExpGuard(eta=3.0), votes(1.0, 1.0, 0.0), {}, R)
    assert labels.index.tolist() == [2]
    assert labels.probs[0, 0] == pytest.approx(2 / (2 + exp(-1)))
    assert labels.weight == pytest.approx([2 + exp(-1)])
    # The same once more: losses 2, 2, 4.
    labels, memory = run_aggregator(ExpGuard(eta=3.0), votes(1.0, 1.0, 0.0), memory, R)
    assert labels.probs[0, 0] == pytest.approx(2 / (2 + exp(-2)))
    # Client 2 starts over, which clears nobody's name: losses 3, 3, 6.
    memory = forget_client(ExpGuard(), memory, 2)
    labels, _ = run_aggregator(ExpGuard(eta=3.0), votes(1.0, 1.0, 0.0), memory, R)
    assert labels.probs[0, 0] == pytest.approx(2 / (2 + exp(-3)))


def test_a_client_is_held_against_the_rule_inside():
    # The median of 1, .9, 0 is .9: distances .1, 0, .9. With eta = 10: losses 1, 0, 9.
    labels, _ = run_aggregator(ExpGuard("median", eta=10.0), votes(1.0, 0.9, 0.0), {}, R)
    assert labels.probs[0, 0] == pytest.approx((exp(-1) + 0.9) / (exp(-1) + 1 + exp(-9)))


def test_a_sample_that_nobody_else_answers_says_nothing():
    alone = [(0, SoftLabels(np.array([0]), np.array([[1.0, 0.0]])))]
    alone += [(1, SoftLabels(np.array([1]), np.array([[0.0, 1.0]])))]
    labels, memory = run_aggregator(ExpGuard(), alone, {}, R)
    assert labels.probs == pytest.approx(np.eye(2))
    again, _ = run_aggregator(ExpGuard(), votes(1.0, 0.0), memory, R)
    assert again.probs[0, 0] == pytest.approx(0.5)  # both are still equal


def test_nothing_heard_is_nothing():
    assert len(run_aggregator(ExpGuard(), [], {}, R)[0]) == 0


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(1, 40))
def test_rows_stay_between_the_votes_however_many_rounds(shares, rounds):
    memory: dict[str, Any] = {}
    for _ in range(rounds):
        labels, memory = run_aggregator(ExpGuard(eta=50.0), votes(*shares), memory, R)
    assert min(shares) - 1e-9 <= labels.probs[0, 0] <= max(shares) + 1e-9
    assert labels.probs.sum() == pytest.approx(1)


@pytest.mark.parametrize("loss", [-1.0, float("nan"), float("inf")])
def test_a_damaged_memory_is_refused(loss):
    with pytest.raises(UserError, match="client 3 does not fit this run: it is damaged"):
        run_aggregator(ExpGuard(), votes(1.0, 0.0), {"by_client": {"3": np.array(loss)}}, R)


def test_what_does_not_fit_is_said():
    with pytest.raises(UserError, match="expguard takes an eta above 0, not 0"):
        ExpGuard(eta=0.0)
    with pytest.raises(UserError, match="expguard takes a rule without a memory"):
        ExpGuard("trust")
