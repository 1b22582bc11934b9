"""Pretexts of M networks of one architecture, as one program: plain torch around it, any device.

All that a stage needs is drawn on the host and copied once. A step then makes the views of all
networks together, in a few large operations, and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedsift import pretexts, training
from fedsift.engines.stacked.ops import Pass
from fedsift.engines.stacked.optimizers import Adam
from fedsift.engines.stacked.program import Program
from fedsift.engines.stacked.training import Inputs, Models, ModelSlice
from fedsift.engines.threads import Stop, raise_if_stopped
from fedsift.types import Pretrain, Recipe, Snapshot, Weights


def pretrain(
    program: Program, jobs: Sequence[Pretrain], values: Tensor, stop: Stop
) -> list[Snapshot]:
    """Jobs of one pretext, at the same epoch and with as many samples, where `values` lie."""
    here, pretext = values.device, jobs[0].pretext
    drawn = [pretexts.draw_steps(job) for job in jobs]
    inputs = Inputs.of([job.samples for job in jobs], values)
    low, span = torch.tensor([pretexts.measure_range(job.samples) for job in jobs]).to(here).T
    rows = torch.from_numpy(
        np.stack([job.samples.rows[d.positions] for job, d in zip(jobs, drawn, strict=True)], 1)
    ).to(here)  # [T, M, B]
    dice = torch.from_numpy(np.stack([d.dice for d in drawn], 1)).to(here)  # [T, M, views, B, dice]
    models = _load(program, jobs, here)
    part = ModelSlice(program, models, slice(len(jobs)))
    rule = Adam(Recipe(), models.flat)
    for matrix, which in ((rule.mean, "mean"), (rule.square, "square")):
        states = [job.state | getattr(job.snapshot, which) for job in jobs]
        matrix.copy_(program.layout.stack(states)[0])
    steps = torch.arange(len(rows), device=here, dtype=torch.float32) + drawn[0].first
    rates = torch.from_numpy(drawn[0].rates)[:, None]  # on the host: nobody waits for them
    for t in range(len(rows)):
        raise_if_stopped(stop)
        views = pretexts.make_inputs(pretext, values[rows[t]], dice[t], low, span)
        x = program.arrange(views.sub_(inputs.mean).div_(inputs.std))
        gradient = partial(pretext.gradient, dice=dice[t].flatten(1, 2))
        part.gradient.zero_()
        p = Pass(part.weights, part.buffers, True, None, part.seeds, drawn[0].first + t)
        program.add_gradients(p, x, gradient, part.gradients)
        rule.step(part.flat, part.gradient, rates[t], steps[t], part.members)
    seen = len(rows)
    if jobs[0].is_last:
        seen += _settle(program, jobs, inputs, models, drawn[0].first + seen, stop)
    return _collect(program, models, rule, seen)


def _load(program: Program, jobs: Sequence[Pretrain], here: torch.device) -> Models:
    flat, buffers = program.layout.stack([job.state for job in jobs])
    return Models(
        flat.to(here),
        {name: value.to(here) for name, value in buffers.items()},
        torch.tensor([training.dropout_seed(job.key) for job in jobs], device=here),
    )


@torch.no_grad()
def _settle(
    program: Program,
    jobs: Sequence[Pretrain],
    inputs: Inputs,
    models: Models,
    step: int,
    stop: Stop,
) -> int:
    """Let batch norms see the plain samples; in how many batches."""
    batches = pretexts.settling_batches(jobs[0])
    rows = torch.from_numpy(np.stack([job.samples.rows[batches] for job in jobs], 1))
    weights = program.weights(models.flat)
    for i, batch in enumerate(rows.to(models.flat.device)):
        raise_if_stopped(stop)
        p = Pass(weights, models.buffers, True, None, models.seeds, step + i)
        program(p, program.arrange(inputs.take(batch)))
    return len(batches)


def _collect(program: Program, models: Models, rule: Adam, seen: int) -> list[Snapshot]:
    """The answers; counters of batches are added to here."""
    buffers = {name: value.cpu() for name, value in models.buffers.items()}
    for name in program.counters:
        buffers[name] = buffers[name] + seen
    states, means, squares = (
        program.layout.unstack(matrix.cpu(), buffers)
        for matrix in (models.flat, rule.mean, rule.square)
    )
    names = program.layout.parameters
    return [
        Snapshot(state, _only(mean, names), _only(square, names))
        for state, mean, square in zip(states, means, squares, strict=True)
    ]


def _only(state: Weights, names: Iterable[str]) -> Weights:
    return {name: state[name] for name in names}
