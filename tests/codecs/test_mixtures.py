"""Mixtures of samples as bytes: their length to the byte, and mixtures that are none are
refused.
"""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.codecs import wire
from fedsift.codecs.mixtures import MixtureCodec, Mixtures
from fedsift.codecs.wire import WireError
from fedsift.memory import to_tree

ROUND = 3
CODEC = MixtureCodec(shape=(2, 2), classes=3, most=4)


def made(count, shape=(2, 2), classes=3, seed=0):
    generator = np.random.default_rng(seed)
    a = generator.integers(0, classes, count)
    b = (a + generator.integers(1, classes, count)) % classes
    return Mixtures(generator.normal(size=(count, *shape)).astype(np.float32), a, b)


def sealed(count, labels, values):
    """Any numbers as a message under a right checksum."""
    payload = (
        struct.pack("<I", count)
        + np.array(labels, "<u2").tobytes()
        + np.array(values, "<f2").tobytes()
    )
    return wire.seal(wire.MIXTURES, 1, ROUND, payload)


def test_a_message_byte_by_byte():
    # float16: 0.5 is 0x3800, 1 is 0x3c00, -2 is 0xc000, 0 is 0.
    message = CODEC.encode(
        Mixtures(np.array([[[0.5, 1], [-2, 0]]]), np.array([2]), np.array([1])), ROUND
    )
    assert message[:9] == b"fs" + bytes([1, 3, 1]) + bytes(
        [3, 0, 0, 0]
    )  # version, kind, codec, round; then checksum
    assert message[13:] == bytes.fromhex("01000000 0200 0100 0038 003c 00c0 0000")


def test_a_message_by_hand_is_read():
    mixtures = CODEC.decode(sealed(2, [[0, 2], [1, 0]], [0.5, 1, -2, 0, 4, 5, 6, 7]), ROUND)
    assert mixtures.a.tolist() == [0, 1]
    assert mixtures.b.tolist() == [2, 0]
    assert mixtures.x.tolist() == [[[0.5, 1], [-2, 0]], [[4, 5], [6, 7]]]
    assert mixtures.x.dtype == np.float32
    assert list(to_tree(mixtures)) == ["x", "a", "b"]


@given(
    st.integers(0, 9),
    st.sampled_from([(1,), (7,), (1, 4, 4), (3, 2, 5)]),
    st.integers(2, 300),
    st.integers(0, 10**6),
)
def test_a_mixture_takes_two_labels_and_a_float16_a_value(count, shape, classes, seed):
    codec, mixtures = MixtureCodec(shape, classes, 9), made(count, shape, classes, seed)
    message = codec.encode(mixtures, ROUND)
    assert len(message) == 13 + 4 + count * (2 + 2 + 2 * int(np.prod(shape)))
    back = codec.decode(message, ROUND)
    assert back.x.shape == (count, *shape)
    np.testing.assert_array_equal(back.a, mixtures.a)
    np.testing.assert_array_equal(back.b, mixtures.b)
    np.testing.assert_array_equal(back.x, mixtures.x.astype(np.float16))


@pytest.mark.parametrize("labels", [[3, 0], [0, 3], [65_535, 1], [1, 1], [0, 0]], ids=str)
def test_labels_that_are_not_two_different_classes_are_refused(labels):
    with pytest.raises(WireError, match="not two different classes"):
        CODEC.decode(sealed(2, [[0, 1], labels], [1] * 8), ROUND)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(WireError, match="not finite"):
        CODEC.decode(sealed(1, [0, 1], [1, 2, bad, 4]), ROUND)


def test_signalling_nans_are_refused():
    payload = struct.pack("<IHH4H", 1, 0, 1, *[0x7C01] * 4)
    with pytest.raises(WireError, match="not finite"):
        CODEC.decode(wire.seal(wire.MIXTURES, 1, ROUND, payload), ROUND)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 2**32 - 1])
def test_another_number_of_mixtures_than_there_are_is_refused(count):
    with pytest.raises(WireError, match="do not hold"):
        CODEC.decode(sealed(count, [[0, 1], [1, 2]], [1] * 8), ROUND)


def test_the_most_mixtures_are_taken_and_one_more_is_refused():
    assert len(CODEC.decode(CODEC.encode(made(4), ROUND), ROUND).x) == 4
    with pytest.raises(WireError, match="at most"):
        CODEC.decode(CODEC.encode(made(5), ROUND), ROUND)


@pytest.mark.parametrize("size", range(4))
def test_a_message_without_a_number_of_mixtures_is_refused(size):
    with pytest.raises(WireError, match="no room for the number of mixtures"):
        CODEC.decode(wire.seal(wire.MIXTURES, 1, ROUND, bytes(size)), ROUND)


@pytest.mark.parametrize(
    "other",
    [MixtureCodec((2, 3), 3, 4), MixtureCodec((1,), 3, 40), MixtureCodec((2, 2), 2, 4)],
    ids=str,
)
def test_samples_of_another_shape_or_more_classes_are_refused(other):
    message = CODEC.encode(Mixtures(np.ones((1, 2, 2)), np.array([0]), np.array([2])), ROUND)
    with pytest.raises(WireError):
        other.decode(message, ROUND)


def test_another_round_codec_or_kind_is_refused():
    message = CODEC.encode(made(2), ROUND)
    with pytest.raises(WireError, match="round 3 where round 4"):
        CODEC.decode(message, 4)
    with pytest.raises(WireError, match="codec 2 where codec 1"):
        CODEC.decode(wire.seal(wire.MIXTURES, 2, ROUND, message[13:]), ROUND)
    with pytest.raises(WireError, match="kind 4 where kind 3"):
        CODEC.decode(wire.seal(wire.ESTIMATES, 1, ROUND, message[13:]), ROUND)


def test_every_flipped_bit_cut_and_extension_is_noticed():
    message = CODEC.encode(made(2), ROUND)
    damaged = [message[:size] for size in range(len(message))] + [
        message + bytes(size) for size in range(1, 60)
    ]
    for bit in range(8 * len(message)):
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for code in damaged:
        with pytest.raises(WireError):
            CODEC.decode(code, ROUND)
