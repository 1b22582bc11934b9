"""What each model of a group does in each step: its batch (padded if short), step size, crops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from fedsift import training
from fedsift.types import Array, Fit, Recipe


@dataclass(frozen=True, eq=False)
class Schedule:
    """T steps of M models, B places in a batch. Model i's samples are positions[:, i], counted over
    all models' data laid end to end; a model that has finished has batches of 0 samples and step
    size 0."""

    positions: Array  # [T, M, B] int64
    # [T, M] int64: real samples; they come first, the rest of the batch repeats the first
    counts: Array
    rates: Array  # [T, M] float32
    moves: Array | None  # [T, M, B, 3] int16: crops and mirrorings
    shares: Array | None = None  # [T, M] float32: of a sample in its mixture (training.draw_mixup)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def active(self) -> Array:
        """[T]: how many models are still training; sorted by length, they are the first ones."""
        return (self.counts > 0).sum(1)


def sort_by_length(jobs: Sequence[Fit]) -> list[int]:
    """Longest first, so that models finish from the back and finished ones cost little work."""
    return sorted(range(len(jobs)), key=lambda i: -len(jobs[i].data))


@cache
def shared_recipe(recipe: Recipe) -> Recipe:
    """What recipes must have in common to be followed in one program: all but step sizes, priors
    and mixup, which every model has of its own.
    """
    return replace(recipe, lr=1.0, milestones=(), decay=1.0, prior=0.0, mixup=0.0)


def padded_length(count: int, batch: int) -> int:
    """The padded length of a short batch: the next power of two from 8, at most a full batch."""
    return min(batch, max(8, 1 << (count - 1).bit_length()))


def make_schedule(jobs: Sequence[Fit]) -> Schedule:
    """The batches every engine draws, side by side. The jobs share all of a recipe but what
    `shared_recipe` leaves out, and are sorted by length."""
    recipe, shape = jobs[0].recipe, jobs[0].data.samples.shape
    drawn = [training.draw_orders(recipe, len(job.data), job.key) for job in jobs]
    batch, epochs = recipe.batch, recipe.epochs
    width = padded_length(min(batch, drawn[0].shape[1]), batch)  # the first is the longest
    steps, models = epochs * -(-drawn[0].shape[1] // batch), len(jobs)
    starts = np.cumsum([0, *(len(job.data) for job in jobs)])
    positions = np.tile(starts[:-1, None], (steps, 1, width))
    counts = np.zeros((steps, models), np.int64)
    rates = np.zeros((steps, models), np.float32)
    moves = None if recipe.augment == "none" else np.zeros((steps, models, width, 3), np.int16)
    mixed = any(job.recipe.mixup for job in jobs)  # the others' samples have shares of 1: exact
    shares = np.ones((steps, models), np.float32) if mixed else None
    for i, (job, order) in enumerate(zip(jobs, drawn, strict=True)):
        samples = order.shape[1]
        length = -(-samples // batch)  # steps an epoch
        places = np.zeros((epochs, length * width), np.int64)
        places[:, :samples] = order
        mine = slice(epochs * length)
        positions[mine, i] = starts[i] + places.reshape(-1, width)
        counts[mine, i] = np.tile(np.minimum(batch, samples - batch * np.arange(length)), epochs)
        sizes = [training.step_size(job.recipe, job.epoch + epoch) for epoch in range(epochs)]
        rates[mine, i] = np.repeat(np.array(sizes, np.float32), length)
        moved = training.draw_augmentation(recipe, len(job.data), job.key, shape)
        if moves is not None and moved is not None:
            moves[mine, i] = np.take_along_axis(moved, places[:, :, None], 1).reshape(-1, width, 3)
        drawn_shares = training.draw_mixup(job.recipe, len(job.data), job.key)
        if shares is not None and drawn_shares is not None:
            shares[mine, i] = drawn_shares.flatten()
    return Schedule(positions, counts, rates, moves, shares)
