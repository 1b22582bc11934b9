import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import seeding
from fedsift.data.partition import (
    PARTITIONS,
    Dirichlet,
    DirichletFree,
    Partition,
    Shards,
    Views,
    deal,
    iid,
)
from fedsift.types import Array, UserError

TEN = np.arange(1000) % 10  # ten classes, a hundred samples each


def histograms(how: Partition, labels: Array = TEN, clients: int = 10, seed: int = 0) -> Array:
    """Labels per client, [clients, classes]."""
    parts = deal(labels, clients, how, seeding.rng(seed))
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


class Fixed:
    """A generator without chance: orders stay as they are, and Dirichlet draws are the given ones
    in turn.
    """

    def __init__(self, *wishes: Sequence[float]) -> None:
        self.wishes = iter(wishes)

    def permutation(self, of: Any) -> Array:
        return np.arange(of) if isinstance(of, int) else np.array(of)

    def dirichlet(self, alpha: Array) -> Array:
        return np.array(next(self.wishes))


def fixed(*wishes: Sequence[float]) -> Any:
    return Fixed(*wishes)


# --- by hand ---


def test_dirichlet_gives_each_client_its_proportions():
    # Two clients of four; the first wishes 3 : 1, so 3 of class 0 and 1 of class 1; the second the
    # reverse.
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    parts = Dirichlet(1)(labels, 2, fixed([0.75, 0.25], [0.25, 0.75]))
    assert [labels[part].tolist() for part in parts] == [[0, 0, 0, 1], [0, 1, 1, 1]]


def test_a_used_up_class_is_replaced_by_the_clients_own_next_wish():
    # Classes of 1, 4 and 4 samples, three clients of three. The first wishes 2 : 1 : 0, so two of
    # class 0 and one of
    # class 1, but there is one of class 0: its place goes to class 1, never to class 2, which it
    # does not want.
    labels = np.array([0, 1, 1, 1, 1, 2, 2, 2, 2])
    parts = Dirichlet(1)(labels, 3, fixed([2 / 3, 1 / 3, 0], [0, 0.5, 0.5], [0, 0, 1]))
    # Left: 2 of class 1, 4 of class 2. The second wants 1.5 each: 2 and 1 (the lower class wins the
    # tie).
    assert [labels[part].tolist() for part in parts] == [[0, 1, 1], [1, 1, 2], [2, 2, 2]]


def test_a_client_that_wants_nothing_of_what_is_left_takes_it_as_it_is():
    # All want class 0. The second finds 3 of class 1 and 1 of class 2: its two places are 1.5 and
    # .5, so 2 and 0.
    labels = np.array([0, 0, 1, 1, 1, 2])
    parts = Dirichlet(1)(labels, 3, fixed([1, 0, 0], [1, 0, 0], [1, 0, 0]))
    assert [labels[part].tolist() for part in parts] == [[0, 0], [1, 1], [1, 2]]


def test_clients_choose_in_random_order():
    # Both want class 0 alone; the order drawn is 1, 0, so client 1 has it.
    backwards = fixed([1, 0], [1, 0])
    backwards.permutation = lambda of: np.array([1, 0]) if isinstance(of, int) else of
    labels = np.array([0, 0, 1, 1])
    assert [labels[part].tolist() for part in Dirichlet(1)(labels, 2, backwards)] == [
        [1, 1],
        [0, 0],
    ]


def test_dirichlet_free_cuts_each_class_over_the_clients():
    # Four of class 0, cut 1 : 3; two of class 1, cut 1 : 1.
    labels = np.array([0, 0, 0, 0, 1, 1])
    parts = DirichletFree(1)(labels, 2, fixed([0.25, 0.75], [0.5, 0.5]))
    assert [part.tolist() for part in parts] == [[0, 4], [1, 2, 3, 5]]


def test_shards_are_cut_from_the_samples_in_order_of_label():
    # Eight samples, two clients x two shards of two: shards 00, 11, 22, 33, dealt in order.
    labels = np.array([3, 0, 1, 2, 0, 1, 2, 3])
    parts = Shards(2)(labels, 2, fixed())
    assert [labels[part].tolist() for part in parts] == [[0, 0, 1, 1], [2, 2, 3, 3]]


def test_iid_cuts_one_random_order():
    assert [part.tolist() for part in iid(np.zeros(5, int), 2, fixed())] == [[0, 1, 2], [3, 4]]


def test_a_view_has_its_proportions_of_every_class():
    # Alpha is so large that every client wishes all classes equally: 40 samples are four of each of
    # ten.
    parts = deal(TEN, 10**6, Views(1e6, 40), seeding.rng(0))
    for client in (0, 1, 999_999):
        assert np.bincount(TEN[parts[client]]).tolist() == [4] * 10


def test_a_view_of_a_class_that_is_too_small_is_filled_up_from_the_others():
    # Equal wishes for two of each class; there is one of class 0, so class 1 fills its place.
    labels = np.array([0, 1, 1, 1, 1])
    (view,) = deal(labels, 1, Views(1e6, 4), seeding.rng(0))
    assert sorted(labels[view].tolist()) == [0, 1, 1, 1]


def test_a_view_of_everything_is_everything():
    (view,) = deal(TEN, 1, Views(0.1, 1000), seeding.rng(0))
    assert sorted(view.tolist()) == list(range(1000))


def test_the_last_of_a_million_views_is_worked_out_alone(monkeypatch):
    """All that is drawn is drawn from that client's own name; the federation has drawn one
    number.
    """
    parts, rng, named = deal(TEN, 10**6, Views(1.0), seeding.rng(0)), seeding.rng, []

    def noted(*names):
        named.append(names[1:])
        return rng(*names)

    monkeypatch.setattr(seeding, "rng", noted)
    assert len(parts) == 10**6 and named == []
    assert len(parts[999_999]) == 40 and named == [("view", 999_999)]


def test_a_view_does_not_depend_on_how_many_clients_there_are():
    few, many = (deal(TEN, clients, Views(1.0), seeding.rng(0)) for clients in (10, 10**6))
    assert [part.tolist() for part in few] == [many[client].tolist() for client in range(10)]


def test_a_view_beyond_the_last_is_an_index_error():
    with pytest.raises(IndexError):
        deal(TEN, 10, Views(1.0), seeding.rng(0))[10]


def test_views_vary_as_dirichlet_draws_do():
    # Shares of Dirichlet(1) over ten classes have mean 1/10 and variance (1/10)(9/10)/11 = .0082.
    # 400 views of 100.
    shares = histograms(Views(1.0, 100), clients=400) / 100
    assert shares.mean(0) == pytest.approx(np.full(10, 0.1), abs=0.015)
    assert shares.var() == pytest.approx(0.9 / 110, rel=0.1)


def test_a_view_of_more_samples_than_there_are_is_a_mistake():
    with pytest.raises(
        UserError, match="views of 5 samples, but only 4 private ones; make samples smaller"
    ):
        deal(np.arange(4) % 2, 1, Views(1.0, 5), seeding.rng(0))


# --- label skew ---


def concentration(shares: Array) -> float:
    """The mean sum of squares of shares: (1 + alpha) / (1 + n alpha) of Dirichlet(alpha) over n."""
    return float((shares**2).sum(1).mean())


def test_alpha_is_the_alpha_of_the_draws():
    # (1 + .3) / (1 + 10 x .3) = .325; with .3 squared it would be .57, with its root .24. Clients
    # that come last find classes used up, which adds a little.
    labels = np.repeat(np.arange(10), 1000)
    dealt = [Dirichlet(0.3)(labels, 100, np.random.default_rng(seed)) for seed in range(3)]
    held = [np.bincount(labels[part], minlength=10) / 100 for parts in dealt for part in parts]
    assert concentration(np.array(held)) == pytest.approx(0.325, abs=0.06)
    assert concentration(histograms(Views(0.3, 100), clients=400) / 100) == pytest.approx(
        0.325, abs=0.03
    )
    # (1 + .5) / (1 + 10 x .5) = .25; with .5 squared it would be .36, with its root .21.
    labels = np.repeat(np.arange(200), 500)
    parts = DirichletFree(0.5)(labels, 10, np.random.default_rng(0))
    cuts = np.array([np.bincount(labels[part], minlength=200) for part in parts]).T / 500
    assert concentration(cuts) == pytest.approx(0.25, abs=0.02)


def test_a_small_alpha_gives_few_classes_to_a_client():
    # Ten clients of 100: fewer than 4 of the 10 classes on average, and the commonest makes up more
    # than half.
    held = histograms(Dirichlet(0.1))
    assert (held > 0).sum(1).mean() < 4
    assert held.max(1).mean() > 50


def test_a_large_alpha_is_nearly_uniform():
    # Exactly uniform would be ten of each class at each client.
    assert np.abs(histograms(Dirichlet(1e6)) - 10).max() <= 1
    assert np.abs(histograms(Dirichlet(100)) - 10).max() <= 8
    assert np.abs(histograms(DirichletFree(1e6)) - 10).max() <= 1


def test_skew_grows_as_alpha_falls():
    top = [
        np.mean([histograms(Dirichlet(a), seed=s).max(1).mean() for s in range(5)])
        for a in (0.1, 1, 10, 100)
    ]
    assert top == sorted(top, reverse=True)
    free = [
        np.mean([histograms(DirichletFree(a), seed=s).max(0).mean() for s in range(5)])
        for a in (0.1, 1, 10, 100)
    ]
    assert free == sorted(free, reverse=True)


def test_a_client_may_end_up_with_a_single_class():
    assert ((histograms(Dirichlet(0.01)) > 0).sum(1) == 1).any()


@pytest.mark.parametrize("how", [Dirichlet(1), DirichletFree(1), Shards(1), iid])
def test_one_class_for_all_is_no_problem(how):
    assert histograms(how, np.zeros(12, int), 4).sum() == 12


def test_shards_bound_the_classes_of_a_client():
    # 20 shards of 50, two to a class: never more than the two classes of its two shards.
    assert (histograms(Shards(2)) > 0).sum(1).max() <= 2


# --- what cannot be dealt ---


@pytest.mark.parametrize("kind", [Dirichlet, DirichletFree, Views])
@pytest.mark.parametrize("alpha", [0, -1, math.nan])
def test_an_alpha_that_is_not_above_zero_is_a_mistake(kind, alpha):
    with pytest.raises(UserError, match=f"alpha must be from 1e-06 to 1e\\+06, not {alpha}"):
        kind(alpha)


@pytest.mark.parametrize("kind", [Dirichlet, DirichletFree, Views])
def test_an_infinite_alpha_is_a_mistake(kind):
    # Its proportions would be nan, on which dealing never ends.
    with pytest.raises(UserError, match="alpha"):
        kind(math.inf)


def test_a_view_of_nothing_is_a_mistake():
    with pytest.raises(UserError, match="samples must be above 0 and at most 1e\\+06, not 0"):
        Views(1.0, 0)


def test_no_shards_are_a_mistake():
    with pytest.raises(UserError, match="shards must be above 0 and at most 1e\\+06, not 0"):
        Shards(0)


@pytest.mark.parametrize("how", [Dirichlet(1), DirichletFree(1), Shards(1), iid])
def test_more_clients_than_samples_is_a_mistake(how):
    with pytest.raises(
        UserError, match=r"^5 clients but only 4 private samples: each client needs at least one$"
    ):
        deal(np.arange(4) % 2, 5, how, seeding.rng(0))


def test_more_shards_than_samples_is_a_mistake():
    with pytest.raises(UserError, match="3 clients x 2 shards need more than 5 samples"):
        deal(np.arange(5) % 2, 3, Shards(2), seeding.rng(0))


@pytest.mark.parametrize("clients", [0, -3])
def test_no_clients_is_a_mistake(clients):
    with pytest.raises(UserError, match=f"at least one client, not {clients}"):
        deal(TEN, clients, iid, seeding.rng(0))


# --- properties ---

ALPHAS = st.floats(1e-4, 1e4)
KINDS = {
    "iid": st.just(iid),
    "dirichlet": ALPHAS.map(Dirichlet),
    "dirichlet-free": ALPHAS.map(DirichletFree),
    "shards": st.just(Shards(1)) | st.just(Shards(2)),
}
OVERLAPPING = {"views": st.builds(Views, ALPHAS, st.integers(1, 30))}


def test_all_partitions_are_tested_here():
    assert set(PARTITIONS) == {*KINDS, *OVERLAPPING, "given"}  # the last in test_given.py


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(st.data(), st.integers(0, 1000))
def test_parts_are_disjoint_complete_and_never_empty(kind, data, seed):
    how = data.draw(KINDS[kind])
    labels = np.array(data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=60)))
    clients = data.draw(st.integers(1, len(labels) // getattr(how, "shards", 1)))
    parts = deal(labels, clients, how, seeding.rng(seed))
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(sizes) >= 1
    if kind in ("iid", "dirichlet"):
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60)
@given(
    OVERLAPPING["views"],
    st.lists(st.integers(0, 4), min_size=30, max_size=60),
    st.integers(0, 10**6 - 1),
)
def test_a_view_is_distinct_samples_of_the_right_number_and_the_same_whenever_it_is_asked_for(
    how, labels, client
):
    parts = deal(np.array(labels), 10**6, how, seeding.rng(0))
    view = parts[client].tolist()
    assert len(set(view)) == len(view) == how.samples
    assert set(view) <= set(range(len(labels)))
    assert parts[client].tolist() == parts[client - 10**6].tolist() == view


@pytest.mark.parametrize("kind", [*KINDS, *OVERLAPPING])
def test_equal_seeds_deal_equally_and_others_do_not(kind):
    made: Any = PARTITIONS[kind]
    values = (2,) if kind == "shards" else (1.0,)
    how = made(*values) if isinstance(made, type) else made
    one, again, other = (
        np.concatenate(deal(TEN, 7, how, seeding.rng(seed))).tolist() for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other


@settings(max_examples=40)
@given(
    st.integers(1, 3), st.integers(0, 6), st.integers(2, 5), st.integers(1, 5), st.integers(0, 1000)
)
def test_a_shard_no_longer_than_a_class_has_at_most_two_classes(shards, more, classes, times, seed):
    clients = (
        classes + more
    )  # at least as many shards as classes, so that a shard crosses one boundary at most
    labels = np.arange(classes * clients * shards * times) % classes
    held = histograms(Shards(shards), labels, clients, seed)
    assert (held > 0).sum(1).max() <= 2 * shards


# --- partitions of the user's own ---


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([[0, 1], [2]], "the partition gives 2 parts for 3 clients; give each one array"),
        (3, "the partition gives int for 3 clients; give each one array"),
        ([[0, 1, 2], [3, 4, 5], []], "the partition gives client 2 no samples; give each client"),
        ([[0, 1], [2, 3], 4], "the partition gives client 2 4; give each client an array"),
        ([[0, 1], [2, 3], [4.5, 5]], "the partition gives client 2 values that are not indexes"),
        ([[0, 1], [2, 3], [4, 6]], "the partition gives client 2 values that are not indexes from"),
        ([[0, 1], [2, 3], [4, -1]], "the partition gives client 2 values that are not indexes fro"),
        ([[0, 1], [2], [3, 4]], "the partition leaves out 1 samples and deals 0 more than once"),
        ([[0, 1], [2, 1], [3, 4, 5]], "the partition leaves out 0 samples and deals 1 more than o"),
    ],
)
def test_a_partition_that_does_not_deal_every_sample_once_is_a_mistake(parts, said):
    with pytest.raises(UserError) as caught:
        deal(np.zeros(6, np.int64), 3, lambda *_: parts, np.random.default_rng(0))
    assert str(caught.value).startswith(said)


def test_a_partition_that_says_so_may_share_and_leave_out():
    class Shared:
        overlapping = True

        def __call__(self, labels, clients, generator):
            return [[0, 1]] * clients

    found = deal(np.zeros(6, np.int64), 3, Shared(), np.random.default_rng(0))
    assert [part.tolist() for part in found] == [[0, 1]] * 3
