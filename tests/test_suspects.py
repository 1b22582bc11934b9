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
    assert tried == alone + halves


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


def test_what_takes_two_together_is_nobodys_fault():
    def spoils(heard):
        yield 1
        return {1, 6} <= set(heard)

    assert run_turn(find_guilty(list(range(8)), spoils), Doubling()) == []


@given(st.sets(st.integers(0, 60), min_size=2), st.data())
def test_any_few_are_found_and_nobody_else(senders, data):
    order = sorted(senders)
    most = max(1, len(order) // 2)
    guilty = data.draw(st.sets(st.sampled_from(order), min_size=1, max_size=most))
    found, tried = search(order, guilty)
    first = {client for group in tried[: min(FIRST, len(order))] for client in group}
    assert found == ([] if first <= guilty else sorted(guilty))
    assert len(tried) <= FIRST + 2 * len(guilty) * (1 + len(order).bit_length())
