"""The envelope: 13 bytes of header, a checksum over everything that matters, and a clear refusal of
anything else.
"""

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.codecs import wire
from fedsift.codecs.wire import WireError

KIND, CODEC, ROUND, PAYLOAD = 1, 2, 258, b"ab"


def opened(message, kind=KIND, codec=CODEC, round=ROUND, limit=100, implied=b""):
    """What a receiver does: look at the header, then verify."""
    payload = wire.unseal(message, kind, codec, round, limit)
    wire.verify(message, implied)
    return payload


def test_a_sealed_message_byte_by_byte():
    # "fs", version 1, kind 1, codec 2, round 258 = 0x102 little-endian, checksum little-endian,
    # payload.
    # The checksum covers version, kind, codec, round and payload: 7 + 2 bytes.
    checksum = zlib.crc32(bytes([1, 1, 2, 0x02, 0x01, 0, 0]) + b"ab")
    expected = (
        b"fs"
        + bytes([1, 1, 2])
        + bytes([0x02, 0x01, 0, 0])
        + checksum.to_bytes(4, "little")
        + b"ab"
    )
    assert wire.seal(1, 2, 258, b"ab") == expected
    assert len(expected) == 13 + 2
    assert wire.HEADER_BYTES == 13


def test_implied_bytes_are_under_the_checksum_but_not_in_the_message():
    message = wire.seal(KIND, CODEC, ROUND, b"ab", b"xyz")
    assert message[9:13] == zlib.crc32(
        bytes([1, 1, 2, 0x02, 0x01, 0, 0]) + b"ab" + b"xyz"
    ).to_bytes(4, "little")
    assert message[13:] == b"ab"
    assert len(message) == len(wire.seal(KIND, CODEC, ROUND, b"ab"))
    assert opened(message, implied=b"xyz") == b"ab"
    for other in (b"", b"xy", b"xyZ", b"xyz\0"):
        with pytest.raises(WireError, match="checksum"):
            opened(message, implied=other)


def test_an_empty_payload_is_a_message_of_thirteen_bytes():
    message = wire.seal(KIND, CODEC, 0, b"")
    assert len(message) == 13
    assert opened(message, round=0, limit=0) == b""


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({"kind": 2}, "message of kind 1 where kind 2 was expected"),
        ({"codec": 1}, "message of codec 2 where codec 1 was expected"),
        ({"round": 259}, "message of round 258 where round 259 was expected"),
    ],
)
def test_an_unexpected_header_field_is_named(expected, says):
    with pytest.raises(WireError, match=says):
        opened(wire.seal(KIND, CODEC, ROUND, PAYLOAD), **expected)


def test_another_version_is_named():
    message = bytearray(wire.seal(KIND, CODEC, ROUND, PAYLOAD))
    message[2] = 2
    with pytest.raises(WireError, match="message of version 2 where version 1 was expected"):
        opened(bytes(message))


def test_a_wrong_checksum_is_named():
    message = bytearray(wire.seal(KIND, CODEC, ROUND, PAYLOAD))
    message[9] ^= 0xFF
    with pytest.raises(WireError, match="checksum"):
        opened(bytes(message))


@pytest.mark.parametrize(
    "foreign",
    [b"GET / HTTP/1.1\r\n", b"\x89PNG\r\n\x1a\n" + bytes(20), bytes(13), b"sf" + bytes(11)],
)
def test_a_foreign_message_is_called_foreign(foreign):
    with pytest.raises(WireError, match="foreign"):
        opened(foreign)


@pytest.mark.parametrize("size", range(13))
def test_less_than_a_header_is_truncated(size):
    with pytest.raises(WireError, match=f"truncated message: {size} bytes"):
        opened(wire.seal(KIND, CODEC, ROUND, PAYLOAD)[:size])


@pytest.mark.parametrize("size", [13, 14])
def test_a_payload_cut_short_does_not_match_its_checksum(size):
    with pytest.raises(WireError, match="checksum"):
        opened(wire.seal(KIND, CODEC, ROUND, PAYLOAD)[:size])


def test_a_message_may_be_as_long_as_the_limit_and_no_longer():
    message = wire.seal(KIND, CODEC, ROUND, bytes(50))  # 63 bytes
    assert opened(message, limit=50) == bytes(50)
    with pytest.raises(WireError, match="message of 63 bytes; at most 62"):
        opened(message, limit=49)


def test_a_byte_appended_is_refused():
    with pytest.raises(WireError, match="checksum"):
        opened(wire.seal(KIND, CODEC, ROUND, PAYLOAD) + b"\0")


def test_every_single_bit_flip_is_refused():
    message = wire.seal(KIND, CODEC, ROUND, b"soft labels", b"implied")
    assert opened(message, implied=b"implied") == b"soft labels"
    for bit in range(8 * len(message)):  # 24 bytes, 192 flips
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            opened(bytes(flipped), implied=b"implied")


byte = st.integers(0, 255)
rounds = st.integers(0, 2**32 - 1)


@given(byte, byte, rounds, st.binary(max_size=80), st.binary(max_size=20))
@settings(deadline=None)
def test_whatever_is_sealed_is_opened(kind, codec, round, payload, implied):
    message = wire.seal(kind, codec, round, payload, implied)
    assert len(message) == 13 + len(payload)
    assert opened(message, kind, codec, round, len(payload), implied) == payload


@given(st.binary(max_size=60), st.booleans())
@settings(deadline=None, max_examples=500)
def test_random_bytes_are_refused_unless_their_checksum_is_right(noise, with_header):
    message = b"fs" + struct.pack("<BBBI", 1, KIND, CODEC, ROUND) + noise if with_header else noise
    try:
        payload = opened(message)
    except WireError:
        return
    assert message == wire.seal(KIND, CODEC, ROUND, payload)
