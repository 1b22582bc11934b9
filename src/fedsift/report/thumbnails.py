"""Public samples in a page, so many as fit: what the shown rounds name, each picture once.

Pictures come from run folders, so they may come from a stranger: they are opened only where there
are too many, and only if they are as large as they say.
"""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsift.federation.conversations import WATCHED
from fedsift.types import Array

MOST = 1_000_000  # letters of all samples in a page
COLUMNS = 64  # tiles in a row of a shared picture
QUALITY = 60  # of one in colours
TRIES = 6  # to make it small enough
KEPT = ("public", "truth", "kind", "tile", "columns", "sheet", "picture")
AWAY = ("picture", "columns", "places")  # of a sheet whose picture is shared

Row = dict[str, Any]


def fit_samples(
    sheets: Sequence[Row], named: Sequence[Counter[int]]
) -> tuple[list[Row], list[Row]]:
    """Sheets that fit together, and the pictures that they share. `named`: how often, by sample."""
    if sum(map(_count_letters, sheets)) <= MOST:
        return list(sheets), []
    share = MOST // len(sheets)
    kept = [_keep_named(sheet, count) for sheet, count in zip(sheets, named, strict=True)]
    looks: dict[tuple[Any, ...], list[int]] = {}  # pictures of one kind make one
    for number, sheet in enumerate(kept):
        if sheet["kind"] == "images":
            looks.setdefault((sheet["sheet"], *sheet["tile"]), []).append(number)
        else:
            _cut_list(sheet, share)
    shared: list[Row] = []
    for (kind, *_), numbers in looks.items():
        tiles = [_cut_tiles(kept[number]) for number in numbers]
        places, picture = _join_tiles(tiles, kind, share * len(numbers))
        for number, place in zip(numbers, places, strict=True):
            kept[number] |= {"tiles": place, "shared": len(shared)}
        shared.append({"columns": COLUMNS, "sheet": kind, "picture": picture})
    return [{key: sheet[key] for key in sheet if key not in AWAY} for sheet in kept], shared


def _count_letters(sheet: Row) -> int:
    return len(json.dumps(sheet))


def _keep_named(sheet: Row, count: Counter[int]) -> Row:
    """Without samples that no shown round names; those that most name come first."""
    order = sorted(
        (place for place, sample in enumerate(sheet["samples"]) if count[sample]),
        key=lambda place: (-count[sheet["samples"][place]], place),
    )
    lists = [key for key in ("samples", "truth", sheet["kind"]) if sheet.get(key)]
    few = {key: [sheet[key][place] for place in order] for key in lists}
    return {key: sheet[key] for key in KEPT if key in sheet} | few | {"places": order}


def _cut_list(sheet: Row, most: int) -> None:
    """Texts, rows or series: the first ones that fit."""
    key = sheet["kind"]
    lengths = np.cumsum([len(json.dumps(one)) + 2 for one in sheet[key]])
    fit = int(np.searchsorted(lengths, most, "right"))
    sheet[key] = [one if place < fit else None for place, one in enumerate(sheet[key])]


def _cut_tiles(sheet: Row) -> list[Array | None]:
    """One picture of each sample; None where the file is not what it says."""
    from PIL import Image

    (width, height), columns, places = sheet["tile"], sheet["columns"], sheet["places"]
    down = -(-WATCHED // columns)
    nothing: list[Array | None] = [None] * len(places)
    try:
        whole = Image.open(io.BytesIO(base64.b64decode(sheet["picture"])), formats=["PNG", "JPEG"])
        if columns > WATCHED or whole.width != columns * width or whole.height > down * height:
            return nothing
        pixels = np.asarray(whole.convert("RGB" if sheet["sheet"] == "jpeg" else "L"))
    except Exception:  # a decoder may fail in many ways, and a page goes without
        return nothing
    found = []
    for place in places:
        top, left = place // columns * height, place % columns * width
        tile = pixels[top : top + height, left : left + width]
        found.append(tile if tile.shape[0] == height else None)
    return found


def _join_tiles(
    sheets: list[list[Array | None]], kind: str, most: int
) -> tuple[list[list[int]], str]:
    """Where each tile is (-1: left out), and the picture: equal tiles once, sheets in turn."""
    turns = sorted(
        (turn, number) for number, sheet in enumerate(sheets) for turn in range(len(sheet))
    )
    known: dict[bytes, int] = {}
    places = [[-1] * len(sheet) for sheet in sheets]
    tiles: list[Array] = []
    for turn, number in turns:
        tile = sheets[number][turn]
        if tile is None:
            continue
        place = places[number][turn] = known.setdefault(tile.tobytes(), len(tiles))
        if place == len(tiles):
            tiles.append(tile)
    for _ in range(TRIES):
        picture = _draw(tiles, kind)
        if len(picture) <= most:
            break
        tiles = tiles[: len(tiles) * most // len(picture) * 19 // 20]
    else:
        tiles, picture = [], ""
    left = len(tiles)
    return [[place if place < left else -1 for place in row] for row in places], picture


def _draw(tiles: list[Array], kind: str) -> str:
    from PIL import Image

    if not tiles:
        return ""
    height, width, *colours = tiles[0].shape
    down = -(-len(tiles) // COLUMNS)
    grid = np.zeros((down * COLUMNS, height, width, *colours), np.uint8)
    grid[: len(tiles)] = tiles
    rest = range(4, grid.ndim + 1)
    pixels = grid.reshape(down, COLUMNS, *grid.shape[1:]).transpose(0, 2, 1, 3, *rest)
    file = io.BytesIO()
    image = Image.fromarray(pixels.reshape(down * height, COLUMNS * width, *colours))
    image.save(file, kind, **({"quality": QUALITY} if kind == "jpeg" else {}))
    return base64.b64encode(file.getvalue()).decode()
