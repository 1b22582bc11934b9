"""Estimates as bytes: their length to the byte, and tables that are no estimates are refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.codecs import wire
from fedsift.codecs.estimates import ESTIMATE_CODECS, LARGEST
from fedsift.codecs.wire import WireError

FLOAT32, FLOAT16 = ESTIMATE_CODECS["float32"], ESTIMATE_CODECS["float16"]
BOTH = pytest.mark.parametrize("codec", [FLOAT32, FLOAT16], ids=["float32", "float16"])
ROUND = 3
TABLE = np.array([[0.5, -0.25, 0.75], [1.5, 0, 2]])


def sealed(codec, values):
    """Any two rows of three values under a right checksum."""
    return wire.seal(wire.ESTIMATES, codec.id, ROUND, np.array(values, codec.dtype).tobytes())


def test_a_message_byte_by_byte():
    # float16: 0.5 is 0x3800, -0.25 is 0xb400.
    message = FLOAT16.encode(np.array([[0.5, -0.25]]), ROUND)
    assert message[:9] == b"fs" + bytes([1, 4, 2]) + bytes(
        [3, 0, 0, 0]
    )  # version, kind, codec, round; then checksum
    assert message[13:] == bytes.fromhex("0038 00b4")


@BOTH
def test_values_that_the_type_holds_come_back_exactly(codec):
    back = codec.decode(codec.encode(TABLE, ROUND), ROUND, 2, 3)
    assert back.dtype == np.float64
    assert back.tolist() == TABLE.tolist()


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 10**6))
def test_a_message_is_13_bytes_and_the_width_of_each_value(rows, classes, seed):
    table = np.random.default_rng(seed).normal(0.5, 1, (rows, classes))
    for codec, width, precision in ((FLOAT32, 4, 2**-24), (FLOAT16, 2, 2**-11)):
        message = codec.encode(table, ROUND)
        assert len(message) == codec.size(rows, classes) == 13 + width * rows * classes
        np.testing.assert_allclose(
            codec.decode(message, ROUND, rows, classes), table, rtol=precision, atol=2**-24
        )


@BOTH
def test_the_largest_value_is_16(codec):
    assert LARGEST == 16
    found = codec.decode(sealed(codec, [16, -16, 0, 0, 0, 0]), ROUND, 2, 3)
    assert found[0].tolist() == [16, -16, 0]


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 16.02, -16.02, 60_000])
def test_values_that_are_not_finite_or_too_large_are_refused(codec, bad):
    with pytest.raises(WireError, match="not finite or far out of range"):
        codec.decode(sealed(codec, [0, 1, 2, bad, 4, 5]), ROUND, 2, 3)


@pytest.mark.parametrize(
    ("codec", "noise"),
    [(FLOAT32, struct.pack("<I", 0x7F800001)), (FLOAT16, struct.pack("<H", 0x7C01))],
    ids=["float32", "float16"],
)
def test_signalling_nans_are_refused(codec, noise):
    with pytest.raises(WireError, match="not finite"):
        codec.decode(wire.seal(wire.ESTIMATES, codec.id, ROUND, 6 * noise), ROUND, 2, 3)


@BOTH
@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_fewer_values_than_both_ends_know_of_are_refused(codec, count):
    with pytest.raises(WireError, match="bytes of estimates instead of"):
        codec.decode(sealed(codec, [0.5] * count), ROUND, 2, 3)


@BOTH
@pytest.mark.parametrize("count", [7, 12, 100_000])
def test_more_values_than_both_ends_know_of_are_refused(codec, count):
    with pytest.raises(WireError, match="at most"):
        codec.decode(sealed(codec, [0.5] * count), ROUND, 2, 3)


@BOTH
def test_a_cut_byte_is_refused(codec):
    payload = codec.encode(TABLE, ROUND)[13:-1]
    with pytest.raises(WireError, match="bytes of estimates instead of"):
        codec.decode(wire.seal(wire.ESTIMATES, codec.id, ROUND, payload), ROUND, 2, 3)


@BOTH
def test_another_round_codec_or_kind_is_refused(codec):
    message = codec.encode(TABLE, ROUND)
    with pytest.raises(WireError, match="round 3 where round 4"):
        codec.decode(message, 4, 2, 3)
    with pytest.raises(WireError, match="kind 3 where kind 4"):
        codec.decode(wire.seal(wire.MIXTURES, codec.id, ROUND, message[13:]), ROUND, 2, 3)
    with pytest.raises(WireError, match="codec 9 where codec"):
        codec.decode(wire.seal(wire.ESTIMATES, 9, ROUND, message[13:]), ROUND, 2, 3)


@BOTH
def test_every_flipped_bit_is_noticed(codec):
    message = codec.encode(TABLE, ROUND)
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            codec.decode(bytes(damaged), ROUND, 2, 3)
