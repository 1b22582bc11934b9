"""Small networks that have convolution, norm, addition and ReLU in every order."""

import torch
import torch.nn.functional as F
from torch import nn


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
