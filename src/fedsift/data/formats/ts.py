"""Series in .ts files: a line for each series, its features separated by colons, then its class."""

from __future__ import annotations

import numpy as np

from fedsift.data.formats.folder import Folder
from fedsift.types import Array, UserError

VOWELS = ("JapaneseVowels_TRAIN.ts", "JapaneseVowels_TEST.ts")
LONGEST = 10_000  # steps or features of a series


def japanese_vowels(folder: Folder) -> dict[str, Array]:
    """Series of 7 to 29 steps, filled up with zeros; classes from 0."""
    parts = [_read_file(folder, name) for name in VOWELS]
    steps = max(len(series) for part in parts for series, _ in part)
    arrays: dict[str, Array] = {}
    for end, part in zip(("", "_test"), parts, strict=True):
        arrays[f"x{end}"] = np.stack([_fill_up(series, steps) for series, _ in part])
        arrays[f"y{end}"] = np.array([label - 1 for _, label in part], np.uint8)
    return arrays


def _fill_up(series: Array, steps: int) -> Array:
    return np.pad(series, ((0, steps - len(series)), (0, 0)))


def _read_file(folder: Folder, name: str) -> list[tuple[Array, int]]:
    """Each series [steps, features], and its class as a number from 1."""
    lines = folder.read(name).decode("utf-8", "replace").splitlines()
    rows = [line for line in lines if line.strip() and line[0] not in "#@"]
    if not rows:
        raise UserError(f"{name} has no series")
    try:
        return [_read_line(row) for row in rows]
    except ValueError as error:
        raise UserError(f"{name} is not a .ts file of series: {error}") from None


def _read_line(line: str) -> tuple[Array, int]:
    *features, label = line.split(":")
    table = np.array([[float(value) for value in f.split(",")] for f in features], np.float32)
    if table.ndim != 2 or max(table.shape) > LONGEST or not 1 <= int(label) <= 255:
        raise ValueError("a line is no series with a class")
    return table.T, int(label)
