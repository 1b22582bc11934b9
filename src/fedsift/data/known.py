"""Data sets by name: those that come with fedsift, and published ones that were fetched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import resources

import numpy as np

from fedsift.data import cache, toys
from fedsift.data.catalogue import CATALOGUE
from fedsift.data.dataset import Dataset, make_dataset
from fedsift.data.published import ImageSet
from fedsift.types import Array, UserError


def digits() -> Dataset:
    """1,797 handwritten digits, 8x8 with 17 grey levels.

    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository (1998), doi.org/10.24432/C50P49, CC BY 4.0.
    """
    return make_dataset(*_read_packed("digits.npz"))


def breast_cancer() -> Dataset:
    """569 tumours, benign or malignant, by 30 measures of cell nuclei.

    W. Wolberg, O. Mangasarian, N. Street and W. Street, Breast Cancer Wisconsin (Diagnostic), UCI
    Machine Learning Repository (1993), doi.org/10.24432/C5DW2B, CC BY 4.0.
    """
    x, y = _read_packed("breast_cancer.npz")
    return make_dataset(x, np.array(["benign", "malignant"])[y])


def _read_packed(name: str) -> tuple[Array, Array]:
    """Samples and labels that come with fedsift."""
    with (
        resources.files("fedsift.data").joinpath(name).open("rb") as file,
        np.load(file) as arrays,
    ):
        return arrays["x"], arrays["y"]


def load_fetched(name: str) -> Dataset:
    """A published data set that `fedsift data get` has put into the data folder."""
    path = cache.path(name)
    try:
        return CATALOGUE[name].load(cache.read(path))
    except FileNotFoundError:
        raise UserError(f"{name} is not in {path.parent}; run: fedsift data get {name}") from None
    except UserError as error:
        raise UserError(f"{error}; run: fedsift data get {name}") from None


BUNDLED: dict[str, Callable[[], Dataset]] = {
    "breast-cancer": breast_cancer,
    "clinics": toys.clinics,
    "messages": toys.messages,
}
DATASETS: dict[str, Callable[[], Dataset]] = (
    {"digits": digits} | BUNDLED | {name: partial(load_fetched, name) for name in CATALOGUE}
)


IMAGE_SETS = frozenset(
    {"digits", *(name for name, known in CATALOGUE.items() if isinstance(known, ImageSet))}
)
