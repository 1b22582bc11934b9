"""The pictures of the method: their numbers are right, and what is committed is what is drawn."""

from pathlib import Path
from xml.etree import ElementTree

import draw_method
import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROBS = np.random.default_rng(0).dirichlet(np.ones(10), 500)


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        ("float32", 60 * 10 * 4),
        ("float16", 60 * 10 * 2),
    ],
)
def test_the_parts_of_a_message_by_hand(codec, values):
    """Header 13, where indexes come from 1, rows 4, length of the set 4; log2 binom(500, 60) / 8
    is 32.6, so the set has 33 bytes.
    """
    assert draw_method.measure(codec, PROBS) == (13 + 1 + 4 + 4, 33, values)


def test_hard_labels_take_fewer_bytes_than_their_indexes():
    fixed, indexes, values = draw_method.measure("hard", PROBS)
    assert (fixed, indexes) == (22, 33)
    assert values <= 60 * np.log2(10) / 8 + 4


def test_the_committed_rounds_are_those_that_are_drawn():
    assert (DOCS / "round.svg").read_text() == draw_method.draw_round()
    assert (DOCS / "sift.svg").read_text() == draw_method.draw_sift()


@pytest.mark.parametrize("name", ["round.svg", "sift.svg", "sampler.svg", "bytes.svg"])
def test_a_picture_is_well_formed_and_loads_nothing(name):
    text = (DOCS / name).read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "<image" not in text and "@import" not in text
