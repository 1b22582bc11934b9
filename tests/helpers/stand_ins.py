"""Small data in place of published sets, which the tests do not fetch."""

from collections.abc import Callable
from functools import partial

import numpy as np

from fedsift.data import toys
from fedsift.data.dataset import Dataset, make_dataset
from tests.helpers.data_files import bytes_like, images


def pictures(train: int, classes: int, unlabelled: int = 0) -> Dataset:
    public = images(unlabelled) if unlabelled else None
    labels = np.arange(train) % classes
    return make_dataset(
        images(train), labels, classes, test=(images(40), labels[:40]), public=public
    )


def series() -> Dataset:
    x, y = bytes_like(640, 29, 12).astype(np.float32), np.arange(640) % 9
    return make_dataset(x[:270], y[:270], test=(x[270:], y[270:]), kind="series")


STAND_INS: dict[str, Callable[[], Dataset]] = {
    "cifar10": partial(pictures, 200, 10),
    "cifar100": partial(pictures, 10_000, 100),
    "stl10": partial(pictures, 100, 10, unlabelled=100),
    "spam-assassin": toys.messages,
    "japanese-vowels": series,
}
