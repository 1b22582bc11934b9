"""Networks that do what few do. Each is trained by the reference engine, or should be, so the
batched one must agree.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsift import models
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.types import Fit, Labelled, Predict, Samples, Store, UserError
from tests.helpers import parity, toys
from tests.helpers.parity import IMAGE, ROW, SGD, compare

ZERO, ONE = torch.tensor(0.0), torch.tensor(1.0)


class OneLayer(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(int(torch.Size(shape).numel()), classes)


class Views(OneLayer):
    """The commonest way to write flatten; it needs memory in the order of the axes."""

    def forward(self, x):
        return self.head(x.view(x.size(0), -1))


class ViewsAfterConvolution(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(64, classes)

    def forward(self, x):
        return self.head(F.relu(self.conv(x)).view(-1, 64))


class OwnParameter(OneLayer):
    """A position embedding, a class token, a layer scale: a parameter that is no layer's."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.scale = nn.Parameter(torch.ones(shape))

    def forward(self, x):
        return self.head(x * self.scale)


class Unused(OneLayer):
    """A layer that only serves some other purpose: it has no gradient and must stay as it is."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.other = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x)


class UnusedByFunc(Unused):
    def forward(self, x):
        return self.head(x.view(x.size(0), -1))


class MoreArguments(OneLayer):
    def forward(self, x, mask=None):
        return self.head(x)


class ChangedInPlace(OneLayer):
    """y is what the ReLU left of it wherever it is read."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.first, self.relu = nn.Linear(6, 6), nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.first(x)
        return self.head(self.relu(y) + y)


class InPlaceAfterConvolution(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(
            nn.Conv2d(2, 4, 3), nn.ELU(inplace=True), nn.Flatten(), nn.Linear(64, classes)
        )


class Hooked(OneLayer):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.head.register_forward_hook(lambda module, inputs, output: 2 * output)

    def forward(self, x):
        return self.head(x)


class SpectralNorm(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.utils.spectral_norm(nn.Linear(6, classes)))


class SkipsAtRandom(OneLayer):
    """Stochastic depth: a coin in the forward pass, of which a tracer sees one side."""

    def forward(self, x):
        return self.head(F.relu(x) if torch.rand(()) < 0.5 else x)


class ManyHeads(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embed, self.head = nn.Linear(1, 4), nn.Linear(4, classes)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        y = self.embed(x.unsqueeze(-1))
        return self.head(self.attend(y, y, y, need_weights=False)[0].mean(1))


class LooksAtShape(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.first(x)) if x.shape[0] > 5 else self.first(x))


class Chunked(nn.Module):
    """Its first step gives two tensors."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(shape[0] // 2, classes)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        return self.head(a * b)


class Listens(nn.Module):
    """Calls a layer and does nothing with what it says."""

    def __init__(self, shape, classes):
        super().__init__()
        self.aside, self.head = nn.Linear(shape[0], 2), nn.Linear(shape[0], classes)

    def forward(self, x):
        self.aside(x)
        return self.head(x)


class FrozenNorm(nn.Module):
    """A norm that stays in prediction while the rest trains."""

    def __init__(self, shape, classes):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.head(self.norm(x))


class AddsInPlace(nn.Module):
    """z is changed after y has been given the same memory."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.second = nn.Linear(shape[0], classes), nn.Linear(shape[0], classes)

    def forward(self, x):
        z = self.first(x)
        y = z
        z += self.second(x)
        return y + z


class MaskedGradient(nn.Module):
    """A hook on a weight: half of it never moves."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(shape[0], classes)
        self.head.weight.register_hook(lambda g: g * torch.tensor([0.0, 1.0] * (g.shape[1] // 2)))

    def forward(self, x):
        return self.head(x)


class SingleNumber(OneLayer):
    """A scale that is learnt: a parameter without axes."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.scale * self.head(x)


class MovingMean(OneLayer):
    """A buffer that is changed in place."""

    mean: torch.Tensor

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.register_buffer("mean", torch.zeros(shape))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.head(x - self.mean)


class ReplacedMean(MovingMean):
    """The same, but every time it is another tensor: torch.func would lose it without a word."""

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(x - self.mean)


ODD = [  # and how often the engine warns that it runs one by one
    (Views, IMAGE, 0),
    (ViewsAfterConvolution, IMAGE, 0),
    (OwnParameter, ROW, 0),
    (Unused, ROW, 1),
    (UnusedByFunc, ROW, 1),
    (MoreArguments, ROW, 0),
    (ChangedInPlace, ROW, 0),
    (InPlaceAfterConvolution, IMAGE, 0),
    (Hooked, ROW, 0),
    (SpectralNorm, ROW, 1),
    (SkipsAtRandom, ROW, 1),
    (ManyHeads, ROW, 0),
    (LooksAtShape, ROW, 0),
    (Chunked, ROW, 0),
    (Listens, ROW, 1),
    (FrozenNorm, ROW, 0),
    (AddsInPlace, ROW, 0),
    (MaskedGradient, ROW, 1),
    (SingleNumber, ROW, 0),
    (MovingMean, ROW, 0),
    (ReplacedMean, ROW, 1),
]


@pytest.mark.parametrize(("net", "shape", "warned"), ODD)
def test_odd_networks_agree(net, shape, warned):
    compare(net, shape, warned=warned)


# --- odd jobs ---


@pytest.mark.parametrize("sizes", [(0,), (5, 0)])
def test_a_client_without_samples_keeps_its_weights(sizes):
    jobs = parity.fits(toys.model(toys.linear, ROW, 3), sizes)
    found = BatchedEngine(threads=1).run(jobs)
    assert parity.same(found[-1], jobs[-1].state)
    assert parity.near(found, SequentialEngine(threads=1).run(jobs))


def test_two_stores_that_begin_at_one_address():
    """A store of the first ten rows and a store of all of them."""
    model, values = (
        toys.model(toys.linear, ROW, 3),
        torch.randn(20, 6, generator=torch.Generator().manual_seed(0)),
    )
    parts = [(values[:10], np.arange(10)), (values, np.arange(15, 20))]
    jobs = [
        Fit(
            model,
            models.initial_state(model, 0),
            Labelled(Samples(Store(v, ZERO, ONE), rows), torch.eye(3)[rows % 3]),
            SGD,
            (0,),
        )
        for v, rows in parts
    ]
    assert parity.near(BatchedEngine(threads=1).run(jobs), SequentialEngine(threads=1).run(jobs))


def test_two_views_of_one_memory():
    """Images, and the same memory read with rows and columns exchanged."""
    model, values = toys.model(toys.linear, (1, 4, 4), 3), torch.arange(96.0).view(6, 1, 4, 4) / 96
    stores = [Store(v, ZERO, ONE) for v in (values, values.transpose(2, 3))]
    asks = [
        Predict(model, models.initial_state(model, 0), Samples(store, np.arange(6)))
        for store in stores
    ]
    assert parity.near(BatchedEngine(threads=1).run(asks), SequentialEngine(threads=1).run(asks))


class NormByFunc(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.norm(x.view(x.size(0), -1)))


def test_batch_norm_on_a_single_value_is_explained_under_torch_func_too():
    jobs = parity.fits(toys.model(parity.factory(NormByFunc), ROW, 3), (1,))
    jobs = [replace(jobs[0], key=(0, 2, "local", 5))]
    with pytest.raises(UserError, match=r"client 5 has one sample, .*give the clients at least 2"):
        BatchedEngine(threads=1).run(jobs)


def test_a_batch_norm_that_sees_one_value_for_another_reason_is_explained():
    class First(NormByFunc):
        def forward(self, x):
            return self.head(self.norm(x[: 2 if len(x) == 2 else 1])).mean(0).expand(len(x), -1)

    jobs = parity.fits(toys.model(parity.factory(First), ROW, 3), (4,))
    with pytest.raises(UserError, match="one value per channel to train on; use group norm"):
        SequentialEngine(threads=1).run(jobs)


@pytest.mark.parametrize("engine", [SequentialEngine, BatchedEngine])
def test_a_state_without_a_weight_is_told(engine):
    job = parity.fits(toys.model(toys.linear, ROW, 3), (5,))[0]
    with pytest.raises(RuntimeError, match=r"1\.weight"):
        engine(threads=1).run([Predict(job.model, {}, job.data.samples)])
