"""Fetched data sets, each kept as one .npz of bytes with a content digest; written atomically."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.files import write_atomic
from fedsift.types import Array, UserError

PARTS = ("x", "y", "x_test", "y_test", "x_public")
_DIGEST = "sha256"
_SLACK = 1 << 16  # bytes of zip and array headers


def folder(given: Path | None = None) -> Path:
    """Where data sets are kept: the folder given, else $FEDSIFT_DATA, else the user's cache."""
    if given or os.environ.get("FEDSIFT_DATA"):
        return Path(given or os.environ["FEDSIFT_DATA"]).expanduser()
    import pooch

    return Path(pooch.os_cache("fedsift"))


def path(name: str, given: Path | None = None) -> Path:
    return folder(given) / f"{name}.npz"


def digest(arrays: dict[str, Array]) -> str:
    """SHA-256 of the arrays in their fixed order, each with its name and shape."""
    total = hashlib.sha256()
    for name in PARTS:
        if name in arrays:
            total.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
            total.update(np.ascontiguousarray(arrays[name]).data)
    return total.hexdigest()


def save(path: Path, arrays: dict[str, Array]) -> None:
    signed: dict[str, Any] = {**arrays, _DIGEST: np.array(digest(arrays))}
    write_atomic(path, lambda file: np.savez(file, **signed))


def read(path: Path) -> dict[str, Array]:
    """The arrays, if they are still the ones that were saved."""
    try:
        with open(path, "rb") as file:
            _check_size(path)
            with np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
        said = str(arrays.pop(_DIGEST))
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged zip fails in many ways
        raise UserError(f"{path} is damaged ({error})") from None
    if arrays.keys() - set(PARTS) or digest(arrays) != said:
        raise UserError(f"{path} is damaged (its content is not what was saved)")
    return arrays


def is_here(path: Path) -> bool:
    """By its table of contents, which comes last and is the first to be lost; the content is
    checked when it is read.
    """
    try:
        _check_size(path)
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
    return True


def _check_size(path: Path) -> None:
    """Arrays are stored uncompressed, so a file that claims more than its own size is not ours."""
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size + _SLACK:
            raise ValueError("it is compressed, which fedsift never does")
