"""Jobs of one architecture as one program of M models, fitted or asked. Plain torch, any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from fedsift import training
from fedsift.engines.stacked.layers import real_samples
from fedsift.engines.stacked.layout import ALIGNED
from fedsift.engines.stacked.ops import Pass
from fedsift.engines.stacked.optimizers import make_optimizer, place_rates
from fedsift.engines.stacked.program import Program
from fedsift.engines.stacked.schedule import Schedule, make_schedule, padded_length
from fedsift.engines.threads import Stop, raise_if_stopped
from fedsift.types import Array, Fit, Predict, Samples, Weights


@dataclass(frozen=True, eq=False)
class Inputs:
    """The samples of M models: rows of one store, normalised as each model's own store says.

    Token ids stay as they are.
    """

    values: Tensor  # [S, C, H, W] or [S, F], raw
    mean: Tensor  # [M, 1, C, 1, 1] or [M, 1, F], or 1 in the place of M where all are equal
    std: Tensor
    tokens: bool = False

    @classmethod
    def of(cls, samples: Sequence[Samples], values: Tensor | None = None) -> Inputs:
        """`values` are the store's, where they lie on another device already."""
        first = samples[0].store
        values = first.values if values is None else values
        alike = all(
            torch.equal(s.store.mean, first.mean) and torch.equal(s.store.std, first.std)
            for s in samples
        )
        stores = [first] if alike else [s.store for s in samples]
        axes = first.values.ndim - 1
        mean, std = (
            torch.stack(
                [figure.reshape((1,) * (axes - figure.ndim) + figure.shape) for figure in figures]
            )[:, None].to(values.device)
            for figures in ([s.mean for s in stores], [s.std for s in stores])
        )
        return cls(values, mean, std, first.vocabulary is not None)

    def take(self, rows: Tensor, moves: Tensor | None = None) -> Tensor:
        """rows [..., M, b] -> x [..., M, b, C, H, W] or [..., M, b, F]."""
        if self.tokens:
            return self.values[rows].long()
        x = self.values[rows].float().sub_(self.mean).div_(self.std)
        if moves is not None:
            axes = rows.ndim - 1
            x = training.augment(x.flatten(0, axes), moves.flatten(0, axes)).reshape(x.shape)
        return x


AHEAD = 2**20  # values drawn at once, where a step takes less


def fit(program: Program, jobs: Sequence[Fit], values: Tensor, stop: Stop) -> list[Weights]:
    """Train the jobs of one group, which are sorted by length, where `values` lie. Answers in their
    order.

    A short batch is padded to the next power of two, whatever the other models have, so that what a
    model computes depends on its own job alone: to the last bit where batches are a multiple of 8
    (docs/decisions.md).
    """
    here = values.device
    recipe, temperature = jobs[0].recipe, jobs[0].temperature
    plan = make_schedule(jobs)
    check_batches(program, jobs)
    flat, buffers = program.layout.stack([job.state for job in jobs])
    models = Models(
        flat.to(here),
        {name: value.to(here) for name, value in buffers.items()},
        torch.tensor([training.dropout_seed(job.key) for job in jobs], device=here),
    )
    prior = _stack_priors(jobs, here)
    start = models.flat.clone() if recipe.prox else None
    rule = make_optimizer(recipe, models.flat)
    rates = place_rates(rule, plan.rates, here)
    steps = torch.arange(len(plan), device=here, dtype=torch.float32)
    slice_of = cache(lambda active: ModelSlice(program, models, slice(active)))
    groups_of = cache(partial(step_groups, program, recipe.batch, here))
    for t, (x, targets, taught) in enumerate(_draw_batches(program, jobs, values, plan)):
        raise_if_stopped(stop)
        counts = plan.counts[t]
        for group in groups_of(tuple(counts[counts > 0].tolist())):
            members = group.members
            part = (
                slice_of(members.stop)
                if isinstance(members, slice)
                else ModelSlice(program, models, members)
            )
            part.gradient.zero_()
            p = Pass(part.weights, part.buffers, True, group.count, part.seeds, t)
            gradient = partial(
                _loss_gradient,
                targets=targets[members, : group.width],
                temperature=temperature,
                shares=group.shares,
                prior=None if prior is None else prior[members],
                taught=None if taught is None else taught[members, : group.width],
                ntd=recipe.ntd,
            )
            with training.explain_batch_norm_errors(jobs):
                program.add_gradients(p, x[members, : group.width], gradient, part.gradients)
            if start is not None:  # mu (w - w0): see training.add_proximal_pull
                part.gradient.add_(part.flat - start[members], alpha=recipe.prox)
            rate = rates[t, members if rates.device == here else group.rows, None]
            rule.step(part.flat, part.gradient, rate, steps[t], part.members)
            part.put_back(models)
    return collect_states(program, models.flat, models.buffers, plan)


def _draw_batches(
    program: Program, jobs: Sequence[Fit], values: Tensor, plan: Schedule
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Per step, program-ready batches [M, B, ...], targets and what the teacher says of the other
    classes [M, B, classes]; some steps ahead."""
    here = values.device
    inputs = Inputs.of([job.data.samples for job in jobs], values)
    rows = torch.from_numpy(np.concatenate([job.data.samples.rows for job in jobs])).to(here)
    targets = torch.cat([job.data.targets for job in jobs]).to(here)
    teacher = join_teachers(jobs)
    teacher = None if teacher is None else teacher.to(here)
    steps = max(1, AHEAD // (plan.positions[0].size * values[0].numel()))
    for start in range(0, len(plan), steps):
        now = slice(start, start + steps)
        positions = torch.from_numpy(plan.positions[now]).to(here)
        moves = None if plan.moves is None else torch.from_numpy(plan.moves[now]).to(here)
        x, wanted = inputs.take(rows[positions], moves), targets[positions]
        taught = None if teacher is None else teacher[positions]
        if plan.shares is not None:
            counts, shares = (
                torch.from_numpy(figures[now]).to(here) for figures in (plan.counts, plan.shares)
            )
            mix = partial(mix_batches, counts=counts, shares=shares)
            x, wanted, taught = mix(x), mix(wanted), None if taught is None else mix(taught)
        if taught is not None:
            taught = _softmax_without_true(taught, wanted)
        x = program.arrange(x) if x.ndim == 6 else x
        yield from zip(x, wanted, repeat(None) if taught is None else taught, strict=False)


def mix_batches(values: Tensor, counts: Tensor, shares: Tensor) -> Tensor:
    """Each place [T, M, B, ...] mixed with the next of its batch, the last real one with the first:
    padding enters no sample. counts and shares [T, M]."""
    steps, models, width = values.shape[:3]
    here = values.device
    after = torch.arange(1, width + 1, device=here)
    after = after * (after < counts[..., None])  # [T, M, B]
    batches = torch.arange(0, steps * models * width, width, device=here)
    rows = (batches.view(steps, models, 1) + after).flatten()
    beside = values.flatten(0, 2).index_select(0, rows).view(values.shape)
    return training.mix(values, beside, shares.view(steps, models, *[1] * (values.ndim - 2)))


def join_teachers(jobs: Sequence[Fit]) -> Tensor | None:
    """The teachers' logits for all jobs' samples laid end to end, [n, C]; None without ntd."""
    found = [teacher for job in jobs if (teacher := training.teacher_of(job)) is not None]
    return torch.cat(found) if found else None


@dataclass(frozen=True, eq=False)
class Models:
    """Parameters [M, P], buffers {name: [M, ...]}, dropout seeds [M] of all models of a group."""

    flat: Tensor
    buffers: dict[str, Tensor]
    seeds: Tensor


class ModelSlice:
    """Some of the models, for a step: views if they are the first ones, else copies to put back."""

    def __init__(self, program: Program, models: Models, members: slice | Tensor) -> None:
        self.members, self.flat, self.seeds = members, models.flat[members], models.seeds[members]
        self.buffers = {name: value[members] for name, value in models.buffers.items()}
        self.weights = {
            name: view.detach().requires_grad_()
            for name, view in program.weights(self.flat).items()
        }
        self.gradient = torch.empty_like(self.flat)
        self.gradients = program.weights(self.gradient)

    def put_back(self, models: Models) -> None:
        if not isinstance(self.members, slice):
            models.flat[self.members] = self.flat
            for name, value in self.buffers.items():
                models.buffers[name][self.members] = value


@dataclass(frozen=True, eq=False)
class StepGroup:
    """Models whose batches are equally long in a step: they take it together."""

    members: slice | Tensor
    rows: slice | Tensor  # the same, on the host
    width: int  # with padding
    count: Tensor | None  # [A]: real samples, where some are padding
    shares: Tensor  # [A, width, 1]: what each place counts in the mean


def step_groups(
    program: Program, batch: int, here: torch.device, counts: tuple[int, ...]
) -> list[StepGroup]:
    """The groups of a step; counts [A] are the samples of the models that are still training."""
    widths = np.array([padded_length(n, batch) if program.pads else n for n in counts])
    found = []
    for width in sorted(set(widths.tolist())):
        mine = np.flatnonzero(widths == width)
        rows = slice(len(counts)) if len(mine) == len(counts) else torch.from_numpy(mine)
        members = rows if isinstance(rows, slice) else rows.to(here)
        count = torch.tensor(counts, device=here)[members]
        short = count if (count < width).any() else None
        found.append(StepGroup(members, rows, width, short, _shares(count, width)))
    return found


def collect_states(
    program: Program, flat: Tensor, buffers: dict[str, Tensor], plan: Schedule
) -> list[Weights]:
    buffers = {name: value.cpu() for name, value in buffers.items()}
    for name in program.counters:
        buffers[name] = buffers[name] + torch.from_numpy((plan.counts > 0).sum(0))
    return program.layout.unstack(flat.cpu(), buffers)


def _stack_priors(jobs: Sequence[Fit], here: torch.device) -> Tensor | None:
    """[M, 1, C], with exact zeros for jobs without one; None where no job has one."""
    if not any(job.recipe.prior for job in jobs):
        return None
    return torch.stack([training.prior_of(job) for job in jobs])[:, None].to(here)


def loss_gradient(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    count: Tensor,
    prior: Tensor | None = None,
    teacher: Tensor | None = None,
    ntd: float = 0.0,
) -> Tensor:
    """Of the mean over a model's batch of -sum t log s, s = softmax(z / T + prior), by z: (s sum(t)
    - t) / T / batch, 0 for padding. [A, b, C]; count [A] is how many samples are real; prior [A, 1,
    C]. With a teacher [A, b, C], of not-true distillation too."""
    shares = _shares(count, logits.shape[1])
    taught = None if teacher is None else _softmax_without_true(teacher, targets)
    return _loss_gradient(logits, targets, temperature, shares, prior, taught, ntd)


def _loss_gradient(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    shares: Tensor,
    prior: Tensor | None,
    taught: Tensor | None,
    ntd: float,
) -> Tensor:
    scaled = logits / temperature if temperature != 1 else logits
    s = torch.softmax(scaled if prior is None else scaled + prior, -1)
    pull = s.mul_(targets.sum(-1, keepdim=True)).sub_(targets).mul_(shares / temperature)
    if taught is None:
        return pull
    # of training.not_true_divergence, by z: s~ - t~, and 0 for the true class
    return pull.addcmul_(_softmax_without_true(logits, targets).sub_(taught), shares, value=ntd)


def _softmax_without_true(logits: Tensor, targets: Tensor) -> Tensor:
    """Over all classes but the true one, which gets 0: the s~ or t~ of not-true distillation."""
    true = targets.argmax(-1, keepdim=True)
    return torch.softmax(logits.scatter(-1, true, torch.finfo(logits.dtype).min), -1)


def _shares(count: Tensor, size: int) -> Tensor:
    """What each place of a batch counts in the mean over its real samples, [A, size, 1]."""
    return (real_samples(count, size) / count[:, None])[:, :, None]


@torch.no_grad()
def predict(
    program: Program, jobs: Sequence[Predict], values: Tensor, size: int, stop: Stop
) -> list[Array]:
    """Outputs of the models on their samples, `size` samples of each at a time.

    Where a program pads, models may have different numbers of samples.
    """
    here = values.device
    inputs = Inputs.of([job.samples for job in jobs], values)
    counts = [len(job.samples) for job in jobs]
    width = max(counts) + (-max(counts) % ALIGNED if program.pads else 0)
    rows = np.stack(
        [np.pad(job.samples.rows, (0, width - len(job.samples)), "edge") for job in jobs]
    )
    shared = bool((rows == rows[:1]).all()) and len(inputs.mean) == 1
    at = torch.from_numpy(rows[:1] if shared else rows).to(here)
    flat, buffers = program.layout.stack([job.state for job in jobs])
    weights, kept = (
        program.weights(flat.to(here)),
        {name: value.to(here) for name, value in buffers.items()},
    )
    outputs = torch.empty(0)
    for piece, begin in zip(at.split(size, 1), range(0, max(1, at.shape[1]), size), strict=True):
        raise_if_stopped(stop)
        x = inputs.take(piece)
        x = x.expand(len(jobs), *x.shape[1:])
        x = program.arrange(x) if x.ndim == 5 else x
        found = program(Pass(weights, kept, training=False), x)
        if not begin:  # one place for all: many small ones between large ones keep memory in pieces
            outputs = found.new_empty((found.shape[0], at.shape[1], *found.shape[2:]))
        outputs[:, begin : begin + size] = found
    answers = outputs[:, : max(counts)].float().cpu().numpy()
    return [rows[:count] for rows, count in zip(answers, counts, strict=True)]


def check_batches(program: Program, jobs: Sequence[Fit]) -> None:
    if program.smallest_norm == 1 and any(map(training.has_batch_of_one, jobs)):
        raise training.batch_norm_error(jobs)
