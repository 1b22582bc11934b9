"""Images in folders: a folder per class, or folders train, test and public with such folders."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsift import files
from fedsift.data import images
from fedsift.data.dataset import PARTS, PUBLIC, Dataset, describe_classes
from fedsift.types import Array, UserError

ENDINGS = (".png", ".jpg", ".jpeg")
MOST_IMAGES = 1_000_000
MOST_BYTES = 2**32  # of all pixels
_SPEC = re.compile(r"(.*?)(?:\((\d+)(?:x(\d+))?\))?", re.DOTALL)


@dataclass(frozen=True)
class Found:
    """A picture, its class and the part it belongs to, if the folders say so."""

    path: Path
    label: str | None
    part: str | None


def load_folder(spec: str) -> Dataset:
    """ "DIR", or "DIR(32)" and "DIR(32x24)" for pictures that are made that high and wide."""
    match = _SPEC.fullmatch(spec)
    assert match is not None  # it fits every text
    name, height, width = match.groups()
    root = Path(name).expanduser()
    found = _find_pictures(root)
    names = tuple(sorted({one.label for one in found if one.label is not None}))
    if len(names) < 2:
        raise UserError(f"{root} has {len(names)} folders with pictures; it needs one per class")
    size = (int(height), int(width or height)) if height else None
    x = _read_pictures(root, [one.path for one in found], size)
    y = np.array([-1 if one.label is None else names.index(one.label) for one in found], np.int64)
    made = Dataset(x, y, len(names), names=names, notes=(describe_classes(names),))
    if all(one.part is None for one in found):
        return made
    return replace(made, part=np.array([PARTS[one.part or ""] for one in found], np.int64))


def _find_pictures(root: Path) -> list[Found]:
    if not root.is_dir():
        raise UserError(f"no such folder: {root}")
    inner = _list_folders(root, root)
    if inner and {folder.name for folder in inner} <= PARTS.keys():
        found = [one for folder in inner for one in _find_in_part(folder, root)]
    else:
        found = [one for folder in inner for one in _find_in_class(folder, None, root)]
    if not found:
        raise UserError(f"{root} has no folders with .png or .jpg pictures, one folder per class")
    if len(found) > MOST_IMAGES:
        raise UserError(f"{root} has {len(found)} pictures; {MOST_IMAGES} are the most")
    return found


def _find_in_part(folder: Path, root: Path) -> list[Found]:
    """Public pictures may lie in their folder without classes."""
    found = [
        one
        for inner in _list_folders(folder, root)
        for one in _find_in_class(inner, folder.name, root)
    ]
    if PARTS[folder.name] == PUBLIC:
        found += [Found(path, None, folder.name) for path in _list_pictures(folder, root)]
        return [replace(one, label=None) for one in found]
    return found


def _find_in_class(folder: Path, part: str | None, root: Path) -> list[Found]:
    return [Found(path, folder.name, part) for path in _list_pictures(folder, root)]


def _list_folders(folder: Path, root: Path) -> list[Path]:
    return [path for path in _list(folder, root) if path.is_dir()]


def _list_pictures(folder: Path, root: Path) -> list[Path]:
    return [p for p in _list(folder, root) if p.suffix.lower() in ENDINGS and p.is_file()]


def _list(folder: Path, root: Path) -> list[Path]:
    """By name; hidden files are not looked at, and no link is followed."""
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in found:
        files.check_no_link(path, root)
    return found


def _read_pictures(root: Path, paths: list[Path], size: tuple[int, int] | None) -> Array:
    """uint8 [S, channels, height, width]; grey only where all are grey."""
    read: list[Array] = []
    total = 0
    for path in paths:
        pixels = np.moveaxis(images.read_pixels(path), -1, 0)[None]
        pixels = images.resize(pixels, *size) if size else pixels
        if read and pixels.shape[2:] != read[0].shape[2:]:
            one, other = (f"{a.shape[2]}x{a.shape[3]}" for a in (read[0], pixels))
            raise UserError(
                f"{path} has {other} pixels, {paths[0]} has {one}; write folder:{root}(32) to make "
                "all of them 32x32"
            )
        total += pixels.nbytes
        if total > MOST_BYTES:
            raise UserError(f"the pictures of {root} have more than {MOST_BYTES:,} bytes")
        read.append(pixels)
    channels = max(pixels.shape[1] for pixels in read)
    return np.concatenate([images.convert_channels(pixels, channels) for pixels in read])
