import hashlib
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift import seeding

NAMES = st.lists(st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=5)), max_size=4)


def draw(*names: int | str) -> list[int]:
    return seeding.rng(*names).integers(0, 1000, 5).tolist()


def test_a_digest_is_the_sha256_of_the_names_as_json():
    assert seeding.digest(0, "split") == hashlib.sha256(b'[0, "split"]').digest()


def test_known_values_never_change():
    # Pinned on purpose. Every recorded run, and both ends of every link, rest on these streams: if
    # this test fails
    # (a new numpy, a change in `seeding`), old runs cannot be resumed and old messages cannot be
    # read.
    assert draw(0, "split") == [122, 124, 771, 795, 482]
    assert seeding.rng(0, "split").permutation(6).tolist() == [5, 0, 2, 1, 3, 4]
    assert seeding.subset(seeding.rng(7, 3, "pick"), 500, 6).tolist() == [
        115,
        165,
        268,
        314,
        408,
        439,
    ]
    assert seeding.torch_seed(0, "init", "cnn") == 69402763205412154


def test_equal_names_give_equal_streams():
    assert draw(1, "pick", 4) == draw(1, "pick", 4)


def test_numpy_integers_count_as_integers():
    three: Any = np.int64(3)
    assert seeding.digest(three, "a") == seeding.digest(3, "a")
    assert draw(three) == draw(3)


def test_a_number_and_its_text_are_different_names():
    assert draw(3) != draw("3")


def test_order_and_grouping_of_names_matter():
    digests = {
        seeding.digest(*names) for names in [(1, 2), (2, 1), (12,), ("1", "2"), ("12",), (1, 2, "")]
    }
    assert len(digests) == 6


@given(NAMES, NAMES)
def test_different_names_never_share_a_digest(one, other):
    assert (seeding.digest(*one) == seeding.digest(*other)) == (one == other)


@given(NAMES)
def test_a_torch_seed_is_one_that_torch_takes(names):
    assert 0 <= seeding.torch_seed(*names) < 2**56


def test_global_random_state_is_neither_read_nor_changed():
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    first = draw(5)
    np.random.seed(99)  # noqa: NPY002
    torch.manual_seed(99)
    legacy, torchs = np.random.get_state(legacy=False), torch.get_rng_state()  # noqa: NPY002
    assert draw(5) == first
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert str(after) == str(legacy)
    assert torch.equal(torch.get_rng_state(), torchs)


@given(st.data(), st.integers(1, 300), st.integers(0, 1000))
def test_a_subset_is_ascending_distinct_and_in_range(data, population, seed):
    size = data.draw(st.integers(0, population))
    subset = seeding.subset(seeding.rng(seed), population, size)
    assert subset.dtype == np.int64
    assert len(subset) == size
    assert (np.diff(subset) > 0).all()
    assert size == 0 or (subset[0] >= 0 and subset[-1] < population)


def test_every_sample_is_equally_likely_to_be_in_a_subset():
    # 2 of 5 in 2,000 draws: each 800 times, deviation sqrt(2000 * .4 * .6) = 22; four deviations
    # are allowed.
    counts = np.bincount(
        np.concatenate([seeding.subset(seeding.rng(i), 5, 2) for i in range(2000)]), minlength=5
    )
    assert np.abs(counts - 800).max() < 88
