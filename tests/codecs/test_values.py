"""Probability rows as bytes: grids, hard labels, the largest k, only what changed; sizes by
formula, errors bounded.
"""

import itertools
import struct
from math import ceil, comb, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import seeding
from fedsift.codecs import (
    CODECS,
    delta,
    indexes,
    quantized,
    soft_label_codec,
    soft_labels,
    topk,
    wire,
)
from fedsift.codecs.values import Delta, Hard, Quantized, TopK, on_grid
from fedsift.codecs.wire import WireError
from fedsift.types import Link, SoftLabels, UserError

PLAIN = [
    "float32",
    "float16",
    "hard",
    "quantized",
    "topk",
    *(f"quantized({bits})" for bits in range(1, 9)),
    "topk(2)",
]
ALL = [*PLAIN, "delta", *(f"delta({plain})" for plain in PLAIN)]
HEADER = 18  # envelope and number of rows, where the indexes are drawn from a seed both ends know


def link(samples=40, classes=10, round=3):
    return Link(round, samples, classes, ((7, round, "pick"),))


def drawn(size, to):
    return seeding.subset(seeding.rng(*to.drawn_from[0]), to.samples, size)


def rows(size, classes=10, seed=0, alpha=0.3):
    return np.random.default_rng(seed).dirichlet(np.full(classes, alpha), size).astype(np.float32)


def one_hot(labels, classes=10):
    return np.eye(classes, dtype=np.float32)[labels]


def through(values, probs):
    """What arrives of some rows."""
    probs = np.asarray(probs, float)
    return values.unpack(values.pack(probs, None), *probs.shape, None)


# --- the simplex grid ---


@pytest.mark.parametrize(
    ("probs", "levels", "grid"),
    [
        # times 3: 1.5, 0.9, 0.6; rounded down 1, 0, 0; the two left go to the remainders 0.9 and
        # 0.6
        ((0.5, 0.3, 0.2), 3, (1, 1, 1)),
        # times 7: 3.5, 2.1, 1.4; rounded down 3, 2, 1; the one left goes to the remainder 0.5
        ((0.5, 0.3, 0.2), 7, (4, 2, 1)),
        # times 3: 2.4, 0.3, 0.3; rounded down 2, 0, 0; the one left goes to the remainder 0.4
        ((0.8, 0.1, 0.1), 3, (3, 0, 0)),
        # times 3: 0.75 each; nothing rounded down, three left, and of equal remainders the first
        # come first
        ((0.25, 0.25, 0.25, 0.25), 3, (1, 1, 1, 0)),
        ((0.4, 0.35, 0.25), 1, (1, 0, 0)),
        ((0, 1, 0), 255, (0, 255, 0)),
    ],
)
def test_a_row_on_the_grid(probs, levels, grid):
    assert on_grid(np.array([probs]), levels).tolist() == [list(grid)]
    assert on_grid(np.array([probs], np.float32), levels).tolist() == [list(grid)]


def test_points_of_the_grid_stay_where_they_are():
    for levels in (1, 3, 7, 15):
        points = np.array(list(grid_points(3, levels)))
        for dtype in (np.float32, np.float64):
            np.testing.assert_array_equal(on_grid((points / levels).astype(dtype), levels), points)


@given(st.integers(1, 300), st.integers(1, 255), st.floats(0.02, 5), st.integers(0, 10**6))
def test_rows_on_the_grid_are_whole_numbers_with_the_right_sum(classes, levels, alpha, seed):
    probs = rows(20, classes, seed, alpha)
    grid = on_grid(probs, levels)
    assert grid.dtype == np.int64
    assert (grid >= 0).all()
    assert (grid.sum(1) == levels).all()
    assert (np.abs(grid / levels - probs) < 1 / levels + 1e-6).all()


def grid_points(classes, levels):
    """All ways to share `levels` among the classes: stars and bars."""
    for bars in itertools.combinations(range(levels + classes - 1), classes - 1):
        yield np.diff([-1, *bars, levels + classes - 1]) - 1


def test_there_are_as_many_grid_points_as_there_should_be():
    assert len(list(grid_points(4, 7))) == comb(10, 3)
    assert all(point.sum() == 7 and (point >= 0).all() for point in grid_points(4, 7))


@given(st.integers(2, 4), st.sampled_from([1, 2, 3, 7]), st.integers(0, 10**6))
@settings(max_examples=60)
def test_no_other_grid_point_is_nearer(classes, levels, seed):
    points = np.array(list(grid_points(classes, levels))) / levels
    for row in np.random.default_rng(seed).dirichlet(np.full(classes, 0.7), 10):
        found = on_grid(row[None], levels)[0] / levels
        for order in (1, 2):
            nearest = np.linalg.norm(points - row, order, axis=1).min()
            assert np.linalg.norm(found - row, order) <= nearest + 1e-9


# --- quantised rows ---


def test_a_quantised_row_byte_by_byte():
    # Two bits, three levels: (1, 1, 1) and (3, 0, 0). The last entries follow, so 1, 1, 3, 0 in
    # base 4:
    # 1 + 1 * 4 + 3 * 16 + 0 * 64 = 53.
    probs = np.array([[0.5, 0.3, 0.2], [0.8, 0.1, 0.1]])
    assert Quantized(2).pack(probs) == bytes([0, 53])
    np.testing.assert_allclose(
        Quantized(2).unpack(bytes([0, 53]), 2, 3), np.array([[1 / 3] * 3, [1, 0, 0]]), rtol=1e-6
    )


def test_quantised_rows_that_sum_to_more_than_one_are_refused():
    # 2 and 2 of three levels: 2 + 2 * 4 = 10.
    with pytest.raises(WireError, match="sum to more than 1"):
        Quantized(2).unpack(bytes([0, 10]), 1, 3)


def test_one_bit_is_the_hard_label():
    probs = rows(200)
    for values in (Quantized(1), Hard()):
        np.testing.assert_array_equal(through(values, probs), one_hot(probs.argmax(1)))
    assert Quantized(1).pack(probs) == Hard().pack(probs)
    np.testing.assert_array_equal(on_grid(probs, 1), one_hot(probs.argmax(1)))


@given(st.integers(1, 8), st.integers(2, 30), st.floats(0.02, 5), st.integers(0, 10**6))
def test_a_quantised_entry_is_off_by_less_than_a_level(bits, classes, alpha, seed):
    probs = rows(30, classes, seed, alpha)
    back = through(Quantized(bits), probs)
    assert back.dtype == np.float32
    assert (np.abs(back - probs) <= 1 / (2**bits - 1) + 1e-6).all()
    np.testing.assert_allclose(back.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 1, 10])
def test_more_bits_make_smaller_errors(alpha):
    probs = rows(500, alpha=alpha)
    errors = [np.abs(through(Quantized(bits), probs) - probs).mean() for bits in range(1, 9)]
    assert all(fewer > more for fewer, more in itertools.pairwise(errors))


@pytest.mark.parametrize("bits", range(2, 9))
def test_quantised_rows_cost_at_most_their_bits_without_the_last_entry(bits):
    # 200 rows of nine entries; 256 symbols of whole bits are whole bytes.
    assert len(Quantized(bits).pack(rows(200, alpha=1))) <= 1 + ceil(200 * 9 * bits / 8)


def test_200000_rows_at_once_arrive_as_each_alone():
    probs = rows(200_000)
    back = through(Quantized(4), probs)
    assert back.shape == (200_000, 10)
    for row in np.random.default_rng(1).integers(0, 200_000, 200):
        np.testing.assert_array_equal(back[row], through(Quantized(4), probs[row : row + 1])[0])


# --- hard labels ---


def test_hard_labels_byte_by_byte():
    # Labels 2, 1, 3: 2 + 1 * 10 + 3 * 100 = 312 = 0x138.
    assert Hard().pack(0.6 * one_hot([2, 1, 3]) + 0.04) == bytes([0, 0x38, 0x01])
    np.testing.assert_array_equal(Hard().unpack(bytes([0, 0x38, 0x01]), 3, 10), one_hot([2, 1, 3]))


@pytest.mark.parametrize("codec", [CODECS["hard"], quantized(1)], ids=["hard", "quantized(1)"])
@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("size", [60, 500, 2000])
def test_a_hard_label_costs_at_most_5_percent_more_than_its_bits(codec, size, classes):
    to = link(4000, classes)
    labels = np.random.default_rng(size).integers(0, classes, size)
    message = codec.encode(SoftLabels(drawn(size, to), one_hot(labels, classes)), to)
    assert 8 * (len(message) - HEADER - 1) <= 1.05 * size * log2(classes)
    np.testing.assert_array_equal(codec.decode(message, to).probs.argmax(1), labels)


# --- the k largest ---


def test_the_largest_two_byte_by_byte():
    # Classes 1 and 3 with 0.5 and 0.25, in float16 0x3800 and 0x3400; the 0.25 left are 0.125 for
    # each of the others.
    code = TopK(2).pack(np.array([[0.05, 0.5, 0.2, 0.25]]))
    assert code == bytes.fromhex("0100 0300 0038 0034")
    assert TopK(2).unpack(code, 1, 4).tolist() == [[0.125, 0.5, 0.125, 0.25]]


def test_of_equal_probabilities_the_first_are_sent():
    assert TopK(1).pack(np.full((1, 4), 0.25))[:2] == bytes([0, 0])


@pytest.mark.parametrize("k", [5, 6, 63])
def test_all_classes_arrive_up_to_float16(k):
    probs = rows(50, 5)
    assert len(TopK(k).pack(probs)) == 50 * 5 * 4
    np.testing.assert_allclose(through(TopK(k), probs), probs, rtol=2**-10 * 1.01, atol=2**-24)


@given(st.integers(1, 20), st.integers(2, 20), st.integers(0, 10**6))
def test_the_largest_keep_their_values_and_the_others_share_the_rest(k, classes, seed):
    probs = rows(10, classes, seed)
    back = through(TopK(k), probs)
    np.testing.assert_allclose(back.sum(1), 1, atol=1e-6)
    for sent, found in zip(probs, back, strict=True):
        largest = np.argsort(-sent, kind="stable")[:k]
        np.testing.assert_allclose(found[largest], sent[largest], rtol=2e-3, atol=2e-7)
        others = np.delete(found, largest)
        assert others.size == 0 or others.max() - others.min() < 1e-7


def largest(names, values):
    return np.array(names, "<u2").tobytes() + np.array(values, "<f2").tobytes()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (largest([1, 4], [0.5, 0.5]), "not classes"),
        (largest([1, 1], [0.5, 0.5]), "not classes"),
        (largest([2, 1], [0.5, 0.5]), "not classes"),
        (largest([1, 2], [0.5, np.nan]), "not probabilities"),
        (largest([1, 2], [np.inf, -np.inf]), "not probabilities"),
        (largest([1, 2], [1.5, -0.5]), "not probabilities"),
        (largest([1, 2], [0.75, 0.5]), "not probabilities"),
        (largest([1, 2], [0, 0]), "not probabilities"),
        (largest([1, 2], [0.5]), "6 bytes of soft labels instead of 8"),
        (largest([1, 2], [0.5, 0.25, 0.25]), "10 bytes of soft labels instead of 8"),
    ],
)
def test_the_largest_of_no_distribution_are_refused(code, says):
    with pytest.raises(WireError, match=says):
        TopK(2).unpack(code, 1, 4)


# --- only what changed ---


def conversation(codec, sent, to):
    """Sends each of some labels after the other; the messages, and what the receiver makes of
    them.
    """
    here = there = None
    messages, received = [], []
    for labels in sent:
        message, here = codec.encode_stateful(labels, to, here)
        labels, there = codec.decode_stateful(message, to, there)
        messages.append(message)
        received.append(labels)
    return messages, received


def after(codec, labels, to):
    """The first message of these labels, and the reference it leaves at both ends."""
    message, reference = codec.encode_stateful(labels, to, None)
    assert reference is not None
    return message, reference


def test_a_first_message_sends_all_rows_and_a_second_equal_one_none():
    # 40 hard labels of ten: 8 bytes say how many changed, no byte which (all), a flag, ceil(40 log2
    # 10 / 8) = 17.
    # Nothing new: 8 bytes say so, and a flag.
    to = link()
    labels = SoftLabels(np.arange(40), one_hot(np.arange(40) % 10))
    messages, received = conversation(delta("hard"), [labels, labels], to)
    assert messages[0][HEADER : HEADER + 8] == struct.pack("<II", 40, 0)
    assert messages[1][HEADER:] == struct.pack("<II", 0, 0) + b"\0"
    assert [len(message) for message in messages] == [HEADER + 8 + 1 + 17, HEADER + 8 + 1]
    for arrived in received:
        np.testing.assert_array_equal(arrived.probs, labels.probs)


def test_three_changed_rows_arrive_and_are_all_that_is_sent():
    # binom(40, 3) = 9880 sets are 14 bits, two bytes; three labels of ten are 10 bits, two bytes.
    to = link()
    before = np.arange(40) % 10
    changed = before.copy()
    changed[[3, 17, 30]] = [9, 9, 9]
    sent = [SoftLabels(np.arange(40), one_hot(labels)) for labels in (before, changed)]
    messages, received = conversation(delta("quantized(1)"), sent, to)
    assert len(messages[1]) == HEADER + 8 + 2 + 1 + 2
    np.testing.assert_array_equal(received[1].probs, one_hot(changed))


@pytest.mark.parametrize("plain", PLAIN)
def test_unchanged_rows_cost_nine_bytes_at_most_in_every_code(plain):
    to = link()
    labels = SoftLabels(drawn(30, to), rows(30))
    messages, received = conversation(delta(plain), [labels, labels], to)
    symbols = not plain.startswith(
        ("float", "topk")
    )  # no symbols are a flag, no floats are nothing
    assert len(messages[1]) == HEADER + 8 + symbols
    assert received[0].probs.tobytes() == received[1].probs.tobytes()


def test_a_change_that_the_inner_code_does_not_show_is_not_sent():
    to = link()
    labels = [
        SoftLabels(np.arange(40), 0.9 * one_hot(np.arange(40) % 10) + extra)
        for extra in (0.01, 0.02)
    ]
    messages, _ = conversation(delta("hard"), labels, to)
    assert len(messages[1]) == HEADER + 9


def test_rows_never_sent_before_are_sent_along_with_changes():
    to = Link(3, 40, 10)
    first = SoftLabels(np.arange(0, 20), one_hot(np.zeros(20, int)))
    second = SoftLabels(np.arange(10, 30), one_hot(np.zeros(20, int)))
    messages, received = conversation(delta("hard"), [first, second], to)
    start = HEADER + 4 + len(indexes.encode(second.index, 40))
    assert struct.unpack_from("<I", messages[1], start) == (10,)  # ten of the twenty are new
    np.testing.assert_array_equal(received[1].index, second.index)
    np.testing.assert_array_equal(received[1].probs, second.probs)


def test_a_message_against_another_reference_is_refused():
    to, codec = link(), delta("hard")
    labels = SoftLabels(np.arange(40), one_hot(np.arange(40) % 10))
    message, reference = after(codec, labels, to)
    second, _ = codec.encode_stateful(labels, to, reference)
    other = SoftLabels(reference.index, np.roll(reference.probs, 1, axis=0))
    some = SoftLabels(reference.index[:39], reference.probs[:39])
    for wrong in (other, some, None):
        with pytest.raises(WireError, match="checksum"):
            codec.decode_stateful(second, to, wrong)
    with pytest.raises(WireError, match="checksum"):
        codec.decode_stateful(message, to, reference)


def test_a_reference_that_differs_only_elsewhere_does_not_matter():
    to, codec = link(), delta("hard")
    labels = SoftLabels(drawn(10, to), one_hot(np.arange(10)))
    _, reference = after(codec, labels, to)
    message, _ = codec.encode_stateful(labels, to, reference)
    elsewhere = np.setdiff1d(np.arange(40), labels.index)[:1]
    index = np.append(reference.index, elsewhere)
    more = SoftLabels(index, np.concatenate([reference.probs, one_hot([3])]))
    np.testing.assert_array_equal(codec.decode_stateful(message, to, more)[0].probs, labels.probs)


def test_a_row_said_to_be_unchanged_that_was_never_sent_is_refused():
    to, codec = link(), delta("hard")
    index = drawn(2, to)
    payload = struct.pack("<BI", 0, 2) + struct.pack("<II", 0, 0) + b"\0"
    implied = soft_labels._implied(index, to, np.full((2, 10), np.nan, np.float32))
    message = wire.seal(wire.SOFT_LABELS, codec.values.id, to.round, payload, implied)
    with pytest.raises(WireError, match="never sent"):
        codec.decode(message, to)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (b"", "no room for the number of changes"),
        (bytes(7), "no room for the number of changes"),
        (struct.pack("<II", 4, 0), "4 changes to 3 rows"),
        (struct.pack("<II", 1, 1), "cut short"),
        (struct.pack("<II", 1, 2**32 - 1) + bytes(9), "cut short"),
        (struct.pack("<II", 1, 1) + b"\3\0\0", "names no set"),
        (struct.pack("<II", 0, 0) + b"\1", "coded symbols are cut short"),
    ],
)
def test_changes_that_are_none_are_refused(code, says):
    with pytest.raises(WireError, match=says):
        Delta(Hard()).unpack(code, 3, 10, one_hot([1, 2, 3]))


@given(
    st.sampled_from(PLAIN), st.integers(1, 8), st.sampled_from([0.1, 0.5, 1]), st.integers(0, 10**6)
)
@settings(max_examples=100)
def test_both_ends_remember_the_same_over_many_rounds(plain, rounds, share, seed):
    # Each round another subset, in which some rows are as they were; what is received is what the
    # plain code carries.
    generator = np.random.default_rng(seed)
    codec, inner = delta(plain), soft_label_codec(plain)
    here: SoftLabels | None = None
    there: SoftLabels | None = None
    truth = rows(40, 5, seed)
    ever = np.zeros(40, bool)
    for number in range(rounds):
        to = link(classes=5, round=number)
        changed = generator.random(40) < share
        truth[changed] = rows(40, 5, int(generator.integers(10**6)))[changed]
        index = (
            drawn(10, to)
            if generator.random() < 0.5
            else np.flatnonzero(generator.random(40) < 0.6)
        )
        labels = SoftLabels(index, truth[index])
        ever[index] = True
        message, here = codec.encode_stateful(labels, to, here)
        found, there = codec.decode_stateful(message, to, there)
        np.testing.assert_array_equal(found.index, index)
        np.testing.assert_array_equal(found.probs, inner.decode(inner.encode(labels, to), to).probs)
        assert here is not None and there is not None
        assert here.index.tolist() == there.index.tolist() == np.flatnonzero(ever).tolist()
        assert here.probs.tobytes() == there.probs.tobytes()


# --- all of them, by their text ---


def test_every_code_on_the_shelf_is_tested_here():
    assert {text.partition("(")[0] for text in ALL} == set(CODECS)


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize(
    ("samples", "classes", "size"), [(40, 10, 25), (40, 2, 40), (300, 100, 120), (9, 3, 0)]
)
def test_every_code_makes_probabilities_of_probabilities(text, samples, classes, size):
    codec, to = soft_label_codec(text), link(samples, classes)
    index = seeding.subset(np.random.default_rng(5), samples, size)
    probs = rows(size, classes)
    for sent in (SoftLabels(index, probs), SoftLabels(drawn(size, to), probs.astype(np.float64))):
        back = codec.decode(codec.encode(sent, to), to)
        np.testing.assert_array_equal(back.index, sent.index)
        assert back.probs.dtype == np.float32
        assert back.probs.shape == (size, classes)
        assert (back.probs >= 0).all()
        np.testing.assert_allclose(back.probs.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("text", ALL)
def test_what_arrived_arrives_again_unchanged(text):
    # To the bit, but for float16: dividing by the row sum moves a value by a rounding.
    codec, to = soft_label_codec(text), link()
    once = codec.decode(codec.encode(SoftLabels(np.arange(40), rows(40)), to), to)
    twice = codec.decode(codec.encode(once, to), to)
    np.testing.assert_allclose(
        twice.probs, once.probs, rtol=2**-9 if "float16" in text or "topk" in text else 0
    )


def test_texts_name_what_the_functions_make():
    assert soft_label_codec("quantized(3)") == quantized(3)
    assert soft_label_codec("topk(2)") == topk(2)
    assert soft_label_codec("delta(topk(2))") == delta(topk(2))
    assert soft_label_codec("delta") == delta("quantized(1)")
    assert soft_label_codec(quantized(3)) == quantized(3)


def test_no_two_codes_have_the_same_number():
    codecs = {soft_label_codec(text) for text in ALL}
    numbers = {codec.values.id for codec in codecs}
    assert len(numbers) == len(codecs)
    assert all(0 < number < 256 for number in numbers)
    assert delta(topk(63)).values.id == 255  # the largest there is still fits the byte


@pytest.mark.parametrize(
    "text",
    [
        "delta(delta)",
        "delta(delta(hard))",
        "delta(4)",
        "delta(nothing)",
        "quantized(0)",
        "quantized(9)",
        "quantized(2.5)",
        "quantized(1, 2)",
        "topk(0)",
        "topk(64)",
        "topk(most)",
        "hard(3)",
    ],
)
def test_a_code_that_cannot_be_is_a_mistake(text):
    with pytest.raises(UserError):
        soft_label_codec(text)
