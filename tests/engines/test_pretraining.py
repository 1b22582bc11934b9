"""Pretexts on every engine: the same training, in stages or in one go, alone or side by side."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsift
from fedsift import models, starts
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.pretexts import Rotation, SimClr
from fedsift.types import Model, Pretrain
from tests.helpers import parity
from tests.helpers.pretexts import find_partners

PRETEXTS = {"simclr": SimClr(epochs=3, batch=16), "rotation": Rotation(epochs=3, batch=16)}


class Odd(nn.Module):
    """Indexes its images, which only torch.func can stack, and drops some features."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.dropout = nn.Linear(shape[1] * shape[2], 12), nn.Dropout(0.25)
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(torch.relu(self.first(x[:, 0].flatten(1))))


def dropping(shape, classes):
    layers = nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 16), nn.Dropout(0.5)
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(16, classes))


NETWORKS = {
    "cnn": models.make_model("cnn", (3, 8, 8), 5),
    "grey cnn": models.make_model("cnn", (1, 8, 8), 5),
    "mlp": models.make_model("mlp", (3, 8, 8), 5),
    "resnet8": models.make_model("resnet8(width=0.5)", (3, 8, 8), 5),
    "torch.func": Model("odd", Odd, (3, 8, 8), 5),
    "dropout": Model("dropping", dropping, (1, 8, 8), 5),
}


def jobs(model, pretext, count=3, samples=40, of=None):
    """Unequal samples, weights and randomness; one store."""
    of = of or parity.store(model.shape)
    found = []
    for seed in range(count):
        head = starts.find_head(model) or ""
        body = {
            name: value
            for name, value in models.initial_state(model, seed).items()
            if not name.startswith(f"{head}.")
        }
        whole = starts.replace_head(model, head, pretext)
        public = parity.data(of, samples, seed).samples
        snapshot = starts.begin_training(whole, seed, body)
        found.append(Pretrain(whole, snapshot, public, pretext, (seed, "start"), 0, pretext.epochs))
    return found


def same(one, other):
    return all(
        parity.same(getattr(one, part), getattr(other, part))
        for part in ("state", "mean", "square")
    )


@pytest.mark.parametrize("pretext", PRETEXTS)
@pytest.mark.parametrize("network", NETWORKS)
def test_both_engines_train_alike(network, pretext):
    work = jobs(NETWORKS[network], PRETEXTS[pretext])
    batched = BatchedEngine("cpu", threads=1)
    assert "stacked" in batched.describe(work[0].model)
    reference, found = SequentialEngine("cpu", threads=1).run(work), batched.run(work)
    for job, one, other in zip(work, reference, found, strict=True):
        moved = max(
            float((one.state[name] - value).abs().max())
            for name, value in job.state.items()
            if value.is_floating_point()
        )
        assert moved > 5e-3
        for part in ("state", "mean", "square"):
            assert parity.difference(getattr(one, part), getattr(other, part)) < 0.02 * moved


@pytest.mark.parametrize("engine", [SequentialEngine, BatchedEngine])
@pytest.mark.parametrize("network", ["resnet8", "dropout"])
def test_stages_are_one_training_bit_for_bit(network, engine):
    here = engine("cpu", threads=1)
    (job,) = jobs(NETWORKS[network], PRETEXTS["simclr"], count=1)
    (whole,) = here.run([job])
    (first,) = here.run([replace(job, epochs=1)])
    (second,) = here.run([replace(job, epoch=1, epochs=2, snapshot=first)])
    assert same(whole, second) and not same(whole, first)


@pytest.mark.parametrize("engine", [SequentialEngine, BatchedEngine])
def test_an_answer_does_not_depend_on_company_or_threads(engine):
    work = jobs(NETWORKS["resnet8"], PRETEXTS["simclr"])
    together = engine("cpu", threads=1).run(work)
    apart = [engine("cpu", threads=2).run([job])[0] for job in work]
    assert all(same(a, b) for a, b in zip(together, apart, strict=True))


def test_jobs_at_different_epochs_are_not_stacked():
    work = jobs(NETWORKS["cnn"], PRETEXTS["simclr"])
    here = BatchedEngine("cpu", threads=1)
    late = replace(work[0], epoch=1, epochs=1)
    alone = here.run([late])[0]
    assert same(here.run([replace(work[1], epochs=1), late])[1], alone)


def test_batch_norms_end_with_the_statistics_of_plain_images():
    """The mean over plain images of what the first norm sees, not that over cropped, grey views."""
    (job,) = jobs(NETWORKS["resnet8"], SimClr(epochs=1, batch=8), count=1)
    (found,) = BatchedEngine("cpu", threads=1).run([job])
    x = job.samples.tensor()
    seen = nn.functional.conv2d(x, found.state["stem.weight"], padding=1)
    expected = seen.mean((0, 2, 3))
    off = (found.state["norm.running_mean"] - expected).abs().max() / expected.abs().max()
    assert off < 0.02
    assert found.state["norm.num_batches_tracked"] == 5 + 40


def test_simclr_learns_to_tell_images_apart():
    """On digits the other view of an image is found among 32 views."""
    task = fedsift.split(fedsift.load_dataset("digits"), private=100, public=200)
    (job,) = jobs(NETWORKS["grey cnn"], SimClr(epochs=60, batch=16), count=1)
    job = replace(job, samples=task.public)
    (found,) = BatchedEngine("cpu", threads=1).run([job])

    before, after = (find_partners(job, state) for state in (job.state, found.state))
    assert after > before + 0.2 and after > 0.45


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("network", ["cnn", "resnet8", "torch.func", "dropout"])
@pytest.mark.parametrize("pretext", PRETEXTS)
def test_cuda_trains_as_the_reference(pretext, network, precision):
    work = jobs(NETWORKS[network], PRETEXTS[pretext])
    reference = SequentialEngine("cpu", threads=1).run(work)
    found = BatchedEngine("cuda", precision=precision).run(work)
    most = {"float32": 0.05, "tf32": 0.3, "bfloat16": 0.6}[precision]
    for job, one, other in zip(work, reference, found, strict=True):
        apart, moved = distance(one.state, other.state), distance(one.state, job.state)
        assert apart < most * moved


def distance(one, other):
    """Of all weights together: Adam takes whole steps by the sign of gradients that are near 0."""
    floats = [name for name, value in one.items() if value.is_floating_point()]
    return float(sum((one[name] - other[name]).square().sum() for name in floats)) ** 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_cuda_has_the_statistics_of_large_batches(precision):
    """512 views of 32x32: so many tiles that their moments are merged."""
    model = models.make_model("resnet8", (3, 32, 32), 5)
    of = parity.store(model.shape, rows=1024)
    work = jobs(model, SimClr(epochs=1, batch=256), count=2, samples=1024, of=of)
    reference = BatchedEngine("cuda").run(work)
    found = BatchedEngine("cuda", precision=precision).run(work)
    for one, other in zip(reference, found, strict=True):
        for name in ("norm.running_mean", "norm.running_var", "stages.2.norm2.running_var"):
            size = one.state[name].abs().max()
            assert (one.state[name] - other.state[name]).abs().max() < 0.05 * size, name


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_cuda_stages_are_one_training_bit_for_bit(precision):
    here = BatchedEngine("cuda", precision=precision)
    (job,) = jobs(NETWORKS["resnet8"], PRETEXTS["simclr"], count=1)
    (whole,) = here.run([job])
    (first,) = here.run([replace(job, epochs=1)])
    (second,) = here.run([replace(job, epoch=1, epochs=2, snapshot=first)])
    assert same(whole, second)
