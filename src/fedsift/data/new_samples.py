"""New samples without labels, for a trained model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsift.data import images
from fedsift.data.arrays import read_npy, read_npz
from fedsift.types import Array, UserError

PICTURES = (".png", ".jpg", ".jpeg")
MOST_PICTURES = 100_000


def load_inputs(path: Path) -> tuple[Array, list[str]]:
    """New samples without labels, and what to call each: its number, or the name of its file.

    path: FILE.npz with an array x, FILE.npy, a picture, or a folder of pictures of one size
    """
    if path.is_dir():
        return _load_pictures(path)
    if not path.exists():
        raise UserError(f"no such file: {path}")
    kind = path.suffix.lower()
    if kind in PICTURES:
        return images.read_pixels(path)[None], [path.name]
    if kind == ".npz":
        found = read_npz(str(path))
        if "x" not in found:
            raise UserError(f"{path} has no array x; write it with np.savez(path, x=x)")
        x = found["x"]
    elif kind == ".npy":
        x = read_npy(path)
    else:
        raise UserError(f"{path} is not of a known kind; give FILE.npz, FILE.npy or pictures")
    return x, [str(number) for number in range(len(x) if x.ndim else 0)]


def _load_pictures(folder: Path) -> tuple[Array, list[str]]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)
    if not 0 < len(found) <= MOST_PICTURES:
        raise UserError(
            f"{folder} has {len(found)} pictures ({', '.join(PICTURES)}); "
            f"1 to {MOST_PICTURES:,} are needed"
        )
    read = [images.read_pixels(path) for path in found]
    odd = next(
        (path for path, x in zip(found, read, strict=True) if x.shape != read[0].shape), None
    )
    if odd is not None:
        raise UserError(
            f"{odd} has another size or other channels than {found[0]}; make them alike"
        )
    return np.stack(read), [path.name for path in found]
