"""The recording of a run: a row per round on what was said in it, and public samples to look at.

It is for people, and for nothing else: no figure is computed from it, and a run goes on without
it. A row has at most 16 clients with 16 soft labels each, so it is at most about 40 kB.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsift import files
from fedsift.federation.conversations import CLIENTS, LISTED, PICKS, WATCHED, Conversation
from fedsift.runs import previews
from fedsift.runs.folder import (
    RECORDING,
    SAMPLES,
    Row,
    expect,
    is_count,
    is_id,
    is_number,
    is_table,
    is_text,
    read_json,
    read_rows,
    unreadable,
)
from fedsift.types import Array, SoftLabels

CLASSES = 3  # of a soft label: the likeliest ones
THOUSAND = 1000  # shares are counted in thousandths
MOST_ROWS = CLIENTS * PICKS + LISTED  # soft labels of the aggregate, and of the students
MOST_PICTURE = 4 * 2**20  # letters
PARTS = ("header", "indexes", "values", "others")


@dataclass(frozen=True)
class Recording:
    """Rows by round, which need not be all, and the samples that they are about."""

    rounds: dict[int, Row]
    samples: Row


def to_row(round: int, told: Conversation) -> Row:
    """The row of a round."""
    row: Row = {"round": round, "bytes": {"up": asdict(told.up), "down": asdict(told.down)}}
    if not told.rows:
        return row
    aggregate, student, *said = _pack_labels([told.aggregate, told.student, *told.said.values()])
    clients = {
        str(id): {"rows": told.rows[id], "said": labels}
        for id, labels in zip(told.said, said, strict=True)
    }
    return row | {
        "clients": clients,
        "aggregate": aggregate,
        "student": student,
        "labelled": told.labelled,
        "contested": told.contested,
        "unlabelled": list(told.unlabelled),
        "disputed": list(told.disputed),
    }


def _pack_labels(sets: Sequence[SoftLabels | None]) -> list[dict[str, list[int]]]:
    """Of each set sample -> class, thousandths, class, thousandths, ...: the likeliest first.

    All sets at once: many small ones would cost more.
    """
    there = [labels for labels in sets if labels is not None and len(labels)]
    if not there:
        return [{} for _ in sets]
    probs: Array = np.nan_to_num(
        np.concatenate([labels.probs for labels in there], dtype=np.float64)
    )
    few = min(CLASSES, probs.shape[1])
    top = np.argpartition(-probs, few - 1, 1)[:, :few]
    top = np.take_along_axis(top, np.argsort(-np.take_along_axis(probs, top, 1), 1), 1)
    shares = np.clip(np.rint(THOUSAND * np.take_along_axis(probs, top, 1)), 0, THOUSAND)
    pairs = iter(np.stack([top, shares.astype(np.int64)], 2).reshape(len(probs), -1).tolist())
    return [
        {}
        if labels is None
        else {str(sample): _drop_zeros(next(pairs)) for sample in labels.index.tolist()}
        for labels in sets
    ]


def _drop_zeros(pairs: list[int]) -> list[int]:
    """Without classes that have nothing, but for the first."""
    while len(pairs) > 2 and not pairs[-1]:
        pairs = pairs[:-2]
    return pairs


def cut_recording(folder: Path, rounds: int) -> None:
    """Drop the row of a round that the checkpoint does not know; it will be played again."""
    path = folder / RECORDING
    if not path.is_file():
        return
    rows = _checked_rows(path)
    kept = [row for row in rows if row["round"] < rounds]
    files.write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept).encode())


def read_recording(folder: Path) -> Recording | None:
    """None where nothing was recorded."""
    if not (folder / RECORDING).is_file() or not (folder / SAMPLES).is_file():
        return None
    rows = _checked_rows(folder / RECORDING)
    samples = read_json(folder / SAMPLES, _check_samples)
    return Recording({row["round"]: row for row in rows}, samples)


# --- what a stranger may have put there ---


def _checked_rows(path: Path) -> list[Row]:
    rows, last = read_rows(path), -1
    for number, row in enumerate(rows):
        try:
            expect(isinstance(row, dict), "it must be a JSON object")
            expect(is_count(row.get("round")) and row["round"] > last, "rounds must ascend")
            _check_row(row)
        except ValueError as error:
            raise unreadable(path, f"line {number + 1}: {error}") from None
        last = row["round"]
    return rows


def _check_row(row: Row) -> None:
    sent: Any = row.get("bytes")
    expect(isinstance(sent, dict), "bytes must be by direction")
    for way in ("up", "down"):
        told: Any = sent.get(way)
        expect(is_table(told, is_count) and set(told) == set(PARTS), f"{way} must be bytes by part")
    clients = row.get("clients", {})
    expect(isinstance(clients, dict) and len(clients) <= CLIENTS, "clients must be a few")
    for id, one in clients.items():
        expect(is_id(id) and isinstance(one, dict), "clients must be by number")
        expect(is_count(one.get("rows")), "a client must have a number of rows")
        _check_labels(one.get("said"), PICKS)
    for key in ("aggregate", "student"):
        _check_labels(row.get(key, {}), MOST_ROWS)
    for key in ("labelled", "contested"):
        expect(is_count(row.get(key, 0)), f"{key} must be a number")
    for key in ("unlabelled", "disputed"):
        few = row.get(key, [])
        fine = isinstance(few, list) and len(few) <= LISTED and all(map(is_count, few))
        expect(fine, f"{key} must be a few samples")


def _check_labels(labels: Any, most: int) -> None:
    fine = isinstance(labels, dict) and len(labels) <= most and all(map(is_id, labels))
    expect(fine and all(map(_is_soft_label, labels.values())), "soft labels must be by sample")


def _is_soft_label(value: Any) -> bool:
    """Class, thousandths, class, thousandths, ..."""
    if not isinstance(value, list) or len(value) % 2 or not 2 <= len(value) <= 2 * CLASSES:
        return False
    return all(map(is_count, value)) and max(value[1::2]) <= THOUSAND


def _check_samples(content: Any) -> Row:
    expect(isinstance(content, dict), "it must be a JSON object")
    index: Any = content.get("samples")
    truth: Any = content.get("truth")
    fine = isinstance(index, list) and len(index) <= WATCHED and all(map(is_count, index))
    expect(fine, "samples must be a list of numbers")
    expect(is_count(content.get("public")), "public must be a number of samples")
    if truth is not None:
        fine = isinstance(truth, list) and len(truth) == len(index) and all(map(is_count, truth))
        expect(fine, "truth must be a class of each sample")
    kind = content.get("kind")
    expect(isinstance(kind, str) and kind in KINDS, "kind must be images, texts, rows or series")
    KINDS[kind](content, len(index))
    return dict(content)


def _check_images(content: Row, count: int) -> None:
    tile: Any = content.get("tile")
    picture, columns = content.get("picture"), content.get("columns")
    fine = isinstance(tile, list) and len(tile) == 2 and all(map(is_count, tile))
    expect(fine and 0 < min(tile) <= max(tile) <= previews.TILE, "tile must be a size in pixels")
    expect(is_count(columns) and columns != 0, "columns must be a number of tiles")
    expect(content.get("sheet") in ("png", "jpeg"), "sheet must be png or jpeg")
    expect(isinstance(picture, str) and len(picture) <= MOST_PICTURE, "picture must be a text")
    base64.b64decode(str(picture), validate=True)


def _check_texts(content: Row, count: int) -> None:
    texts = content.get("texts")
    fine = isinstance(texts, list) and len(texts) == count and all(map(_is_short, texts))
    expect(fine, "texts must be a short text of each sample")


def _check_rows_of_table(content: Row, count: int) -> None:
    rows = content.get("rows")
    fine = isinstance(rows, list) and len(rows) == count and all(map(_is_few_cells, rows))
    expect(fine, "rows must be names and values of each sample")


def _check_series(content: Row, count: int) -> None:
    series: Any = content.get("series")
    fine = isinstance(series, list) and len(series) == count
    expect(
        fine and all(isinstance(one, list) and len(one) <= previews.POINTS for one in series),
        "series must be numbers of each sample",
    )
    expect(all(is_number(v) for one in series for v in one), "series must be numbers")


def _is_short(value: Any) -> bool:
    return is_text(value) and len(value) <= previews.LONGEST + 1


def _is_few_cells(cells: Any) -> bool:
    return (
        isinstance(cells, list)
        and len(cells) <= previews.CELLS
        and all(isinstance(c, list) and len(c) == 2 and all(map(_is_short, c)) for c in cells)
    )


KINDS = {
    "images": _check_images,
    "texts": _check_texts,
    "rows": _check_rows_of_table,
    "series": _check_series,
}
