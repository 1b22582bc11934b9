"""Median, trimmed mean, geometric median, Cronus and filter: sample by sample."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.aggregators import (
    AGGREGATORS,
    EnhancedEra,
    Era,
    Filter,
    LabelMemory,
    TrimmedMean,
    cronus,
    geometric_median,
    mean,
    median,
    run_aggregator,
)
from fedsift.registry import build
from fedsift.types import SoftLabels, UserError
from tests.helpers import toys

RULES = [median, TrimmedMean(), geometric_median, cronus, Filter()]
NAMES = ["median", "trimmed-mean", "geometric-median", "cronus", "filter"]


def votes_for_one_sample(*rows: list[float], weights: list[float] | None = None):
    """One client for each row, all for sample 2."""
    votes = [None] * len(rows) if weights is None else [np.array([w]) for w in weights]
    return [
        (i, SoftLabels(np.array([2]), np.array([row]), vote))
        for i, (row, vote) in enumerate(zip(rows, votes, strict=True))
    ]


def first(share: float) -> list[float]:
    return [share, 1 - share]


# --- by hand ---


def test_the_median_takes_each_class_by_itself_and_normalises():
    # Class 0: .5 .6 .1 -> .5; class 1: .3 .4 .2 -> .3; class 2: .2 .0 .7 -> .2: they sum to 1.
    labels = median(votes_for_one_sample([0.5, 0.3, 0.2], [0.6, 0.4, 0.0], [0.1, 0.2, 0.7]), 4, 3)
    assert labels.index.tolist() == [2]
    assert labels.probs == pytest.approx(np.array([[0.5, 0.3, 0.2]]))
    # Medians .6, .2, .1: over .9.
    labels = median(votes_for_one_sample([0.6, 0.3, 0.1], [0.7, 0.2, 0.1], [0.0, 0.1, 0.9]), 4, 3)
    assert labels.probs == pytest.approx(np.array([[0.6, 0.2, 0.1]]) / 0.9)


def test_the_median_of_four_is_between_the_two_in_the_middle():
    four = votes_for_one_sample(first(0.1), first(0.4), first(0.6), first(0.9))
    assert median(four, 4, 2).probs[0, 0] == pytest.approx(0.5)


def test_the_median_counts_votes():
    # .2 has 3 of 5 votes.
    three = votes_for_one_sample(first(0.2), first(0.7), first(0.9), weights=[3.0, 1.0, 1.0])
    labels = median(three, 4, 2)
    assert labels.probs[0, 0] == pytest.approx(0.2)
    assert labels.weight == pytest.approx([5.0])


def test_a_median_of_nothing_is_the_mean():
    three = votes_for_one_sample([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    assert median(three, 4, 3).probs == pytest.approx(np.full((1, 3), 1 / 3))


def test_the_trimmed_mean_drops_at_both_ends():
    # Of .0 .4 .5 .6 1.0 the ends go: .5. With a share of .4 two go at each end: the median, .5.
    five = votes_for_one_sample(*(first(p) for p in (1.0, 0.4, 0.6, 0.5, 0.0)))
    assert TrimmedMean(0.2)(five, 4, 2).probs[0, 0] == pytest.approx(0.5)
    five = votes_for_one_sample(*(first(p) for p in (0.9, 0.4, 0.6, 0.5, 0.3)))
    assert TrimmedMean(0.2)(five, 4, 2).probs[0, 0] == pytest.approx(0.5)
    assert TrimmedMean(0.0)(five, 4, 2).probs[0, 0] == pytest.approx(0.54)
    # Weights count in what is left: (.4 + 3 * .6 + .5) / 5.
    five = votes_for_one_sample(
        *(first(p) for p in (0.9, 0.4, 0.6, 0.5, 0.3)), weights=[1.0, 1.0, 3.0, 1.0, 1.0]
    )
    assert TrimmedMean(0.2)(five, 4, 2).probs[0, 0] == pytest.approx(2.7 / 5)


def test_the_geometric_median_of_a_triangle():
    # Corners of the simplex: by symmetry the middle. Three on a line: the one in the middle.
    corners = votes_for_one_sample([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    assert geometric_median(corners, 4, 3).probs == pytest.approx(np.full((1, 3), 1 / 3))
    line = votes_for_one_sample(first(0.1), first(0.3), first(1.0))
    assert geometric_median(line, 4, 2).probs[0, 0] == pytest.approx(0.3, abs=1e-3)


def test_the_filter_drops_the_vote_that_stands_out():
    # The mean is .66, and 0.0 is farthest from it: (.8 + .8 + .9 + .8) / 4.
    five = votes_for_one_sample(*(first(p) for p in (0.8, 0.8, 0.0, 0.9, 0.8)))
    assert Filter(0.2)(five, 4, 2).probs[0, 0] == pytest.approx(3.3 / 4)
    assert Filter(0.0)(five, 4, 2).probs[0, 0] == pytest.approx(3.3 / 5)


def test_cronus_drops_twice():
    # 5 votes, f = 2: int(.8 * 5) = 4 stay, then int(.8 * 4) = 3. First goes 0.0 (mean .66), then
    # .9 (mean .825).
    five = votes_for_one_sample(*(first(p) for p in (0.8, 0.8, 0.0, 0.9, 0.8)))
    assert cronus(five, 4, 2).probs[0, 0] == pytest.approx(0.8)


def test_votes_that_are_equally_far_stay_together():
    # Mean .5; .2 and .8 are equally far: one of them cannot be chosen.
    four = votes_for_one_sample(first(0.2), first(0.8), first(0.5), first(0.5))
    assert Filter(0.2)(four, 4, 2).probs[0, 0] == pytest.approx(0.5)


@pytest.mark.parametrize("rule", RULES)
def test_one_or_two_votes_are_the_mean(rule):
    uploads = [
        (0, SoftLabels(np.array([0, 1]), np.array([[0.9, 0.1], [0.2, 0.8]]))),
        (1, SoftLabels(np.array([1, 3]), np.array([[0.6, 0.4], [1.0, 0.0]]), np.array([3.0, 1.0]))),
    ]
    labels, expected = rule(uploads, 4, 2), mean(uploads, 4, 2)
    assert labels.index.tolist() == expected.index.tolist() == [0, 1, 3]
    assert labels.probs == pytest.approx(expected.probs)
    assert labels.weight == pytest.approx(expected.weight)


@pytest.mark.parametrize("rule", RULES)
def test_nothing_uploaded_is_nothing(rule):
    assert len(rule([], 4, 2)) == 0


# --- names, and rules inside rules ---


def test_the_names_build_the_rules():
    for name, rule in zip(NAMES, RULES, strict=True):
        assert build(AGGREGATORS, "aggregator", name) == rule
    assert build(AGGREGATORS, "aggregator", "trimmed-mean(0.3)") == TrimmedMean(0.3)
    for bad in ("trimmed-mean(0.5)", "filter(-0.1)"):
        with pytest.raises(UserError, match=r"drops a share from 0 to below 0\.5"):
            build(AGGREGATORS, "aggregator", bad)


def test_any_rule_can_be_sharpened():
    # The median is .6; softmax((.6, .4) / .1) has odds e^2. Squared: .36 to .16.
    three = votes_for_one_sample(first(0.6), first(0.5), first(1.0))
    odds = np.exp(2.0)
    sharp = build(AGGREGATORS, "aggregator", "era(0.1, inner=median)")
    assert sharp(three, 4, 2).probs[0, 0] == pytest.approx(odds / (1 + odds))
    squared = EnhancedEra(2.0, inner="median")(three, 4, 2)
    assert squared.probs[0, 0] == pytest.approx(0.36 / 0.52)
    assert Era(0.1, inner=median)(three, 4, 2).probs[0, 0] == pytest.approx(odds / (1 + odds))
    with pytest.raises(UserError, match="era takes a rule without a memory of its own"):
        Era(0.1, inner="memory")


def test_the_weights_of_a_sharpened_rule_are_those_of_its_votes():
    # Certain votes count 1 each, the flat one nothing: the geometric median of (1, 0), (1, 0).
    three = votes_for_one_sample(first(1.0), first(1.0), first(0.5))
    sharp = Era(1.0, weights="certainty", inner="geometric-median")(three, 4, 2)
    assert sharp.probs[0, 0] == pytest.approx(np.e / (1 + np.e), abs=1e-4)


def test_a_memory_of_a_median():
    # Votes of three rounds, one client each: .2, .9, .4; each counts 1: the median is .4.
    rule = LabelMemory("median", decay=1.0)
    memory: dict[str, Any] = {}
    for number, share in enumerate((0.2, 0.9, 0.4)):
        one = [(number, SoftLabels(np.array([0]), np.array([first(share)])))]
        labels, memory = run_aggregator(rule, one, memory, toys.a_round(number))
    assert labels.probs[0, 0] == pytest.approx(0.4)


# --- properties ---

SAMPLES, CLASSES = 5, 3


@st.composite
def many_uploads(draw):
    clients = draw(st.integers(1, 7))
    shares = st.floats(0.01, 1.0)
    found = []
    for client in range(clients):
        index = draw(st.lists(st.integers(0, SAMPLES - 1), min_size=1, unique=True))
        rows = np.array([[draw(shares) for _ in range(CLASSES)] for _ in index])
        found.append(
            (client, SoftLabels(np.array(sorted(index)), rows / rows.sum(1, keepdims=True)))
        )
    return found


@pytest.mark.parametrize("rule", RULES)
@given(uploads=many_uploads(), data=st.data())
def test_the_order_of_uploads_does_not_matter(rule, uploads, data):
    mixed = data.draw(st.permutations(uploads))
    labels, again = rule(uploads, SAMPLES, CLASSES), rule(mixed, SAMPLES, CLASSES)
    assert (labels.index == again.index).all()
    assert (labels.probs == again.probs).all()


@pytest.mark.parametrize("rule", RULES)
@given(uploads=many_uploads())
def test_results_are_probabilities_on_the_samples_uploaded(rule, uploads):
    labels = rule(uploads, SAMPLES, CLASSES)
    expected = mean(uploads, SAMPLES, CLASSES)
    assert (labels.index == expected.index).all()
    assert labels.weight == pytest.approx(expected.weight)
    assert (labels.probs >= 0).all()
    assert labels.probs.sum(1) == pytest.approx(np.ones(len(labels)))


@pytest.mark.parametrize("rule", [geometric_median, cronus, Filter(), Filter(0.4)])
@given(uploads=many_uploads(), direction=st.lists(st.floats(-1, 1), min_size=3, max_size=3))
def test_a_result_is_in_the_convex_hull(rule, uploads, direction):
    """In no direction does it lie beyond all votes."""
    labels = rule(uploads, SAMPLES, CLASSES)
    for row, sample in zip(labels.probs, labels.index, strict=True):
        rows = np.concatenate([u.probs[u.index == sample] for _, u in uploads])
        assert row @ direction <= (rows @ direction).max() + 1e-9


@pytest.mark.parametrize("rule", [median, TrimmedMean(0.2)])
@given(honest=st.lists(st.floats(0.6, 0.7), min_size=4, max_size=4), hostile=st.floats(0, 1))
def test_one_of_five_moves_nothing_beyond_the_honest_votes(rule, honest, hostile):
    five = votes_for_one_sample(*(first(p) for p in [*honest, hostile]))
    assert min(honest) - 1e-9 <= rule(five, 4, 2).probs[0, 0] <= max(honest) + 1e-9


@pytest.mark.parametrize("rule", RULES)
@given(honest=st.lists(st.floats(0.6, 0.7), min_size=4, max_size=4))
def test_one_of_five_that_is_wrong_moves_every_rule_little(rule, honest):
    five = votes_for_one_sample(*(first(p) for p in [*honest, 0.0]))
    assert rule(five, 4, 2).probs[0, 0] >= 0.55


@pytest.mark.parametrize("rule", RULES)
@given(share=st.floats(0.01, 0.99), count=st.integers(1, 9))
def test_equal_votes_are_the_result(rule, share, count):
    uploads = votes_for_one_sample(*([first(share)] * count))
    assert rule(uploads, 4, 2).probs[0] == pytest.approx(first(share))
