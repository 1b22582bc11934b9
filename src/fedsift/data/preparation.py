"""What becomes of the columns of a table: inputs of a network.

All of it is learnt from the public rows: which columns are numbers, the categories, what fills in a
missing value, the words of a text. Every party has those rows, so every party arrives at the same
inputs without telling anybody about its own. Figures of pooled private rows would have to be sent,
and would say something about every row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsift.checks import count
from fedsift.data.table import (
    Table,
    as_categories,
    as_words,
    check_finite,
    find_missing,
    is_words,
    read_cells,
)
from fedsift.types import Array, UserError

MOST_CATEGORIES = 50  # of a column: the most frequent ones
MOST_INPUTS = 20_000
SHOWN = 6  # categories in a note
PADDING, UNKNOWN = 0, 1


@dataclass(frozen=True)
class Number:
    """A column of numbers; a missing one becomes the median of the public rows."""

    name: str
    fill: float

    @property
    def inputs(self) -> int:
        return 1

    def apply(self, table: Table) -> Array:
        cells = _take_numbers(table, self.name)
        return np.where(np.isnan(cells), self.fill, cells)[:, None]


@dataclass(frozen=True)
class Category:
    """A column of words: one input per category, 1 for the row's own. One that the public rows do
    not have is 0 everywhere.
    """

    name: str
    values: tuple[str, ...]

    @property
    def inputs(self) -> int:
        return len(self.values)

    def apply(self, table: Table) -> Array:
        cells = table.columns.get(self.name)
        if cells is None:
            cells = np.full(len(table), np.nan)
        numbers = {value: number for number, value in enumerate(self.values)}
        found = np.array([numbers.get(cell, -1) for cell in as_categories(cells)], np.int64)
        return (found[:, None] == np.arange(len(self.values))).astype(np.float64)


@dataclass(frozen=True)
class Tokenizer:
    """A text as a fixed number of ids: 0 fills up, 1 is a word that is not known."""

    words: tuple[str, ...]  # word i has the id i + 2
    length: int

    @property
    def vocabulary(self) -> int:
        return len(self.words) + 2

    def apply(self, texts: Iterable[str]) -> Array:
        numbers = {word: number for number, word in enumerate(self.words, 2)}
        rows = []
        for text in texts:
            ids = [numbers.get(word, UNKNOWN) for word in split_words(text)[: self.length]]
            rows.append(ids + [PADDING] * (self.length - len(ids)))
        return np.array(rows, np.int32).reshape(-1, self.length)


def split_words(text: str) -> list[str]:
    """Runs of letters and digits, in small letters."""
    return _WORD.findall(text.lower())


_WORD = re.compile(r"[^\W_]+")


def learn_tokenizer(texts: Iterable[str], vocabulary: int, length: int) -> Tokenizer:
    """The most frequent words; of equally frequent ones the first by the alphabet."""
    seen = Counter(word for text in texts for word in split_words(text))
    ranked = sorted(seen, key=lambda word: (-seen[word], word))
    return Tokenizer(tuple(ranked[: vocabulary - 2]), length)


@dataclass(frozen=True)
class Preparation:
    """How a table becomes inputs; equal public rows, equal preparation."""

    columns: tuple[Number | Category, ...] = ()
    text: str | None = None
    tokenizer: Tokenizer | None = None

    @property
    def vocabulary(self) -> int | None:
        return None if self.tokenizer is None else self.tokenizer.vocabulary

    @property
    def plain(self) -> Array | None:
        """Which inputs are no figures to be scaled, [F]; None for a text."""
        if self.tokenizer is not None:
            return None
        flags = [np.full(c.inputs, isinstance(c, Category)) for c in self.columns]
        return np.concatenate(flags)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs: "age", "city=Paris"."""
        return tuple(
            name
            for c in self.columns
            for name in ([c.name] if isinstance(c, Number) else [f"{c.name}={v}" for v in c.values])
        )

    def apply(self, table: Table) -> Array:
        """The inputs of each row: float32 [S, F], or token ids int32 [S, T]."""
        if self.tokenizer is not None:
            return self.tokenizer.apply(_take_text(table, self.text or ""))
        check_finite(table)
        parts = [column.apply(table) for column in self.columns]
        return np.concatenate(parts, 1).astype(np.float32)


def learn_preparation(table: Table, rows: Array) -> tuple[Preparation, tuple[str, ...]]:
    """From some rows, the public ones; and notes on what was found."""
    if table.text is not None:
        return _learn_text(table, table.text, rows)
    columns: list[Number | Category] = []
    notes: list[str] = []
    for name in table.columns:
        column, told = _learn_column(table, name, rows)
        columns += [] if column is None else [column]
        notes += told
    if not columns:
        raise UserError(f"no column of {table.files[0]} can be an input; see data.drop")
    inputs = sum(column.inputs for column in columns)
    if inputs > MOST_INPUTS:
        raise UserError(f"the columns become {inputs} inputs; {MOST_INPUTS} are the most")
    return Preparation(tuple(columns)), tuple(notes)


def _learn_text(table: Table, name: str, rows: Array) -> tuple[Preparation, tuple[str, ...]]:
    texts = _take_text(table, name)[rows]
    tokenizer = learn_tokenizer(texts, table.vocabulary, table.length)
    if not tokenizer.words:
        raise UserError(f"column {name!r} has no words in the public rows to learn from")
    told = f"text {name!r}: {len(tokenizer.words)} words of the public rows, {table.length} each"
    others = [other for other in table.columns if other != name]
    notes = [told] + ([f"not used beside the text: {_list(others)}"] if others else [])
    return Preparation(text=name, tokenizer=tokenizer), tuple(notes)


def _learn_column(
    table: Table, name: str, rows: Array
) -> tuple[Number | Category | None, list[str]]:
    cells = table.columns[name][rows]
    known = cells[~find_missing(cells)]
    if not len(known):
        return None, [f"column {name!r} has no value in the public rows: left out"]
    numbers = None if name in table.categorical else _to_numbers(known)
    if numbers is not None:
        column = Number(name, float(np.median(numbers)))
        return column, _describe_missing(table, name, column.fill)
    return _learn_categories(name, as_categories(cells))


def _to_numbers(cells: Array) -> Array | None:
    if not is_words(cells):
        return cells
    found = read_cells(cells.tolist())
    return None if is_words(found) else found


def _describe_missing(table: Table, name: str, fill: float) -> list[str]:
    missing = int(find_missing(table.columns[name]).sum())
    if not missing:
        return []
    told = f"{missing} of {len(table)} values missing"
    return [f"column {name!r}: {told}, filled with {fill:g}, the public median"]


def _learn_categories(name: str, cells: Array) -> tuple[Category | None, list[str]]:
    seen = Counter(cells.tolist())
    if len(seen) > MOST_CATEGORIES and 2 * len(seen) > len(cells):
        told = f"{len(seen)} different words in {count(len(cells), 'public row')}"
        return None, [f"column {name!r}: {told}: left out, as a name or a number of a row"]
    ranked = sorted(seen, key=lambda value: (-seen[value], value))
    values = tuple(sorted(ranked[:MOST_CATEGORIES]))
    rest = len(ranked) - len(values)
    few = _list([value or "(missing)" for value in values])
    more = f"; {rest} rarer ones are 0 everywhere" if rest else ""
    return Category(name, values), [f"column {name!r}: one input per category ({few}){more}"]


def _take_numbers(table: Table, name: str) -> Array:
    """The column as numbers; a word in it is refused, with its place."""
    cells = table.columns.get(name)
    if cells is None:
        return np.full(len(table), np.nan)
    if not is_words(cells):
        return cells
    found = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        try:
            found[row] = float(cell or "nan")
        except ValueError:
            raise UserError(
                f"{table.place(row)}: {name!r} is {cell[:40]!r}, but the public rows have numbers "
                "there; correct it, leave it empty, or name the column in data.categorical"
            ) from None
    return found


def _take_text(table: Table, name: str) -> Array:
    if name not in table.columns:
        raise UserError(f"{table.files[0]} has no column {name!r}, which is the text")
    return as_words(table.columns[name])


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
