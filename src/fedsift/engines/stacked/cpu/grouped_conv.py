"""The three products of a convolution on a CPU, for M models as one grouped library convolution."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

Pair = tuple[int, int]
How = tuple[Pair, Pair]  # stride, padding
# Three models of one channel look like a colour image, and the library may add in another order
# (seen without AVX-512): their gradients are computed for four.
COLOURS = 3
aten = torch.ops.aten


class GroupedConvolution:
    """M models, two or more: x [B, M * I, H, W] and weights [M * O, I, kh, kw], channels last."""

    def __init__(self, models: int, how: How) -> None:
        self._models, self._how = models, how

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.conv2d(x, weight, bias, *self._how, 1, self._models)

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, wanted: bool
    ) -> tuple[Tensor | None, Tensor]:
        """The gradients of the input, if wanted, and of the weights."""
        if x.shape[1] != COLOURS or self._models != COLOURS:
            return _gradients(dy, x, weight, self._how, self._models, (wanted, True))
        first = slice(len(weight) // COLOURS)
        dx, dw = _gradients(
            _channels_last(torch.cat([dy, dy[:, first]], 1)),
            _channels_last(torch.cat([x, x[:, :1]], 1)),
            torch.cat([weight, weight[first]]),
            self._how,
            COLOURS + 1,
            (wanted, True),
        )
        return _channels_last(dx[:, :COLOURS]) if wanted else None, dw[: len(weight)]


class SingleConvolution:
    """One model. The library may take another way for one group than for many, and round otherwise:
    such a product is done for two, since results must not depend on what is batched with it. Sums
    that are stored in 16 bits show the order of adding too seldom to be asked, so there all
    products are done for two."""

    def __init__(
        self,
        how: How,
        x: tuple[int, ...],
        weight: tuple[int, ...],
        biased: bool,
        stored: torch.dtype = torch.float32,
    ) -> None:
        self._how = how
        self._twice = (
            find_differences(how, x, weight, biased)
            if stored == torch.float32
            else (True, True, True)
        )

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._twice[0]:
            return torch.conv2d(x, weight, bias, *self._how)
        bias = None if bias is None else torch.cat([bias, bias])
        return _first_half(
            torch.conv2d(torch.cat([x, x], 1), torch.cat([weight, weight]), bias, *self._how, 1, 2)
        )

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, wanted: bool
    ) -> tuple[Tensor | None, Tensor]:
        _, twice_dx, twice_dw = self._twice
        dx, dw = _gradients(dy, x, weight, self._how, 1, (wanted and not twice_dx, not twice_dw))
        if twice_dw or (wanted and twice_dx):
            pair = torch.cat([dy, dy], 1), torch.cat([x, x], 1), torch.cat([weight, weight])
            both_dx, both_dw = _gradients(*pair, self._how, 2, (wanted and twice_dx, twice_dw))
            dx, dw = (
                _first_half(both_dx) if both_dx is not None else dx,
                both_dw[: len(weight)] if twice_dw else dw,
            )
        return dx, dw


@cache
def find_differences(
    how: How, x: tuple[int, ...], weight: tuple[int, ...], biased: bool
) -> tuple[bool, bool, bool]:
    """Which products (output, gradient of the input, of the weights) one group rounds otherwise
    than the first of two: asked of the library, once a shape, with numbers whose sums show the
    order they are added in."""
    generator = torch.Generator().manual_seed(0)
    one, w = (
        torch.randn(n, h, w, c, generator=generator).permute(0, 3, 1, 2)
        for n, c, h, w in (x, weight)
    )
    pair, ws = torch.cat([one, one], 1), torch.cat([w, w])
    b = torch.randn(len(w), generator=generator) if biased else None
    y = torch.conv2d(one, w, b, *how)
    ys = torch.conv2d(pair, ws, None if b is None else torch.cat([b, b]), *how, 1, 2)
    dx, dw = _gradients(y, one, w, how, 1, (True, True))
    dxs, dws = _gradients(torch.cat([y, y], 1), pair, ws, how, 2, (True, True))
    return (
        not torch.equal(y, _first_half(ys)),
        not torch.equal(dx, _first_half(dxs)),
        not torch.equal(dw, dws[: len(w)]),
    )


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, how: How, groups: int, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    stride, padding = how
    skips = weight.shape[2:] == (1, 1) and padding == (0, 0) and stride != (1, 1)
    pixels = wanted[0] and skips
    seen, step = x, stride
    if skips and weight.shape[1] % 8:  # without AVX-512, torch 2.13 writes beyond this gradient
        seen, step = _pick_seen(x, stride), (1, 1)
    dx, dw, _ = aten.convolution_backward(
        dy,
        seen,
        weight,
        None,
        *(step, padding),
        (1, 1),
        False,
        (0, 0),
        groups,
        (wanted[0] and not pixels, wanted[1], False),
    )
    return _gradient_of_strided_input(dy, x, weight, stride, groups) if pixels else dx, dw


def _pick_seen(x: Tensor, stride: Pair) -> Tensor:
    """The pixels that a strided 1x1 convolution sees."""
    return _channels_last(x[:, :, :: stride[0], :: stride[1]])


def _gradient_of_strided_input(
    dy: Tensor, x: Tensor, weight: Tensor, stride: Pair, groups: int
) -> Tensor:
    """The gradient of a 1x1 convolution's input where it steps over pixels, for which the library
    takes longer: a convolution back, to the pixels that were seen."""
    turned = weight.view(groups, -1, weight.shape[1]).transpose(1, 2).reshape(x.shape[1], -1, 1, 1)
    dx = torch.zeros_like(x)
    dx[:, :, :: stride[0], :: stride[1]] = torch.conv2d(dy, turned, groups=groups)
    return dx


def _first_half(x: Tensor) -> Tensor:
    return _channels_last(x[:, : x.shape[1] // 2])


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
