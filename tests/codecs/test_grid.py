"""Weights on a grid: exact sums, exact bytes, and nothing hostile gets through."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.codecs import entropy, grid
from fedsift.codecs.wire import WireError
from fedsift.types import UserError

START = {
    "w": torch.tensor([[1.0, -0.5]]),
    "norm.running_mean": torch.tensor([0.0]),
    "norm.running_var": torch.tensor([1.0]),
    "norm.num_batches_tracked": torch.tensor(7),
}


def ticks(w=(0, 0), mean=0, var=0, count=0):
    return {
        "norm.num_batches_tracked": np.array([count]),
        "norm.running_mean": np.array([mean]),
        "norm.running_var": np.array([var]),
        "w": np.array(w),
    }


# --- by hand ---


def test_ticks_by_hand():
    """2^24 ticks are 1; 2^23 float32 numbers are an octave; a counter counts."""
    moved = grid.move(START, ticks((2**24, -(2**22)), 2**23, -(2**23), 3))
    assert moved["w"].tolist() == [[2.0, -0.75]]
    assert moved["norm.running_mean"].tolist() == [0.5]
    assert moved["norm.running_var"].tolist() == [0.5]  # an octave below 1
    assert moved["norm.num_batches_tracked"].item() == 10
    found = grid.measure(START, moved)
    assert {name: value.tolist() for name, value in found.items()} == {
        "norm.num_batches_tracked": [3],
        "norm.running_mean": [2**23],
        "norm.running_var": [-(2**23)],
        "w": [2**24, -(2**22)],
    }


def test_bytes_by_hand():
    """The zeros of two statistics and w = (3, -1) x 2^20: shift 20 and the numbers 0, 0, 3, -1 as
    digits 3, 3, 6, 2 in base 7, lowest first; the counter, which comes before them, stays."""
    code = grid.encode(ticks((3 * 2**20, -(2**20))), START)
    numbers = np.array([0, 0, 3, -1]) + 3
    packed = entropy.encode(numbers, 7)
    value = 3 + 3 * 7 + 6 * 49 + 2 * 343
    assert packed == b"\0" + value.to_bytes(2, "little")
    length = len(packed).to_bytes(4, "little")
    assert code == b"\1" + bytes([0, 0, 0, 20]) + b"\0" + b"\3" + length + packed
    back = grid.decode(code, START)
    assert back["w"].tolist() == [3 * 2**20, -(2**20)]


def test_no_change_is_one_byte():
    assert grid.encode(ticks(), START) == b"\0"
    assert not any(value.any() for value in grid.decode(b"\0", START).values())


def test_a_variance_stays_positive_whatever_is_taken_away():
    least = grid.move(START, ticks(var=-0x3F800000 + 1))
    assert least["norm.running_var"].item() > 0
    for var in (-0x3F800000 - 1, 0x7F800000 - 0x3F800000):
        with pytest.raises(WireError, match=r"variance 'norm.running_var' below 0 or not finite"):
            grid.move(START, ticks(var=var))


def test_weights_that_are_not_finite_are_refused():
    half = {"w": torch.tensor([1.0], dtype=torch.float16)}
    with pytest.raises(WireError, match="'w' that are not finite"):
        grid.move(half, {"w": np.array([2**24 * 70000])})


def test_weights_that_went_too_far_are_the_users_problem():
    with pytest.raises(UserError, match=r"'w' are too far from the first ones .* use float32"):
        grid.measure({"w": torch.zeros(2)}, {"w": torch.tensor([0.0, 1e30])})


# --- properties ---

NUMBERS = st.one_of(
    st.integers(-3, 3), st.integers(-200, 200), st.integers(-grid.FARTHEST, grid.FARTHEST)
)


@given(st.lists(NUMBERS, min_size=1, max_size=40), st.lists(NUMBERS, min_size=1, max_size=5))
@settings(max_examples=200)
def test_ticks_come_back_exactly_within_the_bound(numbers, counts):
    like = {
        "a": torch.zeros(len(numbers)),
        "b": torch.zeros(300),
        "c": torch.zeros(len(counts), dtype=torch.int64),
        "none": torch.zeros(0, 3),
    }
    sent = {
        "a": np.array(numbers),
        "b": np.resize(np.array(numbers), 300),
        "c": np.array(counts),
        "none": np.zeros(0, np.int64),
    }
    code = grid.encode(sent, like)
    assert len(code) <= grid.max_bytes(like)
    back = grid.decode(code, like)
    assert all(np.array_equal(back[name], sent[name]) for name in like)


@given(st.lists(st.integers(-1000, 1000), min_size=6, max_size=6), st.integers(0, 2**30))
@settings(max_examples=100)
def test_two_updates_one_after_the_other_are_their_sum(numbers, seed):
    generator = np.random.default_rng(seed)
    start = {
        "w": torch.from_numpy(generator.normal(size=3).astype(np.float32)),
        "running_var": torch.from_numpy(generator.random(3).astype(np.float32) + 0.5),
    }
    one = {"w": np.array(numbers[:3]) << 12, "running_var": np.array(numbers[3:]) << 9}
    other = {"w": np.array(numbers[3:]) << 15, "running_var": np.array(numbers[:3]) << 7}
    joint = grid.decode(grid.encode(grid.add(one, other), start), start)
    assert all(np.array_equal(joint[name], one[name] + other[name]) for name in joint)
    assert all(
        np.array_equal(grid.subtract(joint, one)[name], other[name])
        for name in ("w", "running_var")
    )
    there = grid.move(start, joint)
    assert np.allclose(grid.measure(start, there)["running_var"], joint["running_var"])


# --- hostile ---


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (b"", "no update of this model"),
        (b"\2" + bytes(20), "no update of this model"),
        (b"\1\0\0\0\0", "cut short or goes too far"),
        (b"\1\0\0\0\0\3\xff\xff\xff\xff", "cut short"),
        (b"\1\0\0\0\0\0\0\0", "1 bytes after the last tensor"),
        (b"\1\0\0\0\0\x80", "goes too far"),
    ],
)
def test_hostile_codes_are_refused(code, says):
    with pytest.raises(WireError, match=says):
        grid.decode(code, START)


def test_a_shift_that_goes_too_far_is_refused():
    code = bytearray(grid.encode(ticks((1, 0)), START))
    assert code[4] == 0
    code[4] = 52
    assert grid.decode(bytes(code), START)["w"].tolist() == [2**52, 0]
    for shift in (53, 63, 64, 255):
        code[4] = shift
        with pytest.raises(WireError, match="goes too far"):
            grid.decode(bytes(code), START)
