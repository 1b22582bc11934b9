"""Public images from elsewhere: of another data set, or the tiles of one picture."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from fedsift.data import images
from fedsift.data.dataset import Dataset
from fedsift.data.loading import find_sheet, find_version, load_dataset, split_name
from fedsift.types import Array, UserError


def add_public(data: Dataset, source: str) -> Dataset:
    """The same data with a fitted public set: a data set (its labels are not used) or a sheet."""
    if data.table is not None:
        raise UserError(
            "data.public_from is for images; for a table mark rows as public with data.split, or"
            " leave their class empty"
        )
    return _add_public(data, source, find_version(source))


@lru_cache(maxsize=4)
def _add_public(data: Dataset, source: str, version: tuple[Any, ...]) -> Dataset:
    return replace(data, public=images.fit_images(load_unlabelled(source), data.x))


def load_unlabelled(source: str) -> Array:
    """A data set's images (the unlabelled, if it has some) or the tiles of "sheet:FILE(size)"."""
    if split_name(source)[0] != "sheet":
        data = load_dataset(source)
        return data.x if data.public is None else data.public
    return images.cut_tiles(*find_sheet(source))
