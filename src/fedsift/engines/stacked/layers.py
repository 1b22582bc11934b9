"""Layers of M networks at once, in plain torch: right on every device, and what faster kernels are
tested against.

Images are [M, B, H, W, C], rows [M, B, F]. Weights are stacked too, inputs before outputs: a
convolution's are [M, kh * kw * C, O], a linear layer's [M, F, O]. A model's batch may be shorter
than B: `count` [M] says how many of its samples are real. They come first; the rest is padding,
which no statistic and no gradient may see.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Pair = tuple[int, int]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.bmm(x, weight)
    return y if bias is None else y.add_(bias[:, None])  # a third quicker than baddbmm on a CPU


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, kernel: Pair, stride: Pair, padding: Pair
) -> Tensor:
    """One matrix product a model over all patches; zeros are padded."""
    return _Convolution.apply(x, weight, bias, kernel, stride, padding)


def merge_models(x: Tensor) -> Tensor:
    """[M, B, H, W, C] -> [B, M * C, H, W], channels last; no copy if it is from `split_models`."""
    m, b, h, w, c = x.shape
    return x.permute(1, 2, 3, 0, 4).reshape(b, h, w, m * c).permute(0, 3, 1, 2)


def split_models(y: Tensor, models: int) -> Tensor:
    """The other way, as a view."""
    b, channels, h, w = y.shape
    return y.permute(0, 2, 3, 1).reshape(b, h, w, models, channels // models).permute(3, 0, 1, 2, 4)


class _Convolution(torch.autograd.Function):
    """y = patches(x) w. Backward: dw = patches(x)^T dy, and dx sums what each patch passes back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kernel: Pair,
        stride: Pair,
        padding: Pair,
    ) -> Tensor:
        patches, (height, width) = _patches(x, kernel, stride, padding)
        y = linear(patches, weight, bias)
        ctx.save_for_backward(patches, weight)
        ctx.geometry = (x.shape, kernel, stride, padding, bias is not None)
        return y.view(*x.shape[:2], height, width, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        patches, weight = ctx.saved_tensors
        shape, kernel, stride, padding, biased = ctx.geometry
        height, width = dy.shape[2:4]
        dy = dy.reshape(dy.shape[0], -1, dy.shape[-1])
        dx = None
        if ctx.needs_input_grad[0]:
            dpatches = torch.bmm(dy, weight.transpose(1, 2))
            dx = _unpatch(dpatches, shape, (height, width), kernel, stride, padding)
        dweight = torch.bmm(patches.transpose(1, 2), dy)
        return dx, dweight, dy.sum(1) if biased else None, None, None, None


def _patches(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> tuple[Tensor, Pair]:
    """What each output pixel sees, [M, B * height * width, kh * kw * C]."""
    (kh, kw), (sh, sw), (ph, pw) = kernel, stride, padding
    m, b, h, w, c = x.shape
    height, width = (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1
    x = F.pad(x, (0, 0, pw, pw, ph, ph)) if ph or pw else x.contiguous()
    at = x.stride()
    strides = (at[0], at[1], at[2] * sh, at[3] * sw, at[2], at[3], at[4])
    seen = x.as_strided((m, b, height, width, kh, kw, c), strides)
    if c < 4:  # copying runs of a row of pixels is quicker than runs of one or three channels
        seen = (
            seen.permute(0, 4, 5, 6, 1, 2, 3).contiguous().view(m, kh * kw * c, -1).transpose(1, 2)
        )
        return seen, (height, width)
    return seen.reshape(m, b * height * width, kh * kw * c), (height, width)


def _unpatch(
    dpatches: Tensor, shape: torch.Size, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> Tensor:
    (height, width), (kh, kw), (sh, sw), (ph, pw) = size, kernel, stride, padding
    m, b, h, w, c = shape
    parts = dpatches.view(m, b, height, width, kh, kw, c)
    dx = dpatches.new_zeros(m, b, h + 2 * ph, w + 2 * pw, c)
    for i in range(kh):
        for j in range(kw):
            dx[:, :, i : i + sh * height : sh, j : j + sw * width : sw] += parts[:, :, :, :, i, j]
    return dx[:, :, ph : ph + h, pw : pw + w]


def moments(x: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor, Tensor | float]:
    """Per model and channel: mean, biased variance of real samples, [M, C] each, value count."""
    x = x.reshape(x.shape[0], x.shape[1], -1, x.shape[-1])
    real = None if count is None else real_samples(count, x.shape[1])[:, :, None, None]
    values = _values(x, count)
    mean = _total(x, real) / values
    return mean, _total((x - mean[:, None, None]).square(), real) / values, values


def merge_moments(parts: Tensor, held: int, group: int) -> tuple[Tensor, int]:
    """Moments of larger pieces: parts [M, T, 2, C] are means and sums of squares about them, of
    `held` values each. `group` neighbours become one, where that divides T; and what each holds.
    """
    m, tiles, _, c = parts.shape
    group = math.gcd(group, tiles)
    means, squares = parts.view(m, tiles // group, group, 2, c).unbind(3)
    mean = means.mean(2)
    away = (means - mean[:, :, None]).square().sum(2)
    return torch.stack([mean, squares.sum(2) + held * away], 2), held * group


def _values(x: Tensor, count: Tensor | None) -> Tensor | float:
    """How many values a channel has, [M, 1] or the same for all."""
    pixels = float(x.shape[2:-1].numel())
    return x.shape[1] * pixels if count is None else count.clamp(min=1)[:, None] * pixels


def _total(x: Tensor, real: Tensor | None) -> Tensor:
    """[M, b, n, C] -> [M, C]."""
    return (x if real is None else x * real).flatten(1, 2).sum(1)


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, count: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | float]:
    """In training: the output, and of the batch mean, biased variance and number of values."""
    y, mean, variance = _BatchNorm.apply(x, weight, bias, count, eps)
    return y, mean, variance, _values(x, count)


class _BatchNorm(torch.autograd.Function):
    """Written out, so that every sum runs over memory in one order, whatever came before: x may lie
    with the models' channels side by side, and then the order would depend on how many models there
    are.

    Backward: dx = weight / std (dy - mean(dy) - xhat mean(dy xhat)), 0 for padding.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, count: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.contiguous()
        mean, variance, n = moments(x, count)
        std = (variance + eps).rsqrt()
        xhat = (x - per_channel(mean, x)) * per_channel(std, x)
        ctx.save_for_backward(xhat, weight * std, count)
        ctx.n = n
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(per_channel(bias, x), xhat, per_channel(weight, x)), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        xhat, gain, count = ctx.saved_tensors
        dy, m, b, c = dy.contiguous(), xhat.shape[0], xhat.shape[1], xhat.shape[-1]
        s1, s2 = (_total(t.reshape(m, b, -1, c), None) for t in (dy, dy * xhat))
        dx = dy - per_channel(s1 / ctx.n, dy) - xhat * per_channel(s2 / ctx.n, dy)
        dx *= per_channel(gain, dy)
        if count is not None:
            dx *= real_samples(count, b).view(m, b, *[1] * (dx.ndim - 2))
        return dx, s2, s1, None, None


def per_channel(figure: Tensor, x: Tensor) -> Tensor:
    """[M, C] as it meets x [M, B, ..., C]."""
    return figure.view(x.shape[0], *[1] * (x.ndim - 2), x.shape[-1])


def normalise(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias, all [M, C]."""
    scale = weight * (variance + eps).rsqrt()
    shift = bias - mean * scale
    return torch.addcmul(per_channel(shift, x), x, per_channel(scale, x))


@torch.no_grad()
def update_running(running: Tensor, seen: Tensor, momentum: float, count: Tensor | None) -> None:
    """running <- (1 - momentum) running + momentum seen, for models with samples in this step."""
    if count is None:
        running.lerp_(seen, momentum)
    else:
        running.copy_(torch.where(count[:, None] > 0, running.lerp(seen, momentum), running))


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    shape = x.shape
    x = (
        F.group_norm(_as_images(x), groups, eps=eps)
        if x.ndim == 5
        else F.group_norm(x.flatten(0, 1), groups, eps=eps)
    )
    x = x.permute(0, 2, 3, 1).reshape(shape) if len(shape) == 5 else x.view(shape)
    if weight is None or bias is None:
        return x
    to = (shape[0], *[1] * (len(shape) - 2), shape[-1])
    return torch.addcmul(bias.view(to), x, weight.view(to))


def pool(x: Tensor, pooled: Any) -> Tensor:
    """`pooled` works on images [n, C, H, W] of one network; it does not care whose they are."""
    return split_models(pooled(merge_models(x)), len(x))


def flatten(x: Tensor) -> Tensor:
    """Rows in the order of one network's own [C, H, W]."""
    return x.permute(0, 1, 4, 2, 3).flatten(2) if x.ndim == 5 else x.flatten(2)


def real_samples(count: Tensor, size: int) -> Tensor:
    """[M, size]: which places of the batch hold a sample."""
    return torch.arange(size, device=count.device) < count[:, None]


def _as_images(x: Tensor) -> Tensor:
    return x.flatten(0, 1).permute(0, 3, 1, 2)
