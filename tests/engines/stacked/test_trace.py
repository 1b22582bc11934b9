"""Networks of known layers in every order, as both engines run them: what is fused must not change
an answer.
"""

import pytest
from torch import nn

from tests.helpers.layer_orders import ORDERS
from tests.helpers.parity import IMAGE, ROW, compare


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
    of_modules(
        "flatten_after_image", lambda: nn.Conv2d(2, 4, 3), nn.Flatten, lambda: nn.Linear(64, 3)
    ),
    of_modules(
        "pools",
        lambda: nn.Conv2d(2, 4, 3, 2, 1),
        lambda: nn.ReLU(inplace=True),
        lambda: nn.MaxPool2d(2, 1),
        lambda: nn.AvgPool2d(2),
        lambda: nn.AdaptiveAvgPool2d(1),
        nn.Flatten,
        lambda: nn.Linear(4, 3),
    ),
    of_modules(
        "group_norm",
        lambda: nn.Conv2d(2, 4, (3, 1), (1, 2), (0, 1)),
        lambda: nn.GroupNorm(2, 4),
        nn.SiLU,
        nn.Identity,
        nn.Flatten,
        lambda: nn.Linear(64, 3),
    ),
    of_modules(
        "rows",
        lambda: nn.BatchNorm1d(6),
        lambda: nn.Linear(6, 8, bias=False),
        lambda: nn.GroupNorm(2, 8),
        nn.ReLU,
        lambda: nn.Linear(8, 3),
        shape=ROW,
    ),
    of_modules(
        "dropout",
        lambda: nn.Linear(6, 40),
        lambda: nn.Dropout(0.3),
        nn.ReLU,
        lambda: nn.Linear(40, 20),
        lambda: nn.Dropout(0.6),
        lambda: nn.Linear(20, 3),
        shape=ROW,
    ),
    of_modules(
        "dropout_of_images",
        lambda: nn.Conv2d(2, 4, 3),
        lambda: nn.Dropout(0.5),
        nn.ReLU,
        lambda: nn.Conv2d(4, 4, 3),
        lambda: nn.Dropout(0.2),
        nn.Flatten,
        lambda: nn.Linear(16, 3),
    ),
]


@pytest.mark.parametrize(("build", "shape"), MODULES)
def test_known_modules(build, shape):
    how, _ = compare(build, shape)
    assert how.endswith("stacked (known layers)")
