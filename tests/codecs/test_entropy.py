"""Symbols as bytes: packed to the byte, shorter when they are skewed, and nothing made of a code
that is not one.
"""

import tracemalloc
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.codecs import entropy
from fedsift.codecs.wire import WireError

PACKED, CODED = 0, 1  # the first byte


def uniform(count, base, seed=0):
    return np.random.default_rng(seed).integers(0, base, count)


def skewed(count, base, seed=0):
    """Symbols of falling probability, each a third as likely as the one before."""
    return np.minimum(np.random.default_rng(seed).geometric(2 / 3, count) - 1, base - 1)


def comes_back(symbols, base):
    back = entropy.decode(entropy.encode(symbols, base), len(symbols), base)
    return back.dtype == np.int64 and back.tolist() == symbols.tolist()


# --- by hand ---


def test_three_decimal_digits_byte_by_byte():
    # 2 + 1 * 10 + 3 * 100 = 312 = 0x138; three digits take 9.97 bits, so two bytes.
    assert entropy.encode(np.array([2, 1, 3]), 10) == bytes([PACKED, 0x38, 0x01])
    assert entropy.decode(bytes([PACKED, 0x38, 0x01]), 3, 10).tolist() == [2, 1, 3]


def test_four_hexadecimal_digits_are_two_bytes():
    assert entropy.encode(np.array([1, 2, 3, 4]), 16) == bytes([PACKED, 0x21, 0x43])


def test_no_symbols_are_one_byte():
    assert entropy.encode(np.empty(0, np.int64), 10) == bytes([PACKED])
    assert entropy.decode(bytes([PACKED]), 0, 10).tolist() == []


def test_a_skewed_bit_costs_its_entropy():
    # 195 zeros and 5 ones: 1 + 25 bytes packed. At 0.17 bits a symbol they are 34 bits, two words
    # of the coder; the
    # histogram gives 255 to the commoner symbol and ceil(5 / 195 * 255) = 7 to the other: 1 + 2 + 8
    # bytes.
    symbols = np.repeat([0, 1], [195, 5])
    code = entropy.encode(symbols, 2)
    assert code[:3] == bytes([CODED, 255, 7])
    assert len(code) == 11
    assert entropy.decode(code, 200, 2).tolist() == symbols.tolist()


@pytest.mark.parametrize("count", [11, 13, 22, 44, 1001])
def test_the_commonest_symbol_has_255_in_the_histogram(count):
    # In floating point 11 * (255 / 11) is 255.00000000000003: rounded up it is 256, which a byte
    # holds as 0.
    code = entropy._ans(np.repeat([0, 1], [count, 1]), 3)
    assert code[0] == 255
    assert code[1] == ceil(255 / count)
    assert code[2] == 0


def test_equal_symbols_come_back_however_many_they_are():
    lost = [count for count in range(300) if not comes_back(np.full(count, 3), 10)]
    assert lost == []


# --- sizes ---


@pytest.mark.parametrize("base", [2, 3, 10, 16, 100, 255, 256])
def test_up_to_256_symbols_take_a_byte_and_their_bits_rounded_up(base):
    # (K^n - 1).bit_length() is the exact ceil(n log2 K).
    for count in range(257):
        size = 1 + ceil((base**count - 1).bit_length() / 8)
        assert entropy.max_bytes(count, base) == size
        assert len(entropy._pack(uniform(count, base), base)) == size - 1


def test_sizes_that_anyone_can_check():
    # 60 log2 10 = 199.3 bits: 25 bytes. 256 log2 100 = 1700.8 bits: 213 bytes.
    assert len(entropy.encode(uniform(60, 10), 10)) == 26
    assert len(entropy.encode(uniform(256, 100), 100)) == 214


@pytest.mark.parametrize("base", [10, 16, 100])
def test_from_1000_symbols_on_packing_costs_at_most_1_percent_more_than_their_bits(base):
    for count in range(1000, 3000):
        assert 8 * entropy.max_bytes(count, base) <= 1.01 * count * log2(base), count


@given(st.integers(2, 40), st.integers(1, 400), st.floats(0.01, 1), st.integers(0, 2**32 - 1))
def test_the_shorter_of_both_ways_is_taken(base, count, skew, seed):
    """Shares that fall by a factor from symbol to symbol: from one symbol nearly always to all
    alike.
    """
    shares = skew ** np.arange(base)
    symbols = np.random.default_rng(seed).choice(base, count, p=shares / shares.sum())
    packed, coded = b"\0" + entropy._pack(symbols, base), b"\1" + entropy._ans(symbols, base)
    assert entropy.encode(symbols, base) == min(packed, coded, key=len)


@pytest.mark.parametrize("base", [10, 16, 100])
@pytest.mark.parametrize("count", [1000, 2000, 5000])
def test_a_code_is_never_longer_than_packing(base, count):
    assert len(entropy.encode(uniform(count, base), base)) <= entropy.max_bytes(count, base)


@pytest.mark.parametrize("base", [10, 16, 100])
@pytest.mark.parametrize("count", [700, 2000])
def test_skewed_symbols_cost_about_their_entropy(base, count):
    # Symbol i has probability 2 / 3^(i + 1): 1.38 bits, where packing takes 3.32 or more.
    symbols = skewed(count, base)
    code = entropy.encode(symbols, base)
    share = np.bincount(symbols) / count
    share = share[share > 0]
    assert code[0] == CODED
    assert len(code) < entropy.max_bytes(count, base)
    assert len(code) <= 1 + base + 1.02 * count * -(share * np.log2(share)).sum() / 8 + 8
    assert entropy.decode(code, count, base).tolist() == symbols.tolist()


# --- round trips ---


@given(st.integers(2, 256), st.integers(0, 700), st.integers(0, 10**6))
@settings(max_examples=200)
def test_uniform_symbols_come_back(base, count, seed):
    assert comes_back(uniform(count, base, seed), base)


@given(st.integers(2, 256), st.integers(0, 700), st.floats(0.01, 3), st.integers(0, 10**6))
@settings(max_examples=300)
def test_symbols_of_any_skew_come_back(base, count, alpha, seed):
    generator = np.random.default_rng(seed)
    share = generator.dirichlet(np.full(base, alpha))
    assert comes_back(generator.choice(base, count, p=share), base)


@given(st.integers(2, 256), st.data())
def test_any_few_symbols_come_back(base, data):
    assert comes_back(
        np.array(data.draw(st.lists(st.integers(0, base - 1), max_size=40)), np.int64), base
    )


# --- what is refused ---


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (b"", "0 bytes of symbols"),
        (b"\0\0\0\0", "4 bytes of symbols where 1 to 3"),
        (b"\0\0", "1 bytes of packed symbols instead of 2"),
        (b"\2\0\0", "unknown way 2"),
        (b"\0\xe8\x03", "out of range"),  # 1000 is no number of three digits
        (b"\1\1\1", "cut short"),
    ],
)
def test_a_code_that_is_none_is_refused(code, says):
    with pytest.raises(WireError, match=says):
        entropy.decode(code, 3, 10)


@pytest.mark.parametrize(
    "code",
    [
        bytes([CODED, 255]),  # half a histogram
        bytes([CODED, 0, 0, 1, 0, 0, 0]),  # an empty one
        bytes([CODED, 1, 1, 1, 0, 0]),  # half a word
        bytes([CODED, 1, 1, 0, 0, 0, 0]),  # a last word that the coder never writes
        bytes([CODED, 1, 1]) + bytes([255] * 8),  # more than 20 bits of code for 20 bits
    ],
)
def test_a_coded_text_that_is_none_is_refused(code):
    with pytest.raises(WireError):
        entropy.decode(code, 40, 2)


def read(code, count, base):
    """The symbols of a code, or None if it is refused; whatever is read must be `count` symbols
    below `base`.
    """
    try:
        symbols = entropy.decode(code, count, base)
    except WireError:
        return None
    assert symbols.shape == (count,)
    assert symbols.dtype == np.int64
    assert ((symbols >= 0) & (symbols < base)).all()
    return symbols


@pytest.mark.parametrize("base", [2, 10, 256])
@pytest.mark.parametrize("symbols", [uniform, skewed])
def test_packed_codes_of_another_length_are_refused_and_coded_ones_are_refused_or_in_range(
    symbols, base
):
    given = symbols(600, base)
    code = entropy.encode(given, base)
    assert read(code, 600, base).tolist() == given.tolist()
    cut = [read(code[:size], 600, base) is None for size in range(len(code))]
    longer = [read(code + bytes([7]) * size, 600, base) is None for size in range(1, 20)]
    assert any(cut) and any(longer)  # of a coded one, another length can be another code
    assert code[0] == CODED or all(cut + longer)


@pytest.mark.parametrize("base", [2, 3, 10, 16, 256])
@pytest.mark.parametrize("way", [PACKED, CODED])
def test_random_codes_are_refused_or_in_range(base, way):
    generator = np.random.default_rng(base)
    outcomes = []
    for _ in range(2000):
        count = int(generator.integers(0, 400))
        size = int(generator.integers(0, entropy.max_bytes(count, base)))
        size = (
            entropy.max_bytes(count, base) - 1
            if way == PACKED and generator.random() < 0.9
            else size
        )
        outcomes.append(read(bytes([way]) + generator.bytes(size), count, base))
    assert any(symbols is not None for symbols in outcomes)


@pytest.mark.parametrize("base", [2, 10, 256])
def test_histograms_that_are_all_but_empty_are_read_or_refused(base):
    generator, outcomes = np.random.default_rng(1), []
    for _ in range(2000):
        histogram = np.zeros(base, np.uint8)
        histogram[generator.integers(base)] = generator.integers(1, 256)
        words = generator.integers(0, 2, int(generator.integers(0, 6)) * 4, dtype=np.uint8)
        found = read(bytes([CODED]) + histogram.tobytes() + words.tobytes(), 3000, base)
        outcomes.append(found is None)
    assert any(outcomes) and not all(outcomes)


@pytest.mark.parametrize("way", [PACKED, CODED])
def test_a_code_of_megabytes_is_refused_before_anything_is_made(way):
    huge = bytes([way]) + bytes([1]) * 4_000_000
    entropy.decode(
        entropy.encode(skewed(500, 10), 10), 500, 10
    )  # whatever is imported, is imported
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="4000001 bytes of symbols"):
            entropy.decode(huge, 500, 10)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


# --- bounds on the length, without coding ---


def test_a_bound_by_hand():
    # 195 zeros and 5 ones, as above: 34 bits of information. The 5 ones come last, so none is free:
    # 34 bits less a word are none, and 34 bits and two words are 98 bits, three words.
    assert entropy.bound_length(np.repeat([0, 1], [195, 5]), 2) == (3, 3 + 12)


@settings(deadline=None)
@given(
    count=st.integers(0, 3000),
    base=st.sampled_from([2, 3, 5, 16, 64, 255]),
    skew=st.floats(0.01, 0.99),
    order=st.sampled_from(["random", "up", "down"]),
    seed=st.integers(0, 2**32),
)
def test_a_length_is_within_its_bounds(count, base, skew, order, seed):
    """Symbols of any skew; in falling order, the coder begins with zeros, which are free."""
    drawn = np.minimum(np.random.default_rng(seed).geometric(skew, count) - 1, base - 1)
    if order != "random":
        drawn = np.sort(drawn)
    symbols = drawn[::-1].copy() if order == "down" else drawn
    low, high = entropy.bound_length(symbols, base)
    assert low <= len(entropy.encode(symbols, base)) <= high
    if order == "up":  # nothing is free: the bounds are narrow
        assert high - low <= 20 + 0.003 * high


@given(count=st.integers(0, 3000), base=st.integers(2, 70_000), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_a_group_is_one_number_in_its_base(count, base, seed):
    """By the definition: digits, lowest first, in groups of 1,024."""
    symbols = uniform(count, base, seed)
    expected = b""
    for first in range(0, count, 1024):
        group = symbols[first : first + 1024].tolist()
        number = sum(digit * base**place for place, digit in enumerate(group))
        expected += number.to_bytes(((base ** len(group) - 1).bit_length() + 7) // 8, "little")
    assert entropy._pack(symbols, base) == expected
    assert entropy._unpack(expected, count, base).tolist() == symbols.tolist()
