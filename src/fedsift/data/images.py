"""Pictures: reading them, cutting sheets into tiles, fitting images of one data set to another."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsift.types import Array, UserError

_MOST_PIXELS = 80_000_000
_CHUNK = 1000  # images resized at a time, which bounds the memory it takes
_LUMA = np.array([299, 587, 114])  # thousandths of red, green and blue in grey


def read_pixels(path: Path, *formats: str) -> Array:
    """A picture as uint8 [height, width, channels]: one channel if it is grey, else three."""
    from PIL import Image

    try:
        with Image.open(path, formats=formats or ("PNG", "JPEG")) as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                raise UserError(
                    f"{path.name} has more than {_MOST_PIXELS:,} pixels; cut it into several files"
                )
            values = np.asarray(picture.convert("L" if picture.mode in ("1", "L") else "RGB"))
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except UserError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"cannot read {path} as a PNG or JPEG picture: {error}") from None
    return values.reshape(*values.shape[:2], -1)


def cut_tiles(path: Path, height: int, width: int) -> Array:
    """The tiles of a sheet, row by row: uint8 [S, channels, height, width]."""
    sheet = read_pixels(path)
    if not height or not width or sheet.shape[0] % height or sheet.shape[1] % width:
        size = f"{sheet.shape[0]} x {sheet.shape[1]} pixels"
        raise UserError(
            f"{path} has {size}, which tiles of {height} x {width} do not fill; add their "
            "size: sheet:FILE(32)"
        )
    rows, columns = sheet.shape[0] // height, sheet.shape[1] // width
    cut = sheet.reshape(rows, height, columns, width, -1).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(cut.reshape(rows * columns, -1, height, width))


def fit_images(x: Array, like: Array) -> Array:
    """Images x [S, channels, height, width] with the channels, size and value range of `like`."""
    if x.ndim != 4 or like.ndim != 4:
        raise UserError(
            "a public set from another data set needs images on both sides, not rows of features"
        )
    sized = resize(convert_channels(x, like.shape[1]), *like.shape[2:])
    old, new = top(x), top(like)
    if (old, x.dtype) == (new, like.dtype):
        return sized
    return np.concatenate(
        [_round_like(part.astype(np.float64) * new, old, like) for part in _chunks(sized)]
    )


def convert_channels(x: Array, channels: int) -> Array:
    """Grey becomes colour by three equal channels, colour grey by its luma."""
    if x.shape[1] == channels:
        return x
    if x.shape[1] == 1:
        return np.repeat(x, channels, axis=1)
    if (x.shape[1], channels) != (3, 1):
        raise UserError(f"images with {x.shape[1]} channels cannot be made to have {channels}")
    return np.concatenate(
        [_round_like(np.tensordot(part, _LUMA, (1, 0))[:, None], 1000, x) for part in _chunks(x)]
    )


def resize(x: Array, height: int, width: int) -> Array:
    """By area: a new pixel is the mean of what it covers, parts of pixels in proportion.

    The weights are whole numbers, so bytes come out the same on every machine.
    """
    if x.shape[2:] == (height, width):
        return x
    down, across = _overlaps(x.shape[2], height), _overlaps(x.shape[3], width)
    area = x.shape[2] * x.shape[3]
    return np.concatenate(
        [_round_like(down @ part.astype(np.float64) @ across.T, area, x) for part in _chunks(x)]
    )


def top(x: Array) -> int:
    """The largest value images like these can have: 1, 16 (the digits) or 255."""
    if x.min() < 0 or x.max() > 255:
        raise UserError(
            "images for a public set from elsewhere must have values from 0 to 1 or from 0 to 255"
        )
    return next(largest for largest in (1, 16, 255) if x.max() <= largest)


def _overlaps(old: int, new: int) -> Array:
    """[new, old]: how much of each old pixel each new one covers; every row sums to `old`."""
    new_edges, old_edges = np.arange(new + 1) * old, np.arange(old + 1) * new
    ends = np.minimum(new_edges[1:, None], old_edges[None, 1:])
    starts = np.maximum(new_edges[:-1, None], old_edges[None, :-1])
    return np.maximum(ends - starts, 0).astype(np.float64)


def _round_like(values: Array, divisor: int, like: Array) -> Array:
    """values / divisor in the type of `like`; bytes are rounded, halves up."""
    if like.dtype != np.uint8:
        return (values / divisor).astype(like.dtype)
    return np.floor((2 * values + divisor) / (2 * divisor)).clip(0, 255).astype(np.uint8)


def _chunks(x: Array) -> list[Array]:
    return [x[start : start + _CHUNK] for start in range(0, len(x), _CHUNK)]
