"""Stacked layers and training steps on CUDA, made of the kernels in triton_kernels.py.

Needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedsift.engines.stacked import layers
from fedsift.engines.stacked.cuda import triton_kernels
from fedsift.engines.stacked.ops import Pass, ReferenceOps
from fedsift.engines.stacked.trace import Geometry, Op
from fedsift.types import Recipe


@dataclass(frozen=True)
class Blocks:
    """How much of a layer one kernel program takes, and with how many warps; all powers of two."""

    programs: int = 1024  # that many in flight fill a large GPU: sums are cut into so many pieces
    rows: int = 128  # pixels, in convolutions
    outputs: int = 64  # channels, at most
    depth: int = 64  # inputs of one step of a product, at most
    warps: int = 4  # of a convolution; twice as many where it has more than 32 outputs
    # pixels of one step of a weight's gradient; half where there are more than 32 inputs
    gradient_rows: int = 64
    gradient_warps: int = 2
    gradient_stages: int = 2  # steps whose loads are under way
    norm_values: int = 4096  # of a batch norm
    norm_warps: int = 4


BLOCKS = {"float32": Blocks(), "tf32": Blocks(), "bfloat16": Blocks()}
# Every program of a batch norm reads the moments of all tiles. Where a batch is so large that these
# are many, some are merged before.
MANY_TILES, MERGED_TILES = 1024, 64


class TritonOps(ReferenceOps):
    """Convolution, batch norm, add, ReLU as few kernels. bfloat16 is also stored between them."""

    places = True

    def __init__(self, precision: str) -> None:
        self._precision = precision
        super().__init__(torch.bfloat16 if precision == "bfloat16" else torch.float32)

    def convolve(self, p: Pass, op: Op, x: Tensor) -> Tensor:
        weight, bias = p.weights[f"{op.name}.weight"], p.weights.get(f"{op.name}.bias")
        place = p.places.get(f"{op.name}.weight")
        return Convolution.apply(
            x.to(self.stored), weight, bias, op.geometry, self._precision, place
        )

    def convolve_and_normalise(
        self, p: Pass, op: Op, x: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        assert op.before is not None
        if (
            f"{op.before.name}.bias" in p.weights
        ):  # rare: a bias before a batch norm does nothing but cost
            return super().convolve_and_normalise(p, op, x, residual)
        x, residual = x.to(self.stored), None if residual is None else residual.to(self.stored)
        weight = p.weights[f"{op.before.name}.weight"]
        scale, shift = p.weights[f"{op.name}.weight"], p.weights[f"{op.name}.bias"]
        mean, variance = p.buffers[f"{op.name}.running_mean"], p.buffers[f"{op.name}.running_var"]
        how = (op.before.geometry, op.layer.eps, op.layer.momentum, op.relu, self._precision)
        if p.training:
            statistics = (mean, variance, p.count)
            names = (f"{op.before.name}.weight", f"{op.name}.weight", f"{op.name}.bias")
            places = [p.places.get(name) for name in names]
            return ConvolutionAndNorm.apply(
                x, weight, scale, shift, residual, *statistics, *how, places
            )
        gain = (
            scale * (variance + op.layer.eps).rsqrt()
        )  # a fixed scale and shift go into weights and bias
        y = _empty_output(x, weight.shape[2], op.before.geometry)
        folded, bias = weight * gain[:, None], shift - mean * gain
        added = None if residual is None else residual.contiguous()
        _convolve(
            x.contiguous(),
            folded,
            bias,
            y,
            op.before.geometry,
            self._precision,
            residual=added,
            relu=op.relu,
        )
        return y


def _power(n: int, least: int = 16, most: int = 1 << 30) -> int:
    return max(least, min(most, triton.next_power_of_2(n)))


def _convolve(
    x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, geometry: Geometry, precision: str, *,
    parts: Tensor | None = None, count: Tensor | None = None, residual: Tensor | None = None,
    relu: bool = False, back: bool = False,
) -> None:  # fmt: skip
    """Forward x -> y; with `back`, x is dy, y is dx; the weights are read the other way round."""
    (kh, kw), (sh, sw), (ph, pw) = geometry
    m, b, h, width, c = x.shape
    ho, wo, n = y.shape[2:]
    classes, pixels = (sh * sw, triton.cdiv(ho, sh) * triton.cdiv(wo, sw)) if back else (1, ho * wo)
    size = BLOCKS[precision]
    tiles = triton.cdiv(b * pixels, size.rows)
    into, out = (n, c) if back else (c, n)  # of the layer itself: w is [M, kh * kw * into, out]
    w_in, w_out = (1, out) if back else (out, 1)
    block = _power(n, most=size.outputs)
    triton_kernels.convolution[(tiles, m, classes * triton.cdiv(n, block))](
        x, w, _or(bias, x), _or(residual, x), y, _or(parts, x), _or(count, x),
        b, h, width, ho, wo, into * out, w_in, w_out, w.stride(0),
        0 if bias is None else bias.stride(0), tiles,
        C=c, N=n, KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw, BACK=back,
        BIASED=bias is not None, RESIDUAL=residual is not None, RELU=relu,
        MOMENTS=parts is not None,
        COUNTED=count is not None, PRECISION=precision, BP=size.rows, BN=block,
        BK=_power(c, most=size.depth), num_warps=2 * size.warps if n > 32 else size.warps,
    )  # fmt: skip


def _weight_gradient(
    x: Tensor, dy: Tensor, geometry: Geometry, precision: str, place: Tensor | None
) -> Tensor:
    """[M, kh * kw * C, O], in its place if it has one: summed in pieces, then over the pieces."""
    (kh, kw), (sh, sw), (ph, pw) = geometry
    m, b, h, width, c = x.shape
    ho, wo, n = dy.shape[2:]
    size = BLOCKS[precision]
    run, rows = _run(kw, c), size.gradient_rows // 2 if c > 32 else size.gradient_rows
    block = _power(n, most=size.outputs)
    programs = m * kh * triton.cdiv(kw * c, run) * triton.cdiv(n, block)
    most = triton.cdiv(b * ho * wo, rows)
    steps = triton.cdiv(most, min(most, triton.cdiv(size.programs, programs)))
    splits = triton.cdiv(most, steps)
    shape = (m, kh * kw * c, n)
    dw = x.new_empty(shape, dtype=torch.float32) if place is None else place
    parts = dw[None] if splits == 1 else dw.new_empty(splits, *shape)
    triton_kernels.weight_gradient[(splits, m, programs // m)](
        x, dy, parts, b, h, width, ho, wo, steps, parts.stride(0), parts.stride(1),
        C=c, N=n, KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw,
        PRECISION=precision, BP=rows, BN=block, BJ=run,
        num_warps=size.gradient_warps, num_stages=size.gradient_stages,
    )  # fmt: skip
    return dw if splits == 1 else torch.sum(parts, 0, out=dw)


def _run(kw: int, channels: int) -> int:
    """How much of a kernel row a program takes: all, or one place's channels if they are many."""
    return _power(kw * channels) if channels <= 16 else _power(channels, most=64)


def _empty_output(x: Tensor, n: int, geometry: Geometry) -> Tensor:
    m, b, h, w, _ = x.shape
    (kh, kw), (sh, sw), (ph, pw) = geometry
    return x.new_empty(m, b, (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1, n)


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        precision: str,
        place: Tensor | None,
    ) -> Tensor:
        x = x.contiguous()
        y = _empty_output(x, w.shape[2], geometry)
        _convolve(x, w, bias, y, geometry, precision)
        ctx.save_for_backward(x, w)
        ctx.how = geometry, precision, bias is not None, place
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        geometry, precision, biased, place = ctx.how
        dy = dy.contiguous()
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            _convolve(dy, w, None, dx, geometry, precision, back=True)
        dw = _weight_gradient(x, dy, geometry, precision, place)
        return dx, dw, dy.sum((1, 2, 3), dtype=torch.float32) if biased else None, None, None, None


class ConvolutionAndNorm(torch.autograd.Function):
    """relu(batch_norm(convolution(x)) + residual); ReLU and residual where the network has them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None,
        running_mean: Tensor, running_var: Tensor, count: Tensor | None,
        geometry: Geometry, eps: float, momentum: float, relu: bool, precision: str,
        places: list[Tensor | None],
    ) -> Tensor:  # fmt: skip
        x = x.contiguous()
        y = _empty_output(x, w.shape[2], geometry)
        m, b, ho, wo, n = y.shape
        size = BLOCKS[precision]
        tiles = triton.cdiv(b * ho * wo, size.rows)
        parts = x.new_empty(m, tiles, 2, n, dtype=torch.float32)
        _convolve(x, w, None, y, geometry, precision, parts=parts, count=count)
        held = size.rows
        if count is None and tiles >= MANY_TILES and b * ho * wo == tiles * held:
            parts, held = layers.merge_moments(parts, held, MERGED_TILES)
            tiles = parts.shape[1]
        out, saved = torch.empty_like(y), parts.new_empty(m, 2, n)
        bc = _power(n)
        br = max(16, size.norm_values // bc)
        added = None if residual is None else residual.contiguous()
        triton_kernels.normalise[(triton.cdiv(b * ho * wo, br), m)](
            y, parts, weight, bias, _or(added, y), out, saved, running_mean, running_var,
            _or(count, y), b, ho * wo, tiles, weight.stride(0), eps, momentum,
            N=n, BC=bc, BR=br, BP=held,
            BT=max(1, min(triton.next_power_of_2(tiles), 2048 // bc)), RELU=relu,
            RESIDUAL=residual is not None, COUNTED=count is not None, num_warps=size.norm_warps,
        )  # fmt: skip
        ctx.save_for_backward(
            x, w, y, out if relu and residual is not None else None, weight, bias, saved, count
        )
        ctx.how = geometry, relu, residual is not None, precision, places
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, w, y, out, weight, bias, saved, count = ctx.saved_tensors
        geometry, relu, added, precision, (place, *of_norm) = ctx.how
        size = BLOCKS[precision]
        dout = dout.contiguous()
        m, b, ho, wo, n = y.shape
        rows = b * ho * wo
        bc = _power(n)
        br = max(16, size.norm_values // bc)
        loop = max(1, triton.cdiv(rows, br) // max(1, size.programs // m))
        blocks = triton.cdiv(rows, br * loop)
        parts = x.new_empty(m, blocks, 2, n, dtype=torch.float32)
        gate = out if out is not None else y
        flags: dict[str, Any] = {"N": n, "BC": bc, "BR": br, "RELU": relu, "RESIDUAL": added}
        flags["num_warps"] = size.norm_warps
        triton_kernels.norm_sums[(blocks, m)](
            dout,
            gate,
            y,
            weight,
            bias,
            saved,
            parts,
            rows,
            blocks,
            weight.stride(0),
            LOOP=loop,
            **flags,
        )
        dweight, dbias = (parts.new_empty(m, n) if of is None else of for of in of_norm)
        dy = torch.empty_like(y)
        passed = torch.empty_like(y) if added and relu else None
        triton_kernels.norm_gradient[(triton.cdiv(rows, br), m)](
            dout, gate, y, weight, bias, saved, parts, dy, _or(passed, dy), dweight, dbias,
            _or(count, y), b, ho * wo, blocks, weight.stride(0), dweight.stride(0),
            BT=max(1, min(triton.next_power_of_2(blocks), 2048 // bc)), COUNTED=count is not None,
            **(flags | {"RESIDUAL": passed is not None}),
        )  # fmt: skip
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            _convolve(dy, w, None, dx, geometry, precision, back=True)
        dw = _weight_gradient(x, dy, geometry, precision, place)
        dresidual = (passed if passed is not None else dout) if added else None
        return dx, dw, dweight, dbias, dresidual, *[None] * 9


# --- the rest of a training step ---


def draw_batch(
    values: Tensor, rows: Tensor, positions: Tensor, moves: Tensor | None, targets: Tensor,
    counts: Tensor,
    mean: Tensor, std: Tensor, now: Tensor, x: Tensor, t: Tensor, count: Tensor,
    shares: Tensor | None = None, teacher: Tensor | None = None, taught: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill x [A, B, H, W, C] (or [A, B, F]), t [A, B, classes], count [A] for step `now`, and
    `taught` [A, B, classes] from `teacher`, as t from `targets`. With shares [T, M], all are mixed
    as training.mix_batches has it."""
    a, b = x.shape[:2]
    h, w, c = x.shape[2:] if x.ndim == 5 else (1, 1, x.shape[2])
    triton_kernels.draw_batch[(b, a)](
        values, rows, positions, _or(moves, rows), targets, counts, mean, std, now, x, t, count,
        _or(shares, mean), _or(teacher, targets), _or(taught, t), b, counts.shape[1],
        C=c, H=h, W=w, CLASSES=t.shape[2], BE=_power(h * w * c, most=1024), BC=_power(t.shape[2]),
        MOVED=moves is not None, PER_CHANNEL=mean.shape[1] > 1, TAUGHT=taught is not None,
        MIXED=shares is not None,
    )  # fmt: skip


def loss_gradient(
    logits: Tensor,
    t: Tensor,
    count: Tensor,
    temperature: float,
    prior: Tensor,
    taught: Tensor | None = None,
    ntd: float = 0.0,
) -> Tensor:
    """The gradient of the loss by the logits: see training.loss_gradient; prior [M, C], M >= A."""
    a, b, classes = logits.shape
    out = torch.empty_like(t)
    logits = logits.contiguous()
    triton_kernels.loss_gradient[(b, a)](
        logits, t, out, count, prior, _or(taught, t), b, temperature, ntd,
        CLASSES=classes, BC=_power(classes), NTD=taught is not None,
    )  # fmt: skip
    return out


def update_weights(
    recipe: Recipe,
    w: Tensor,
    g: Tensor,
    start: Tensor | None,
    state: Tensor,
    rates: Tensor,
    counts: Tensor,
    corrections: Tensor,
    now: Tensor,
) -> None:
    """One step of the optimiser for the first A models. `state` [2, M, P] holds its running means,
    `corrections` [T, 2] what Adam divides them by (optimizers.correction), `start` [M, P] the
    weights that recipe.prox pulls back to."""
    a, size = w.shape
    triton_kernels.update_weights[(triton.cdiv(size, 1024), a)](
        w, g, _or(start, w), state[0], state[1], rates, counts, corrections, now, size,
        counts.shape[1], recipe.momentum, recipe.weight_decay, recipe.prox, KIND=recipe.optimizer,
        NESTEROV=recipe.nesterov, PROX=start is not None, BLOCK=1024,
    )  # fmt: skip


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel's argument must be some tensor even where it is not read."""
    return other if tensor is None else tensor
