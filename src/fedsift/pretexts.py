"""Self-supervised tasks, by which the server may prepare its students on the public images:
SimCLR (Chen et al. 2020) and rotation (RotNet, Gidaris et al. 2018).

A network learns to answer a question that needs no labels. Its last linear layer is replaced by a
head of the task's own, and taken off again afterwards. All random numbers are drawn from a key,
outside the engines, so that every engine makes the same views.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift import seeding, training
from fedsift.types import Array, Pretext, Pretrain, Samples, UserError, list_problems, option

WARM_UP = 200  # steps in which the learning rate rises; a tenth of all steps, where that is less
SETTLING = 40  # batches of plain images that batch norms see at the end, at least
FEWEST = 4  # steps of an epoch: batches are smaller where samples are few
GREY = (0.299, 0.587, 0.114)  # how bright red, green and blue look
HUE = 0.1  # how far a colour jitter moves each channel


@dataclass(frozen=True)
class SimClr:
    """Two random views of an image should be told from views of other images (Chen et al. 2020).

    loss = mean over views i of -log(exp(s_ij / T) / sum over k != i of exp(s_ik / T)), j being the
    other view of the same image and s the cosine of two outputs.
    """

    epochs: int = option(120, "passes over the public images", low=1)
    batch: int = option(512, "images per step, two views of each", low=2)
    lr: float = option(2e-3, "the largest learning rate, of Adam", above=0)
    temperature: float = option(0.5, "of the softmax over cosines", above=0)
    crop: float = option(0.25, "the smallest share of an image that a view shows", above=0)
    mirror: float = option(0.5, "the share of views that are mirrored", low=0)
    jitter: float = option(0.4, "how far brightness, contrast and colours move", low=0)
    grey: float = option(0.2, "the share of views without colours", low=0)
    hidden: int = option(128, "units in the head", low=1)
    outputs: int = option(64, "outputs of the head", low=1)

    views: ClassVar[int] = 2
    dice: ClassVar[int] = 13

    def __post_init__(self) -> None:
        _check_options(self)
        if self.crop > 1:
            raise UserError(f"crop must be at most 1, not {self.crop}")

    def check_shape(self, shape: tuple[int, ...]) -> None:
        _check_images("simclr", shape)

    def make_head(self, features: int) -> nn.Module:
        """The projection."""
        return nn.Sequential(
            nn.Linear(features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.outputs)
        )

    def make_view(self, x: Tensor, dice: Tensor) -> Tensor:
        """A crop, mirrored or not, brought back to full size; then colours, where there are any."""
        area, ratio, across, down, mirrored, *colours = dice.unbind(1)
        side = (self.crop + (1 - self.crop) * area).sqrt()
        stretch = torch.exp((ratio - 0.5) * math.log(4 / 3))
        width, height = (side * stretch).clamp(max=1), (side / stretch).clamp(max=1)
        grid = dice.new_zeros(len(x), 2, 3)
        grid[:, 0, 0] = torch.where(mirrored < self.mirror, -width, width)
        grid[:, 0, 2] = (2 * across - 1) * (1 - width)
        grid[:, 1, 1] = height
        grid[:, 1, 2] = (2 * down - 1) * (1 - height)
        places = F.affine_grid(grid, list(x.shape), align_corners=False)
        x = F.grid_sample(x, places, padding_mode="reflection", align_corners=False)
        return self._change_colours(x, torch.stack(colours, 1)) if x.shape[1] == 3 else x

    def _change_colours(self, x: Tensor, dice: Tensor) -> Tensor:
        """Brightness, contrast, saturation and tint of four views in five; some become grey."""
        changed, grey, *moves = dice[:, :, None, None, None].unbind(1)
        reach = torch.where(changed < 0.8, self.jitter, 0.0)
        light, contrast, saturation = (1 + reach * (2 * move - 1) for move in moves[:3])
        tints = 2 * torch.cat(moves[3:], 1) - 1
        x = x * light
        middle = x.mean((1, 2, 3), keepdim=True)
        x = torch.lerp(middle, x, contrast)
        red, green, blue = (share * x[:, c : c + 1] for c, share in enumerate(GREY))
        shade = red + green + blue
        x = torch.lerp(shade, x, saturation)
        x = x * (1 + (reach > 0) * HUE * tints)
        return torch.where(grey < self.grey, shade, x).clamp(0, 1)

    def gradient(self, outputs: Tensor, dice: Tensor) -> Tensor:
        """u = z / |z|, p = softmax(u u^T / T) without the diagonal, q = p - 1 at the other view:
        the gradient by u is (q + q^T) u / (T rows), and that by z its part across u, over |z|.
        """
        rows = outputs.shape[1]
        length = outputs.norm(dim=2, keepdim=True).clamp(min=1e-12)
        u = outputs / length
        likeness = torch.bmm(u, u.transpose(1, 2)).div_(self.temperature)
        likeness.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        q = torch.softmax(likeness, 2)
        half = rows // 2
        for offset in (half, -half):
            q.diagonal(offset, 1, 2).sub_(1)
        du = torch.bmm(q + q.transpose(1, 2), u).div_(self.temperature * rows)
        return (du - u * (u * du).sum(2, keepdim=True)).div_(length)


@dataclass(frozen=True)
class Rotation:
    """By how many quarter turns has an image been turned? (RotNet, Gidaris et al. 2018)"""

    epochs: int = option(50, "passes over the public images", low=1)
    batch: int = option(512, "images per step", low=2)
    lr: float = option(2e-3, "the largest learning rate, of Adam", above=0)

    views: ClassVar[int] = 1
    dice: ClassVar[int] = 4
    outputs: ClassVar[int] = 4

    def __post_init__(self) -> None:
        _check_options(self)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        _check_images("rotation", shape)
        if shape[1] != shape[2]:
            raise UserError(f"start=rotation needs square images, not {shape}; use simclr")

    def make_head(self, features: int) -> nn.Module:
        return nn.Linear(features, self.outputs)

    def make_view(self, x: Tensor, dice: Tensor) -> Tensor:
        """Shifted by up to an eighth, mirrored or not, then turned."""
        _, down, right, mirrored = dice.unbind(1)
        reach = max(1, round(min(x.shape[2:]) * training.PAD))
        shifts = ((2 * reach + 1) * torch.stack([down, right], 1)).long() - reach
        x = training.augment(x, torch.cat([shifts, (mirrored < 0.5).long()[:, None]], 1))
        turned = torch.stack([torch.rot90(x, turns, (2, 3)) for turns in range(4)])
        return turned[self._turns(dice), torch.arange(len(x), device=x.device)]

    def gradient(self, outputs: Tensor, dice: Tensor) -> Tensor:
        """Of the cross-entropy: (softmax(z) - 1 at the right answer) / rows."""
        answers = F.one_hot(self._turns(dice), 4)
        return (torch.softmax(outputs, 2) - answers).div_(outputs.shape[1])

    def _turns(self, dice: Tensor) -> Tensor:
        return (4 * dice[..., 0]).long()


PRETEXTS: dict[str, Callable[..., Pretext]] = {"simclr": SimClr, "rotation": Rotation}


def _check_options(pretext: Pretext) -> None:
    if problems := list_problems(pretext):
        raise UserError("; ".join(problems))


def _check_images(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise UserError(
            f"start={name} needs images (channels, height, width), but samples have shape {shape};"
            " leave start out, or give a file of weights"
        )


# --- what an engine needs of a job ---


def batch_size(pretext: Pretext, samples: int) -> int:
    """As asked, but at least some steps an epoch; whole eights, which stack to the last bit."""
    size = min(pretext.batch, max(2, samples // FEWEST))
    return size - size % 8 if size >= 8 else size


def step_sizes(pretext: Pretext, samples: int) -> Array:
    """The learning rate of every step of the whole training, float32: up a line, down a cosine."""
    steps = pretext.epochs * (samples // batch_size(pretext, samples))
    now = np.arange(steps)
    rise = np.minimum(1, (now + 1) / max(1, min(WARM_UP, steps // 10)))
    return (pretext.lr * rise * 0.5 * (1 + np.cos(np.pi * now / steps))).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Drawn:
    """T steps of a job: positions in its samples [T, B], dice [T, views, B, dice], rates [T]."""

    positions: Array
    dice: Array
    rates: Array
    first: int  # the steps before these


def draw_steps(job: Pretrain) -> Drawn:
    """The batches and views of a job, each epoch's from its own name. What is left over after the
    last whole batch of an epoch is not used in it.
    """
    pretext, samples = job.pretext, len(job.samples)
    size = batch_size(pretext, samples)
    steps = samples // size
    positions, dice = [], []
    for epoch in range(job.epoch, job.epoch + job.epochs):
        generator = seeding.rng(*job.key, epoch)
        positions.append(generator.permutation(samples)[: steps * size].reshape(steps, size))
        shape = (steps, pretext.views, size, pretext.dice)
        dice.append(generator.random(shape, dtype=np.float32))
    first = first_step(job)
    rates = step_sizes(pretext, samples)[first : first + job.epochs * steps]
    return Drawn(np.concatenate(positions), np.concatenate(dice), rates, first)


def first_step(job: Pretrain) -> int:
    """How many steps the training has made before this job."""
    return job.epoch * (len(job.samples) // batch_size(job.pretext, len(job.samples)))


def settling_batches(job: Pretrain) -> Array:
    """Positions of the plain samples that batch norms see at the end, [T, B]: as often as it takes
    for their running statistics to forget the views.
    """
    samples = len(job.samples)
    size = batch_size(job.pretext, samples)
    once = np.arange(samples - samples % size).reshape(-1, size)
    return np.tile(once, (-(-SETTLING // len(once)), 1))


def measure_range(samples: Samples) -> tuple[float, float]:
    """The lowest value and the span of the raw values: what 0 and 1 mean in a view."""
    low, high = samples.store.values[torch.from_numpy(samples.rows)].aminmax()
    span = float(high) - float(low)
    return float(low), span if span > 0 else 1.0


def make_inputs(pretext: Pretext, x: Tensor, dice: Tensor, low: Tensor, span: Tensor) -> Tensor:
    """Views as raw values: x [M, B, C, H, W], dice [M, views, B, dice] -> [M, views * B, C, H, W].

    low and span [M] are of each network's samples.
    """
    m, b, *image = x.shape
    low, span = (figure.view(m, 1, 1, 1, 1) for figure in (low, span))
    x = ((x.float() - low) / span)[:, None].expand(m, pretext.views, b, *image)
    seen = pretext.make_view(x.reshape(-1, *image), dice.flatten(0, 2))
    return seen.view(m, -1, *image) * span + low
