"""A group of jobs of one architecture as one program: M models trained, or asked, at once. Plain torch, any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedsift import training
from fedsift.engines.layers import real_samples
from fedsift.engines.optimizers import optimizer
from fedsift.engines.schedule import Schedule, padded, schedule
from fedsift.engines.stacking import ALIGNED, Pass, Program
from fedsift.engines.workers import Stop, carry_on
from fedsift.types import Array, Fit, Predict, Samples, State


@dataclass(frozen=True, eq=False)
class Inputs:
    """The samples of M models: rows of one store, normalised as each model's own store says."""

    values: Tensor  # [S, C, H, W] or [S, F], raw
    mean: Tensor  # [M, 1, C, 1, 1] or [M, 1, F], or 1 in the place of M where all are equal
    std: Tensor

    @classmethod
    def of(cls, samples: Sequence[Samples], values: Tensor | None = None) -> Inputs:
        """`values` are the store's, where they lie on another device already."""
        first = samples[0].store
        values = first.values if values is None else values
        alike = all(torch.equal(s.store.mean, first.mean) and torch.equal(s.store.std, first.std) for s in samples)
        stores = [first] if alike else [s.store for s in samples]
        axes = first.values.ndim - 1
        mean, std = (
            torch.stack([figure.reshape((1,) * (axes - figure.ndim) + figure.shape) for figure in figures])[:, None].to(
                values.device
            )
            for figures in ([s.mean for s in stores], [s.std for s in stores])
        )
        return cls(values, mean, std)

    def take(self, rows: Tensor, some: slice | Tensor, moves: Tensor | None = None) -> Tensor:
        """rows [A, b] -> x [A, b, H, W, C] or [A, b, F], for some A of the models."""
        mean, std = (f if len(f) == 1 else f[some] for f in (self.mean, self.std))
        x = self.values[rows].float().sub_(mean).div_(std)
        if moves is not None:
            x = training.augment(x.flatten(0, 1), moves.flatten(0, 1)).reshape(x.shape)
        return x.permute(0, 1, 3, 4, 2).contiguous() if x.ndim == 5 else x


def fit(program: Program, jobs: Sequence[Fit], values: Tensor, stop: Stop) -> list[State]:
    """Train the jobs of one group, which are sorted by length, where `values` lie. Answers in their order.

    A short batch is padded to the next power of two, whatever the other models have, so that what a model computes
    depends on its own job alone: to the last bit where batches are a multiple of 8 (docs/decisions.md).
    """
    here = values.device
    recipe, temperature = jobs[0].recipe, jobs[0].temperature
    inputs = Inputs.of([job.data.samples for job in jobs], values)
    plan = schedule(jobs)
    check_batches(program, plan.counts)
    rows = torch.from_numpy(np.concatenate([job.data.samples.rows for job in jobs])).to(here)
    targets = torch.cat([job.data.targets for job in jobs]).to(here)
    seeds = torch.tensor([training.dropout_seed(job.key) for job in jobs], device=here)
    positions, rates = torch.from_numpy(plan.positions).to(here), torch.from_numpy(plan.rates).to(here)
    moves = None if plan.moves is None else torch.from_numpy(plan.moves).to(here)
    flat, buffers = program.layout.stack([job.state for job in jobs])
    flat, buffers = flat.to(here), {name: value.to(here) for name, value in buffers.items()}
    rule = optimizer(recipe, flat)
    drawn = _all_at_once(inputs, rows) if moves is None else None
    leaves = cache(lambda active: _leaves(program, flat[:active]))

    def step(t: int, some: slice | Tensor, counts: Array, width: int) -> None:
        batch = positions[t, some, :width]
        if drawn is not None:
            x = drawn[batch]
        else:
            x = inputs.take(rows[batch], some, None if moves is None else moves[t, some, :width])
        w, kept = flat[some], {name: value[some] for name, value in buffers.items()}
        weights = leaves(some.stop) if isinstance(some, slice) else _leaves(program, w)
        count = torch.from_numpy(counts).to(here)
        padded = count if (counts < width).any() else None
        logits = program(Pass(weights, kept, True, padded, seeds[some], t), x)
        pull = loss_gradient(logits.detach(), targets[batch], temperature, count)
        gradients = torch.autograd.grad(logits, list(weights.values()), pull)
        rule.step(w, program.layout.joined(gradients), rates[t, some, None], t, some)
        if not isinstance(some, slice):  # not views, then
            flat[some] = w
            for name, value in kept.items():
                buffers[name][some] = value

    for t, active in enumerate(plan.active.tolist()):
        carry_on(stop)
        counts = plan.counts[t, :active]
        widths = np.array([padded(n, recipe.batch) if program.pads else n for n in counts.tolist()])
        for width in sorted(set(widths.tolist())):
            if (widths == width).all():
                step(t, slice(active), counts, width)
            else:
                some = np.flatnonzero(widths == width)
                step(t, torch.from_numpy(some).to(here), counts[some], width)
    return finished(program, flat, buffers, plan)


def _leaves(program: Program, w: Tensor) -> dict[str, Tensor]:
    return {name: view.detach().requires_grad_() for name, view in program.weights(w).items()}


AT_ONCE = 2**24  # values


def _all_at_once(inputs: Inputs, rows: Tensor) -> Tensor | None:
    """All samples as the program takes them, where that is little and no model normalises in its own way."""
    little = len(rows) * inputs.values[0].numel() <= AT_ONCE
    return inputs.take(rows[None], slice(None))[0] if little and len(inputs.mean) == 1 else None


def finished(program: Program, flat: Tensor, buffers: dict[str, Tensor], plan: Schedule) -> list[State]:
    buffers = {name: value.cpu() for name, value in buffers.items()}
    for name in program.counters:
        buffers[name] = buffers[name] + torch.from_numpy((plan.counts > 0).sum(0))
    return program.layout.unstack(flat.cpu(), buffers)


def loss_gradient(logits: Tensor, targets: Tensor, temperature: float, count: Tensor) -> Tensor:
    """Of the mean over a model's batch of -sum t log softmax(z / T), by z: (s sum(t) - t) / T / batch, 0 for padding.
    [A, b, C]; count [A] is how many samples are real."""
    s = torch.softmax(logits / temperature, -1)
    pull = s.mul_(targets.sum(-1, keepdim=True)).sub_(targets).div_(temperature * count[:, None, None])
    return pull.mul_(real_samples(count, logits.shape[1])[:, :, None])


@torch.no_grad()
def predict(program: Program, jobs: Sequence[Predict], values: Tensor, size: int, stop: Stop) -> list[Array]:
    """Outputs of the models on their samples, `size` samples of each at a time."""
    here = values.device
    inputs = Inputs.of([job.samples for job in jobs], values)
    samples = len(jobs[0].samples)
    rows = np.stack([job.samples.rows for job in jobs])
    shared = bool((rows == rows[:1]).all()) and len(inputs.mean) == 1
    rest = -samples % ALIGNED if program.pads else 0
    at = torch.from_numpy(np.pad(rows[:1] if shared else rows, ((0, 0), (0, rest)), "edge")).to(here)
    flat, buffers = program.layout.stack([job.state for job in jobs])
    weights, kept = program.weights(flat.to(here)), {name: value.to(here) for name, value in buffers.items()}
    pieces = []
    for piece in at.split(size, 1):
        carry_on(stop)
        x = inputs.take(piece, slice(None))
        pieces.append(program(Pass(weights, kept, training=False), x.expand(len(jobs), *x.shape[1:]).contiguous()))
    return list(torch.cat(pieces, 1)[:, :samples].float().cpu().numpy())


def check_batches(program: Program, counts: Array) -> None:
    if program.smallest_norm == 1 and (counts == 1).any():
        raise training.one_value_per_channel()
