"""A table as it came: named columns of numbers or words, of one file or of several.

What becomes of it, its `preparation`, is learnt later, from the public rows alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsift.checks import count
from fedsift.types import Array, UserError

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # in small letters
MOST_COLUMNS = 10_000
LARGEST = 3e38  # of a number: what float32 can hold


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean; all others are inputs."""

    target: str | None = None  # the class
    client: str | None = None  # whose row it is
    split: str | None = None  # train, test or public
    text: str | None = None  # the only input: a text
    categorical: tuple[str, ...] = ()  # numbers that are names, such as a postcode
    drop: tuple[str, ...] = ()  # neither
    vocabulary: int = 5000  # of a text: at most so many different ids
    length: int = 100  # of a text: so many ids

    def __post_init__(self) -> None:
        if not 3 <= self.vocabulary <= 1_000_000:
            raise UserError(f"vocabulary must be from 3 to 1000000, not {self.vocabulary}")
        if not 1 <= self.length <= 10_000:
            raise UserError(f"length must be from 1 to 10000, not {self.length}")

    @property
    def named(self) -> dict[str, str]:
        """The columns that must be there, by what they are."""
        keys = {"target": self.target, "client": self.client}
        keys |= {"split": self.split, "text": self.text}
        return {key: name for key, name in keys.items() if name is not None}


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name: float64 [S] with nan, or words [S] with "", where a cell is missing."""

    columns: Mapping[str, Array]
    files: tuple[str, ...]
    file: Array  # [S]: which of the files a row is from
    line: Array  # [S]: its line there, or its number, from 1
    text: str | None = None
    categorical: tuple[str, ...] = ()
    vocabulary: int = 5000
    length: int = 100

    def __len__(self) -> int:
        return len(self.line)

    def place(self, row: int) -> str:
        """ "hospital-2.csv, line 7" """
        return f"{self.files[self.file[row]]}, line {self.line[row]}"


def make_table(path: str, columns: Mapping[str, Array], lines: Array | None = None) -> Table:
    """A table of one file."""
    if not columns:
        raise UserError(f"{path} has no columns")
    if len(columns) > MOST_COLUMNS:
        raise UserError(f"{path} has {len(columns)} columns; {MOST_COLUMNS} are the most")
    samples = len(next(iter(columns.values())))
    lines = np.arange(1, samples + 1) if lines is None else lines
    return Table(columns, (path,), np.zeros(samples, np.int64), lines)


def read_cells(cells: Sequence[str]) -> Array:
    """Numbers, where all cells that are not missing are numbers; else words as they are."""
    stripped = [cell.strip() for cell in cells]
    gone = [cell.lower() in MISSING for cell in stripped]
    try:
        numbers = np.array(
            ["nan" if missing else cell for cell, missing in zip(stripped, gone, strict=True)],
            np.float64,
        )
    except ValueError:
        return words(["" if m else cell for cell, m in zip(stripped, gone, strict=True)])
    return numbers


def read_names(cells: Sequence[str]) -> Array:
    """Names as they are written, such as 007; 7.0 is 7, as a table of numbers with gaps has it."""
    stripped = [cell.strip() for cell in cells]
    return words(["" if cell.lower() in MISSING else _WHOLE.sub(r"\1", cell) for cell in stripped])


_WHOLE = re.compile(r"^(\d+)\.0+$")


def words(cells: Sequence[str]) -> Array:
    found = np.empty(len(cells), object)
    found[:] = cells
    return found


def is_words(cells: Array) -> bool:
    return cells.dtype.kind == "O"


def as_words(cells: Array) -> Array:
    """The cells as they might have been written: 3.0 is "3"."""
    if is_words(cells):
        return cells
    return words(["" if np.isnan(value) else f"{value:.15g}" for value in cells.tolist()])


def as_categories(cells: Array) -> Array:
    """Words, and numbers in one spelling: 3, 3.0 and 03 are the same category in every file."""
    return words([_spell(cell) for cell in as_words(cells)])


def _spell(cell: str) -> str:
    try:
        return f"{float(cell):.15g}"
    except ValueError:
        return cell


def find_missing(cells: Array) -> Array:
    return cells == "" if is_words(cells) else np.isnan(cells)


def join_tables(tables: Sequence[Table], first: Table) -> tuple[Table, tuple[str, ...]]:
    """All rows below each other, and notes on columns that some files do not have. Columns stand in
    the order of the `first` table, then in that of the others."""
    names = list(dict.fromkeys(name for table in (first, *tables) for name in table.columns))
    notes = [
        f"{table.files[0]} has no column {name!r}: its values count as missing"
        for table in tables
        for name in names
        if name not in table.columns
    ]
    columns = {name: _join([_column(table, name) for table in tables]) for name in names}
    files = tuple(table.files[0] for table in tables)
    which = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    lines = np.concatenate([table.line for table in tables])
    return Table(columns, files, which, lines), tuple(notes)


def _column(table: Table, name: str) -> Array:
    found = table.columns.get(name)
    return np.full(len(table), np.nan) if found is None else found


def _join(parts: list[Array]) -> Array:
    if any(map(is_words, parts)):
        parts = [as_words(part) for part in parts]
    return np.concatenate(parts)


def take_column(table: Table, key: str, name: str) -> Array:
    """The column that is the target, client, split or text; it must be there and have values."""
    if name not in table.columns:
        there = ", ".join(list(table.columns)[:20])
        raise UserError(f"{table.files[0]} has no column {name!r} for data.{key}; it has: {there}")
    return table.columns[name]


def check_finite(table: Table) -> None:
    """Infinite numbers are refused; missing ones are not."""
    for name, cells in table.columns.items():
        if is_words(cells):
            continue
        odd = np.flatnonzero(np.isinf(cells) | (np.abs(cells) > LARGEST))
        if len(odd):
            values = count(len(odd), "value that is", "values that are")
            raise UserError(
                f"column {name!r} has {values} not finite (first: {table.place(int(odd[0]))}); "
                "correct them, or leave the cells empty"
            )
