"""Where the bytes of a message go."""

from dataclasses import astuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsift import seeding
from fedsift.codecs import CODECS, WEIGHT_CODECS
from fedsift.codecs.parts import Parts, split_parts
from fedsift.types import Link, SoftLabels


def labels(*index: int) -> SoftLabels:
    return SoftLabels(np.array(index), np.full((len(index), 2), 0.5, np.float32))


def test_chosen_rows_by_hand():
    # 13 bytes of envelope, 1 + 4 in front, 4 for the length of the code: 22. Three of 8 samples
    # are one of 56 sets: 6 bits, 1 byte. Three rows of two float32: 24.
    message = CODECS["float32"].encode(labels(0, 2, 5), Link(7, 8, 2))
    assert split_parts(message, 7) == Parts(22, 1, 24)
    assert len(message) == 47


def test_drawn_rows_have_no_indexes():
    names = (1, "pick")
    index = seeding.subset(seeding.rng(*names), 8, 3)
    message = CODECS["float32"].encode(labels(*index), Link(7, 8, 2, (names,)))
    assert split_parts(message, 7) == Parts(18, 0, 24)


def test_what_stands_before_the_header_is_apart():
    message = CODECS["float32"].encode(labels(0, 2, 5), Link(7, 8, 2))
    assert split_parts(b"fs\x01\x09 claims" + message, 7) == Parts(22, 1, 24, 11)


def test_weights_are_values_behind_a_header():
    import torch

    weights = {"w": torch.zeros(5)}
    message = WEIGHT_CODECS["float32"].encode(weights, 3)
    assert split_parts(message, 3) == Parts(13, 0, len(message) - 13)


def test_a_message_of_another_kind_is_all_values():
    assert split_parts(b"hello", 0) == Parts(values=5)
    assert split_parts(b"", 0) == Parts()


def test_parts_add_up_and_are_copied():
    assert Parts(1, 2, 3, 4) + Parts(1, 1, 1, 1) == Parts(2, 3, 4, 5)
    assert Parts(1, 2, 3, 4) * 2 == Parts(2, 4, 6, 8)


@given(st.binary(max_size=60), st.integers(0, 3), st.integers(0, 255), st.integers(0, 2**32 - 1))
def test_whatever_a_message_says_its_parts_are_its_length(tail, kind, mode, length):
    head = b"fs\x01" + bytes([kind + 1, 0, 5, 0, 0, 0]) + bytes(4)
    told = bytes([mode]) + bytes(4) + length.to_bytes(4, "little")
    for message in (tail, head + tail, head + told + tail, tail + head):
        assert sum(astuple(split_parts(message, 5))) == len(message)
