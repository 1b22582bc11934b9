"""Soft labels as bytes: sizes to the byte, exact round trips, and nothing but WireError for
anything damaged.
"""

import itertools
import struct
import tracemalloc
import zlib
from contextlib import suppress
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsift import seeding
from fedsift.codecs import CODECS, indexes, wire
from fedsift.codecs.wire import WireError
from fedsift.types import Link, SoftLabels, UserError
from tests.helpers.damage import flipped

FLOAT32, FLOAT16 = CODECS["float32"], CODECS["float16"]
BOTH = pytest.mark.parametrize("codec", [FLOAT32, FLOAT16], ids=["float32", "float16"])
SHARED, OWN, CODED = 0, 1, 255  # the first payload byte: how the indexes are given
WAYS = pytest.mark.parametrize("way", [SHARED, OWN, CODED], ids=["shared", "own", "coded"])


def link(round=3, samples=40, classes=3, client=5, seed=7):
    """As `Round.link` makes it: the seed all clients share in a round, then the client's own."""
    return Link(round, samples, classes, ((seed, round, "pick"), (seed, round, "pick", client)))


def drawn(way, size, to=None):
    """Indexes drawn from the shared seed, from the client's own, or from a seed no one else
    knows.
    """
    to = to or link()
    names = {SHARED: to.drawn_from[0], OWN: to.drawn_from[1], CODED: ("a seed of one's own",)}[way]
    return seeding.subset(seeding.rng(*names), to.samples, size)


def rows(size, classes=3, seed=0):
    """Probability rows, float32, peaked as a network's are."""
    return np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), size).astype(np.float32)


def labels_on(index, classes=3, seed=0):
    return SoftLabels(index, rows(len(index), classes, seed))


# --- by hand ---


def test_a_message_with_coded_indexes_byte_by_byte():
    # Samples 1 and 3 of four: rank binom(1, 1) + binom(3, 2) = 4, one byte. 0.5 is 0x3f000000, 0.25
    # is 0x3e800000.
    to = Link(round=3, samples=4, classes=2)
    message = FLOAT32.encode(SoftLabels(np.array([1, 3]), np.array([[0.5, 0.5], [0.25, 0.75]])), to)
    payload = bytes([255]) + bytes([2, 0, 0, 0])  # coded indexes, two rows
    payload += bytes([1, 0, 0, 0]) + bytes([4])  # one byte of code: rank 4
    payload += bytes.fromhex("0000003f 0000003f 0000803e 0000403f")
    assert message[:9] == b"fs" + bytes([1, 1, 1]) + bytes(
        [3, 0, 0, 0]
    )  # version, kind, codec, round; then checksum
    assert message[13:] == payload
    assert len(message) == 13 + 5 + 4 + 1 + 2 * 2 * 4


def test_a_message_with_drawn_indexes_holds_no_index_but_its_checksum_covers_them():
    # float16: 0.5 is 0x3800, 0.25 is 0x3400, 0.75 is 0x3a00.
    to = link(samples=50, classes=2)
    message = FLOAT16.encode(
        SoftLabels(drawn(OWN, 2, to), np.array([[0.5, 0.5], [0.25, 0.75]])), to
    )
    payload = bytes([1]) + bytes([2, 0, 0, 0]) + bytes.fromhex("0038 0038 0034 003a")
    assert message[:9] == b"fs" + bytes([1, 1, 2]) + bytes([3, 0, 0, 0])
    assert message[13:] == payload
    assert len(message) == 13 + 5 + 2 * 2 * 2
    assert message[9:13] != zlib.crc32(message[2:9] + payload).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("codec", "way", "size"),
    [
        (FLOAT32, CODED, 13 + 5 + 4 + 180 + 400 * 10 * 4),  # 1438.4 bits of index: 180 bytes
        (FLOAT32, SHARED, 13 + 5 + 400 * 10 * 4),
        (FLOAT32, OWN, 13 + 5 + 400 * 10 * 4),
        (FLOAT16, CODED, 13 + 5 + 4 + 180 + 400 * 10 * 2),
        (FLOAT16, SHARED, 13 + 5 + 400 * 10 * 2),
        (FLOAT16, OWN, 13 + 5 + 400 * 10 * 2),
    ],
)
def test_400_of_2000_soft_labels_on_ten_classes_to_the_byte(codec, way, size):
    to = link(samples=2000, classes=10)
    message = codec.encode(labels_on(drawn(way, 400, to), classes=10), to)
    assert len(message) == size
    assert message[13] == way


# --- round trips ---


@WAYS
@pytest.mark.parametrize("size", [1, 17, 40])
def test_float32_comes_back_to_the_bit(way, size):
    labels = labels_on(drawn(way, size))
    back = FLOAT32.decode(FLOAT32.encode(labels, link()), link())
    np.testing.assert_array_equal(back.index, labels.index)
    assert back.probs.dtype == np.float32
    assert back.probs.tobytes() == labels.probs.tobytes()
    assert back.weight is None


@WAYS
@pytest.mark.parametrize("size", [1, 17, 40])
def test_float16_comes_back_within_its_precision_and_rows_sum_to_one(way, size):
    # A float16 has 11 significant bits: sent, a value is off by 2^-11 of itself at most; divided by
    # a row sum that
    # may be off by as much again, by 2^-10. Below 2^-14 the spacing stays 2^-24.
    labels = labels_on(drawn(way, size))
    message = FLOAT16.encode(labels, link())
    sent = np.frombuffer(message[-size * 3 * 2 :], "<f2").reshape(size, 3).astype(float)
    assert (np.abs(sent - labels.probs) <= 2**-11 * labels.probs + 2**-25).all()

    back = FLOAT16.decode(message, link())
    np.testing.assert_array_equal(back.index, labels.index)
    assert back.probs.dtype == np.float32
    np.testing.assert_allclose(back.probs.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(back.probs, labels.probs, rtol=2**-10 * 1.01, atol=2**-24)


@BOTH
def test_all_rows_are_one_set_and_need_no_index_bytes(codec):
    # All 40 of 40 is what every seed draws, and without a seed the code of the set is empty: 4
    # bytes say "0 bytes".
    labels = labels_on(np.arange(40))
    assert codec.encode(labels, link())[13] == SHARED
    bare = Link(round=3, samples=40, classes=3)
    message = codec.encode(labels, bare)
    assert len(message) == 13 + 5 + 4 + len(codec.values.pack(labels.probs))
    np.testing.assert_array_equal(codec.decode(message, bare).index, np.arange(40))


@BOTH
def test_half_of_a_large_public_set_passes_the_limit_on_sizes(codec):
    # 5,000 of 10,000: the index code is as long as it can get, 10,000 bits and the coder's state.
    to = Link(round=0, samples=10_000, classes=2)
    labels = labels_on(np.arange(1, 10_000, 2), classes=2)
    assert not indexes._is_ranked(10_000, 5000)
    np.testing.assert_array_equal(codec.decode(codec.encode(labels, to), to).index, labels.index)


@given(
    st.integers(1, 200),
    st.integers(1, 12),
    st.floats(0, 1),
    st.sampled_from([SHARED, OWN, CODED]),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=150)
def test_sizes_and_round_trips_for_any_shape(samples, classes, share, way, seed):
    to = link(samples=samples, classes=classes, client=seed)
    index = drawn(way, round(share * samples), to)
    labels = labels_on(index, classes, seed)
    for codec, width in ((FLOAT32, 4), (FLOAT16, 2)):
        message = codec.encode(labels, to)
        coded = 4 + len(indexes.encode(index, samples)) if message[13] == CODED else 0
        assert len(message) == 13 + 5 + coded + len(index) * classes * width
        assert (
            message[13] == way or message[13] < way
        )  # a seed that happens to draw the same set is used, too
        back = codec.decode(message, to)
        np.testing.assert_array_equal(back.index, index)
        if codec is FLOAT32:
            assert back.probs.tobytes() == labels.probs.tobytes()
        else:
            np.testing.assert_allclose(back.probs, labels.probs, rtol=2**-10 * 1.01, atol=2**-24)


# --- what is refused ---


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_soft_labels_that_are_not_finite_cannot_be_sent(codec, bad):
    labels = labels_on(drawn(SHARED, 4))
    labels.probs[2, 1] = bad
    with pytest.raises(UserError, match="diverged"):
        codec.encode(labels, link())


def resealed(codec, payload, to=None):
    """What a hostile sender who knows the protocol makes of any payload: a message with a right
    checksum.

    The receiver is watched for what it would verify besides the payload, and the message is sealed
    with just that.
    """
    to = to or link()
    implied = [b""]
    with (
        mock.patch.object(wire, "verify", lambda _, more=b"": implied.append(more)),
        suppress(WireError),
    ):
        codec.decode(wire.seal(wire.SOFT_LABELS, codec.values.id, to.round, payload), to)
    return wire.seal(wire.SOFT_LABELS, codec.values.id, to.round, payload, implied[-1])


def with_values(codec, values, way=CODED):
    """One row on sample 7 of 40 (or on a drawn sample), under a right checksum. Rank 7 takes one
    byte.
    """
    indexed = b"\1\0\0\0\7" if way == CODED else b""
    return resealed(
        codec, struct.pack("<BI", way, 1) + indexed + np.array(values, codec.values.dtype).tobytes()
    )


@BOTH
def test_a_message_resealed_unchanged_is_taken(codec):
    for way in (SHARED, OWN, CODED):
        message = codec.encode(labels_on(drawn(way, 6)), link())
        assert resealed(codec, message[13:]) == message
    assert codec.decode(with_values(codec, [0.5, 0.25, 0.25]), link()).index.tolist() == [7]


@BOTH
@WAYS
@pytest.mark.parametrize(
    "values",
    [
        [np.nan, 0.5, 0.5],
        [np.inf, 0, 0],
        [-np.inf, 1, 0],
        [np.inf, -np.inf, 1],
        [1.5, -0.5, 0],
        [0.5, 0.25, 0.125],
        [0.5, 0.5, 0.5],
        [0, 0, 0],
        [1000, 0, 0],
    ],
    ids=str,
)
def test_rows_that_are_not_probabilities_are_refused(codec, way, values):
    with pytest.raises(WireError, match="not probabilities"):
        codec.decode(with_values(codec, values, way), link())


@pytest.mark.parametrize(
    ("codec", "noise"),
    [(FLOAT32, "0100807f 0000003f 0000003f"), (FLOAT16, "017c 0038 0038")],  # 0x7f800001 and 0x7c01
    ids=["float32", "float16"],
)
def test_signalling_nans_are_refused(codec, noise):
    payload = struct.pack("<BI", CODED, 1) + b"\1\0\0\0\7" + bytes.fromhex(noise)
    with pytest.raises(WireError, match="not probabilities"):
        codec.decode(resealed(codec, payload), link())


@BOTH
@WAYS
def test_another_round_is_refused(codec, way):
    message = codec.encode(labels_on(drawn(way, 10)), link())
    with pytest.raises(WireError, match="message of round 3 where round 4"):
        codec.decode(message, link(round=4))


@BOTH
@WAYS
@pytest.mark.parametrize("classes", [1, 2, 4, 6])
def test_another_number_of_classes_is_refused(codec, way, classes):
    message = codec.encode(labels_on(drawn(way, 10)), link())
    with pytest.raises(WireError):
        codec.decode(message, link(classes=classes))


@BOTH
@WAYS
@pytest.mark.parametrize("samples", [39, 41, 80])
def test_another_public_size_is_refused(codec, way, samples):
    # Indexes into a public set of another size are indexes into another public set.
    message = codec.encode(labels_on(drawn(way, 10)), link())
    with pytest.raises(WireError):
        codec.decode(message, link(samples=samples))


@given(
    st.integers(1, 60), st.integers(1, 60), st.floats(0, 1), st.sampled_from([SHARED, OWN, CODED])
)
@settings(deadline=None, max_examples=200)
def test_another_public_size_never_gives_other_indexes(samples, other, share, way):
    to = link(samples=samples)
    labels = labels_on(drawn(way, round(share * samples), to))
    message = FLOAT32.encode(labels, to)
    try:
        back = FLOAT32.decode(message, link(samples=other))
    except WireError:
        return
    np.testing.assert_array_equal(back.index, labels.index)


@BOTH
def test_another_clients_own_draw_is_refused(codec):
    message = codec.encode(labels_on(drawn(OWN, 10)), link(client=5))
    assert message[13] == OWN
    with pytest.raises(WireError, match="checksum"):
        codec.decode(message, link(client=6))


@BOTH
@pytest.mark.parametrize("way", [SHARED, OWN], ids=["shared", "own"])
def test_another_runs_draw_is_refused(codec, way):
    message = codec.encode(labels_on(drawn(way, 10)), link(seed=7))
    with pytest.raises(WireError, match="checksum"):
        codec.decode(message, link(seed=8))


@given(st.integers(1, 40), st.integers(0, 30), st.integers(0, 30))
@settings(deadline=None, max_examples=100)
def test_another_clients_link_never_gives_other_indexes(size, client, other):
    assume(client != other)
    to = link(client=client)
    labels = labels_on(drawn(OWN, size, to))
    try:
        back = FLOAT32.decode(FLOAT32.encode(labels, to), link(client=other))
    except WireError:
        return
    np.testing.assert_array_equal(back.index, labels.index)


def test_a_draw_that_the_receiver_has_no_seed_for_is_refused():
    message = FLOAT32.encode(labels_on(drawn(OWN, 10)), link())
    with pytest.raises(WireError, match="unknown way 1"):
        FLOAT32.decode(message, Link(3, 40, 3, link().drawn_from[:1]))


@WAYS
def test_another_codec_is_refused(way):
    labels = labels_on(drawn(way, 10))
    with pytest.raises(WireError, match="message of codec 1 where codec 2"):
        FLOAT16.decode(FLOAT32.encode(labels, link()), link())
    with pytest.raises(WireError, match="message of codec 2 where codec 1"):
        FLOAT32.decode(FLOAT16.encode(labels, link()), link())


def test_weights_are_not_soft_labels():
    with pytest.raises(WireError, match="kind 2 where kind 1"):
        FLOAT32.decode(wire.seal(wire.WEIGHTS, 1, 3, bytes(20)), link())


@BOTH
@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "no room for the number of rows"),
        (b"\0\1\0\0", "no room for the number of rows"),
        (b"\xff\1\0\0\0", "no room for the indexes"),
        (b"\xff\1\0\0\0\1\0\0", "no room for the indexes"),
        (b"\xff\1\0\0\0\2\0\0\0\7", "indexes are cut short"),
        (b"\xff\1\0\0\0\1\0\0\0\x28", "names no set"),  # rank 40 of 40 single indexes
        (b"\xff\1\0\0\0\2\0\0\0\7\0", "2 bytes of indexes"),
        (b"\xff\1\0\0\0\1\0\0\0\7", "0 bytes of soft labels"),
        (b"\2\1\0\0\0", "unknown way 2"),
        (b"\xfe\1\0\0\0", "unknown way 254"),
        (b"\0\x29\0\0\0", "41 soft labels for a public set of 40"),
    ],
)
def test_a_payload_that_makes_no_sense_is_refused_by_name(codec, payload, says):
    with pytest.raises(WireError, match=says):
        codec.decode(resealed(codec, payload), link())


@BOTH
@pytest.mark.parametrize("mode", [SHARED, OWN, CODED])
@pytest.mark.parametrize("count", [2**32 - 1, 2**31, 2**31 - 1, 2**31 + 2001, 2001])
def test_a_header_that_announces_billions_of_rows_allocates_nothing(codec, mode, count):
    """The highest bit says that votes are sent; 2^31 is no row at all, and refused for the rest."""
    to, rows = link(samples=2000, classes=10), count % 2**31
    says = f"{rows} soft labels" if rows else "checksum|indexes are cut short"
    message = wire.seal(
        wire.SOFT_LABELS, codec.values.id, 3, struct.pack("<BII", mode, count, 2**32 - 1)
    )
    assert peak_bytes_while_refused(codec, message, to, says) < 5_000_000


def test_an_index_code_that_announces_billions_of_bytes_allocates_nothing():
    message = wire.seal(wire.SOFT_LABELS, 1, 3, struct.pack("<BII", CODED, 400, 2**32 - 1))
    assert peak_bytes_while_refused(FLOAT32, message, link(samples=2000), "cut short") < 5_000_000


def test_a_message_longer_than_any_right_one_is_refused_before_it_is_read():
    # At most: 40 rows of 12 bytes, 5 + 4 bytes before them, 40 / 8 + 64 for the indexes, and 4 for
    # the votes of each row.
    message = FLOAT32.encode(labels_on(drawn(SHARED, 10)), link()) + bytes(10_000)
    most = 13 + 5 + 4 + 40 // 8 + 64 + 40 * 4 + 40 * 12
    with pytest.raises(WireError, match=f"at most {most} can be right"):
        FLOAT32.decode(message, link())


def peak_bytes_while_refused(codec, message, to, says):
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=says):
            codec.decode(message, to)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- fuzz: over 20,000 inputs a codec ---


def taken(codec, message, to=None):
    """Whether `message` was decoded; if it was, the result must be soft labels through and
    through.
    """
    to = to or link()
    try:
        labels = codec.decode(message, to)
    except WireError:
        return False
    assert labels.index.dtype == np.int64
    assert (np.diff(labels.index) > 0).all()
    assert ((labels.index >= 0) & (labels.index < to.samples)).all()
    assert labels.probs.shape == (len(labels.index), to.classes)
    assert labels.probs.dtype == np.float32
    assert np.isfinite(labels.probs).all()
    assert (labels.probs >= 0).all()
    votes = np.ones(len(labels)) if labels.weight is None else labels.weight
    assert votes.shape == (len(labels),) and ((votes > 0) & (votes <= to.votes)).all()
    assert (
        np.abs(labels.probs.sum(1, dtype=float) - 1) < (0.01 if codec is FLOAT32 else 1e-6)
    ).all()
    return True


def originals(codec):
    for way, size in itertools.product((SHARED, OWN, CODED), (1, 6, 40)):
        yield codec.encode(labels_on(drawn(way, size)), link())


@BOTH
def test_random_bytes_are_refused(codec):
    generator = np.random.default_rng(1)
    header = codec.encode(labels_on(drawn(SHARED, 1)), link())[:9]
    for _ in range(3000):
        noise = generator.bytes(int(generator.integers(120)))
        assert not taken(codec, noise)
        assert not taken(codec, header + noise)


@BOTH
def test_messages_cut_short_or_extended_are_refused(codec):
    generator = np.random.default_rng(2)
    for message in originals(codec):
        assert taken(codec, message)
        for size in range(len(message)):
            assert not taken(codec, message[:size])
        for size in range(1, 100):
            assert not taken(codec, message + generator.bytes(size))
            assert not taken(codec, message + bytes(size))


@BOTH
def test_messages_with_flipped_bits_are_refused(codec):
    generator = np.random.default_rng(3)
    for message in originals(codec):
        for bit in range(min(8 * len(message), 1000)):
            damaged = bytearray(message)
            damaged[bit // 8] ^= 1 << bit % 8
            assert not taken(codec, bytes(damaged))
        for _ in range(300):
            assert not taken(codec, flipped(message, generator))


@BOTH
def test_damaged_payloads_under_a_right_checksum_are_refused_or_valid(codec):
    generator = np.random.default_rng(4)
    outcomes = []
    for message in originals(codec):
        payload = message[13:]
        for _ in range(400):
            outcomes.append(taken(codec, resealed(codec, flipped(payload, generator))))
            early = flipped(payload[:12], generator) + payload[12:]  # mode, counts, index code
            outcomes.append(taken(codec, resealed(codec, early)))
            cut = payload[: generator.integers(0, len(payload))]
            outcomes.append(taken(codec, resealed(codec, cut)))
            outcomes.append(
                taken(
                    codec, resealed(codec, payload + generator.bytes(int(generator.integers(1, 9))))
                )
            )
    assert any(outcomes)  # some damage (the last bits of a value) leaves soft labels soft labels
    assert not all(outcomes)


@BOTH
def test_payloads_made_up_part_by_part_under_a_right_checksum_are_refused_or_valid(codec):
    generator = np.random.default_rng(5)
    outcomes = []
    for _ in range(4000):
        mode = int(generator.choice([SHARED, OWN, CODED, int(generator.integers(256))]))
        size = int(generator.choice([0, 1, 2, 39, 40, 41, int(generator.integers(2**32))]))
        payload = struct.pack("<BI", mode, size)
        if mode == CODED:
            right = len(indexes.encode(np.arange(size), 40)) if size <= 40 else 3
            code = generator.bytes(right + int(generator.choice([0, 0, 0, 0, 1])))
            payload += (
                struct.pack(
                    "<I", generator.choice([len(code)] * 4 + [int(generator.integers(2**32))])
                )
                + code
            )
        values = rows(min(size, 41), seed=generator.integers(100)).astype(codec.values.dtype)
        if values.size and generator.random() < 0.3:
            values.flat[generator.integers(values.size)] = generator.choice(
                [np.nan, np.inf, -np.inf, -1, 2, 1e-7, 60000]
            )
        outcomes.append(taken(codec, resealed(codec, payload + values.tobytes())))
    assert sum(outcomes) > 100
    assert sum(outcomes) < 3900
