import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import models, registry, samplers, seeding
from fedsift.numerics import apportion
from fedsift.samplers import SAMPLERS, OwnClasses, find_own_classes
from fedsift.types import Array, Draws, Round, Samples, Store, UserError

# Four samples, three classes:                  entropy                      margin   pseudo-label
PROBS = np.array(
    [
        [0.6, 0.2, 0.2],  # .6 ln(1/.6) + .4 ln 5 = .950    .4       0
        [0.5, 0.5, 0.0],  # ln 2                  = .693    .0       0 (the first of equals)
        [0.0, 1.0, 0.0],  # 0                               1.       1
        [0.1, 0.1, 0.8],  # .2 ln 10 + .8 ln 1.25 = .639    .7       2
    ]
)
COUNTS = np.array([1, 1, 1])


def sure(label: int, p: float) -> list[float]:
    """A row of three classes with `p` on one: the higher p, the lower the entropy."""
    return [p if c == label else (1 - p) / 2 for c in range(3)]


# Six samples; from lowest to highest entropy: 1, 0, 2, 5, 3, 4. Pseudo-labels: 0 0 0 1 2 1.
SIX = np.array(
    [sure(0, 0.9), sure(0, 0.95), sure(0, 0.8), sure(1, 0.6), sure(2, 0.5), sure(1, 0.7)]
)


def draws(shared: int = 0, own: int = 0) -> Draws:
    return Draws(seeding.rng("shared", shared), seeding.rng("own", own))


def pick(
    name: str, probs: Array, counts: Array, budget: int, given: Draws | None = None
) -> list[int]:
    sampler = registry.build(SAMPLERS, "sampler", name)
    return sampler(probs, counts, budget, given or draws()).tolist()


def sure_half(probs: Array, counts: Array, budget: int) -> set[int]:
    """What `mixed` picks whatever the draw: the indexes common to many draws."""
    return set.intersection(
        *(set(pick("mixed", probs, counts, budget, draws(own=i))) for i in range(30))
    )


MODEL = models.make_model("mlp", (1,), 3)


def round_of(number: int, samples: int) -> Round:
    store = Store(torch.zeros(samples, 1), torch.zeros(1), torch.ones(1))
    return Round(number, 5, Samples(store, np.arange(samples)), 3, (), lambda client: MODEL)


# --- entropy and margin ---


def test_entropy_by_hand():
    expected = [
        0.6 * math.log(1 / 0.6) + 0.4 * math.log(5),
        math.log(2),
        0,
        0.2 * math.log(10) + 0.8 * math.log(1.25),
    ]
    assert samplers.entropy(PROBS) == pytest.approx(expected)


def test_zero_probabilities_add_nothing_to_the_entropy():
    assert samplers.entropy(np.array([[1.0, 0.0, 0.0]])).tolist() == [0.0]
    assert samplers.entropy(np.array([0.5, 0.0, 0.5])) == pytest.approx(math.log(2))


def test_entropy_of_float32_is_computed_in_float64():
    third = np.full((1, 3), 1 / 3, np.float32)
    assert samplers.entropy(third).dtype == np.float64
    assert samplers.entropy(third)[0] == pytest.approx(math.log(3), abs=1e-7)


def test_margin_by_hand():
    assert samplers.margin_of(PROBS) == pytest.approx([0.4, 0.0, 1.0, 0.7])


# --- samplers by hand ---


def test_all_samplers_are_tested_here():
    assert set(SAMPLERS) == {
        "none",
        "random",
        "low-entropy",
        "mixed",
        "high-entropy",
        "margin",
        "class-balanced",
        "own-classes",
    }


@pytest.mark.parametrize(
    ("name", "order"),
    [("low-entropy", [2, 3, 1, 0]), ("high-entropy", [0, 1, 3, 2]), ("margin", [1, 0, 3, 2])],
)
def test_scores_decide_the_order_of_the_picks(name, order):
    for budget in (1, 2, 3, 4):
        assert pick(name, PROBS, COUNTS, budget) == order[:budget]


def test_none_picks_the_same_at_all_clients_of_a_round_and_anew_each_round():
    now, later = round_of(3, 50), round_of(4, 50)
    probs, other = np.full((50, 3), 1 / 3), np.tile([1.0, 0.0, 0.0], (50, 1))
    picks = [
        pick("none", p, COUNTS, 10, now.draws(client))
        for client, p in ((0, probs), (1, other), (9, probs))
    ]
    assert picks[0] == picks[1] == picks[2]
    assert picks[0] != pick("none", probs, COUNTS, 10, later.draws(0))


def test_random_picks_differ_by_client_and_by_round():
    probs = np.full((50, 3), 1 / 3)
    picks = {
        tuple(pick("random", probs, COUNTS, 10, round_of(number, 50).draws(client)))
        for number in (3, 4)
        for client in (0, 1, 2)
    }
    assert len(picks) == 6


@pytest.mark.parametrize(("name", "stream"), [("none", "shared"), ("random", "own")])
def test_seeded_picks_are_the_subset_that_the_other_end_of_a_link_derives(name, stream):
    expected = seeding.subset(seeding.rng(stream, 8), 20, 7).tolist()
    assert pick(name, np.full((20, 3), 1 / 3), COUNTS, 7, draws(shared=8, own=8)) == expected


def test_class_balanced_takes_equal_numbers_of_each_pseudo_label():
    # One of each: 1 is the surest of class 0, 5 of class 1, 4 of class 2; plain low entropy would
    # take 1, 0, 2.
    assert set(pick("class-balanced", SIX, COUNTS, 3)) == {1, 5, 4}
    # 4 = 2 + 1 + 1: the first class gets the odd one.
    assert set(pick("class-balanced", SIX, COUNTS, 4)) == {1, 0, 5, 4}
    # 5 = 2 + 2 + 1.
    assert set(pick("class-balanced", SIX, COUNTS, 5)) == {1, 0, 5, 3, 4}


def test_class_balanced_does_not_look_at_the_clients_own_labels():
    assert pick("class-balanced", SIX, np.array([9, 0, 0]), 3) == pick(
        "class-balanced", SIX, COUNTS, 3
    )


def test_a_quota_that_cannot_be_filled_passes_on_to_the_lowest_entropy_overall():
    # Two of class 2 are wanted, only sample 4 is one; the other place goes to sample 1, the surest
    # of all.
    assert set(samplers.by_quota(SIX, np.array([0, 0, 2])).tolist()) == {4, 1}
    # One of class 0 (sample 1) and three of class 1 (5, 3 and no more): the last place goes to 0,
    # the next surest.
    assert set(samplers.by_quota(SIX, np.array([1, 3, 0])).tolist()) == {1, 5, 3, 0}


def test_mixed_takes_half_by_the_clients_label_histogram():
    # Half of 4 is 2; labels 0, 4, 8 of 12 -> quotas 0, 2/3, 4/3 -> 0, 1, 1: sample 5 and sample 4.
    assert sure_half(SIX, np.array([0, 4, 8]), 4) == {5, 4}
    # Labels 3, 3, 0 -> 1, 1, 0: sample 1 and sample 5.
    assert sure_half(SIX, np.array([3, 3, 0]), 4) == {1, 5}


def test_mixed_draws_its_other_half_evenly_from_the_rest():
    # 5 is sure, and one of the other five in 1,000 draws: each 200 times, deviation sqrt(1000 x .2
    # x .8) = 13.
    picks = [pick("mixed", SIX, np.array([0, 9, 0]), 2, draws(own=i)) for i in range(1000)]
    counts = np.bincount(np.concatenate(picks), minlength=6)
    assert counts[5] == 1000
    assert np.abs(counts[:5] - 200).max() < 4 * 13


def test_mixed_draws_differ_by_client_not_by_the_shared_stream():
    one = pick("mixed", SIX, COUNTS, 4, draws(shared=1, own=3))
    assert one == pick("mixed", SIX, COUNTS, 4, draws(shared=2, own=3))
    assert len({tuple(pick("mixed", SIX, COUNTS, 4, draws(own=i))) for i in range(20)}) > 1


def test_mixed_gives_the_odd_place_to_the_sure_half():
    # 3 = 2 sure + 1 random; labels 2, 1, 1 -> quotas 1, .5, .5 -> 1, 1, 0.
    assert sure_half(SIX, np.array([2, 1, 1]), 3) == {1, 5}


def test_mixed_with_a_budget_of_one_is_the_surest_of_the_commonest_label():
    assert pick("mixed", SIX, np.array([1, 4, 1]), 1) == [5]


def test_mixed_with_a_budget_of_all_takes_all():
    assert sorted(pick("mixed", SIX, np.array([5, 0, 1]), 6)) == list(range(6))


def test_mixed_of_a_client_with_one_class_fills_up_with_the_surest():
    # Both quota places are for class 2; only sample 4 is predicted so, and sample 1 is the surest
    # of the others.
    assert sure_half(SIX, np.array([0, 0, 7]), 4) == {4, 1}


def test_mixed_of_a_client_whose_class_is_never_predicted_takes_the_surest():
    assert sure_half(SIX[:3], np.array([0, 0, 7]), 2) == {1}


# --- quotas ---


@pytest.mark.parametrize(
    ("weights", "total", "shares"),
    [
        ([1, 1, 1], 4, [2, 1, 1]),  # 4/3 each: the lower position wins the tie
        ([0, 4, 8], 2, [0, 1, 1]),  # 0, 2/3, 4/3: the larger remainder wins
        ([5, 0, 5], 1, [1, 0, 0]),
        ([1, 4, 1], 4, [1, 3, 0]),  # 2/3, 8/3, 2/3: three equal remainders, two places
        ([3, 1], 0, [0, 0]),
    ],
)
def test_shares_by_largest_remainder(weights, total, shares):
    assert apportion(np.array(weights), total).tolist() == shares


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=10).filter(any), st.integers(0, 5000))
def test_shares_add_up_and_are_less_than_one_from_exact(weights, total):
    shares = apportion(np.array(weights), total)
    assert shares.sum() == total
    for weight, share in zip(weights, shares.tolist(), strict=True):
        assert abs(Fraction(weight * total, sum(weights)) - share) < 1


# --- properties ---


@st.composite
def situations(draw: st.DrawFn) -> tuple[Array, Array, int, Draws]:
    """Soft labels with certain rows, uniform rows and repeated rows among them; a histogram; a
    budget; draws.
    """
    samples, classes = draw(st.integers(1, 25)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = [
        rng.dirichlet(np.full(classes, 0.5), samples),
        np.eye(classes)[rng.integers(0, classes, samples)],
        np.full((samples, classes), 1 / classes),
    ]
    probs = np.choose(rng.integers(0, 3, samples)[:, None], rows)
    counts = np.array(
        draw(st.lists(st.integers(0, 40), min_size=classes, max_size=classes).filter(any))
    )
    return probs, counts, draw(st.integers(1, samples)), draws(own=draw(st.integers(0, 100)))


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - {"own-classes"}))  # may be fewer
@settings(max_examples=60)
@given(situations())
def test_every_sampler_returns_exactly_its_budget_of_distinct_indexes(name, situation):
    probs, counts, budget, drawn = situation
    picks = pick(name, probs, counts, budget, drawn)
    assert len(picks) == len(set(picks)) == budget
    assert all(0 <= i < len(probs) for i in picks)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_leave_their_inputs_alone(name):
    probs, counts = SIX.copy(), COUNTS.copy()
    pick(name, probs, counts, 3)
    assert (probs == SIX).all()
    assert (counts == COUNTS).all()


@pytest.mark.parametrize("name", ["low-entropy", "high-entropy", "margin", "class-balanced"])
def test_ties_are_resolved_by_index(name):
    same = np.tile([0.5, 0.25, 0.25], (9, 1))
    for budget in range(1, 10):
        assert sorted(pick(name, same, COUNTS, budget)) == list(range(budget))


def test_ties_in_the_sure_half_of_mixed_are_resolved_by_index():
    assert sure_half(np.tile([0.5, 0.25, 0.25], (9, 1)), COUNTS, 4) == {0, 1}


@settings(max_examples=60)
@given(situations())
def test_low_entropy_leaves_out_nothing_surer_than_what_it_takes(situation):
    probs, counts, budget, drawn = situation
    score = samplers.entropy(probs)
    taken = pick("low-entropy", probs, counts, budget, drawn)
    assert score[taken].max() <= np.delete(score, taken).min(initial=math.inf)


@settings(max_examples=60)
@given(situations())
def test_mixed_fills_every_quota_that_can_be_filled(situation):
    probs, counts, budget, drawn = situation
    predicted = np.bincount(probs.argmax(1), minlength=len(counts))
    taken = np.bincount(
        probs[pick("mixed", probs, counts, budget, drawn)].argmax(1), minlength=len(counts)
    )
    assert (taken >= np.minimum(apportion(counts, (budget + 1) // 2), predicted)).all()


# --- own classes ---


def test_own_classes_have_quotas_by_the_square_root_of_their_counts():
    """Counts 16, 4, 0: quotas of six are 4 and 2. Class 0 has the three samples 1, 0, 2; of class
    1 come 5 and 3. The fourth place of class 0 stays empty, and sample 4 (class 2) is not sent.
    """
    assert pick("own-classes", SIX, np.array([16, 4, 0]), 6) == [1, 0, 2, 5, 3]
    assert pick("own-classes", SIX, np.array([16, 4, 0]), 3) == [1, 0, 5]
    assert pick("own-classes(power=1)", SIX, np.array([16, 4, 0]), 5) == [1, 0, 2, 5]
    assert pick("own-classes(power=0)", SIX, np.array([16, 4, 0]), 2) == [1, 5]


def test_what_a_client_really_has_follows_from_its_own_data():
    """A fifth of an even split of 1,000 over 10 classes is 20 labels; of 40 over 10 it is one."""
    large = np.array([500, 400, 60, 20, 19, 1, 0, 0, 0, 0])
    assert find_own_classes(large, 0.2).tolist() == [True] * 4 + [False] * 6
    assert find_own_classes(np.full(10, 4), 0.2).all()
    assert find_own_classes(np.array([39, 1, 0, 0, 0, 0, 0, 0, 0, 0]), 0.2).tolist() == (
        [True, True] + [False] * 8
    )
    assert find_own_classes(np.array([1, 0, 0]), 1.0).tolist() == [True, False, False]


def test_a_spread_of_one_takes_the_surer_half_of_a_random_draw():
    """Fifty samples of one class and a quota of ten: twenty are drawn, and the surest ten sent."""
    p = np.linspace(0.5, 0.99, 50)  # the later, the surer
    probs = np.stack([p, 1 - p], 1)
    picks = [
        pick("own-classes(spread=1)", probs, np.array([5, 0]), 10, draws(own=i)) for i in (0, 1)
    ]
    assert picks[0] != picks[1] and all(len(set(one)) == 10 for one in picks)
    own = draws(own=0).own.permutation(50)[:20]
    assert sorted(picks[0]) == sorted(own.tolist())[10:]
    assert pick("own-classes", probs, np.array([5, 0]), 10) == list(range(49, 39, -1))
    assert len(pick("own-classes(spread=0)", probs, np.array([5, 0]), 10)) == 10
    everything = pick("own-classes(spread=1)", probs, np.array([5, 0]), 40)
    assert sorted(everything) == list(range(10, 50))  # 80 would be drawn: all are


def test_an_upload_is_never_empty():
    """Nothing is predicted as class 2: the sample where it is likeliest is sent."""
    probs = np.array([[0.9, 0.0, 0.1], [0.5, 0.3, 0.2], [0.6, 0.35, 0.05]])
    assert pick("own-classes", probs, np.array([0, 0, 7]), 3) == [1]


@pytest.mark.parametrize("name", ["own-classes", "own-classes(spread=1)"])
def test_an_own_class_without_a_share_is_better_than_nothing(name):
    """Counts 30, 10, 0 and one pick: class 0 has it, and nothing is predicted as class 0. The
    surest of class 1 is sent, sample 2; sample 1 is surer, and of a class the client lacks.
    """
    probs = np.array([sure(1, 0.6), sure(2, 0.95), sure(1, 0.9)])
    assert pick(name, probs, np.array([30, 10, 0]), 1) == [2]


@given(
    st.integers(2, 6),
    st.lists(st.integers(0, 50), min_size=6, max_size=6),
    st.integers(1, 30),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_own_classes_sends_own_classes_within_the_budget(classes, counts, budget, power):
    counts = np.array(counts[:classes])
    counts[0] += not counts.sum()
    probs = seeding.rng("own", classes, budget).dirichlet(np.full(classes, 0.3), 30)
    picks = OwnClasses(power)(probs, counts, budget, draws())
    assert 1 <= len(set(picks.tolist())) == len(picks) <= budget
    own = find_own_classes(counts, 0.2)
    assert own[probs[picks].argmax(1)].all() or len(picks) == 1


@pytest.mark.parametrize(
    "text", ["own-classes(-1)", "own-classes(least=2)", "own-classes(spread=-1)"]
)
def test_own_classes_refuses_what_makes_no_sense(text):
    with pytest.raises(UserError, match="own-classes takes a power"):
        registry.build(SAMPLERS, "sampler", text)


def test_a_spread_is_a_number():
    with pytest.raises(UserError, match="spread must be a number, not 'wide'"):
        registry.build(SAMPLERS, "sampler", "own-classes(spread=wide)")
