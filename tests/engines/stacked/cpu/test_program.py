"""Layers on a CPU that find their own way back: products by hand, then equal to torch's own
gradients.
"""

import pytest
import torch
from torch import nn

from fedsift.engines.stacked.cpu import grouped_conv
from fedsift.engines.stacked.cpu.program import CpuProgram
from fedsift.engines.stacked.ops import Pass, ReferenceOps
from fedsift.engines.stacked.program import Stacked
from fedsift.engines.stacked.training import step_groups
from fedsift.models import initial_state, make_model
from fedsift.types import Model
from tests.helpers.tiers import slow_but


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def last(x):
    """Channels last, also in the strides of a single channel."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


# --- products ---


def test_a_step_over_pixels_goes_back_to_those_it_saw():
    """A 1x1 convolution with weight 2 and stride 2 sees the corners of 3x3: each gets twice its
    output's gradient, and the weight gets 1 x 1 + 2 x 3 + 3 x 7 + 4 x 9 = 64."""
    x, dy = (
        torch.arange(1.0, 10).view(1, 1, 3, 3),
        torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 2, 2),
    )
    alone = grouped_conv.SingleConvolution(
        ((2, 2), (0, 0)), (1, 1, 3, 3), (1, 1, 1, 1), biased=False
    )
    dx, dw = alone.backward(dy, x, torch.full((1, 1, 1, 1), 2.0), wanted=True)
    assert (
        dx is not None and dx.tolist() == [[[[2, 0, 4], [0, 0, 0], [6, 0, 8]]]] and dw.item() == 64
    )


GEOMETRIES = [
    (3, 16, 3, 1, 1),
    (16, 16, 3, 1, 1),
    (16, 32, 3, 2, 1),
    (8, 8, 1, 2, 0),
    (1, 16, 3, 1, 1),
    (5, 3, 2, 1, 0),
]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("batch", [4, 8])
@pytest.mark.parametrize(("inputs", "outputs", "kernel", "stride", "padding"), GEOMETRIES)
def test_a_model_alone_computes_what_it_does_in_company(
    inputs, outputs, kernel, stride, padding, batch, biased
):
    """To the last bit: it is the first, or the last, of three."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    how = (stride, stride), (padding, padding)
    x, b = last(drawn(batch, 3 * inputs, 8, 8)), drawn(3 * outputs)
    w = last(drawn(3 * outputs, inputs, kernel, kernel, seed=1))
    together = grouped_conv.GroupedConvolution(3, how)
    y = together.forward(x, w, b if biased else None)
    dy = last(drawn(*y.shape, seed=2))
    dx, dw = together.backward(dy, x, w, wanted=True)
    assert dx is not None
    for i in (0, 2):
        ins, outs = slice(i * inputs, (i + 1) * inputs), slice(i * outputs, (i + 1) * outputs)
        mine, pull = last(x[:, ins]), last(dy[:, outs])
        alone = grouped_conv.SingleConvolution(how, tuple(mine.shape), tuple(w[outs].shape), biased)
        assert torch.equal(alone.forward(mine, w[outs], b[outs] if biased else None), y[:, outs])
        own_dx, own_dw = alone.backward(pull, mine, w[outs], wanted=True)
        assert (
            own_dx is not None and torch.equal(own_dx, dx[:, ins]) and torch.equal(own_dw, dw[outs])
        )
        assert alone.backward(pull, mine, w[outs], wanted=False)[0] is None
    torch.set_num_threads(before)


# --- whole networks ---


class Odd(nn.Module):
    """One layer used twice, an output with three readers, layers that have no way back of ours."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv, self.norm, self.group = (
            nn.Conv2d(3, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.GroupNorm(3, 3),
        )
        self.hidden, self.head = nn.Linear(3 * 4 * 4, 7), nn.Linear(7, classes)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)) + x)
        y = self.conv(y) + torch.tanh(y) + self.group(y)
        return self.head(torch.relu(self.hidden(self.pool(y).flatten(1))))


NETWORKS = [
    make_model("cnn", (3, 8, 8), 4),
    make_model("resnet8(width=0.5)", (3, 8, 8), 4),
    Model("odd", Odd, (3, 8, 8), 4),
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
@pytest.mark.parametrize("models", slow_but([1, 3], 3))
def test_gradients_are_those_of_autograd(network, models):
    states = [initial_state(network, seed) for seed in range(models)]
    x, dy = drawn(models, 8, 8, 8, 3), drawn(models, 8, 4, seed=1)
    found = []
    for program in (CpuProgram(network, ReferenceOps()), Stacked(network, ReferenceOps())):
        flat, buffers = program.layout.stack(states)
        weights = {
            name: view.detach().requires_grad_() for name, view in program.weights(flat).items()
        }
        gradient = torch.zeros_like(flat)
        program.add_gradients(
            Pass(weights, buffers, True), x, lambda logits: dy.clone(), program.weights(gradient)
        )
        found.append(program.layout.unstack(gradient, buffers))
    for mine, theirs in zip(*found, strict=True):
        for name in mine:
            assert torch.allclose(mine[name], theirs[name], rtol=1e-3, atol=1e-4), name


# --- who steps with whom ---


def test_step_groups_by_hand():
    """8, 5, 8 and 3 samples in batches of 8: one group with 3 and 5 places padded; with batch norm
    three turns.
    """
    here, counts = torch.device("cpu"), (8, 5, 8, 3)
    (group,) = step_groups(CpuProgram(NETWORKS[0], ReferenceOps()), 8, here, counts)
    assert (
        group.members == slice(4)
        and group.width == 8
        and group.count is not None
        and group.count.tolist() == [8, 5, 8, 3]
    )
    assert group.shares[3].flatten().tolist() == pytest.approx([1 / 3] * 3 + [0] * 5)
    three, five, eight = step_groups(CpuProgram(NETWORKS[1], ReferenceOps()), 8, here, counts)
    assert (three.width, five.width, eight.width) == (3, 5, 8)
    assert isinstance(eight.members, torch.Tensor) and eight.members.tolist() == [0, 2]
    assert all(group.count is None for group in (three, five, eight))


@pytest.mark.parametrize("inputs", [2, 4, 8])
def test_a_strided_shortcut_has_the_gradient_of_the_pixels_it_sees(inputs):
    """For few inputs, torch 2.13 writes beyond this gradient where there is no AVX-512."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, 6, inputs, generator=generator).permute(0, 3, 1, 2)
    weight = torch.randn(5, 1, 1, inputs, generator=generator).permute(0, 3, 1, 2)
    dy = torch.randn(3, 3, 3, 5, generator=generator).permute(0, 3, 1, 2)
    alone = grouped_conv.SingleConvolution(
        ((2, 2), (0, 0)), tuple(x.shape), tuple(weight.shape), False
    )
    _, dw = alone.backward(dy, x, weight, False)
    by_hand = torch.einsum("bohw,bihw->oi", dy, x[:, :, ::2, ::2])
    torch.testing.assert_close(dw[:, :, 0, 0], by_hand)
