"""The layers of a traced network as programs call them, in plain torch: right on every device.

`ReferenceOps` has the layers that other devices implement in their own way, `LAYERS` the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsift import training
from fedsift.engines.stacked import layers
from fedsift.engines.stacked.trace import Op


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass of M networks: their weights, and what a layer may need beside its input."""

    weights: dict[str, Tensor]
    buffers: dict[str, Tensor]
    training: bool
    count: Tensor | None = None  # [M]: real samples in each batch, where some batches are padded
    seeds: Tensor | None = None  # [M]: of dropout
    step: Tensor | int = 0
    # where the gradients of a program's `placed` weights go
    places: dict[str, Tensor] = field(default_factory=dict)

    @property
    def models(self) -> int:
        return len(next(iter(self.weights.values())))


CONVOLUTIONS = ("convolution", "norm_after_convolution")


class ReferenceOps:
    """Convolution and what follows it, in plain torch. Others may take and give what is `stored` in
    fewer bits; all other layers get float32."""

    places = False  # whether gradients can be written where they are wanted

    def __init__(self, stored: torch.dtype = torch.float32) -> None:
        self.stored = stored

    def convolve(self, p: Pass, op: Op, x: Tensor) -> Tensor:
        return layers.convolve(
            x, p.weights[f"{op.name}.weight"], p.weights.get(f"{op.name}.bias"), *op.geometry
        )

    def convolve_and_normalise(
        self, p: Pass, op: Op, x: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        """Convolution, batch norm, and where the network has them next an addition and ReLU."""
        assert op.before is not None
        return _batch_norm(p, op, self.convolve(p, op.before, x).float(), residual)


def _batch_norm(p: Pass, op: Op, x: Tensor, residual: Tensor | None = None) -> Tensor:
    layer, name = op.layer, op.name
    running = p.buffers[f"{name}.running_mean"], p.buffers[f"{name}.running_var"]
    weight, bias = p.weights[f"{name}.weight"], p.weights[f"{name}.bias"]
    if p.training:
        y, mean, variance, n = layers.batch_norm(x, weight, bias, p.count, layer.eps)
        layers.update_running(running[0], mean, layer.momentum, p.count)
        layers.update_running(running[1], variance * (n / (n - 1)), layer.momentum, p.count)
    else:
        y = layers.normalise(x, *running, weight, bias, layer.eps)
    y = y if residual is None else y + residual
    return torch.relu(y) if op.relu else y


def _linear(p: Pass, op: Op, x: Tensor) -> Tensor:
    return layers.linear(x, p.weights[f"{op.name}.weight"], p.weights.get(f"{op.name}.bias"))


def _group_norm(p: Pass, op: Op, x: Tensor) -> Tensor:
    weight, bias = p.weights.get(f"{op.name}.weight"), p.weights.get(f"{op.name}.bias")
    return layers.group_norm(x, op.layer.num_groups, weight, bias, op.layer.eps)


def _dropout(p: Pass, op: Op, x: Tensor) -> Tensor:
    if not p.training or p.seeds is None:
        return x
    shape = (x.shape[1], x.shape[4], *x.shape[2:4]) if x.ndim == 5 else x.shape[1:]
    kept = training.dropout_mask(p.seeds, op.number, p.step, shape, op.layer.p)
    return x * (kept.permute(0, 1, 3, 4, 2) if x.ndim == 5 else kept)


LAYERS: dict[str, Callable[..., Tensor]] = {
    "batch_norm": _batch_norm,
    "linear": _linear,
    "group_norm": _group_norm,
    "dropout": _dropout,
    "pool": lambda p, op, x: layers.pool(x, op.layer),
    "average": lambda p, op, x: x.mean((2, 3), keepdim=op.keep),
    "flatten": lambda p, op, x: layers.flatten(x),
    "each": lambda p, op, x: op.layer(x),
    "add": lambda p, op, x, y: x + y,
}
