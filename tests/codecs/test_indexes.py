"""Sets of indexes in close to log2 binom(N, m) bits, exactly invertible, and no two codes for one
set.
"""

from itertools import combinations, product
from math import comb, log2
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsift.codecs import indexes
from fedsift.codecs.wire import WireError


def indexes_of(*members):
    return np.array(members, np.int64)


def random_set(population, size, seed=0):
    return np.sort(np.random.default_rng(seed).choice(population, size, replace=False))


def everything_coded_by_ans():
    """Sends small sets, too, through the entropy coder that only large ones use."""
    return mock.patch.object(indexes, "_is_ranked", lambda population, size: False)


def check_round_trip(index, population):
    code = indexes.encode(index, population)
    assert len(code) <= indexes.max_bytes(population, len(index))
    back = indexes.decode(code, population, len(index))
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back, index)
    return code


def refused_or_canonical(code, population, size):
    """True if `code` was taken; then it must be the very code of what it was taken for."""
    try:
        index = indexes.decode(code, population, size)
    except WireError:
        return False
    assert len(index) == size
    assert (np.diff(index) > 0).all()
    assert size == 0 or (index[0] >= 0 and index[-1] < population)
    assert indexes.encode(index, population) == code
    return True


# --- ranks, by hand ---


def test_the_six_pairs_out_of_four_have_the_ranks_zero_to_five():
    # Colexicographic order: by the largest member first. {1, 3} has rank binom(1, 1) + binom(3, 2)
    # = 1 + 3 = 4.
    pairs = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
    assert [indexes.encode(indexes_of(*pair), 4) for pair in pairs] == [
        bytes([rank]) for rank in range(6)
    ]
    assert [tuple(indexes.decode(bytes([rank]), 4, 2).tolist()) for rank in range(6)] == pairs


def test_a_rank_worked_out_by_hand():
    # {2, 5, 9}: binom(2, 1) + binom(5, 2) + binom(9, 3) = 2 + 10 + 84 = 96.
    assert indexes.encode(indexes_of(2, 5, 9), 10) == bytes([96])


def test_a_rank_is_little_endian():
    # {299} of 300 single indexes has rank 299 = 0x012b; 300 ranks take 9 bits, so 2 bytes.
    assert indexes.encode(indexes_of(299), 300) == b"\x2b\x01"


def test_none_and_all_take_no_bytes():
    assert indexes.encode(indexes_of(), 7) == indexes.encode(np.arange(7), 7) == b""
    assert indexes.decode(b"", 7, 0).tolist() == []
    assert indexes.decode(b"", 7, 7).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert indexes.decode(b"", 1, 1).tolist() == [0]
    assert indexes.decode(b"", 1, 0).tolist() == []


def test_one_byte_codes_of_three_out_of_ten_are_canonical():
    # binom(10, 3) = 120 sets: codes 0..119 are all of them, 120..255 are none.
    sets = {tuple(indexes.decode(bytes([code]), 10, 3).tolist()) for code in range(120)}
    assert sets == set(combinations(range(10), 3))
    for code in range(120, 256):
        with pytest.raises(WireError, match="names no set"):
            indexes.decode(bytes([code]), 10, 3)


@pytest.mark.parametrize("code", [b"", b"\0\0", bytes(1000)])
def test_a_rank_of_another_length_is_refused(code):
    with pytest.raises(WireError, match="bytes of indexes"):
        indexes.decode(code, 10, 3)


@pytest.mark.parametrize("size", [-1, 11, 2**32 - 1])
def test_a_size_that_no_set_has_is_refused(size):
    with pytest.raises(WireError, match="public set of 10"):
        indexes.decode(b"", 10, size)


@pytest.mark.parametrize("size", [0, 10])
def test_bytes_where_none_are_needed_are_refused(size):
    with pytest.raises(WireError, match="bytes of indexes"):
        indexes.decode(b"\0", 10, size)


# --- sizes ---


def test_ideal_bits_by_hand():
    assert indexes.ideal_bits(4, 2) == pytest.approx(log2(6))
    assert indexes.ideal_bits(2000, 400) == pytest.approx(log2(comb(2000, 400)), rel=1e-9)


CORNERS = [np.arange(400), np.arange(1600, 2000), np.arange(0, 2000, 5)]


@pytest.mark.parametrize("index", CORNERS + [random_set(2000, 400, seed) for seed in range(5)])
def test_400_of_2000_indexes_take_at_most_two_percent_more_than_ideal(index):
    # log2 binom(2000, 400) = 1438.4 bits, 180 bytes; a bitmap would be 250 bytes, plain 16-bit
    # numbers 800.
    code = check_round_trip(index, 2000)
    assert 8 * len(code) <= 1.02 * log2(comb(2000, 400))
    assert len(code) == 180


@pytest.mark.parametrize(
    "index", [random_set(1_000_000, 100_000), np.arange(100_000), np.arange(900_000, 1_000_000)]
)
def test_100_000_of_1_000_000_indexes_are_within_a_thousandth_of_ideal(index):
    assert not indexes._is_ranked(1_000_000, 100_000)
    code = check_round_trip(index, 1_000_000)
    assert 8 * len(code) <= 1.001 * indexes.ideal_bits(1_000_000, 100_000)


@pytest.mark.parametrize(
    "index",
    [np.arange(2000), np.arange(8000, 10_000), np.arange(0, 10_000, 5), np.arange(1, 4000, 2)],
)
def test_large_sets_cost_no_more_however_they_lie(index):
    # 2,000 of 10,000 at the fixed rate 1/5: 10,000 x H(1/5) = 7219.3 bits, and at most two words
    # for the coder's state.
    # (Less when many non-members follow the last member: they leave the coder's empty state empty.)
    entropy = 2000 * log2(5) + 8000 * log2(5 / 4)
    assert entropy == pytest.approx(7219.3, abs=0.1)
    assert not indexes._is_ranked(10_000, 2000)
    assert 8 * len(check_round_trip(index, 10_000)) <= entropy + 64


# --- properties ---


@st.composite
def small_sets(draw):
    population = draw(st.integers(1, 60))
    return sorted(draw(st.sets(st.integers(0, population - 1)))), population


@given(small_sets())
@settings(deadline=None, max_examples=300)
def test_ranked_sets_come_back(case):
    members, population = case
    assert indexes._is_ranked(population, len(members))
    code = check_round_trip(indexes_of(*members), population)
    assert 8 * len(code) < log2(comb(population, len(members))) + 8 or not code


@given(small_sets())
@settings(deadline=None, max_examples=300)
def test_small_sets_come_back_from_the_entropy_coder_too(case):
    members, population = case
    with everything_coded_by_ans():
        check_round_trip(indexes_of(*members), population)


@given(st.integers(1, 2000), st.floats(0, 1), st.integers(0, 1000))
@settings(deadline=None, max_examples=100)
def test_ranked_sets_of_any_density_come_back(population, density, seed):
    size = round(density * population)
    assert indexes._is_ranked(population, size)
    check_round_trip(random_set(population, size, seed), population)


@given(st.integers(5000, 40_000), st.floats(0, 1), st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_large_sets_of_any_density_come_back(population, density, seed):
    size = round(density * population)
    assume(not indexes._is_ranked(population, size))
    code = check_round_trip(random_set(population, size, seed), population)
    assert 8 * len(code) <= indexes.ideal_bits(population, size) + 96


@pytest.mark.parametrize("size", [0, 1, 99_999, 100_000])
def test_nearly_empty_and_nearly_full_large_sets_come_back(size):
    check_round_trip(random_set(100_000, size), 100_000)


def test_one_of_many_millions_comes_back_from_either_coder():
    for member in (0, 1_234_567, 1_999_999):
        check_round_trip(indexes_of(member), 2_000_000)
        with everything_coded_by_ans():
            check_round_trip(indexes_of(member), 2_000_000)


@pytest.mark.parametrize(
    "population, size", [(200_000, 10), (1_000_000, 5), (100_000, 60), (1_000_000, 64)]
)
def test_few_of_many_cost_the_least_whole_number_of_bytes(population, size):
    """Ranked one by one: ceil(log2 binom / 8) bytes, however large the population."""
    least = ((comb(population, size) - 1).bit_length() + 7) // 8
    for seed in range(3):
        chosen = np.sort(np.random.default_rng(seed).choice(population, size, replace=False))
        code = indexes.encode(chosen, population)
        assert len(code) == least
        assert np.array_equal(indexes.decode(code, population, size), chosen)


@given(st.integers(1, 300), st.data())
def test_both_ways_of_ranking_give_the_same_number(population, data):
    size = data.draw(st.integers(1, min(population, indexes.FEW)))
    chosen = np.sort(np.array(data.draw(st.permutations(range(population)))[:size]))
    rank = indexes._rank_of_few(chosen)
    assert rank == indexes._rank(chosen, population)
    assert np.array_equal(indexes._few_of_rank(rank, population, size), chosen)
    assert np.array_equal(indexes._unrank(rank, population, size), chosen)


def test_the_choice_of_coder_is_a_function_of_both_sizes():
    # ideal bits x N <= 2^24: 2,000 x 1438 = 2.9 million is ranked, 10,000 x 7,214 = 72 million is
    # not.
    assert indexes._is_ranked(2000, 400)
    assert not indexes._is_ranked(10_000, 2000)


def test_the_entropy_coder_gives_every_set_its_own_code():
    with everything_coded_by_ans():
        codes = {indexes.encode(indexes_of(*members), 10) for members in combinations(range(10), 3)}
        assert len(codes) == 120
        assert all(refused_or_canonical(code, 10, 3) for code in codes)


@pytest.mark.parametrize(("population", "size"), [(1, 1), (5, 2), (8, 4), (11, 3), (12, 6)])
def test_as_many_codes_are_taken_as_there_are_sets(population, size):
    """C(8, 4) = 70 of all codes of up to two bytes, and so on."""
    codes = [bytes(code) for length in range(3) for code in product(range(256), repeat=length)]
    taken = [code for code in codes if refused_or_canonical(code, population, size)]
    assert len(taken) == comb(population, size)


@given(st.binary(max_size=16), st.integers(1, 12), st.integers(0, 12))
@settings(deadline=None, max_examples=500)
def test_random_bytes_for_small_sets_are_refused_or_canonical(code, population, size):
    refused_or_canonical(code, population, size)
    with everything_coded_by_ans():
        refused_or_canonical(code, population, size)


def test_all_short_codes_of_the_entropy_coder_are_refused_or_canonical():
    # Three of ten at rate 3/10 are about nine bits: one word, its low bytes varied here, its high
    # bytes at random.
    generator = np.random.default_rng(0)
    with everything_coded_by_ans():
        sets = [indexes.encode(indexes_of(*members), 10) for members in combinations(range(10), 3)]
        words = generator.integers(0, 2**32, 5000, dtype=np.uint32)
        near = np.concatenate([np.frombuffer(code, "<u4") for code in sets])
        near = (near[:, None] + np.arange(-3, 4)).astype(np.uint32).ravel()
        taken = {
            code for word in (*words, *near) if refused_or_canonical(code := word.tobytes(), 10, 3)
        }
    assert set(sets) <= taken


def damaged(code, generator):
    """Cut at either end, extended by zeros or noise at either end, or with bits flipped."""
    for size in (1, 2, 3, 4, 8):
        yield code[:-size]
        yield code[size:]
        yield code + bytes(size)
        yield bytes(size) + code
        yield code + generator.bytes(size)
        yield generator.bytes(size) + code
    for _ in range(100):
        flipped = bytearray(code)
        for bit in generator.integers(0, 8 * len(code), generator.integers(1, 4)):
            flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
    for size in (0, 1, 4, 8, len(code)):
        yield generator.bytes(size)
        yield bytes(size)
        yield b"\xff" * size


@pytest.mark.parametrize("size", [1, 100, 1500, 3000, 5900, 5999])
def test_damaged_codes_of_the_entropy_coder_are_refused_or_canonical(size):
    generator = np.random.default_rng(size)
    with everything_coded_by_ans():
        code = indexes.encode(random_set(6000, size), 6000)
        assert refused_or_canonical(code, 6000, size)
        for other in damaged(code, generator):
            refused_or_canonical(other, 6000, size)


@pytest.mark.parametrize("size", [1, 100, 400, 1000, 1999])
def test_damaged_ranks_are_refused_or_canonical(size):
    generator = np.random.default_rng(size)
    code = indexes.encode(random_set(2000, size), 2000)
    assert refused_or_canonical(code, 2000, size)
    for other in damaged(code, generator):
        refused_or_canonical(other, 2000, size)


def test_a_code_of_the_entropy_coder_for_another_size_is_refused():
    code = indexes.encode(random_set(10_000, 2000), 10_000)
    for size in (1999, 2001, 0, 10_000):
        with pytest.raises(WireError):
            indexes.decode(code, 10_000, size)
