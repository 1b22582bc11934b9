"""Arrays in .npz and .npy files. A file may be a stranger's, so its size is bounded."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np

from fedsift.data.dataset import NUMBER_THEM, TOKENS, Dataset, as_tokens, make_dataset
from fedsift.types import Array, UserError

MOST_UNPACKED = 2**30  # bytes of a compressed file that is never refused
MOST_COMPRESSED = 100  # to one, of a larger one

ARRAYS = ("x", "y", "x_test", "y_test", "x_public", "classes", "client", "vocabulary")


def npz(path: str, kind: str | None = None) -> Dataset:
    """An .npz with `x` and `y`, and optionally `x_test` and `y_test`, `x_public`, `classes`,
    `client` and `vocabulary`.
    """
    found = read_npz(path)
    if missing := {"x", "y"} - found.keys():
        raise UserError(
            f"{path} has no array {sorted(missing)[0]!r}; it needs x and y (found: "
            f"{', '.join(found)})"
        )
    if ("x_test" in found) != ("y_test" in found):
        raise UserError(f"{path} has one of x_test and y_test; a test set needs both")
    numbers = {name: _read_number(path, name, found) for name in ("classes", "vocabulary")}
    made = _from_arrays(found, numbers["classes"], kind)
    made = as_tokens(made, numbers["vocabulary"]) if kind == TOKENS else made
    others = [name for name in found if name not in ARRAYS]
    told = (f"{path}: not used: {', '.join(others)} (known: {', '.join(ARRAYS)})",)
    return replace(
        made, vocabulary=numbers["vocabulary"], notes=made.notes + (told if others else ())
    )


def _read_number(path: str, name: str, found: dict[str, Array]) -> int | None:
    if name not in found:
        return None
    if found[name].size != 1 or found[name].dtype.kind not in "ui":
        raise UserError(f"{path}: {name} must be one whole number")
    return int(found[name].item())


def read_npz(path: str) -> dict[str, Array]:
    name = ""
    if Path(path).exists() and not Path(path).is_file():  # a device may have no end
        raise UserError(f"{path} is not a plain file, so it is not an npz file")
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise UserError(
                    f"{path} is not an npz file; write one with np.savez(path, x=x, y=y)"
                )
            _check_unpacked(file)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                found = {}
                for name in arrays.files:
                    found[name] = arrays[name]
                return found
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except UserError:
        raise
    except Exception as error:  # numpy raises half a dozen types on files that are not npz
        if "allow_pickle" in str(error):
            cure = NUMBER_THEM if name.startswith("y") else "save an array of numbers"
            raise UserError(f"{path}: {name} holds Python objects, not numbers; {cure}") from None
        raise UserError(f"cannot read {path} as an npz file: {error}") from None


def _check_unpacked(file: IO[bytes]) -> None:
    """Arrays may be compressed, but not so well that a small file fills the memory."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    packed = file.seek(0, os.SEEK_END)
    if unpacked > max(MOST_UNPACKED, MOST_COMPRESSED * packed):
        raise UserError(
            f"{file.name} has {packed:,} bytes and would unpack to {unpacked:,}; if it is yours, "
            "write it with np.savez, which does not compress"
        )


def _from_arrays(found: dict[str, Array], classes: int | None, kind: str | None = None) -> Dataset:
    test = (found["x_test"], found["y_test"]) if "x_test" in found else None
    public, client = found.get("x_public"), found.get("client")
    return make_dataset(
        found["x"], found["y"], classes, test=test, public=public, client=client, kind=kind
    )


def read_npy(path: Path) -> Array:
    try:
        found = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises half a dozen types on files that are not npy
        raise UserError(f"cannot read {path} as a npy file: {error}") from None
    if not isinstance(found, np.ndarray):
        raise UserError(f"{path} is a npz file; call it FILE.npz")
    return found
