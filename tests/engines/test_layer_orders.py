"""Networks of known layers in every order, as both engines run them: what is joined must not change
an answer.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.helpers.parity import IMAGE, ROW, compare


class Net(nn.Module):
    """Convolution, two norms, a shortcut and a head: enough for every order of layers below."""

    def __init__(self, shape, classes):
        super().__init__()
        c = shape[0]
        self.conv, self.biased = (
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.Conv2d(c, c, 3, padding=1),
        )
        self.norm, self.norm2 = nn.BatchNorm2d(c), nn.BatchNorm2d(c, eps=1e-3, momentum=0.3)
        self.head = nn.Linear(c, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

    def body(self, x):
        """Only what is used may have weights: see the tests of unused ones below."""
        raise NotImplementedError

    def drop(self, *names):
        for name in names:
            delattr(self, name)


def net(name, body, unused=()):
    class Made(Net):
        def __init__(self, shape, classes):
            super().__init__(shape, classes)
            self.drop(*unused)

        def body(self, x):
            return body(self, x)

    Made.__name__ = name
    return Made


ONE = ("biased", "norm2")
ORDERS = [
    net("conv_bn_add_relu", lambda s, x: F.relu(s.norm(s.conv(x)) + x), ONE),
    net("add_on_the_left", lambda s, x: F.relu(x + s.norm(s.conv(x))), ONE),
    net("conv_bn_relu_add", lambda s, x: F.relu(s.norm(s.conv(x))) + x, ONE),
    net("conv_add_bn_relu", lambda s, x: F.relu(s.norm(s.conv(x) + x)), ONE),
    net("conv_relu_bn", lambda s, x: s.norm(F.relu(s.conv(x))), ONE),
    net("bn_relu_conv", lambda s, x: s.conv(F.relu(s.norm(x))) + x, ONE),
    net("bn_without_conv", lambda s, x: s.norm(x), ("conv", *ONE)),
    net("bias_before_bn", lambda s, x: torch.relu(s.norm(s.biased(x))), ("conv", "norm2")),
    net("two_norms_added", lambda s, x: F.relu(s.norm(s.conv(x)) + s.norm2(s.biased(x)))),
    net("norm_of_norm", lambda s, x: s.norm2(s.norm(s.conv(x))), ("biased",)),
    net("one_norm_twice", lambda s, x: s.norm(s.conv(s.norm(x))), ONE),
    net("one_conv_twice", lambda s, x: s.norm(s.conv(s.conv(x))), ONE),
    net("conv_read_twice", lambda s, x: (lambda y: s.norm(y) + y)(s.conv(x)), ONE),
    net("norm_read_twice", lambda s, x: (lambda y: y + F.relu(y))(s.norm(s.conv(x))), ONE),
    net("norm_added_to_itself", lambda s, x: (lambda y: y + y)(s.norm(s.conv(x))), ONE),
    net("three_added", lambda s, x: F.relu(s.norm(s.conv(x)) + x + s.norm2(s.biased(x)))),
    net("relu_before_max_pool", lambda s, x: F.max_pool2d(F.relu(s.norm(s.conv(x))), 2), ONE),
    net(
        "relu_read_by_two",
        lambda s, x: (lambda y: F.max_pool2d(y, 3, 1, 1) + y)(F.relu(s.conv(x))),
        ("norm", *ONE),
    ),
    net(
        "relu_before_average", lambda s, x: F.avg_pool2d(F.relu(s.conv(x)), 3, 2, 1), ("norm", *ONE)
    ),
    net("method_relu", lambda s, x: s.norm(s.conv(x)).relu(), ONE),
    net("relu_in_place", lambda s, x: F.relu(s.norm(s.conv(x)), inplace=True), ONE),
    net("added_in_place", lambda s, x: F.relu(torch.add(s.norm(s.conv(x)), x)), ONE),
    net(
        "other_activations",
        lambda s, x: F.gelu(s.conv(torch.tanh(x)), approximate="tanh"),
        ("norm", *ONE),
    ),
    net("adaptive", lambda s, x: F.adaptive_avg_pool2d(s.norm(s.conv(x)), 1), ONE),
    net("mean_kept", lambda s, x: s.conv(x).mean(dim=[-1, -2], keepdim=True), ("norm", *ONE)),
]


@pytest.mark.parametrize("made", ORDERS, ids=lambda made: made.__name__)
def test_known_layers_in_every_order(made):
    how, _ = compare(made)
    assert how == f"{made.__name__}: stacked (known layers)"


def of_modules(name, *layers, shape=IMAGE):
    def build(shape, classes):
        return nn.Sequential(*(layer() for layer in layers))

    build.__name__ = name
    return pytest.param(build, shape, id=name)


MODULES = [
    of_modules("flatten_after_image", lambda: nn.Conv2d(2, 4, 3), nn.Flatten, lambda: nn.Linear(64, 3)),
    of_modules(
        "pools", lambda: nn.Conv2d(2, 4, 3, 2, 1), lambda: nn.ReLU(inplace=True), lambda: nn.MaxPool2d(2, 1),
        lambda: nn.AvgPool2d(2), lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten, lambda: nn.Linear(4, 3),
    ),
    of_modules(
        "group_norm", lambda: nn.Conv2d(2, 4, (3, 1), (1, 2), (0, 1)), lambda: nn.GroupNorm(2, 4), nn.SiLU, nn.Identity,
        nn.Flatten, lambda: nn.Linear(64, 3),
    ),
    of_modules(
        "rows", lambda: nn.BatchNorm1d(6), lambda: nn.Linear(6, 8, bias=False), lambda: nn.GroupNorm(2, 8), nn.ReLU,
        lambda: nn.Linear(8, 3), shape=ROW,
    ),
    of_modules(
        "dropout", lambda: nn.Linear(6, 40), lambda: nn.Dropout(0.3), nn.ReLU, lambda: nn.Linear(40, 20),
        lambda: nn.Dropout(0.6), lambda: nn.Linear(20, 3), shape=ROW,
    ),
    of_modules(
        "dropout_of_images", lambda: nn.Conv2d(2, 4, 3), lambda: nn.Dropout(0.5), nn.ReLU, lambda: nn.Conv2d(4, 4, 3),
        lambda: nn.Dropout(0.2), nn.Flatten, lambda: nn.Linear(16, 3),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("build", "shape"), MODULES)
def test_known_modules(build, shape):
    how, _ = compare(build, shape)
    assert how.endswith("stacked (known layers)")
