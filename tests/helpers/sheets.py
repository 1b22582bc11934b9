"""Sheets of small pictures, as a run has them."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def sheet_of(tiles: Any, samples: list[int], columns: int = 2, kind: str = "png") -> dict[str, Any]:
    """Tiles of one size, row by row."""
    height, width = tiles[0].shape[:2]
    whole = np.zeros((-(-len(tiles) // columns) * height, columns * width, *tiles[0].shape[2:]))
    for place, tile in enumerate(tiles):
        top, left = place // columns * height, place % columns * width
        whole[top : top + height, left : left + width] = tile
    file = io.BytesIO()
    Image.fromarray(whole.astype(np.uint8)).save(file, kind)
    return {
        "public": 100,
        "samples": samples,
        "truth": [sample % 10 for sample in samples],
        "kind": "images",
        "tile": [width, height],
        "columns": columns,
        "sheet": kind,
        "picture": base64.b64encode(file.getvalue()).decode(),
    }
