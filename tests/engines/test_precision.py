"""How exact products are: an explicit choice, put back where it was found."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedsift import bench, engines, models
from fedsift.engines import batched, precision
from fedsift.engines.batched import BatchedEngine, choose_ops
from fedsift.engines.precision import PRECISIONS, Precision, tell_faster
from fedsift.engines.sequential import SequentialEngine
from fedsift.engines.stacked.ops import ReferenceOps
from fedsift.types import UserError
from tests.helpers import parity

ROOT = Path(__file__).resolve().parents[2]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def switches():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_a_precision_that_is_not_there_is_a_mistake():
    with pytest.raises(UserError, match="unknown precision 'float16'"):
        Precision("float16", CPU)
    with pytest.raises(UserError, match="on a CPU use float32 or bfloat16"):
        engines.choose_engine("auto", "cpu", "tf32")
    assert PRECISIONS == ("float32", "tf32", "bfloat16")
    with pytest.raises(UserError, match="auto"):
        Precision("float", CPU)


def test_auto_is_float32_until_another_has_been_measured(monkeypatch):
    """One word says what it is on a GPU; on a CPU it stays float32."""
    assert [Precision("auto", device).name for device in (CPU, CUDA)] == ["float32"] * 2
    monkeypatch.setattr(precision, "AUTO_ON_CUDA", "bfloat16")
    assert [Precision("auto", device).name for device in (CPU, CUDA)] == ["float32", "bfloat16"]
    router, told = engines.choose_engine("batched", "cpu", "auto")
    assert told.startswith("batched engine on cpu, float32") and isinstance(
        router.networks, BatchedEngine
    )
    assert bench.engines((), "cpu", precision="auto")["precision"] == "float32"


def test_who_takes_float32_on_a_gpu_is_told_what_is_faster(monkeypatch):
    told = tell_faster("float32", CUDA)
    assert told is not None and told == tell_faster("auto", CUDA)
    page, _, section = told.partition("docs/")[2].split()[0].partition("#")
    assert f"## {section}\n" in (ROOT / "docs" / page).read_text().lower()
    assert tell_faster("float32", CPU) is tell_faster("tf32", CUDA) is None
    assert tell_faster("auto", CPU) is tell_faster("bfloat16", CUDA) is None


@pytest.mark.parametrize("by_kernels", [False, True])
def test_one_switch_says_whose_products_float32_has_on_a_gpu(monkeypatch, by_kernels):
    """The other precisions have our kernels whatever it says, and a CPU or no Triton never."""
    kernels = SimpleNamespace(TritonOps=lambda precision: precision)
    monkeypatch.setitem(sys.modules, "fedsift.engines.stacked.cuda.ops", kernels)
    monkeypatch.setattr(batched, "has_triton", lambda: True)
    monkeypatch.setattr(batched, "FLOAT32_BY_KERNELS", by_kernels)
    found: list[Any] = [choose_ops(True, word) for word in ("float32", "tf32", "bfloat16")]
    assert found[1:] == ["tf32", "bfloat16"]
    assert found[0] == "float32" if by_kernels else type(found[0]) is ReferenceOps
    assert type(choose_ops(False, "float32")) is ReferenceOps
    monkeypatch.setattr(batched, "has_triton", lambda: False)
    assert type(choose_ops(True, "tf32")) is ReferenceOps


@pytest.mark.parametrize(
    ("name", "rounds"), [("float32", False), ("tf32", True), ("bfloat16", False)]
)
def test_cuda_products_are_switched_and_put_back_even_after_a_failure(name, rounds):
    before = switches()
    with pytest.raises(KeyError), Precision(name, CUDA).products():
        assert switches() == (rounds, rounds)
        raise KeyError
    assert switches() == before


def test_a_cpu_leaves_the_switches_alone():
    before = switches()
    for name in ("float32", "bfloat16"):
        with Precision(name, CPU).products():
            assert switches() == before


def test_bfloat16_rounds_products_to_seven_bits_and_float32_does_not():
    """1 + 2^-8 has 8 bits after the point: bfloat16 makes it 1, float32 keeps it."""
    x = torch.tensor([[1 + 2.0**-8]])
    results = {}
    for name in ("float32", "bfloat16"):
        with Precision(name, CPU).forward():
            results[name] = float(torch.nn.functional.linear(x, torch.ones(1, 1)))
    assert results == {"float32": 1 + 2.0**-8, "bfloat16": 1.0}


def test_answers_in_bfloat16_are_float32_and_near():
    """Seven bits of every factor: outputs are off by about 2^-8 of their size, and by more than
    float32 would be.
    """
    model = models.make_model("cnn", (1, 8, 8), parity.CLASSES)
    ask = parity.asks(parity.fits(model, (12,)))
    (exact,), (rough,) = (
        SequentialEngine(threads=1, precision=p).run(ask) for p in ("float32", "bfloat16")
    )
    assert rough.dtype == exact.dtype == "float32"
    assert 1e-5 < parity.difference(rough, exact) < 0.05 * abs(exact).max()


def test_training_in_bfloat16_keeps_float32_weights():
    model = models.make_model("mlp", (1, 8, 8), parity.CLASSES)
    jobs = parity.fits(model, (8,))
    exact, rough = (
        SequentialEngine(threads=1, precision=p).run(jobs) for p in ("float32", "bfloat16")
    )
    assert all(value.dtype == torch.float32 for value in rough[0].values())
    assert 1e-6 < parity.astray(jobs, rough, exact) < 0.05


# --- stacked on a CPU ---

short = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16"
)


def distance(one, other):
    """Between two lists of states, over all their floats."""
    pairs = [
        (a[name], b[name])
        for a, b in zip(one, other, strict=True)
        for name in a
        if a[name].is_floating_point()
    ]
    return float(sum((a - b).double().square().sum() for a, b in pairs) ** 0.5)


@short
@pytest.mark.parametrize(
    "name", ["cnn", "resnet8(width=0.5)", "resnet8(width=0.3)", "resnet8(width=0.5, norm=group)"]
)
@pytest.mark.parametrize("lengths", [(16, 16, 16), (19, 13, 8), (16,)])
def test_a_stack_in_bfloat16_rounds_as_torch_does_and_no_more(name, lengths):
    """The way from start to end is rounded by a few per cent, as torch's autocast rounds it: at
    most half as much again.
    """
    jobs = parity.fits(models.make_model(name, (3, 16, 16), 3), lengths)
    exact = SequentialEngine(threads=1).run(jobs)
    theirs = SequentialEngine(threads=1, precision="bfloat16").run(jobs)
    ours = BatchedEngine(threads=2, precision="bfloat16").run(jobs)
    assert {value.dtype for state in ours for value in state.values()} <= {
        torch.float32,
        torch.int64,
    }
    moved, off = distance(exact, [job.state for job in jobs]), distance(theirs, exact)
    assert 0.001 * moved < distance(ours, exact) < max(1.5 * off, 0.05 * moved)


@short
def test_what_has_no_convolution_stays_in_float32_and_says_so():
    engine = BatchedEngine(threads=1, precision="bfloat16")
    for name, told in (("mlp", True), ("cnn", False)):
        assert (
            engine.describe(models.make_model(name, (1, 8, 8), 3)).endswith(
                "in float32 all the same)"
            )
            is told
        )
    jobs = parity.fits(models.make_model("mlp", (1, 8, 8), 3), (16, 16))
    assert all(map(parity.same, engine.run(jobs), BatchedEngine(threads=1).run(jobs)))


def test_a_cpu_without_bfloat16_says_that_it_stays_in_float32(monkeypatch):
    monkeypatch.setattr(batched, "has_bfloat16", lambda: False)
    engine = BatchedEngine(threads=1, precision="bfloat16")
    assert engine.describe(models.make_model("cnn", (1, 8, 8), 3)).endswith(
        "in float32 all the same)"
    )
