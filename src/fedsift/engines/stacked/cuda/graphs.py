"""Training on CUDA: one step of a group of models, captured once as a CUDA graph and replayed to
the end.

Everything a step needs lies in fixed places on the device: weights [M, P], the data as they came,
the schedule. A counter there says which step it is, so a replay needs nothing from the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsift import training
from fedsift.engines.stacked.cuda import ops
from fedsift.engines.stacked.ops import Pass
from fedsift.engines.stacked.optimizers import correction
from fedsift.engines.stacked.program import Program
from fedsift.engines.stacked.schedule import Schedule, make_schedule
from fedsift.engines.stacked.training import (
    Inputs,
    check_batches,
    collect_states,
    join_teachers,
)
from fedsift.engines.threads import Stop, raise_if_stopped
from fedsift.types import Fit, Weights

WORTH_A_GRAPH = 200  # steps that a smaller graph must save models in, to be worth capturing
LOOK_UP = 64  # replays between two looks at whether to stop


class GraphTrainer:
    """A place for M models with batches of B, and the graphs that train them there."""

    def __init__(
        self, program: Program, jobs: Sequence[Fit], plan: Schedule, values: Tensor, needed: int
    ) -> None:
        self.bytes = needed  # what it holds on the device, roughly
        self._program, self._recipe, self._temperature = (
            program,
            jobs[0].recipe,
            jobs[0].temperature,
        )
        self._values, self._counted = values, _has_short_batches(plan)
        steps, models, width = plan.positions.shape
        samples, classes = _with_room(sum(len(job.data) for job in jobs)), jobs[0].data.classes
        steps, (channels, *size) = _with_room(steps), values.shape[1:]
        flat, buffers = program.layout.stack([jobs[0].state] * models)
        figures = Inputs.of([job.data.samples for job in jobs], values)
        with values.device:
            self._flat, self._buffers = (
                _copy_to_device(flat),
                {name: _copy_to_device(value) for name, value in buffers.items()},
            )
            both = torch.broadcast_tensors(
                figures.mean, figures.std, torch.empty(models, *[1] * values.ndim)
            )[:2]
            self._mean, self._std = (figure.flatten(1).contiguous() for figure in both)
            self._gradient = torch.zeros_like(self._flat)
            self._start = torch.zeros_like(self._flat) if self._recipe.prox else None
            self._moments = torch.zeros(2, *self._flat.shape)
            self._seeds = torch.zeros(models, dtype=torch.int64)
            self._rows = torch.zeros(samples, dtype=torch.int32)
            self._targets = torch.zeros(samples, classes)
            self._prior = torch.zeros(models, classes)
            taught = self._recipe.ntd > 0
            self._teacher = torch.zeros(samples, classes) if taught else None
            self._taught = torch.zeros(models, width, classes) if taught else None
            self._positions = torch.zeros(steps, models, width, dtype=torch.int32)
            self._counts = torch.zeros(steps, models, dtype=torch.int32)
            self._rates = torch.zeros(steps, models)
            self._corrections = torch.tensor([correction(t) for t in range(steps)])
            moved = plan.moves is not None
            self._moves = torch.zeros(steps, models, width, 3, dtype=torch.int16) if moved else None
            mixed = plan.shares is not None
            self._shares = torch.zeros(steps, models) if mixed else None
            self._now = torch.zeros(1, dtype=torch.int64)
            self._x = torch.zeros(models, width, *size, channels, dtype=program.takes)
            self._t = torch.zeros(models, width, classes)
            self._count = torch.zeros(models, dtype=torch.int32)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def has_room_for(self, jobs: Sequence[Fit], plan: Schedule) -> bool:
        """Whether these jobs fit here, and the graphs handle short batches where there are some."""
        samples = sum(len(job.data) for job in jobs)
        room = len(plan) <= len(self._rates) and samples <= len(self._rows)
        return (
            room
            and plan.positions.shape[2] == self._x.shape[1]
            and (self._counted or not _has_short_batches(plan))
        )

    def fit(self, jobs: Sequence[Fit], plan: Schedule, stop: Stop) -> list[Weights]:
        active = plan.active
        sizes = self._sizes(active)
        for models in set(sizes):
            self._graph(models)
        self._load(jobs, plan)
        for t, models in enumerate(sizes):
            if t % LOOK_UP == 0:
                raise_if_stopped(stop)
            self._graphs[models].replay()
        return collect_states(self._program, self._flat, self._buffers, plan)

    def _load(self, jobs: Sequence[Fit], plan: Schedule) -> None:
        flat, buffers = self._program.layout.stack([job.state for job in jobs])
        self._flat.copy_(flat)
        if self._start is not None:
            self._start.copy_(flat)
        for name, value in buffers.items():
            self._buffers[name].copy_(value)
        figures = Inputs.of([job.data.samples for job in jobs], self._values)
        for mine, given in ((self._mean, figures.mean), (self._std, figures.std)):
            mine.copy_(given.flatten(1).expand_as(mine))
        rows = np.concatenate([job.data.samples.rows for job in jobs])
        _fill(self._rows, torch.from_numpy(rows))
        _fill(self._targets, torch.cat([job.data.targets for job in jobs]))
        teacher = join_teachers(jobs)
        if self._teacher is not None and teacher is not None:
            _fill(self._teacher, teacher)
        self._prior.copy_(torch.stack([training.prior_of(job) for job in jobs]))
        _fill(self._positions, torch.from_numpy(plan.positions))
        _fill(self._counts, torch.from_numpy(plan.counts))
        _fill(self._rates, torch.from_numpy(plan.rates))
        if self._moves is not None and plan.moves is not None:
            _fill(self._moves, torch.from_numpy(plan.moves))
        if self._shares is not None and plan.shares is not None:
            _fill(self._shares, torch.from_numpy(plan.shares))
        self._seeds.copy_(torch.tensor([training.dropout_seed(job.key) for job in jobs]))
        self._moments.zero_()
        self._now.zero_()

    def _step(self, models: int) -> None:
        """One step of the first `models` models."""
        a, program = models, self._program
        x, t, count = self._x[:a], self._t[:a], self._count[:a]
        data = (self._values, self._rows, self._positions, self._moves, self._targets, self._counts)
        taught = None if self._taught is None else self._taught[:a]
        extra = (self._shares, self._teacher, taught)
        ops.draw_batch(*data, self._mean, self._std, self._now, x, t, count, *extra)
        w = self._flat[:a]
        weights = {
            name: view.detach().requires_grad_() for name, view in program.weights(w).items()
        }
        buffers = {name: value[:a] for name, value in self._buffers.items()}
        counted = count if self._counted else None
        gradient = self._gradient[:a]
        places = {
            name: view for name, view in program.weights(gradient).items() if name in program.placed
        }
        logits = program(
            Pass(weights, buffers, True, counted, self._seeds[:a], self._now, places), x
        )
        how = self._temperature, self._prior, taught, self._recipe.ntd
        pull = ops.loss_gradient(logits.detach(), t, count, *how)
        gradients = torch.autograd.grad(logits, list(weights.values()), pull)
        program.layout.join_gradients(gradients, gradient, program.placed)
        ops.update_weights(
            self._recipe,
            w,
            gradient,
            self._start,
            self._moments,
            self._rates,
            self._counts,
            self._corrections,
            self._now,
        )
        self._now += 1

    def _graph(self, models: int) -> None:
        """Capture a step after a few runs, so that kernels are compiled and libraries set up."""
        if models in self._graphs:
            return
        aside = _capture_stream(self._flat.device)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                self._now.zero_()
                self._step(models)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=aside, capture_error_mode="thread_local"
        ):
            self._step(models)
        self._pool = self._pool or graph.pool()
        self._graphs[models] = graph

    def _sizes(self, active: Any) -> list[int]:
        """How many models each step's graph has: all, or the half, quarter ... left, if it pays."""
        sizes, size = [], len(self._flat)
        steps = len(active)
        for t, models in enumerate(active.tolist()):
            while size > 1 and models <= -(-size // 2) and steps - t >= WORTH_A_GRAPH:
                size = -(-size // 2)
            sizes.append(size)
        return sizes


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all captures: the matrix library keeps 32 MiB for every stream it has seen."""
    return torch.cuda.Stream(device)


def _has_short_batches(plan: Schedule) -> bool:
    return bool((plan.counts != plan.positions.shape[2]).any())


def _with_room(n: int) -> int:
    """Room for a bit more, so that the next round's data, a little larger, need no new graph."""
    return n + n // 4


def _copy_to_device(tensor: Tensor) -> Tensor:
    """A copy on the device in force."""
    return torch.empty_like(tensor, device=torch.get_default_device()).copy_(tensor)


def _fill(mine: Tensor, given: Tensor) -> None:
    mine[: len(given)].copy_(given)


def plan_steps(program: Program, jobs: Sequence[Fit]) -> Schedule:
    check_batches(program, jobs)
    return make_schedule(jobs)
