"""The same jobs for two engines, and how near their answers must be."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedsift import models
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.engines.stacked.layers import real_samples
from fedsift.engines.stacked.ops import Pass
from fedsift.engines.stacked.program import stack
from fedsift.types import Fit, Labelled, Model, Predict, Recipe, Samples, Store

SGD = Recipe(epochs=2, batch=8, lr=0.05, optimizer="sgd")
CLASSES = 3
IMAGE, ROW = (2, 6, 6), (6,)


def store(shape, seed=0, rows=60):
    """Bytes for images, floats for rows; every channel, or feature, is normalised by figures of its
    own.
    """
    generator, images = np.random.default_rng(seed), len(shape) == 3
    figures = (shape[0], *[1] * (len(shape) - 1))
    if images:
        values = torch.from_numpy(generator.integers(0, 256, (rows, *shape)).astype(np.uint8))
        mean, std = generator.normal(120, 9, figures), generator.uniform(70, 90, figures)
    else:
        values = torch.from_numpy(generator.normal(size=(rows, *shape))).float()
        mean, std = generator.normal(0, 0.3, figures), generator.uniform(0.5, 2, figures)
    return Store(values, torch.from_numpy(mean).float(), torch.from_numpy(std).float())


def data(of, n, seed=0, soft=False):
    """n rows of a store, drawn from a seed, with labels or with distributions."""
    generator = np.random.default_rng([seed, n])
    rows = generator.choice(len(of.values), n, replace=False)
    targets = (
        generator.dirichlet(np.ones(CLASSES), n)
        if soft
        else np.eye(CLASSES)[generator.integers(0, CLASSES, n)]
    )
    return Labelled(Samples(of, rows), torch.from_numpy(targets).float())


def fits(model, sizes=(21, 5, 12, 8), recipe=SGD, soft=False, of=None, **options):
    """One job a size: unequal data, unequal starting weights, one store."""
    of = of or store(model.shape)
    return [
        Fit(
            model,
            models.initial_state(model, i),
            data(of, n, i, soft),
            recipe,
            (7, "client", i),
            **options,
        )
        for i, n in enumerate(sizes)
    ]


def asks(jobs):
    """What the starting weights of training jobs say about their data."""
    return [Predict(job.model, job.state, job.data.samples) for job in jobs]


def same(a, b):
    """To the last bit: states or outputs."""
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def difference(a, b):
    """The largest between two states or two outputs; what counts (integers) must be equal."""
    if isinstance(a, np.ndarray):
        return float(np.abs(a - b).max())
    assert list(a) == list(b) and all(a[name].dtype == b[name].dtype for name in a)
    assert all(torch.equal(a[name], b[name]) for name in a if not a[name].is_floating_point())
    return max(float((a[name] - b[name]).abs().max()) for name in a if a[name].is_floating_point())


def near(found, expected, atol=1e-5):
    return all(difference(a, b) <= atol for a, b in zip(found, expected, strict=True))


def astray(jobs, found, expected):
    """||found - expected|| / ||expected - start||, the largest over jobs: Adam divides by gradients
    that may be next to nothing, so two ways of rounding differ by a share of the way, not by a
    fixed amount."""
    shares = []
    for job, a, b in zip(jobs, found, expected, strict=True):
        assert difference(a, b) >= 0  # the same names, types and counters
        floats = [name for name in a if a[name].is_floating_point()]
        error, way = (
            torch.cat([(x[name] - y[name]).flatten() for name in floats]).norm()
            for x, y in ((a, b), (b, job.state))
        )
        assert way > 0
        shares.append(float(error / way))
    return max(shares)


def agree(engine, reference, jobs, flips=0):
    """SGD adds up what was rounded: 1e-6 or so after a few steps. Adam: see `astray`. The
    sign of a ReLU's input that is next to nothing may flip and move a network further: `flips` of
    them on a CPU, half on another device."""
    cuda = engine.device.type == "cuda"
    found, expected = engine.run(jobs), reference.run(jobs)
    if jobs[0].recipe.optimizer == "sgd":
        close = [near([a], [b], 2e-5) for a, b in zip(found, expected, strict=True)]
        assert close.count(False) <= (len(close) // 2 if cuda else flips)
    shares = sorted(
        astray([job], [a], [b]) for job, a, b in zip(jobs, found, expected, strict=True)
    )
    most = 5e-2 if cuda else 0.2 if flips else 1e-3
    assert all(share < most for share in shares)
    assert cuda or all(share < 1e-3 for share in shares[: len(shares) - flips])


def with_recipes(jobs, own):
    """The jobs, each with changes of its own to the recipe."""
    return [
        replace(job, recipe=replace(job.recipe, **changes))
        for job, changes in zip(jobs, own, strict=True)
    ]


def watch_parts(monkeypatch):
    """A list that fills with the programs that batched engines make of their jobs."""
    seen: list[list[Any]] = []
    honest = BatchedEngine._task

    def spy(self, part):
        seen.append(part)
        return honest(self, part)

    monkeypatch.setattr(BatchedEngine, "_task", spy)
    return seen


def factory(net):
    """A network class as a factory that keeps its name."""

    def build(shape, classes):
        return net(shape, classes)

    build.__name__ = net.__name__
    return build


def compare(net, shape=IMAGE, sizes=(21, 5, 12, 8), threads=1, warned=0):
    """Trains and asks on both engines; how the batched one says it ran, and its warnings."""
    model = Model(net.__name__, factory(net), shape, CLASSES)
    jobs = fits(model, sizes)
    engine = BatchedEngine(threads=threads)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = engine.run([*jobs, *asks(jobs)])
        engine.run(asks(jobs))
    expected = SequentialEngine(threads=1).run([*jobs, *asks(jobs)])
    assert near(found, expected, 2e-5)
    assert all(not same(job.state, state) for job, state in zip(jobs, found, strict=False))
    assert len(caught) == warned
    return engine.describe(model), [str(warning.message) for warning in caught]


# --- one step of a program ---


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def off(a, b):
    """How far a is from b, as a share of b."""
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    return float((a - b).norm() / b.norm())


def one_step(model, ops, counts, batch=8, placed=(), device="cuda"):
    """Of one pass there and back, of the real samples: outputs, what is answered afterwards, how
    far running means and variances have moved (where there are some), gradients. A model without
    samples may compute what it likes, as long as its running figures stay. The gradients of
    `placed` are read where they went."""
    program = stack(model, ops)
    m = len(counts)
    flat, buffers = program.layout.stack([models.initial_state(model, i) for i in range(m)])
    weights = {
        name: view.detach().requires_grad_()
        for name, view in program.weights(flat.to(device)).items()
    }
    buffers = {name: value.to(device) for name, value in buffers.items()}
    before = {name: value.clone() for name, value in buffers.items()}
    channels, *size = model.shape
    x = noise(m, batch, *size, channels).to(device)
    count = torch.tensor(counts, dtype=torch.int32).to(device)
    counted, wanted = (
        count if min(counts) < batch else None,
        torch.full_like(flat, torch.nan).to(device),
    )
    places = {name: view for name, view in program.weights(wanted).items() if name in placed}
    logits = program(Pass(weights, buffers, True, counted, places=places), x)
    real = real_samples(count, batch)[:, :, None]
    pull = noise(*logits.shape, seed=1).to(device) * real
    gradient = program.layout.join_gradients(
        torch.autograd.grad(logits, list(weights.values()), pull), wanted, placed
    )
    gradient = gradient[:, : sum(shape.numel() for shape in program.layout.parameters.values())]
    with torch.no_grad():
        asked = program(Pass({n: w.detach() for n, w in weights.items()}, buffers, False), x)
    moved = [
        torch.cat(
            [(buffers[name] - before[name]).flatten() for name in buffers if name.endswith(kind)]
        )
        for kind in ("running_mean", "running_var")
        if any(name.endswith(kind) for name in buffers)
    ]
    return logits.detach()[real.expand_as(logits)], asked, *moved, gradient[count > 0]
