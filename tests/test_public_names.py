"""The public names: each can be imported, and what an extender needs is among them."""

import subprocess
import sys

import pytest

import fedsift

NAMES = dir(fedsift)
NEEDED = [
    *("Algorithm", "Server", "Engine", "Sampler", "Aggregator", "StatefulAggregator", "Uploads"),
    *("SoftLabelCodec", "SoftLabels", "Samples", "Labelled", "Partition", "Graph", "Dataset"),
    *("Fit", "Predict", "Round", "UserError", "initial_state", "softmax", "entropy"),
]


@pytest.mark.parametrize("name", NEEDED)
def test_what_an_extender_needs_is_public(name):
    assert name in NAMES


def test_every_public_name_is_there_and_stands_once():
    assert len(NAMES) == len(set(NAMES))
    assert [name for name in NAMES if getattr(fedsift, name, None) is None] == []


@pytest.mark.parametrize("name", ["runs", "sweeps", "seeding"])
def test_a_public_module_is_an_attribute_before_anything_else_is_imported(name):
    look = f"import fedsift; print(fedsift.{name}.__name__)"
    result = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == (f"fedsift.{name}\n", "")
