"""benchmarks/gpu.py as far as a CPU can run it: terms of a recipe beside plain steps."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift.engines.sequential import SequentialEngine

FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"
TINY = {"name": "mlp(width=0.1)", "samples": 16}


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("gpu_benchmark", FILE)
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.STEPS = 2  # 2 epochs of 2 batches
    return module


def test_each_term_changes_what_is_trained_and_plain_does_not(gpu):
    engine = SequentialEngine()

    def train(term):
        (found,) = engine.run(gpu.cohort(1, 8, **TINY, **gpu.TERMS[term]))
        return torch.cat([value.flatten() for value in found.values()])

    plain = train("plain")
    changed = {term: bool((train(term) != plain).any()) for term in gpu.TERMS}
    assert changed == {
        "plain": False, "prior": True, "prox": True, "ntd": True, "mixup": True, "all": True,
    }  # fmt: skip


def test_a_row_holds_the_ratio_of_a_step_with_a_term_to_plain_steps(gpu, monkeypatch):
    """The clock stands still but for the steps: 2 s plain, 3 s with a term: 1.5 times."""
    takes = {0.0: 2.0, 1.0: 3.0}
    watch = lambda jobs, precision, device: lambda: takes[jobs[0].recipe.prior]  # noqa: E731
    monkeypatch.setattr(gpu, "watch_steps", watch)
    (row,) = gpu.compare_terms(2, "float32", ["prior"], "cpu", **TINY)
    assert row == {
        "precision": "float32",
        "models": 2,
        "term": "prior",
        "step_ms": 3000.0,
        "times_plain_step": 1.5,
        "low_high": [1.5, 1.5],
    }


def test_terms_are_timed_on_a_cpu(gpu):
    rows = gpu.compare_terms(2, "float32", ["prior", "all"], "cpu", repeats=1, **TINY)
    assert [row["term"] for row in rows] == ["prior", "all"]
    assert all(row["step_ms"] > 0 and row["times_plain_step"] > 0 for row in rows)
