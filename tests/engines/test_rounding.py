"""The rounded products that kernels are measured against."""

import pytest
import torch
import torch.nn.functional as F

from fedsift import models
from fedsift.engines.stacked.ops import ReferenceOps
from tests.helpers import parity
from tests.helpers.parity import off, one_step
from tests.helpers.rounding import RoundedOps, rounded, rounded_products


def test_numbers_keep_ten_bits_or_seven():
    x = torch.tensor([1 + 2**-10, 1 + 3 * 2**-12, -(1 + 3 * 2**-12), 1 + 3 * 2**-9, 1 + 2**-9, 0.0])
    assert rounded(x, "tf32").tolist() == [1 + 2**-10, 1, -1, 1 + 3 * 2**-9, 1 + 2**-9, 0]
    assert rounded(x, "bfloat16").tolist() == [1, 1, -1, 1 + 2**-7, 1, 0]


def test_bfloat16_is_what_torch_makes_of_it():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rounded(x, "bfloat16"), x.bfloat16().float())


def test_all_three_products_have_rounded_factors():
    """y = w x with w = 1 + 2^-12, which is 1, and x = 3; both gradients are those of the rounded
    factors.
    """
    x, w = (
        torch.tensor([[3.0]], requires_grad=True),
        torch.tensor([[1 + 2**-12]], requires_grad=True),
    )
    with rounded_products("tf32"):
        y = F.linear(x, w)
        dx, dw = torch.autograd.grad(y, [x, w], torch.tensor([[1 + 2**-12]]))
    assert (y.item(), dx.item(), dw.item()) == (3, 1, 3)
    assert F.linear(x, w).item() == 3 * (1 + 2**-12)


@pytest.mark.slow
def test_rounding_alone_moves_a_deep_network_by_percents():
    """So a kernel cannot be asked for more: a step of resnet20 in tf32 is right to 0.3 %, its
    gradient to 10 %.
    """
    model, counts = models.make_model("resnet20(width=0.5)", (3, 8, 8), parity.CLASSES), (8, 8, 8)
    *plain, gradient = one_step(model, ReferenceOps(), counts, device="cpu")
    *found, pulled = one_step(model, RoundedOps("tf32"), counts, device="cpu")
    assert 5e-4 < off(found[0], plain[0]) < 5e-3
    assert 0.02 < off(pulled, gradient) < 0.2
