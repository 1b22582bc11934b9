"""Public samples as people can look at them: a sheet of small pictures, texts, or rows of a table.

Public samples only: every party has them, and no private one is ever among them.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

from fedsift.data import Task
from fedsift.data.preparation import PADDING
from fedsift.federation.conversations import watched_samples
from fedsift.types import Array, Samples

TILE = 32  # pixels: larger pictures are made smaller
COLUMNS = 16  # tiles in a row of the sheet
LONGEST = 300  # letters of a text
NAME = 40  # letters of a name or a value in a table
CELLS = 12  # of a row of a table
POINTS = 48  # of a series
DIM = 16  # the largest value of pictures in few shades, which are brightened
QUALITY = 85  # of a sheet in colours

Row = dict[str, Any]


def describe_samples(task: Task, seed: int) -> Row:
    """The watched samples of a run: which, of what class where that is known, and how they look."""
    index = watched_samples(seed, len(task.public))
    truth = None if task.public_labels is None else task.public_labels[index].tolist()
    about = {"public": len(task.public), "samples": index.tolist(), "truth": truth}
    return about | _show(task, task.public[index])


def _show(task: Task, samples: Samples) -> Row:
    values = samples.store.values[samples.rows].numpy()
    if samples.vocabulary is not None:
        return {"kind": "texts", "texts": _list_texts(task, values)}
    if len(samples.shape) == 3:
        return {"kind": "images"} | _draw_sheet(values)
    if len(samples.shape) == 2:
        return {"kind": "series", "series": _list_series(values)}
    return {"kind": "rows", "rows": _list_rows(task, values.reshape(len(values), -1))}


def _list_texts(task: Task, ids: Array) -> list[str]:
    """The words that a model sees; where nobody knows them, their numbers."""
    made = task.preparation
    words = made.tokenizer.words if made is not None and made.tokenizer is not None else None
    texts = []
    for row in ids.tolist():
        known = [id for id in row if id != PADDING] if words is not None else row
        told = map(str, known) if words is None else (_name_word(words, id) for id in known)
        texts.append(_cut(" ".join(told)))
    return texts


def _name_word(words: tuple[str, ...], id: int) -> str:
    return words[id - 2] if 2 <= id < len(words) + 2 else "…"


def _cut(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else text[:most] + "…"


def _draw_sheet(values: Array) -> Row:
    """All pictures in one: [S, channels, height, width] in any range of values."""
    from PIL import Image

    channels = 3 if values.shape[1] == 3 else 1
    whole = values[:, :channels].astype(np.float32)
    low, high = float(whole.min()), float(whole.max())
    if values.dtype == np.uint8 and high > DIM:
        low, high = 0.0, 255.0
    pixels = ((whole - low) * (255 / ((high - low) or 1.0))).astype(np.uint8).transpose(0, 2, 3, 1)
    height, width = (min(TILE, side) for side in values.shape[2:])
    mode = "RGB" if channels == 3 else "L"
    down = -(-len(pixels) // COLUMNS)
    sheet = Image.new(mode, (COLUMNS * width, down * height))
    for place, one in enumerate(pixels):
        tile = Image.fromarray(one if channels == 3 else one[:, :, 0])
        if tile.size != (width, height):
            tile = tile.resize((width, height), Image.Resampling.BOX)
        sheet.paste(tile, (place % COLUMNS * width, place // COLUMNS * height))
    file, kind = io.BytesIO(), "jpeg" if channels == 3 else "png"
    how: dict[str, Any] = {"quality": QUALITY, "subsampling": 0} if channels == 3 else {}
    sheet.save(file, kind, **how)
    code = base64.b64encode(file.getvalue()).decode()
    return {"tile": [width, height], "columns": COLUMNS, "sheet": kind, "picture": code}


def _list_series(values: Array) -> list[list[float]]:
    """The first feature of each, at evenly spaced steps."""
    steps = np.linspace(0, values.shape[1] - 1, min(POINTS, values.shape[1])).astype(np.int64)
    rounded: list[list[float]] = _round(values[:, steps, 0])
    return rounded


def _list_rows(task: Task, values: Array) -> list[list[list[str]]]:
    """Pairs of a name and a value; of a category only the one that a row has."""
    made = task.preparation
    names = made.names if made is not None else tuple(f"x{i}" for i in range(values.shape[1]))
    flags = made.plain if made is not None else None
    plain = np.zeros(len(names), bool) if flags is None else flags
    rows = []
    for row in values:
        cells = []
        for name, value, category in zip(names, row.tolist(), plain, strict=True):
            if category and value:
                told, _, chosen = name.partition("=")
                cells.append([_cut(told, NAME), _cut(chosen, NAME)])
            elif not category:
                cells.append([_cut(name, NAME), f"{value:.4g}"])
            if len(cells) == CELLS:
                break
        rows.append(cells)
    return rows


def _round(values: Array) -> Any:
    return [[float(f"{value:.4g}") for value in row] for row in values.tolist()]
