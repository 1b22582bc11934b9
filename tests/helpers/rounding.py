"""Products as tensor cores take them, in plain torch: how far rounding alone leads a network from
float32.
"""

from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F

from fedsift.engines.stacked.ops import ReferenceOps

KEPT = {"tf32": 10, "bfloat16": 7}  # bits behind the point


def rounded(x, precision):
    """tf32: the bits behind the tenth are cut off, as tensor cores do; bfloat16: the nearest
    number.
    """
    lost = 23 - KEPT[precision]
    half = 0 if precision == "tf32" else 1 << (lost - 1)
    bits = x.contiguous().view(torch.int32) + half
    return (bits >> lost << lost).view(torch.float32)


class Product(torch.autograd.Function):
    """What `product` makes of x and w, all three products of it with rounded factors; in bfloat16
    what is stored is rounded too."""

    @staticmethod
    def forward(ctx, x, w, product, precision):
        x, w = rounded(x, precision), rounded(w, precision)
        ctx.save_for_backward(x, w)
        ctx.how = product, precision
        return _stored(product(x, w), precision)

    @staticmethod
    def backward(ctx, dy):
        product, precision = ctx.how
        x, w = (factor.detach().requires_grad_() for factor in ctx.saved_tensors)
        with torch.enable_grad():
            y = product(x, w)
        dx, dw = torch.autograd.grad(y, [x, w], rounded(dy, precision))
        return _stored(dx, precision), dw, None, None


def _stored(x, precision):
    return rounded(x, precision) if precision == "bfloat16" else x


class RoundedOps(ReferenceOps):
    """The plain layers with rounded products."""

    def __init__(self, precision):
        super().__init__()
        self.precision = precision

    def convolve(self, p, op, x):
        name, bias = f"{op.name}.weight", p.weights.get(f"{op.name}.bias")

        def product(x, w):
            return ReferenceOps.convolve(self, replace(p, weights={name: w}), op, x)

        y = Product.apply(x, p.weights[name], product, self.precision)
        return y if bias is None else y + bias[:, None, None, None]


@contextmanager
def rounded_products(precision):
    """Inside, convolutions and linear layers of any network have rounded products."""
    convolution, linear = F.conv2d, F.linear

    def conv2d(x, w, bias=None, *geometry):
        y = Product.apply(x, w, lambda x, w: convolution(x, w, None, *geometry), precision)
        return y if bias is None else y + bias[:, None, None]

    def rounded_linear(x, w, bias=None):
        y = Product.apply(x, w, linear, precision)
        return y if bias is None else y + bias

    F.conv2d, F.linear = conv2d, rounded_linear
    try:
        yield
    finally:
        F.conv2d, F.linear = convolution, linear
