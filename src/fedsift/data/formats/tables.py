"""Tables in files: CSV and Parquet. A file may be a stranger's, so its size is bounded."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsift import files
from fedsift.data.table import MOST_COLUMNS, Table, make_table, read_cells, read_names, words
from fedsift.types import Array, UserError

MOST_BYTES = 2**30  # of a file, and of what a Parquet file unpacks to
MOST_CELLS = 2**27  # of a Parquet file: equal ones take no room in it
PIECE = 1000  # rows of a Parquet file that are unpacked at a time
SEPARATORS = ",;\t|"


def read_csv(path: str, names_in: Collection[str] = ()) -> Table:
    """A header, then a row a line; separated by comma, semicolon, tab or bar, in UTF-8.

    names_in: columns that hold names, which stay as they are written: 007 is not 7
    """
    text = _read_text(path)
    header, *rows = _read_rows(path, text) or [(1, [])]
    names = [name.strip() for name in header[1]]
    _check_header(path, names)
    for line, row in rows:
        if len(row) != len(names):
            raise UserError(
                f"{path}, line {line}: {len(row)} cells, but the header has {len(names)}; "
                "a cell with a separator in it must be in quotes"
            )
    cells = zip(*(row for _, row in rows), strict=True) if rows else ([] for _ in names)
    columns = {
        name: read_names(column) if name in names_in else read_cells(column)
        for name, column in zip(names, cells, strict=True)
    }
    return make_table(path, columns, np.array([line for line, _ in rows], np.int64))


def _read_text(path: str) -> str:
    try:
        return files.read_bounded(Path(path), MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 (byte {error.object[error.start]:#04x} at place {error.start}); "
            "save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _read_rows(path: str, text: str) -> list[tuple[int, list[str]]]:
    """The cells of each row that has some, with the line on which it begins."""
    found, begins = [], 1
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), strict=True)
    try:
        for row in reader:
            if row:
                found.append((begins, row))
            begins = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {begins}: {error}") from None
    return found


def _separator(text: str) -> str:
    """The one that the header has most of."""
    header = text.lstrip("\r\n").splitlines()[0] if text.strip("\r\n") else ""
    return max(SEPARATORS, key=lambda mark: header.count(mark))


def _check_header(path: str, names: list[str]) -> None:
    if not any(names):
        raise UserError(f"{path} is empty; its first line must name the columns")
    if len(names) > MOST_COLUMNS:
        raise UserError(f"{path} has {len(names)} columns; {MOST_COLUMNS} are the most")
    for number, name in enumerate(names, 1):
        if not name:
            raise UserError(f"{path}: column {number} has no name; name it in the first line")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path} has two columns {twice!r}; rename one")
    if all(_is_number(name) for name in names):
        raise UserError(f"{path} has numbers in its first line; it must name the columns")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_parquet(path: str, names_in: Collection[str] = ()) -> Table:
    """Numbers, truth values and words; what Parquet says is null is missing. It knows itself which
    columns hold words.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(
            "Parquet files need pyarrow; run: pip install 'fedsift[parquet]', or save as CSV"
        ) from None
    if Path(path).exists() and not Path(path).is_file():
        raise UserError(f"cannot read {path}: it is not a plain file")
    try:
        with parquet.ParquetFile(path) as file:
            _check_size(path, file.metadata)
            table = _read_bounded(path, file)
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except UserError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        said = str(error).partition("\n")[0]
        raise UserError(f"cannot read {path} as a Parquet file: {said}") from None
    names = table.column_names
    _check_header(path, names)
    return make_table(
        path, {n: _read_column(path, n, c) for n, c in zip(names, table.columns, strict=True)}
    )


def _check_size(path: str, about: Any) -> None:
    groups = (about.row_group(number) for number in range(about.num_row_groups))
    unpacked = sum(group.total_byte_size for group in groups)
    if unpacked > MOST_BYTES or about.num_columns > MOST_COLUMNS:
        raise UserError(
            f"{path} has {about.num_columns:,} columns and unpacks to {unpacked:,} bytes; "
            f"{MOST_COLUMNS:,} and {MOST_BYTES:,} are the most"
        )
    if about.num_rows * about.num_columns > MOST_CELLS:
        raise UserError(
            f"{path} has {about.num_rows:,} rows of {about.num_columns:,} columns; "
            f"{MOST_CELLS:,} cells are the most"
        )


def _read_bounded(path: str, file: Any) -> Any:
    """Piece by piece: a small file may name one long word a million times."""
    from pyarrow import Table as Arrow

    pieces, size = [], 0
    for piece in file.iter_batches(PIECE):
        size += piece.nbytes
        if size > MOST_BYTES:
            raise UserError(f"{path} unpacks to more than {MOST_BYTES:,} bytes, the most there are")
        pieces.append(piece)
    return Arrow.from_batches(pieces, file.schema_arrow)


def _read_column(path: str, name: str, column: Any) -> Array:
    from pyarrow import types

    kind = column.type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_number = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if any(check(kind) for check in is_number):
        return np.array([_as_float(value) for value in _values(column)], np.float64)
    is_word = (types.is_string, types.is_large_string, types.is_temporal)
    if any(check(kind) for check in is_word):
        return words(["" if value is None else str(value).strip() for value in _values(column)])
    raise UserError(f"{path}: column {name!r} holds {kind}, not numbers or words; leave it out")


def _values(column: Any) -> Iterator[Any]:
    return iter(column.to_pylist())


def _as_float(value: Any) -> float:
    return float("nan") if value is None else float(value)


READERS = {"csv": read_csv, "parquet": read_parquet}
