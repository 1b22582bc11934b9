"""Quantised updates: unbiased, relative to the model both ends hold, smaller than weights, and
refused when hostile.
"""

import struct
from math import sqrt
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.codecs import WEIGHT_CODECS, Qsgd, entropy, weight_codec, wire
from fedsift.codecs.updates import implied, quantise
from fedsift.codecs.wire import WireError
from fedsift.types import UserError

ROUND, KEY = 3, (7, 3, 5)
QSGD = Qsgd(4)


def drawing(*draws):
    """A generator that draws what it is told to."""
    return mock.Mock(np.random.Generator, random=lambda size: np.array(draws[:size]))


def state(seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": scale * torch.randn(6, 5, generator=generator),
        "norm.running_mean": torch.randn(5, generator=generator),
        "norm.running_var": torch.rand(5, generator=generator),
        "norm.num_batches_tracked": torch.tensor(2**40 + seed),
        "b": scale * torch.randn(5, generator=generator),
    }


def sent(new, base, codec=QSGD, key=KEY):
    return codec.decode(codec.encode(new, ROUND, 9, base, key), ROUND, base)


def sealed(*parts, codec=QSGD, base=None):
    payload = struct.pack("<I", 9) + b"".join(parts)
    return wire.seal(
        wire.WEIGHTS, codec.id, ROUND, payload, implied(LIKE if base is None else base)
    )


def tensor(norm, levels, codec=QSGD):
    """One tensor of an update as it is written."""
    code = entropy.encode(np.array(levels) + codec.levels, 2 * codec.levels + 1)
    return struct.pack("<fI", norm, len(code)) + code


# --- by hand ---


@pytest.mark.parametrize(
    ("draws", "levels"),
    [((0.1, 0.5), [5, 6]), ((0.1, 0.7), [5, 5]), ((0.3, 0.5), [4, 6]), ((0.3, 0.7), [4, 5])],
)
def test_three_and_four_on_seven_levels(draws, levels):
    # Norm 5: 3 / 5 * 7 = 4.2 is rounded up by a draw below 0.2, 4 / 5 * 7 = 5.6 by one below 0.6.
    assert quantise(np.array([3.0, 4.0]), 7, drawing(*draws))[0] == 5
    assert quantise(np.array([3.0, 4.0]), 7, drawing(*draws))[1].tolist() == levels
    assert quantise(np.array([-3.0, 4.0]), 7, drawing(*draws))[1].tolist() == [
        -levels[0],
        levels[1],
    ]


def test_an_entry_that_is_all_of_the_norm_has_the_highest_level_whatever_is_drawn():
    assert quantise(np.array([0.0, -0.3]), 7, drawing(0, 0))[1].tolist() == [0, -7]
    assert quantise(np.array([0.0, -0.3]), 7, drawing(0.999, 0.999))[1].tolist() == [0, -7]


def test_no_update_has_norm_zero_and_levels_zero():
    norm, levels = quantise(np.zeros(3), 7, drawing(0, 0, 0))
    assert norm == 0
    assert levels.tolist() == [0, 0, 0]


def test_a_message_byte_by_byte():
    # The update (0, 2) has norm 2 = 0x40000000 and levels 0 and 7, sent as 7 and 14 in base 15: 7 +
    # 14 * 15 = 217.
    base = {"w": torch.tensor([1.0, 1.0]), "n": torch.tensor([5], dtype=torch.int16)}
    message = QSGD.encode(
        {"w": torch.tensor([1.0, 3.0]), "n": torch.tensor([6], dtype=torch.int16)}, 3, 9, base, KEY
    )
    assert message[:9] == b"fs" + bytes([1, 2, 20]) + bytes(
        [3, 0, 0, 0]
    )  # version, kind, codec, round; then checksum
    assert message[13:] == bytes([9, 0, 0, 0]) + bytes.fromhex("0600 00000040 02000000 00d9")
    back, samples = QSGD.decode(message, 3, base)
    assert (back["w"].tolist(), back["n"].tolist(), samples) == ([1, 3], [6], 9)


def test_a_message_by_hand_is_added_to_the_base():
    # Norm 7 and levels 2, -1, 0 of 7: the update is (2, -1, 0).
    base = {"w": torch.tensor([[10.0, 20.0, 30.0]])}
    back, samples = QSGD.decode(sealed(tensor(7, [2, -1, 0]), base=base), ROUND, base)
    assert back["w"].tolist() == [[12, 19, 30]]
    assert samples == 9


@pytest.mark.parametrize("bits", range(2, 9))
def test_bits_give_levels_on_both_sides_of_zero(bits):
    assert Qsgd(bits).levels == 2 ** (bits - 1) - 1
    assert weight_codec(f"qsgd({bits})") == Qsgd(bits)


@pytest.mark.parametrize("bits", [0, 1, 9, 2.5, "four"])
def test_other_bits_are_a_mistake(bits):
    with pytest.raises(UserError, match="2 to 8 bits"):
        Qsgd(bits)


# --- unbiased ---


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_mean_of_what_arrives_is_what_was_sent(bits):
    # An entry's level is one of two neighbours, so its variance is at most 1/4 of a squared level.
    x = np.random.default_rng(0).normal(size=20)
    levels, draws = Qsgd(bits).levels, 4000
    generator = np.random.default_rng(1)
    arrived = []
    for _ in range(draws):
        norm, level = quantise(x, levels, generator)
        arrived.append(norm * level / levels)
    assert (np.abs(np.mean(arrived, 0) - x) <= 5 * (norm / levels) * 0.5 / sqrt(draws) + 1e-6).all()


def test_the_mean_of_decoded_messages_is_the_new_state():
    new, base = state(1), state(2)
    level = float((new["w"] - base["w"]).norm()) / QSGD.levels
    mean = torch.stack([sent(new, base, key=(i,))[0]["w"].double() for i in range(2000)]).mean(0)
    assert ((mean - new["w"]).abs() <= 5 * level * 0.5 / sqrt(2000) + 1e-6).all()


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    st.integers(2, 8),
    st.integers(0, 10**6),
)
@settings(max_examples=150)
def test_every_entry_is_off_by_less_than_a_level_and_keeps_its_sign(x, bits, seed):
    x, levels = np.array(x), Qsgd(bits).levels
    norm, level = quantise(x, levels, np.random.default_rng(seed))
    assert (np.abs(level) <= levels).all()
    assert (level * np.sign(x) >= 0).all()
    assert (np.abs(norm * level / levels - x) <= norm / levels * (1 + 1e-6) + 1e-40).all()


# --- round trips ---


def test_no_update_arrives_as_the_base_itself():
    base = state()
    back, _ = sent(base, base)
    assert all(torch.equal(back[name], base[name]) for name in base)


def test_statistics_and_counters_arrive_exactly():
    new, base = state(1), state(2)
    back, samples = sent(new, base)
    assert list(back) == list(new)
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert back[name].dtype == new[name].dtype
        assert torch.equal(back[name], new[name])
    assert samples == 9


@given(st.integers(2, 8), st.integers(0, 10**6), st.floats(1e-6, 100))
@settings(max_examples=50)
def test_parameters_arrive_within_a_level_of_their_tensors_norm(bits, seed, scale):
    base = state(seed)
    new = {
        name: base[name] + scale * value if value.is_floating_point() else value
        for name, value in state(1).items()
    }
    back, _ = sent(new, base, Qsgd(bits))
    for name in ("w", "b"):
        level = (new[name] - base[name]).norm() / Qsgd(bits).levels
        assert back[name].shape == new[name].shape
        assert (back[name] - new[name]).abs().max() <= level + 1e-5 * (1 + scale)


def test_equal_keys_make_equal_messages_and_others_do_not():
    new, base = state(1), state(2)
    assert QSGD.encode(new, 3, 9, base, (1, 2)) == QSGD.encode(new, 3, 9, base, (1, 2))
    assert QSGD.encode(new, 3, 9, base, (1, 2)) != QSGD.encode(new, 3, 9, base, (1, 3))


def test_empty_and_single_tensors_arrive():
    base = {"none": torch.zeros(0, 3), "one": torch.tensor(2.0), "running_none": torch.zeros(0)}
    back, _ = sent(
        {"none": torch.zeros(0, 3), "one": torch.tensor(5.0), "running_none": torch.zeros(0)}, base
    )
    assert back["none"].shape == (0, 3)
    assert back["running_none"].shape == (0,)
    assert back["one"].item() == 5


def test_a_tensor_in_another_memory_order_arrives():
    base = {"w": torch.zeros(3, 4), "count": torch.zeros(2, 3, dtype=torch.int64)}
    new = {"w": 7 * torch.eye(4, 3).T, "count": torch.arange(6).reshape(3, 2).T}
    assert not new["count"].is_contiguous()
    for bits in (2, 8):
        back, _ = sent(new, base, Qsgd(bits))
        assert torch.equal(back["count"], new["count"])
        assert ((back["w"] == 0) | (new["w"] == 7)).all()


@pytest.mark.parametrize("bits", range(2, 9))
def test_an_update_is_no_longer_than_its_bits_and_smaller_than_float16(bits):
    # 5,000 weights of b bits at most (2^b - 1 levels), a norm and a length, the samples and the
    # header.
    base = {"w": torch.zeros(100, 50)}
    new = {"w": torch.randn(100, 50, generator=torch.Generator().manual_seed(0))}
    message = Qsgd(bits).encode(new, ROUND, 9, base, KEY)
    assert len(message) <= 13 + 4 + 8 + 1 + 5000 * bits / 8 * 1.01
    assert len(message) < len(WEIGHT_CODECS["float16"].encode(new, ROUND, 9)) / (1.9 * 8 / bits / 2)


# --- what cannot be sent ---


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_weights_that_diverged_cannot_be_sent(bad):
    # 3e38 is finite, but the norm of five of them is no float32.
    with pytest.raises(UserError, match=r"'b'.*diverged"):
        QSGD.encode({**state(), "b": torch.full((5,), bad)}, ROUND, 9, state(), KEY)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_statistics_that_diverged_cannot_be_sent(bad):
    with pytest.raises(UserError, match=r"'norm.running_var'.*diverged"):
        QSGD.encode({**state(), "norm.running_var": torch.full((5,), bad)}, ROUND, 9, state(), KEY)


# --- what is refused ---

LIKE = {"w": torch.zeros(3)}
OTHER_BASE = "at most .* can be right here|checksum does not match"


def refused(message, like=None, says=None):
    with pytest.raises(WireError, match=says):
        QSGD.decode(message, ROUND, like or LIKE)


@pytest.mark.parametrize("norm", [float("nan"), float("inf"), float("-inf"), -1.0, -1e-30])
def test_an_impossible_norm_is_refused(norm):
    refused(sealed(tensor(norm, [1, 0, 0])), says="impossible norm")


def test_a_norm_that_leads_beyond_the_weights_type_is_refused():
    refused(
        sealed(tensor(3e38, [7, 0, 0]), base={"w": torch.full((3,), 3e38)}),
        {"w": torch.full((3,), 3e38)},
        "'w' are not finite",
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_statistics_that_are_not_finite_are_refused(bad):
    refused(
        sealed(struct.pack("<2f", 1, bad), base={"running_mean": torch.zeros(2)}),
        {"running_mean": torch.zeros(2)},
        "'running_mean' are not finite",
    )


def test_levels_out_of_range_are_refused():
    # Three symbols below 15 are numbers below 3375 = 0xd2f.
    assert QSGD.decode(sealed(struct.pack("<fI", 1, 3) + b"\0\x2e\x0d"), ROUND, LIKE)[0][
        "w"
    ].tolist() == [1, 1, 1]
    refused(sealed(struct.pack("<fI", 1, 3) + b"\0\x2f\x0d"), says="out of range")


@pytest.mark.parametrize("shape", [(0,), (5,), (7,), (300,), (6,), (3, 2), (1, 6)], ids=str)
@pytest.mark.parametrize("scale", [0, 1])
def test_an_update_of_another_shape_is_refused(shape, scale):
    # Six weights of 15 levels take as many bytes as a transposed six, three as many as four: the
    # length alone does not tell.
    like = {"w": torch.zeros(2, 3)}
    message = QSGD.encode({"w": scale * torch.ones(2, 3)}, ROUND, 9, like, KEY)
    assert QSGD.decode(message, ROUND, like)[1] == 9
    refused(message, {"w": torch.zeros(shape)}, OTHER_BASE)


@pytest.mark.parametrize("size", [0, 6, 199, 201, 300, 5000])
def test_an_update_of_many_weights_is_not_one_of_another_number(size):
    # 200 levels that are all zero take next to no bits, so their code could be read on and on.
    like = {"w": torch.zeros(200)}
    message = QSGD.encode(like, ROUND, 9, like, KEY)
    assert QSGD.decode(message, ROUND, like)[1] == 9
    refused(message, {"w": torch.zeros(size)}, OTHER_BASE)


def test_a_missing_and_an_extra_tensor_are_refused():
    one = tensor(1, [1, 0, 0])
    refused(
        sealed(one, base={"w": torch.zeros(3), "v": torch.zeros(3)}),
        {"w": torch.zeros(3), "v": torch.zeros(3)},
        "'w' is cut short",  # tensors go by their names: v was first
    )
    refused(
        sealed(one, base={"w": torch.zeros(3), "n": torch.tensor(1)}),
        {"w": torch.zeros(3), "n": torch.tensor(1)},
        "'w' is cut short",
    )
    refused(sealed(one, one), says="at most")
    refused(sealed(b""), says="'w' is cut short")


def test_bytes_after_the_last_tensor_are_refused():
    levels = [0] * 300  # coded much shorter than packed, so that there is room for more
    refused(
        sealed(tensor(1, levels), b"\0", base={"w": torch.zeros(300)}),
        {"w": torch.zeros(300)},
        "1 bytes after the last tensor",
    )


@pytest.mark.parametrize("length", [0, 1, 2, 4, 2**31, 2**32 - 1])
def test_levels_of_another_length_than_announced_are_refused(length):
    code = tensor(1, [1, 0, 0])
    assert struct.unpack_from("<I", code, 4) == (3,)
    message = sealed(code[:4] + struct.pack("<I", length) + code[8:])
    refused(message, says="bytes of (packed )?symbols|is cut short")


@pytest.mark.parametrize("size", range(4))
def test_a_message_without_a_number_of_samples_is_refused(size):
    refused(
        wire.seal(wire.WEIGHTS, QSGD.id, ROUND, bytes(size), implied(LIKE)),
        says="no room for the number of samples",
    )


def test_another_round_codec_or_kind_is_refused():
    message = QSGD.encode(state(1), ROUND, 9, state(), KEY)
    with pytest.raises(WireError, match="round 3 where round 4"):
        QSGD.decode(message, 4, state())
    with pytest.raises(WireError, match="codec 20 where codec 21"):
        Qsgd(5).decode(message, ROUND, state())
    with pytest.raises(WireError, match="kind 3 where kind 2"):
        QSGD.decode(wire.seal(wire.MIXTURES, QSGD.id, ROUND, message[13:]), ROUND, state())
    with pytest.raises(WireError, match="codec 20 where codec 1"):
        WEIGHT_CODECS["float32"].decode(message, ROUND, state())


def test_every_flipped_bit_and_cut_is_noticed():
    message = QSGD.encode(state(1), ROUND, 9, state(), KEY)
    for size in range(len(message)):
        refused(message[:size], state())
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        refused(bytes(damaged), state())
