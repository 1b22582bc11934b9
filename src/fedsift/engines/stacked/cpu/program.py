"""Networks of known layers on a CPU, without torch's graph: each layer gives its output and its
backward step, written out.

The M networks' images are one, [B, M * C, H, W], channels last. So a convolution of all networks is
one grouped convolution of the library, and nothing is copied on the way. Its weights are [M, O, kh,
kw, I] for the same reason. Rows are [M, B, F]. A layer that has no backward step here takes
torch's. With bfloat16, what flows between convolutions is stored so, and their gradients come
rounded; weights, optimiser and all other layers are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift.engines.stacked import layers
from fedsift.engines.stacked.cpu.grouped_conv import GroupedConvolution, SingleConvolution
from fedsift.engines.stacked.layers import merge_models, split_models
from fedsift.engines.stacked.layout import Layout
from fedsift.engines.stacked.ops import CONVOLUTIONS, LAYERS, Pass, ReferenceOps
from fedsift.engines.stacked.program import Program, Traced
from fedsift.engines.stacked.trace import Op
from fedsift.types import Model

# from an output's gradient to those of the inputs
Backward = Callable[[Tensor], tuple[Tensor | None, ...]]
SHORT = (*CONVOLUTIONS, "batch_norm", "add", "each")  # layers that take what is stored
aten = torch.ops.aten


class CpuProgram(Program):
    """With batch norm, a step takes batches of one length, without padding; other networks pad."""

    copies = 4  # nothing is written out as patches

    def __init__(self, model: Model, ops: ReferenceOps) -> None:
        traced = Traced(model)
        self._traced = traced.ops
        self.layout = Layout(traced.net, channels_last=traced.convolutions)
        traced.set_up(self)
        traced.set_dtype(self, ops.stored)
        self.pads = self.smallest_norm is None
        # whether layers need the models' images apart: they are copied there and back
        self.splits_images = any(op.kind in ("group_norm", "dropout") for op in traced.ops[True])

    def arrange(self, x: Tensor) -> Tensor:
        """[..., M, B, C, H, W] -> [..., M, B, H, W, C], the models' channels adjacent in memory."""
        x = x.to(self.takes)
        if self._traced[True][0].kind == "flatten":
            return x.movedim(-3, -1)
        return x.movedim((-5, -3), (-2, -1)).contiguous().movedim(-2, -5)

    @torch.no_grad()
    def __call__(self, p: Pass, x: Tensor) -> Tensor:
        return self._forward(p, x)[0]

    @torch.no_grad()
    def add_gradients(
        self, p: Pass, x: Tensor, loss: Callable[[Tensor], Tensor], into: dict[str, Tensor]
    ) -> None:
        logits, steps = self._forward(p, x, into)
        gradients = {steps[-1][0].output: loss(logits)}
        while steps:
            op, backward, stored = steps.pop()
            found = backward(gradients.pop(op.output).to(stored))
            for name, mine in zip(op.inputs, found, strict=True):
                if name and mine is not None:
                    gradients[name] = gradients[name].add_(mine) if name in gradients else mine

    def _forward(
        self, p: Pass, x: Tensor, into: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, list[Any]]:
        """The output, and with a place for gradients each layer's backward step."""
        known = {"": x}
        steps = []
        for op in self._traced[p.training]:
            inputs = [
                _as_images(known[name]) if op.kind != "flatten" else known[name]
                for name in op.inputs
            ]
            inputs = inputs if op.kind in SHORT else [x.float() for x in inputs]
            if op.kind in CONVOLUTIONS:
                inputs[0] = inputs[0].to(self.stored)
            layer = CPU_LAYERS.get(op.kind, _by_torch)
            known[op.output], backward = layer(p, op, into, *inputs)
            if into is not None:
                steps.append((op, backward, known[op.output].dtype))
            for name in op.last_used:
                del known[name]
        return known[op.output], steps


# --- layers: each takes what it needs of the pass, where gradients go, and its inputs ---


def _by_torch(p: Pass, op: Op, into: Any, *inputs: Tensor) -> tuple[Tensor, Backward]:
    """torch forward and backward, on images [M, B, H, W, C]. A model's memory is its own, so that
    sums over it run in one order whatever it is batched with."""
    layer, m = LAYERS["batch_norm" if op.before else op.kind], p.models
    own = {name: weight for name, weight in p.weights.items() if name.rpartition(".")[0] == op.name}
    y, backward = _by_autograd(
        partial(layer, p, op), own, into, *(_as_models(x.float(), m) for x in inputs)
    )
    return _as_images(y), lambda dy: tuple(
        _as_images(dx) for dx in backward(_as_models(dy, m)) if dx is not None
    )


def _convolution(p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Backward]:
    weight, bias = p.weights[f"{op.name}.weight"], p.weights.get(f"{op.name}.bias")
    m, o = weight.shape[:2]
    rows = weight.reshape(m * o, *weight.shape[2:]).to(x.dtype).permute(0, 3, 1, 2)
    shapes, how = (tuple(x.shape), tuple(rows.shape)), op.geometry[1:]
    products = (
        GroupedConvolution(m, how)
        if m > 1
        else SingleConvolution(how, *shapes, bias is not None, x.dtype)
    )

    def backward(dy: Tensor) -> tuple[Tensor | None]:
        dx, dw = products.backward(dy, x, rows, op.inputs[0] != "")
        into[f"{op.name}.weight"].add_(dw.permute(0, 2, 3, 1).view(weight.shape))
        if bias is not None:
            into[f"{op.name}.bias"].add_(_channel_sums(dy).view(m, o))
        return (dx,)

    row = None if bias is None else bias.reshape(-1).to(x.dtype)
    return products.forward(x, rows, row), backward


def _norm_after_convolution(
    p: Pass, op: Op, into: Any, x: Tensor, *residual: Tensor
) -> tuple[Tensor, Backward]:
    assert op.before is not None
    between, to_input = _convolution(p, op.before, into, x)
    y, to_between = _batch_norm(p, op, into, between, *residual)

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        dbetween, *others = to_between(dy)
        assert dbetween is not None
        return *to_input(dbetween.to(between.dtype)), *others

    return y, backward


def _batch_norm(
    p: Pass, op: Op, into: Any, x: Tensor, *residual: Tensor
) -> tuple[Tensor, Backward]:
    """Batch norm and what is fused with it, an addition and ReLU. The library takes channels by
    eights and rounds what is left over otherwise, so there the place of a model's channels
    among the others' would show."""
    if x.ndim == 3 or p.count is not None or op.layer.num_features % 8:
        return _by_torch(p, op, into, x, *residual)
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

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        dy = _through_relu(dy, y) if op.relu else dy
        dx, dweight, dbias = aten.native_batch_norm_backward(
            dy, x, weight, mean, variance, *seen, True, eps, (True, True, True)
        )
        for what, mine in (("weight", dweight), ("bias", dbias)):
            into[f"{name}.{what}"].add_(mine.view(len(into[f"{name}.{what}"]), -1))
        return dx, *(dy for _ in residual)

    return y, backward


def _linear(p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Backward]:
    weight, bias = p.weights[f"{op.name}.weight"], p.weights.get(f"{op.name}.bias")

    def backward(dy: Tensor) -> tuple[Tensor | None]:
        into[f"{op.name}.weight"].add_(torch.bmm(dy.transpose(1, 2), x))
        if bias is not None:
            into[f"{op.name}.bias"].add_(dy.sum(1))
        return (torch.bmm(dy, weight) if op.inputs[0] != "" else None,)

    return layers.linear(x, weight.transpose(1, 2), bias), backward


def _flatten(p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Backward]:
    if x.ndim != 4:
        return layers.flatten(x), lambda dy: (
            dy if x.ndim == 3 else None,
        )  # nobody asks for images' gradient
    apart = split_models(x, p.models)
    m, b, h, w, c = apart.shape
    return layers.flatten(apart), lambda dy: (
        merge_models(dy.view(m, b, c, h, w).permute(0, 1, 3, 4, 2)),
    )


def _pool(p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Backward]:
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


def _each(p: Pass, op: Op, into: Any, x: Tensor) -> tuple[Tensor, Backward]:
    if op.layer is not F.relu:
        return _by_autograd(op.layer, {}, into, x)
    y = torch.relu(x)
    return y, lambda dy: (_through_relu(dy, y),)


def _add(p: Pass, op: Op, into: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Backward]:
    return x + y, lambda dy: (dy, dy.clone())


CPU_LAYERS: dict[str, Callable[..., tuple[Tensor, Backward]]] = {
    "convolution": _convolution,
    "norm_after_convolution": _norm_after_convolution,
    "batch_norm": _batch_norm,
    "linear": _linear,
    "flatten": _flatten,
    "pool": _pool,
    "each": _each,
    "add": _add,
}  # any other layer is `_by_torch`


# --- what they are made of ---


def _as_images(x: Tensor) -> Tensor:
    return merge_models(x) if x.ndim == 5 else x


def _as_models(x: Tensor, models: int) -> Tensor:
    return split_models(x, models).contiguous() if x.ndim == 4 else x


def _own_memory(dx: Tensor) -> Tensor:
    """In memory of its own, which may be added to."""
    return dx.contiguous(
        memory_format=torch.channels_last if dx.ndim == 4 else torch.contiguous_format
    )


def _through_relu(dy: Tensor, y: Tensor) -> Tensor:
    """In place: nobody else reads the gradient of an output."""
    return aten.threshold_backward.grad_input(dy, y, 0, grad_input=dy)


def _channel_sums(x: Tensor) -> Tensor:
    """As a product: the order of `sum` depends on the number of channels, and so of models."""
    pixels = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).float()
    return pixels.new_ones(len(pixels)) @ pixels


def _by_autograd(
    layer: Callable[..., Tensor], weights: dict[str, Tensor], into: Any, *inputs: Tensor
) -> tuple[Tensor, Backward]:
    """A layer with torch's own backward step."""
    leaves = [x.detach().requires_grad_(into is not None) for x in inputs]
    with torch.set_grad_enabled(into is not None):
        y = layer(*leaves)

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        found = torch.autograd.grad(y, [*leaves, *weights.values()], dy)
        for name, mine in zip(weights, found[len(leaves) :], strict=True):
            into[name].add_(mine)
        return tuple(_own_memory(dx) for dx in found[: len(leaves)])

    return y.detach(), backward
