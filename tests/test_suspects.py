"""Whose upload spoiled a round: worked by hand, then for any guilty clients."""

from hypothesis import given
from hypothesis import strategies as st

from fedsift.suspects import FIRST, find_guilty
from fedsift.turns import run_turn
from tests.helpers.turns import Doubling


def search(senders, guilty):
    """What is found, and the groups that were tried."""
    tried: list[list[int]] = []

    def spoils(heard):
        tried.append(list(heard))
        yield 1  # some work
        return any(client in guilty for client in heard)

    return run_turn(find_guilty(senders, spoils), Doubling()), tried


def test_one_of_eight_is_found_by_halving():
    found, tried = search([2, 3, 5, 7, 11, 13, 17, 19], {13})
    assert found == [13]
    alone = [[2], [3], [7], [13], [19]]  # five, evenly spread
    halves = [[2, 3, 5, 7], [11, 13, 17, 19], [11, 13], [17, 19], [11]]  # 13 alone is known
    assert tried == [*alone, *halves, [2, 3, 5, 7, 11, 17, 19]]  # the rest is good


def test_nobody_is_to_blame_for_what_everybody_does():
    """A learning rate that diverges: no more than five are tried."""
    everybody = list(range(100))
    found, tried = search(everybody, set(everybody))
    assert found == [] and len(tried) == FIRST


def test_who_is_alone_is_not_blamed():
    assert search([4], {4}) == ([], [])


def test_one_of_two_is_found_and_most_of_many_are_not():
    assert search([4, 9], {9})[0] == [9]
    assert search(list(range(9)), {1, 2, 3, 5, 7})[0] == []


def search_together(senders, *sets):
    """The round is spoilt where all of one of these sets are heard."""
    tried = []

    def spoils(heard):
        tried.append(list(heard))
        yield 1
        return any(set(each) <= set(heard) for each in sets)

    return run_turn(find_guilty(senders, spoils), Doubling()), tried


def test_two_that_spoil_a_round_together_are_both_found():
    assert search_together(list(range(8)), {1, 6})[0] == [1, 6]
    assert search_together([4, 9, 5, 7], {4, 7})[0] == [4, 7]


def test_three_together_and_one_alone_are_found():
    assert search_together(list(range(12)), {0, 5, 11}, {7})[0] == [0, 5, 7, 11]


def test_two_pairs_are_found():
    assert search_together(list(range(9)), {0, 1}, {3, 8})[0] == [0, 1, 3, 8]


def test_who_spoils_it_with_any_of_several_is_the_one_to_blame():
    assert search_together(list(range(8)), {7, 1}, {7, 2})[0] == [7]


def test_too_many_for_one_round_blame_nobody():
    """A round that is bad with five of eight or more, whoever they are."""
    everybody = [set(range(8)) - {a, b, c} for a in range(8) for b in range(a) for c in range(b)]
    assert search_together(list(range(8)), *everybody)[0] == []


def test_the_search_ends(monkeypatch):
    monkeypatch.setattr("fedsift.suspects.MOST_TRIES", 6)
    found, tried = search_together(list(range(64)), {5, 60})
    assert found == [] and len(tried) == FIRST + 2 + 6  # five alone, two halves, then six


@given(st.integers(2, 40), st.data())
def test_any_few_that_spoil_it_together_are_found(count, data):
    size = st.integers(1, max(1, count // 2))
    guilty = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=data.draw(size)))
    found, tried = search_together(list(range(count)), guilty)
    assert found == sorted(guilty)
    assert len(tried) <= 2 * FIRST + 6 * len(guilty) * (1 + count.bit_length())


@given(st.sets(st.integers(0, 60), min_size=2), st.data())
def test_any_few_are_found_and_nobody_else(senders, data):
    order = sorted(senders)
    most = max(1, len(order) // 2)
    guilty = data.draw(st.sets(st.sampled_from(order), min_size=1, max_size=most))
    found, tried = search(order, guilty)
    first = {client for group in tried[: min(FIRST, len(order))] for client in group}
    assert found == ([] if first <= guilty else sorted(guilty))
    assert len(tried) <= FIRST + 1 + 2 * len(guilty) * (1 + len(order).bit_length())
