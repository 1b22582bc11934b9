"""benchmarks/gpu.py as far as a CPU can run it: terms of a recipe, and other networks."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift.engines import batched
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


def test_a_row_of_a_network_is_what_a_longer_fit_takes_more(gpu, monkeypatch):
    """2 models of 16 samples in batches of 8, 10 epochs and 2: the 16 steps between take 5 s less
    1 s, so a step of both 0.25 s and of one 0.125 s; 0.5 s in the plain loop is 4 times that."""
    seconds = {10: 5.0, 2: 1.0}
    monkeypatch.setattr(gpu, "seconds_of", lambda engine, jobs: seconds[jobs[0].recipe.epochs])
    monkeypatch.setattr(gpu, "plain_loop", lambda *_, **how: 1.5 if how.get("autocast") else 0.5)
    find = partial(gpu.compare_networks, ["mlp(width=0.1)"], models=[2], device="cpu", samples=16)
    (row,) = find(["float32"])
    figures = ("step_ms", "us_per_model_step", "low_high_us", "plain_us", "times_plain")
    assert [row[name] for name in figures] == [250.0, 125e3, [125e3, 125e3], 500_000, 4.0]
    assert (row["how"], row["first_fit_s"], row["batch"]) == ("stacked (known layers)", 5.0, 8)
    assert row["parameters"] == 3072 * 6 + 6 + 6 * 10 + 10
    (half,) = find(["bfloat16"])  # beside both plain loops
    plain = ("plain_us", "times_plain", "plain_without_autocast_us")
    assert [half[name] for name in plain] == [1_500_000, 12.0, 500_000]


def test_networks_are_timed_on_a_cpu_and_one_that_fails_is_a_row(gpu, monkeypatch):
    tiny = {
        "resnet18": partial(gpu.ResNet18, width=2),
        "vit-tiny": partial(gpu.VitTiny, width=12, depth=1),
    }
    monkeypatch.setattr(gpu, "NETWORKS", tiny)
    monkeypatch.setattr(gpu, "LONG", 3)
    names = ["resnet18", "vit-tiny", "nowhere"]
    sizes = {"samples": 8, "repeats": 1, "plain_steps": 1}
    rows = list(gpu.compare_networks(names, ["float32"], [2], "cpu", **sizes))
    assert [row["network"] for row in rows] == names
    assert rows[0]["how"].startswith("stacked (known layers")
    assert rows[1]["how"].startswith("stacked (by torch.func")
    assert all(row["plain_us"] > 0 and "failed" not in row for row in rows[:2])
    assert "unknown model 'nowhere'" in rows[2]["failed"]


@pytest.mark.parametrize(
    "name, parameters",
    # stem 1,728 + 128; stages of 147,968, 525,568, 2,099,712 and 8,393,728; head 5,130
    # patches 9,408; token 192; places 65 x 192; 12 blocks of 444,864; norm 384; head 1,930
    [("resnet18", 11_173_962), ("vit-tiny", 5_362_762)],
)
def test_the_networks_are_as_large_as_the_papers_say(gpu, name, parameters):
    net = gpu.NETWORKS[name]((3, 32, 32), 10)
    assert sum(value.numel() for value in net.parameters()) == parameters
    with torch.no_grad():
        assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_float32_is_timed_both_ways_in_one_run(gpu):
    names = "float32-torch,float32-kernels,bfloat16"
    assert gpu.read_precisions(names) == names.split(",")
    with pytest.raises(SystemExit, match="unknown precision 'float33'; there are float32, tf32"):
        gpu.read_precisions("tf32,float33")


@pytest.mark.parametrize(
    ("name", "word", "kernels"),
    [
        ("float32-torch", "float32", False),
        ("float32-kernels", "float32", True),
        ("tf32", "tf32", batched.FLOAT32_BY_KERNELS),
    ],
)
def test_each_way_is_the_engines_word_and_its_switch_for_a_while(gpu, name, word, kernels):
    """Without kernels of its own a word leaves the switch as it is."""
    switch = batched.FLOAT32_BY_KERNELS
    with pytest.raises(KeyError), gpu.products_of(name) as found:
        assert (found, batched.FLOAT32_BY_KERNELS) == (word, kernels)
        raise KeyError
    assert switch == batched.FLOAT32_BY_KERNELS


def test_networks_have_float32_both_ways_in_their_rows(gpu):
    sizes = {"samples": 8, "repeats": 1, "plain_steps": 1}
    both = list(gpu.FLOAT32)
    rows = list(gpu.compare_networks(["mlp(width=0.1)"], both, [2], "cpu", **sizes))
    assert [row["precision"] for row in rows] == both
    assert all("failed" not in row and "plain_without_autocast_us" not in row for row in rows)
