"""Weights as bytes: what was sent comes back to the bit, and nothing gets in that is not the
expected model.
"""

import json
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fedsift.codecs import WEIGHT_CODECS, wire
from fedsift.codecs.wire import WireError
from fedsift.models import initial_state, make_model
from fedsift.types import UserError
from tests.helpers.damage import flipped

FLOAT32, FLOAT16 = WEIGHT_CODECS["float32"], WEIGHT_CODECS["float16"]
BOTH = pytest.mark.parametrize("codec", [FLOAT32, FLOAT16], ids=["float32", "float16"])
ROUND = 3

# Small enough to try every bit: two parameters, a running mean and a counter.
SMALL = {
    "w": torch.tensor([[0.5, -1.0, 0.25], [2.0, -0.0, -0.125]]),
    "b": torch.tensor([1.0, -2.0]),
    "norm.mean": torch.tensor([0.75]),
    "norm.seen": torch.tensor(12_345_678_901),
}


def trained(name):
    """A model's state after some life: no tensor as it was made, counters above what 32 bits
    hold.
    """
    state = initial_state(make_model(name, (3, 8, 8), 10), seed=0)
    generator = torch.Generator().manual_seed(1)
    return {
        key: value + torch.rand(value.shape, generator=generator)
        if value.is_floating_point()
        else value + 2**40 + 7
        for key, value in state.items()
    }


def sent(codec, state, samples=0, like=None):
    return codec.decode(codec.encode(state, ROUND, samples), ROUND, like or state)


def same(found, expected):
    """Names in order, shapes, types, and every bit (so that 0.0 is not -0.0)."""
    return list(found) == list(expected) and all(
        found[name].dtype == value.dtype
        and found[name].shape == value.shape
        and torch.equal(found[name].flatten().view(torch.uint8), value.flatten().view(torch.uint8))
        for name, value in expected.items()
    )


# --- by hand ---


def test_a_message_byte_by_byte():
    # 9 samples; then safetensors: the length of its JSON header (54 characters, padded to 56), the
    # header, the values.
    # 1.0 is 0x3f800000, -2.0 is 0xc0000000.
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  '
    payload = (
        bytes([9, 0, 0, 0])
        + bytes([56, 0, 0, 0, 0, 0, 0, 0])
        + header
        + bytes.fromhex("0000803f 000000c0")
    )
    checksum = zlib.crc32(bytes([1, 2, 1, 3, 0, 0, 0]) + payload)
    expected = b"fs" + bytes([1, 2, 1, 3, 0, 0, 0]) + checksum.to_bytes(4, "little") + payload
    assert FLOAT32.encode({"a": torch.tensor([1.0, -2.0])}, round=3, samples=9) == expected
    assert len(expected) == 13 + 4 + 8 + 56 + 8


def test_float16_halves_the_floats_and_leaves_counters_alone():
    # 1.0 is 0x3c00, -2.0 is 0xc000; the counter keeps its 8 bytes. safetensors puts the wider type
    # first.
    message = FLOAT16.encode({"a": torch.tensor([1.0, -2.0]), "n": torch.tensor(258)}, ROUND)
    assert message.endswith(bytes([2, 1, 0, 0, 0, 0, 0, 0]) + bytes.fromhex("003c 00c0"))


@pytest.mark.parametrize("name", ["cnn", "resnet8", "mlp"])
def test_a_message_is_17_bytes_and_the_safetensors(name):
    state = trained(name)
    assert len(FLOAT32.encode(state, ROUND, 5)) == 13 + 4 + len(save(state))
    halves = {
        key: value.half() if value.is_floating_point() else value for key, value in state.items()
    }
    assert len(FLOAT16.encode(state, ROUND, 5)) == 13 + 4 + len(save(halves))


# --- round trips ---


@pytest.mark.parametrize("name", ["cnn", "resnet8", "resnet8(norm=group, width=0.5)"])
def test_float32_comes_back_to_the_bit(name):
    state = trained(name)
    back, _ = sent(FLOAT32, state)
    assert same(back, state)


def test_batch_norm_statistics_and_counters_travel():
    state = trained("resnet8")
    fresh = initial_state(make_model("resnet8", (3, 8, 8), 10), seed=1)
    back, _ = sent(FLOAT32, state, like=fresh)
    assert torch.equal(back["norm.running_mean"], state["norm.running_mean"])
    assert torch.equal(back["norm.running_var"], state["norm.running_var"])
    assert back["norm.num_batches_tracked"].dtype == torch.int64
    assert back["norm.num_batches_tracked"].item() == 2**40 + 7


@pytest.mark.parametrize("name", ["cnn", "resnet8"])
def test_float16_comes_back_within_its_precision(name):
    # 11 significant bits: off by 2^-11 of the value at most, and by 2^-25 below 2^-14.
    state = trained(name)
    back, _ = sent(FLOAT16, state)
    assert list(back) == list(state)
    for key, value in state.items():
        assert back[key].dtype == value.dtype
        if value.is_floating_point():
            assert ((back[key] - value).abs() <= 2**-11 * value.abs() + 2**-25).all()
        else:
            assert torch.equal(back[key], value)


@BOTH
@pytest.mark.parametrize("samples", [0, 1, 60_000, 2**32 - 1])
def test_the_number_of_samples_travels(codec, samples):
    assert sent(codec, SMALL, samples)[1] == samples


def test_memory_layout_does_not_matter():
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert same(sent(FLOAT32, {"x": image.to(memory_format=torch.channels_last)})[0], {"x": image})
    table = torch.arange(6).reshape(2, 3)
    assert same(sent(FLOAT32, {"x": table.t()})[0], {"x": table.t()})


def test_what_is_decoded_can_be_trained_in_place_without_touching_the_message():
    message = FLOAT32.encode(SMALL, ROUND)
    state, _ = FLOAT32.decode(message, ROUND, SMALL)
    state["w"].add_(1)
    assert same(FLOAT32.decode(message, ROUND, SMALL)[0], SMALL)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_in_another_type_gets_its_own_type_back(dtype):
    # float32 holds every bfloat16 and float16 exactly; these float64 values are multiples of 1/8.
    state = {"w": (torch.arange(10_000) % 100 / 8).to(dtype), "mask": torch.tensor([True, False])}
    assert same(sent(FLOAT32, state)[0], state)


floats = st.floats(-60_000, 60_000, width=16)


@given(
    st.dictionaries(st.text("abc._019", min_size=1), st.lists(floats, max_size=5), max_size=4),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=100)
def test_any_state_that_float16_holds_comes_back_to_the_bit_from_both(values, samples):
    state = {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}
    for codec in (FLOAT32, FLOAT16):
        back, count = sent(codec, state, samples)
        assert same(back, state)
        assert count == samples


# --- what cannot be sent ---


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_cannot_be_sent(codec, bad):
    with pytest.raises(UserError, match=r"'b'.*diverged"):
        codec.encode({**SMALL, "b": torch.tensor([bad, 0.0])}, ROUND)


def test_weights_too_large_for_float16_ask_for_float32():
    # The largest float16 is 65,504; 65,520 and above round to infinity.
    assert sent(FLOAT16, {"b": torch.tensor([65_504.0])})[0]["b"].item() == 65_504
    with pytest.raises(UserError, match=r"'b'.*use float32"):
        FLOAT16.encode({"b": torch.tensor([65_520.0])}, ROUND)


# --- what is refused ---


@BOTH
def test_weights_of_another_architecture_are_refused(codec):
    with pytest.raises(WireError):
        codec.decode(codec.encode(trained("cnn"), ROUND), ROUND, trained("resnet8"))
    with pytest.raises(WireError):
        codec.decode(codec.encode(trained("resnet8"), ROUND), ROUND, trained("cnn"))


def test_weights_of_the_same_architecture_in_another_size_are_refused():
    with pytest.raises(WireError, match=r"weights '.*' are \(.*\) torch.float32, not \("):
        sent(FLOAT32, trained("resnet8(width=0.5)"), like=trained("resnet8"))


@BOTH
def test_a_missing_tensor_is_named(codec):
    with pytest.raises(WireError, match="another model: tensors 'b' are not"):
        sent(codec, {name: value for name, value in SMALL.items() if name != "b"}, like=SMALL)


@BOTH
def test_an_extra_tensor_is_named(codec):
    with pytest.raises(WireError, match="another model: tensors 'x' are not"):
        sent(codec, {**SMALL, "x": torch.zeros(2)}, like=SMALL)


@BOTH
@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 2, 3), (2, 4), (0, 3), ()])
def test_another_shape_is_named(codec, shape):
    with pytest.raises(WireError, match="weights 'w' are"):
        sent(codec, {**SMALL, "w": torch.zeros(shape)}, like=SMALL)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.float64, torch.bfloat16, torch.int32, torch.complex64, torch.bool],
)
def test_another_type_of_a_parameter_is_refused(dtype):
    with pytest.raises(WireError, match="weights 'b' are"):
        FLOAT32.decode(sealed(save({**SMALL, "b": torch.zeros(2, dtype=dtype)})), ROUND, SMALL)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.uint8, torch.float32, torch.float64, torch.bool]
)
def test_another_type_of_a_counter_is_refused(dtype):
    with pytest.raises(WireError, match=r"weights 'norm.seen' are"):
        FLOAT32.decode(
            sealed(save({**SMALL, "norm.seen": torch.tensor(1, dtype=dtype)})), ROUND, SMALL
        )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(WireError, match="weights 'b' are not finite"):
        FLOAT32.decode(sealed(save({**SMALL, "b": torch.tensor([0.0, bad])})), ROUND, SMALL)


def test_values_that_the_receivers_type_cannot_hold_are_refused():
    # 1e30 is a fine float32, but a model kept in float16 would receive infinity.
    with pytest.raises(WireError, match="weights 'b'"):
        FLOAT32.decode(
            sealed(save({"b": torch.tensor([1e30])})),
            ROUND,
            {"b": torch.zeros(1, dtype=torch.float16)},
        )


def test_another_round_codec_or_kind_is_refused():
    message = FLOAT32.encode(SMALL, ROUND)
    with pytest.raises(WireError, match="round 3 where round 4"):
        FLOAT32.decode(message, 4, SMALL)
    with pytest.raises(WireError, match="codec 1 where codec 2"):
        FLOAT16.decode(message, ROUND, SMALL)
    with pytest.raises(WireError, match="kind 1 where kind 2"):
        FLOAT32.decode(wire.seal(wire.SOFT_LABELS, 1, ROUND, message[13:]), ROUND, SMALL)


def test_a_message_much_longer_than_the_model_is_refused_before_it_is_read():
    with pytest.raises(WireError, match="at most"):
        FLOAT32.decode(FLOAT32.encode(SMALL, ROUND) + bytes(10_000), ROUND, SMALL)


# --- hostile safetensors under a right checksum ---


def sealed(tensors, codec=FLOAT32):
    return wire.seal(wire.WEIGHTS, codec.id, ROUND, struct.pack("<I", 9) + tensors)


LIKE = {"w": torch.zeros(2, 3), "n": torch.tensor(0)}
DATA = struct.pack("<6fq", 1, 2, 3, 4, 5, 6, 7)  # 24 bytes of w, 8 bytes of n


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


W, N = entry("F32", [2, 3], 0, 24), entry("I64", [], 24, 32)


def tensors(header, data=DATA, length=None):
    """safetensors with any header: a dict, or raw bytes, under any length."""
    code = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(code) if length is None else length) + code + data


def test_safetensors_written_by_hand_are_taken():
    state, samples = FLOAT32.decode(sealed(tensors({"w": W, "n": N})), ROUND, LIKE)
    assert state["w"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (state["n"].item(), samples) == (7, 9)


HOSTILE_HEADERS = {
    "nothing": b"",
    "no object": b"[]",
    "no tensors": {},
    "not UTF-8": b'{"w\xff":1}',
    "half a surrogate": b'{"\\ud800":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}',
    "deep nesting": b'{"w":' + b"[" * 1000,
    "zero bytes after it": json.dumps({"w": W, "n": N}).encode() + bytes(3),
    "metadata of the wrong type": {"__metadata__": {"a": 3}, "w": W, "n": N},
    "a tensor as metadata": {"__metadata__": W, "w": W, "n": N},
    "unknown type": {"w": entry("X32", [2, 3], 0, 24), "n": N},
    "shape beyond 64 bits": {"w": entry("F32", [2**62, 4], 0, 24), "n": N},
    "shape far beyond 64 bits": {"w": entry("F32", [2**32] * 3, 0, 24), "n": N},
    "shape larger than the data": {"w": entry("F32", [2**20, 3], 0, 24), "n": N},
    "shape and offsets larger than the data": {
        "w": entry("F32", [2**30, 3], 0, 12 * 2**30),
        "n": N,
    },
    "empty and endless": {"w": entry("F32", [0, 2**63], 0, 0), "n": entry("I64", [4], 0, 32)},
    "negative shape": {"w": entry("F32", [-2, -3], 0, 24), "n": N},
    "fractional shape": {"w": entry("F32", [2.0, 3], 0, 24), "n": N},
    "many dimensions": {"w": entry("F32", [1] * 100 + [2, 3], 0, 24), "n": N},
    "overlapping offsets": {"w": W, "n": entry("I64", [], 16, 24)},
    "the same offsets": {"w": W, "n": entry("I64", [3], 0, 24)},
    "offsets backwards": {"w": entry("F32", [2, 3], 24, 0), "n": N},
    "offsets with a gap": {"w": entry("F32", [2, 2], 0, 16), "n": N},
    "offsets beyond the data": {"w": W, "n": entry("I64", [2], 24, 40)},
    "offsets at the end of 64 bits": {"w": entry("F32", [2, 3], 2**64 - 25, 2**64 - 1), "n": N},
    "offsets beyond 64 bits": {"w": entry("F32", [2, 3], 0, 2**70), "n": N},
    "negative offsets": {"w": entry("F32", [2, 3], -24, 0), "n": N},
    "data that belongs to no tensor": {"w": W},
}


@pytest.mark.parametrize("header", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
def test_a_hostile_header_is_refused(header):
    with pytest.raises(WireError):
        FLOAT32.decode(sealed(tensors(header)), ROUND, LIKE)


FORGED = "X`\n2026-07-01T00:00:00.000+00:00 INFO fedsift: round 7 done\x1b[31m"
FORGERIES = {
    "a type": {"w": W | {"dtype": FORGED}, "n": N},
    "a key": {"w": W | {FORGED: 1}, "n": N},
    "a tensor": {FORGED: W, "n": N},
    "no tensor": {FORGED: 3},
    "an endless name": {"Z" * 300_000: W, "n": N},
    "an endless type": {"w": W | {"dtype": "Z" * 300_000}, "n": N},
    "endless dimensions": {"w": entry("F32", [1] * 100_000 + [2, 3], 0, 24), "n": N},
}


@pytest.mark.parametrize("header", FORGERIES.values(), ids=FORGERIES)
def test_a_header_cannot_write_lines_or_pages_into_the_reason(header):
    """It goes into logs and ledgers."""
    large = LIKE | {"n": torch.zeros(100_000)}
    with pytest.raises(WireError) as caught:
        FLOAT32.decode(sealed(tensors(header)), ROUND, large)
    assert len(str(caught.value)) <= 500 and str(caught.value).isprintable()
    assert not caught.value.__cause__


@pytest.mark.parametrize(
    "length", [0, 1, 7, 1000, 10**8, 10**8 + 1, 2**32, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]
)
def test_a_header_of_another_length_than_announced_is_refused(length):
    with pytest.raises(WireError, match="not a safetensors payload"):
        FLOAT32.decode(sealed(tensors({"w": W, "n": N}, length=length)), ROUND, LIKE)


@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA + b"\0"], ids=["none", "cut", "extended"])
def test_data_of_another_length_than_announced_is_refused(data):
    with pytest.raises(WireError, match="not a safetensors payload"):
        FLOAT32.decode(sealed(tensors({"w": W, "n": N}, data)), ROUND, LIKE)


@pytest.mark.parametrize("size", range(13))
def test_a_payload_too_short_for_any_header_is_refused(size):
    with pytest.raises(WireError):
        FLOAT32.decode(wire.seal(wire.WEIGHTS, 1, ROUND, bytes(size)), ROUND, LIKE)


# --- fuzz: over 20,000 inputs a codec ---


def taken(codec, message, like=SMALL):
    """Whether `message` was decoded; if it was, the result must be the expected model through and
    through.
    """
    try:
        state, samples = codec.decode(message, ROUND, like)
    except WireError:
        return False
    assert list(state) == list(like)
    for name, expected in like.items():
        assert state[name].shape == expected.shape
        assert state[name].dtype == expected.dtype
        assert torch.isfinite(state[name]).all()
    assert 0 <= samples < 2**32
    return True


@BOTH
def test_random_bytes_are_refused(codec):
    generator = np.random.default_rng(1)
    header = codec.encode(SMALL, ROUND)[:9]
    for _ in range(3000):
        noise = generator.bytes(int(generator.integers(400)))
        assert not taken(codec, noise)
        assert not taken(codec, header + noise)


@BOTH
def test_messages_cut_short_extended_or_flipped_are_refused(codec):
    generator = np.random.default_rng(2)
    message = codec.encode(SMALL, ROUND, 9)
    assert taken(codec, message)
    for size in range(len(message)):
        assert not taken(codec, message[:size])
    for size in range(1, 500):
        assert not taken(codec, message + generator.bytes(size))
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not taken(codec, bytes(damaged))
    for _ in range(1000):
        assert not taken(codec, flipped(message, generator))


@BOTH
def test_damaged_payloads_under_a_right_checksum_are_refused_or_valid(codec):
    generator = np.random.default_rng(3)
    code = codec.encode(SMALL, ROUND)[17:]
    header = 8 + struct.unpack_from("<Q", code)[0]  # where the values begin
    outcomes = []
    for _ in range(3000):
        outcomes.append(taken(codec, sealed(flipped(code, generator), codec)))
        outcomes.append(
            taken(codec, sealed(flipped(code[:header], generator, 2) + code[header:], codec))
        )
        outcomes.append(taken(codec, sealed(code[: generator.integers(len(code))], codec)))
        outcomes.append(
            taken(codec, sealed(code[:header] + generator.bytes(len(code) - header), codec))
        )
    assert any(outcomes)  # other finite values are other weights of the same model
    assert not all(outcomes)


@BOTH
def test_headers_with_replaced_numbers_and_words_are_refused_or_valid(codec):
    generator = np.random.default_rng(4)
    code = codec.encode(SMALL, ROUND)[17:]
    header = 8 + struct.unpack_from("<Q", code)[0]
    words = json.loads(code[8:header])
    numbers: list[object] = [
        0,
        1,
        2,
        3,
        4,
        8,
        24,
        2**31,
        2**32,
        2**62,
        2**63,
        2**64 - 1,
        2**64,
        -1,
        0.5,
        None,
        "1",
        [],
        {},
    ]
    types: list[object] = [
        "F16",
        "F32",
        "F64",
        "BF16",
        "F8_E4M3",
        "F4",
        "C64",
        "I64",
        "U64",
        "I32",
        "BOOL",
        "",
        7,
    ]
    outcomes = []
    for _ in range(4000):
        other = json.loads(json.dumps(words))
        name = generator.choice(list(other))
        what = generator.choice(
            ["dtype", "shape", "shape", "data_offsets", "data_offsets", "name", "drop", "nothing"]
        )
        if what == "dtype":
            other[name]["dtype"] = types[generator.integers(len(types))]
        elif what in ("shape", "data_offsets"):
            listed = other[name][what]
            listed.insert(
                generator.integers(len(listed) + 1), numbers[generator.integers(len(numbers))]
            )
            if generator.random() < 0.8:
                del listed[generator.integers(len(listed))]
        elif what == "name":
            other[generator.choice(["w", "b", "x", "__metadata__"])] = other.pop(name)
        elif what == "drop":
            del other[name][generator.choice(["dtype", "shape", "data_offsets"])]
        outcomes.append(taken(codec, sealed(tensors(other, code[header:]), codec)))
    assert any(outcomes)
    assert not all(outcomes)
