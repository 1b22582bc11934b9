"""Known layers on a CPU, without a graph: each gives its output and the way back, written out.

The M networks' images are one, [B, M * C, H, W], channels last, so that a convolution of all is one
grouped convolution of the library, and nothing is turned over on the way; its weights are [M, O,
kh, kw, I] for the same reason. Rows are [M, B, F]. A layer that has no way back here takes torch's.
With bfloat16, what flows between convolutions is stored so, and their gradients come rounded;
weights, optimiser and all other layers are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift.engines.stacked import layers
from fedsift.engines.stacked.cpu.grouped_conv import Alone, Together
from fedsift.engines.stacked.layers import one_by_one, side_by_side
from fedsift.engines.stacked.layout import Layout
from fedsift.engines.stacked.ops import LAYERS, Pass, ReferenceOps
from fedsift.engines.stacked.program import Stacked
from fedsift.engines.stacked.trace import Op
from fedsift.types import Model

Back = Callable[
    [Tensor], tuple[Tensor | None, ...]
]  # from an output's gradient to those of the inputs
SHORT = (
    "convolution",
    "norm_after_convolution",
    "batch_norm",
    "add",
    "each",
)  # layers that take what is stored
aten = torch.ops.aten


class CpuProgram(Stacked):
    """With batch norm, batches of one length take a step together and nothing is padded; other
    networks pad.
    """

    copies = 4  # nothing is written out as patches

    def __init__(self, model: Model, kernels: ReferenceOps) -> None:
        super().__init__(model, kernels)
        self.pads = self.smallest_norm is None
        self.turned = any(
            op.kind in ("group_norm", "dropout") for op in self._programs[True]
        )  # to and fro, at a price

    def _layout(self, net: nn.Module, products: list[Op]) -> Layout:
        return Layout(
            net, channels_last=[f"{op.name}.weight" for op in products if op.kind == "convolution"]
        )

    def arranged(self, x: Tensor) -> Tensor:
        """[..., M, B, C, H, W] -> [..., M, B, H, W, C], in memory with the models' channels side by
        side.
        """
        x = x.to(self.takes)
        if self._programs[True][0].kind == "flatten":
            return x.movedim(-3, -1)
        return x.movedim((-5, -3), (-2, -1)).contiguous().movedim(-2, -5)

    @torch.no_grad()
    def __call__(self, p: Pass, x: Tensor) -> Tensor:
        return self._forward(p, x)[0]

    @torch.no_grad()
    def learn(
        self, p: Pass, x: Tensor, pull: Callable[[Tensor], Tensor], into: dict[str, Tensor]
    ) -> None:
        logits, ways = self._forward(p, x, into)
        pulled = {ways[-1][0].output: pull(logits)}
        while ways:
            op, back, stored = ways.pop()
            for name, mine in zip(op.inputs, back(pulled.pop(op.output).to(stored)), strict=True):
                if name and mine is not None:
                    pulled[name] = pulled[name].add_(mine) if name in pulled else mine

    def _forward(
        self, p: Pass, x: Tensor, into: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, list[Any]]:
        """The output, and with a place for gradients the layers' ways back."""
        known = {"": x}
        ways = []
        for op in self._programs[p.training]:
            inputs = [
                _images(known[name]) if op.kind != "flatten" else known[name] for name in op.inputs
            ]
            inputs = inputs if op.kind in SHORT else [x.float() for x in inputs]
            layer = getattr(self, f"_{op.kind}", self._any)
            known[op.output], back = layer(p, op, into, *inputs)
            if into is not None:
                ways.append((op, back, known[op.output].dtype))
            for name in op.last_used:
                del known[name]
        return known[op.output], ways

    def _any(self, p: Pass, op: Op, into: Any, *inputs: Tensor) -> tuple[Tensor, Back]:
        """torch's way there and back, on images [M, B, H, W, C]; a model's memory is its own, so
        that sums over it run in one order whatever its company."""
        layer, m = LAYERS["batch_norm" if op.before else op.kind], p.models
        own = {
            name: weight for name, weight in p.weights.items() if name.rpartition(".")[0] == op.name
        }
        y, back = _by_autograd(
            partial(layer, p, op), own, into, *(_apart(x.float(), m) for x in inputs)
        )
        return _images(y), lambda dy: tuple(
            _images(dx) for dx in back(_apart(dy, m)) if dx is not None
        )

    def _convolution(self, p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Back]:
        weight, bias = p.weights[f"{op.name}.weight"], p.weights.get(f"{op.name}.bias")
        m, o = weight.shape[:2]
        x, rows = (
            x.to(self.stored),
            weight.reshape(m * o, *weight.shape[2:]).to(self.stored).permute(0, 3, 1, 2),
        )
        how = op.geometry[1:]
        shapes = tuple(x.shape), tuple(rows.shape)
        products = Together(m, how) if m > 1 else Alone(how, *shapes, bias is not None, self.stored)

        def back(dy: Tensor) -> tuple[Tensor | None]:
            dx, dw = products.back(dy, x, rows, op.inputs[0] != "")
            into[f"{op.name}.weight"].add_(dw.permute(0, 2, 3, 1).view(weight.shape))
            if bias is not None:
                into[f"{op.name}.bias"].add_(_channel_sums(dy).view(m, o))
            return (dx,)

        return products.forward(
            x, rows, None if bias is None else bias.reshape(-1).to(self.stored)
        ), back

    def _norm_after_convolution(
        self, p: Pass, op: Op, into: Any, x: Tensor, *residual: Tensor
    ) -> tuple[Tensor, Back]:
        assert op.before is not None
        between, to_input = self._convolution(p, op.before, into, x)
        y, to_between = self._batch_norm(p, op, into, between, *residual)

        def back(dy: Tensor) -> tuple[Tensor | None, ...]:
            dbetween, *others = to_between(dy)
            assert dbetween is not None
            return *to_input(dbetween.to(between.dtype)), *others

        return y, back

    def _batch_norm(
        self, p: Pass, op: Op, into: Any, x: Tensor, *residual: Tensor
    ) -> tuple[Tensor, Back]:
        """Batch norm and what is joined to it, an addition and ReLU. The library takes channels by
        eights and rounds what is left over otherwise, so there the place of a model's channels
        among the others' would show."""
        if x.ndim == 3 or p.count is not None or op.layer.num_features % 8:
            return self._any(p, op, into, x, *residual)
        name, eps = op.name, op.layer.eps
        weight, bias = (p.weights[f"{name}.{what}"].reshape(-1) for what in ("weight", "bias"))
        mean, variance = (
            p.buffers[f"{name}.{what}"].view(-1) for what in ("running_mean", "running_var")
        )
        y, *seen = torch.native_batch_norm(
            x, weight, bias, mean, variance, p.training, op.layer.momentum, eps
        )
        for other in residual:
            y.add_(other)
        if op.relu:
            y.relu_()

        def back(dy: Tensor) -> tuple[Tensor | None, ...]:
            dy = _through_relu(dy, y) if op.relu else dy
            dx, dweight, dbias = aten.native_batch_norm_backward(
                dy, x, weight, mean, variance, *seen, True, eps, (True, True, True)
            )
            for what, mine in (("weight", dweight), ("bias", dbias)):
                into[f"{name}.{what}"].add_(mine.view(len(into[f"{name}.{what}"]), -1))
            return dx, *(dy for _ in residual)

        return y, back

    def _linear(self, p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Back]:
        weight, bias = p.weights[f"{op.name}.weight"], p.weights.get(f"{op.name}.bias")

        def back(dy: Tensor) -> tuple[Tensor | None]:
            into[f"{op.name}.weight"].add_(torch.bmm(dy.transpose(1, 2), x))
            if bias is not None:
                into[f"{op.name}.bias"].add_(dy.sum(1))
            return (torch.bmm(dy, weight) if op.inputs[0] != "" else None,)

        return layers.linear(x, weight.transpose(1, 2), bias), back

    def _flatten(self, p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Back]:
        if x.ndim != 4:
            return layers.flatten(x), lambda dy: (
                dy if x.ndim == 3 else None,
            )  # nobody asks for images' gradient
        apart = one_by_one(x, p.models)
        m, b, h, w, c = apart.shape
        return layers.flatten(apart), lambda dy: (
            side_by_side(dy.view(m, b, c, h, w).permute(0, 1, 3, 4, 2)),
        )

    def _pool(self, p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Back]:
        """Pools and activations do not care whose image it is."""
        pool = op.layer
        if not isinstance(pool, nn.MaxPool2d) or into is None:
            return _by_autograd(pool, {}, into, x)
        sizes = [
            (size, size) if isinstance(size, int) else size
            for size in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        ]
        y, places = aten.max_pool2d_with_indices(x, *sizes, pool.ceil_mode)
        return y, lambda dy: (
            aten.max_pool2d_with_indices_backward(dy, x, *sizes, pool.ceil_mode, places),
        )

    def _each(self, p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Back]:
        if op.layer is not F.relu:
            return _by_autograd(op.layer, {}, into, x)
        y = torch.relu(x)
        return y, lambda dy: (_through_relu(dy, y),)

    def _add(self, p: Pass, op: Op, into: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Back]:
        return x + y, lambda dy: (dy, dy.clone())


def _images(x: Tensor) -> Tensor:
    return side_by_side(x) if x.ndim == 5 else x


def _apart(x: Tensor, models: int) -> Tensor:
    return one_by_one(x, models).contiguous() if x.ndim == 4 else x


def _own(dx: Tensor) -> Tensor:
    """In memory of its own, which may be added to."""
    return dx.contiguous(
        memory_format=torch.channels_last if dx.ndim == 4 else torch.contiguous_format
    )


def _through_relu(dy: Tensor, y: Tensor) -> Tensor:
    """In place: nobody else reads the gradient of an output."""
    return aten.threshold_backward.grad_input(dy, y, 0, grad_input=dy)


def _channel_sums(x: Tensor) -> Tensor:
    """As a product: the order in which `sum` adds depends on how many channels, and so models,
    there are.
    """
    pixels = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).float()
    return pixels.new_ones(len(pixels)) @ pixels


def _by_autograd(
    layer: Callable[..., Tensor], weights: dict[str, Tensor], into: Any, *inputs: Tensor
) -> tuple[Tensor, Back]:
    """A layer with torch's way back."""
    leaves = [x.detach().requires_grad_(into is not None) for x in inputs]
    with torch.set_grad_enabled(into is not None):
        y = layer(*leaves)

    def back(dy: Tensor) -> tuple[Tensor | None, ...]:
        pulled = torch.autograd.grad(y, [*leaves, *weights.values()], dy)
        for name, mine in zip(weights, pulled[len(leaves) :], strict=True):
            into[name].add_(mine)
        return tuple(_own(dx) for dx in pulled[: len(leaves)])

    return y.detach(), back
