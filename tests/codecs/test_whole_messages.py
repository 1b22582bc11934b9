"""Whole uploads and downloads of every algorithm, and Flower's messages, made hostile: WireError or
a right result.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers import hostile_headers, hostile_messages, hostile_records
from tests.helpers.allocations import measure_peaks, measure_torch
from tests.helpers.hostile_messages import (
    Kind,
    join,
    list_hostile,
    list_oversized,
    survive,
)

ROOT = Path(__file__).parents[2]
KINDS = hostile_messages.list_kinds() | hostile_records.list_kinds() | hostile_headers.list_kinds()
MOST = 256 * 1024  # bytes that reading one message may take, beside copies of it
EACH = 1000  # messages of each kind; benchmarks/hostile_messages.py reads a million


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_an_honest_message_is_its_fields_and_is_taken(kind: Kind):
    assert join(kind.fields(kind.message)) == kind.message
    assert survive(kind, kind.message, sealed=False)


def test_hostile_messages_are_refused_or_right(kind: Kind):
    taken = [survive(kind, *message) for message in list_hostile(kind, EACH, seed=0)]
    assert any(taken[2::5] + taken[3::5] + taken[4::5])  # with checksums put right
    assert not all(taken)
    assert sum(taken) < EACH / 2


def test_no_hostile_message_takes_much_memory(kind: Kind):
    messages = [*list_oversized(kind), *list_hostile(kind, 60, seed=1)]
    peaks = measure_peaks(lambda message: survive(kind, *message), messages)
    for peak, (message, _) in zip(peaks, messages, strict=True):
        assert peak <= MOST + kind.copies * len(message)


def test_a_tensor_counts_as_memory():
    """By hand: 1,000 float32, and 250 float64 while they are there: 6,000 bytes."""

    def act(size: int) -> None:
        kept = torch.ones(4 * size)
        kept[:size].double()

    assert measure_torch(act, [250, 0]) == [6000, 0]
    assert measure_peaks(lambda size: np.zeros(size, np.uint8), [100_000])[0] >= 100_000


def test_all_kinds_stay_within_memory_that_the_system_limits():
    """A process that cannot grow by more than 64 MB reads some of every kind."""
    script = ROOT / "benchmarks" / "hostile_messages.py"
    command = [sys.executable, str(script), "--messages", "5000", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| download of cfd, missed |" in done.stdout and "| all |" in done.stdout
