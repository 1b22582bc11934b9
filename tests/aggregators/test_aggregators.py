import math
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift import registry
from fedsift.aggregators import (
    AGGREGATORS,
    Aggregator,
    EnhancedEra,
    Era,
    ExpGuard,
    Filter,
    LabelMemory,
    TrimmedMean,
    Trust,
    certainty,
    cronus,
    geometric_median,
    mean,
    median,
)
from fedsift.aggregators.means import LEAST_VOTE
from fedsift.samplers import entropy
from fedsift.types import SoftLabels, UserError


def upload(rows: dict[int, list[float]], weight: list[float] | None = None) -> SoftLabels:
    return SoftLabels(
        np.array(list(rows)),
        np.array(list(rows.values())),
        None if weight is None else np.array(weight),
    )


# Three clients, four samples, two classes. Sample 1 has three votes: (.5 + .25 + 0) / 3 = .25;
# sample 2 has none.
THREE = [
    (0, upload({0: [1.0, 0.0], 1: [0.5, 0.5]})),
    (5, upload({1: [0.25, 0.75], 3: [0.2, 0.8]})),
    (7, upload({1: [0.0, 1.0]})),
]


def by_client(*uploads: SoftLabels) -> list[tuple[int, SoftLabels]]:
    """Each upload with the id of its client."""
    return list(enumerate(uploads))


def sharpened(p: list[float], temperature: float) -> list[float]:
    total = sum(math.exp(q / temperature) for q in p)
    return [math.exp(q / temperature) / total for q in p]


# --- by hand ---


def test_the_mean_divides_by_the_votes_of_each_sample():
    labels = mean(THREE, 4, 2)
    assert labels.index.tolist() == [0, 1, 3]
    assert labels.probs == pytest.approx(np.array([[1.0, 0.0], [0.25, 0.75], [0.2, 0.8]]))
    assert labels.weight is not None
    assert labels.weight.tolist() == [1, 3, 1]


def test_a_row_counts_as_often_as_its_weight_says():
    # Three votes for (1, 0) and one for (0, 1).
    uploads = by_client(upload({2: [1.0, 0.0]}, [3]), upload({2: [0.0, 1.0]}))
    labels = mean(uploads, 4, 2)
    assert labels.probs == pytest.approx(np.array([[0.75, 0.25]]))
    assert labels.weight is not None
    assert labels.weight.tolist() == [4]


def test_one_upload_is_its_own_mean():
    labels = mean(THREE[:1], 4, 2)
    assert labels.index.tolist() == [0, 1]
    assert labels.probs.tolist() == THREE[0][1].probs.tolist()


def test_no_uploads_give_no_labels():
    assert len(mean([], 4, 2)) == 0


def test_era_is_the_softmax_of_the_mean_over_the_temperature():
    labels = Era(0.5)(THREE, 4, 2)
    by_hand = [
        [math.exp(1 / 0.5) / (math.exp(1 / 0.5) + 1), 1 / (math.exp(1 / 0.5) + 1)],
        [
            math.exp(0.25 / 0.5) / (math.exp(0.25 / 0.5) + math.exp(0.75 / 0.5)),
            math.exp(0.75 / 0.5) / (math.exp(0.25 / 0.5) + math.exp(0.75 / 0.5)),
        ],
        [1 / (1 + math.exp(0.6 / 0.5)), math.exp(0.6 / 0.5) / (1 + math.exp(0.6 / 0.5))],
    ]
    assert labels.index.tolist() == [0, 1, 3]
    assert labels.probs == pytest.approx(np.array(by_hand))


def test_era_at_its_usual_temperature():
    # (.25, .75) / .1 = (2.5, 7.5): the larger gets 1 / (1 + e^-5) = .9933.
    labels = Era()(THREE, 4, 2)
    assert labels.probs[1] == pytest.approx([1 / (1 + math.exp(5)), 1 / (1 + math.exp(-5))])


def test_era_does_not_keep_zeros():
    # A one-hot row comes out as 1 / (1 + e^-10): the formula of DS-FL, not a slip.
    assert Era(0.1)(THREE, 4, 2).probs[0, 1] == pytest.approx(1 / (1 + math.exp(10)))


def test_era_stands_a_tiny_temperature():
    assert Era(1e-6)(THREE, 4, 2).probs == pytest.approx(
        np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    )


def test_enhanced_era_raises_the_mean_to_a_power():
    # (.25, .75)^2 = (.0625, .5625), sum .625: (.1, .9). (.2, .8)^2 = (.04, .64), sum .68: (1/17,
    # 16/17).
    labels = EnhancedEra(2)(THREE, 4, 2)
    assert labels.index.tolist() == [0, 1, 3]
    assert labels.probs == pytest.approx(np.array([[1.0, 0.0], [0.1, 0.9], [1 / 17, 16 / 17]]))


def test_enhanced_era_with_beta_one_is_the_mean():
    assert EnhancedEra(1)(THREE, 4, 2).probs == pytest.approx(mean(THREE, 4, 2).probs)


def test_enhanced_era_stands_a_huge_power():
    assert EnhancedEra(1e6)(THREE, 4, 2).probs == pytest.approx(
        np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    )


@pytest.mark.parametrize("aggregate", [Era(0.1), EnhancedEra(2)])
def test_sharpening_keeps_the_votes(aggregate):
    assert aggregate(THREE, 4, 2).weight.tolist() == [1, 3, 1]


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_a_temperature_or_beta_that_is_not_above_zero_is_an_error(value):
    with pytest.raises(UserError, match=f"era needs a temperature above 0, not {value}"):
        Era(value)
    with pytest.raises(UserError, match=f"enhanced-era needs a beta above 0, not {value}"):
        EnhancedEra(value)


# --- certainty, by hand ---

# A sure client, one that knows nothing, and one of entropy ln 2 among four classes: votes of 1, 0
# and 1 - ln 2 / ln 4 = 1/2.
SURE, UNSURE, HALF = [1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.0, 0.5, 0.5, 0.0]


def test_a_client_counts_as_much_as_it_is_sure():
    """(1 x (1, 0, 0, 0) + 1/2 x (0, 1/2, 1/2, 0)) / (3/2) = (2/3, 1/6, 1/6, 0)."""
    labels = certainty(by_client(upload({2: SURE}), upload({2: HALF})), 4, 4)
    assert labels.index.tolist() == [2]
    assert labels.probs == pytest.approx(np.array([[2 / 3, 1 / 6, 1 / 6, 0]]))
    assert labels.weight == pytest.approx([1.5])


def test_a_client_that_knows_nothing_counts_next_to_nothing():
    uploads = by_client(upload({0: SURE}), upload({0: UNSURE}))
    labels = certainty(uploads, 1, 4)
    assert labels.probs == pytest.approx(np.array([SURE]), abs=1e-6)
    assert labels.probs[0, 1] == pytest.approx(LEAST_VOTE / 4 / (1 + LEAST_VOTE))
    assert mean(uploads, 1, 4).probs[0].tolist() == [0.625, 0.125, 0.125, 0.125]


@pytest.mark.parametrize(
    "aggregate", [certainty, Era(0.5, "certainty"), EnhancedEra(2, "certainty")]
)
def test_where_nobody_knows_anything_the_label_is_uniform(aggregate):
    for classes in (
        2,
        3,
        10,
    ):  # 1 / 3 and 1 / 10 are rounded: their entropy may come out above log C
        nothing = upload({0: [1 / classes] * classes})
        assert aggregate(by_client(nothing, nothing), 1, classes).probs == pytest.approx(
            np.full((1, classes), 1 / classes)
        )


def test_certainty_multiplies_the_weight_a_row_has():
    """Three votes for (1, 0, 0, 0) and one, worth a half, for (0, 1/2, 1/2, 0): 3 / 3.5 = 6/7."""
    labels = certainty(by_client(upload({2: SURE}, [3]), upload({2: HALF})), 4, 4)
    assert labels.probs == pytest.approx(np.array([[6 / 7, 1 / 14, 1 / 14, 0]]))
    assert labels.weight == pytest.approx([3.5])


def test_era_and_enhanced_era_of_votes_weighted_by_certainty():
    """Of (2/3, 1/6, 1/6, 0): softmax at temperature 1/2; and squares 16 : 1 : 1."""
    uploads = by_client(upload({2: SURE}), upload({2: HALF}))
    era = Era(0.5, weights="certainty")(uploads, 4, 4)
    assert era.probs[0] == pytest.approx(sharpened([2 / 3, 1 / 6, 1 / 6, 0], 0.5))
    enhanced = EnhancedEra(2, weights="certainty")(uploads, 4, 4)
    assert enhanced.probs[0] == pytest.approx([16 / 18, 1 / 18, 1 / 18, 0])
    assert era.weight == pytest.approx([1.5]) and enhanced.weight == pytest.approx([1.5])


def test_weights_are_equal_by_default_and_a_typo_is_an_error():
    assert Era(0.5)(THREE, 4, 2).probs.tolist() == Era(0.5, "equal")(THREE, 4, 2).probs.tolist()
    for make in (Era, EnhancedEra):
        with pytest.raises(
            UserError,
            match=r"unknown weights 'certain'; did you mean 'certainty'\? \(equal or certainty\)",
        ):
            make(0.5, weights="certain")


def test_weights_are_given_in_the_text_of_an_aggregator():
    assert registry.build(AGGREGATORS, "aggregator", "era(0.05, weights=certainty)") == Era(
        0.05, "certainty"
    )
    assert registry.build(
        AGGREGATORS, "aggregator", "enhanced-era(weights=certainty)"
    ) == EnhancedEra(2.0, "certainty")
    assert registry.build(AGGREGATORS, "aggregator", "certainty") is certainty


# --- one pass ---

ALL: list[Aggregator] = [mean, Era(0.1), EnhancedEra(2)]
BY_CERTAINTY: list[Aggregator] = [certainty, Era(0.1, "certainty"), EnhancedEra(2, "certainty")]


@pytest.mark.parametrize("aggregate", [*ALL, *BY_CERTAINTY])
def test_uploads_are_read_once_and_not_kept(aggregate):
    made: list[weakref.ref[SoftLabels]] = []

    def uploads() -> Iterator[tuple[int, SoftLabels]]:
        for client in range(5):
            assert sum(ref() is not None for ref in made) <= 1  # at most the one that was just read
            fresh = upload({1: [0.3, 0.7]})
            made.append(weakref.ref(fresh))
            yield client, fresh
            del fresh

    labels = aggregate(uploads(), 4, 2)
    votes = (
        5 * (1 - entropy(np.array([0.3, 0.7])) / math.log(2)) if aggregate in BY_CERTAINTY else 5
    )
    assert labels.weight.tolist() == pytest.approx([votes])


@pytest.mark.parametrize("aggregate", [*ALL, *BY_CERTAINTY])
def test_a_generator_gives_what_a_list_gives(aggregate):
    assert aggregate(iter(THREE), 4, 2).probs.tolist() == aggregate(THREE, 4, 2).probs.tolist()


def test_uploads_are_left_as_they_were():
    before = [u.probs.copy() for _, u in THREE]
    Era(0.1)(THREE, 4, 2)
    certainty(THREE, 4, 2)
    assert all(
        (u.probs == b).all() and u.weight is None for (_, u), b in zip(THREE, before, strict=True)
    )


# --- properties ---

SAMPLES, CLASSES = 6, 3


@st.composite
def many_uploads(draw: st.DrawFn) -> list[tuple[int, SoftLabels]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    subsets = draw(
        st.lists(st.sets(st.integers(0, SAMPLES - 1), min_size=1), min_size=1, max_size=8)
    )
    return [
        (client, SoftLabels(np.array(sorted(s)), rng.dirichlet(np.full(CLASSES, 0.5), len(s))))
        for client, s in enumerate(subsets)
    ]


def same(one: SoftLabels, other: SoftLabels) -> bool:
    assert one.weight is not None
    assert other.weight is not None
    return (
        one.index.tolist() == other.index.tolist()
        and np.allclose(one.weight, other.weight, rtol=1e-12, atol=0)
        and np.allclose(one.probs, other.probs, rtol=0, atol=1e-12)
    )


@given(many_uploads(), st.data())
def test_any_grouping_of_uploads_gives_the_mean_of_all(uploads, data):
    groups = data.draw(st.lists(st.integers(0, 3), min_size=len(uploads), max_size=len(uploads)))
    partial = [
        mean([u for u, g in zip(uploads, groups, strict=True) if g == group], SAMPLES, CLASSES)
        for group in range(4)
    ]
    joint = mean(by_client(*partial), SAMPLES, CLASSES)
    assert same(joint, mean(uploads, SAMPLES, CLASSES))


@given(many_uploads(), st.integers(0, 8))
def test_the_mean_of_partial_means_by_certainty_is_the_mean_of_all_by_certainty(uploads, cut):
    partial = [certainty(some, SAMPLES, CLASSES) for some in (uploads[:cut], uploads[cut:])]
    joint = mean(by_client(*partial), SAMPLES, CLASSES)
    assert same(joint, certainty(uploads, SAMPLES, CLASSES))


@given(many_uploads())
def test_where_all_are_equally_sure_certainty_changes_nothing(uploads):
    """Every client uploads some order of the same three probabilities."""
    equal = [
        (client, SoftLabels(u.index, np.take([0.7, 0.2, 0.1], np.argsort(u.probs, 1))))
        for client, u in uploads
    ]
    by_certainty, plain = certainty(equal, SAMPLES, CLASSES), mean(equal, SAMPLES, CLASSES)
    assert by_certainty.index.tolist() == plain.index.tolist()
    assert np.allclose(by_certainty.probs, plain.probs, rtol=0, atol=1e-12)


@given(many_uploads())
def test_certainty_is_what_a_plain_loop_computes(uploads):
    labels = certainty(uploads, SAMPLES, CLASSES)
    for i, row in zip(labels.index, labels.probs, strict=True):
        votes = [u.probs[u.index == i][0] for _, u in uploads if i in u.index]
        sure = [
            max(1 + sum(p * math.log(p) for p in vote if p > 0) / math.log(CLASSES), LEAST_VOTE)
            for vote in votes
        ]
        assert row == pytest.approx(
            sum(s * v for s, v in zip(sure, votes, strict=True)) / sum(sure)
        )


@given(many_uploads(), st.randoms(use_true_random=False))
def test_the_order_of_uploads_does_not_matter(uploads, random):
    shuffled = random.sample(uploads, len(uploads))
    for aggregate in [*ALL, *BY_CERTAINTY]:
        assert same(aggregate(shuffled, SAMPLES, CLASSES), aggregate(uploads, SAMPLES, CLASSES))


@given(many_uploads())
def test_the_mean_is_what_a_plain_loop_computes(uploads):
    labels = mean(uploads, SAMPLES, CLASSES)
    for i, row in zip(labels.index, labels.probs, strict=True):
        votes = [u.probs[u.index == i][0] for _, u in uploads if i in u.index]
        assert row == pytest.approx(sum(votes) / len(votes))
    assert set(labels.index) == {i for _, u in uploads for i in u.index}


@given(many_uploads(), st.floats(0.02, 5))
def test_era_is_the_formula_row_by_row(uploads, temperature):
    average, labels = mean(uploads, SAMPLES, CLASSES), Era(temperature)(uploads, SAMPLES, CLASSES)
    for p, q in zip(average.probs.tolist(), labels.probs, strict=True):
        assert q == pytest.approx(sharpened(p, temperature))


@given(many_uploads(), st.floats(0.02, 2), st.floats(1, 5))
def test_a_lower_temperature_never_raises_the_entropy(uploads, temperature, factor):
    cold, warm = (Era(t)(uploads, SAMPLES, CLASSES) for t in (temperature, temperature * factor))
    assert (entropy(cold.probs) <= entropy(warm.probs) + 1e-9).all()


def test_era_lowers_the_entropy_of_an_unsure_mean():
    # (.5, .3, .2) has entropy 1.03; divided by .1 and exponentiated (e^5, e^3, e^2) it is (.84,
    # .11, .04), entropy .52.
    one = by_client(upload({0: [0.5, 0.3, 0.2]}))
    assert entropy(mean(one, 1, 3).probs)[0] == pytest.approx(1.0297, abs=1e-4)
    assert entropy(Era(0.1)(one, 1, 3).probs)[0] == pytest.approx(0.5243, abs=1e-4)


@given(many_uploads(), st.floats(1, 8))
def test_enhanced_era_above_one_never_raises_the_entropy_and_keeps_zeros(uploads, beta):
    average, labels = mean(uploads, SAMPLES, CLASSES), EnhancedEra(beta)(uploads, SAMPLES, CLASSES)
    assert (entropy(labels.probs) <= entropy(average.probs) + 1e-9).all()
    assert (labels.probs[average.probs == 0] == 0).all()


@given(many_uploads())
def test_results_are_probabilities_with_the_same_likeliest_class(uploads):
    average = mean(uploads, SAMPLES, CLASSES)
    for aggregate in ALL:
        labels = aggregate(uploads, SAMPLES, CLASSES)
        assert (labels.probs >= 0).all()
        assert labels.probs.sum(1) == pytest.approx(np.ones(len(labels)))
        assert (labels.probs.argmax(1) == average.probs.argmax(1)).all()


def test_the_registry_holds_the_aggregators_of_this_file():
    registered = [
        ("mean", mean),
        ("certainty", certainty),
        ("era", Era),
        ("enhanced-era", EnhancedEra),
        ("median", median),  # tests/aggregators/test_robust.py, and the next four
        ("trimmed-mean", TrimmedMean),
        ("geometric-median", geometric_median),
        ("cronus", cronus),
        ("filter", Filter),
        ("expguard", ExpGuard),  # tests/aggregators/test_expguard.py
        ("memory", LabelMemory),  # tests/algorithms/test_stateful_aggregators.py
        ("trust", Trust),  # tests/aggregators/test_trust.py
    ]
    assert list(AGGREGATORS.items()) == registered
