"""Tables in files as a data set: one file, one file per client, or both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsift import files
from fedsift.checks import count
from fedsift.data.dataset import (
    ANYWHERE,
    MOST_CLASSES,
    PARTS,
    PUBLIC,
    TABLE,
    TOKENS,
    Dataset,
    Owners,
    describe_classes,
    read_owners,
)
from fedsift.data.formats.tables import READERS
from fedsift.data.table import (
    Columns,
    Table,
    as_categories,
    as_words,
    find_missing,
    join_tables,
    take_column,
)
from fedsift.types import Array, UserError

MOST_FILES = 10_000


def load_tables(
    shared: Table | None,
    clients: Sequence[tuple[str, Table]],
    columns: Columns,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """A data set of the rows that nobody owns and of those of each client, as they are in files.

    classes: their names, where the rows may not have them all
    """
    tables = [table for _, table in clients] + ([] if shared is None else [shared])
    first = tables[0] if shared is None else shared  # every party has it, so its order counts
    for table in tables:
        for key, name in columns.named.items():
            if not (table is shared and clients and key in ("target", "client", "split")):
                take_column(table, key, name)
    joined, notes = (tables[0], ()) if len(tables) == 1 else join_tables(tables, first)
    if not len(joined):
        raise UserError(f"{joined.files[0]} has no rows")
    y, names = _read_target(joined, columns.target, classes)
    owners = _own_files(clients, joined) if clients else _own_rows(joined, columns.client)
    part = _read_parts(joined, columns, y, owners)
    notes += () if clients else _tell_unlabelled(columns.target, y)
    return Dataset(
        np.empty((len(joined), 0), np.float32),
        y,
        max(len(names), 2),
        kind=TABLE if columns.text is None else TOKENS,
        names=names or None,
        owners=owners,
        part=part,
        table=_keep_inputs(joined, columns),
        notes=(*notes, *((describe_classes(names),) if names else ())),
    )


def read_table(path: str, columns: Columns) -> Table:
    """By the ending of its name, as CSV unless it is Parquet."""
    names = [name for name in (columns.target, columns.client) if name is not None]
    return READERS["parquet" if path.endswith(".parquet") else "csv"](path, names)


def find_client_files(pattern: str) -> list[Path]:
    """The files of a pattern such as "hospital-*.csv", by name; numbers in it count as numbers."""
    path = Path(pattern).expanduser()
    folder = next((p for p in path.parents if not re.search(r"[*?\[]", str(p))), Path())
    found = sorted(folder.glob(str(path.relative_to(folder))), key=_natural)
    if not found:
        raise UserError(f"no file is called {pattern!r}; data.clients names one file per client")
    if len(found) > MOST_FILES:
        raise UserError(f"{len(found)} files are called {pattern!r}; {MOST_FILES} are the most")
    for file in found:
        files.check_no_link(file, folder)
    names = [file.stem for file in found]
    if len(set(names)) < len(names):
        raise UserError(f"two files of {pattern!r} have one name; a client is called by its file")
    return found


def _natural(path: Path) -> list[tuple[int, str]]:
    """hospital-2 before hospital-10."""
    return [
        (int(piece), "") if piece.isdecimal() else (0, piece)
        for piece in re.split(r"(\d+)", str(path))
    ]


def _keep_inputs(table: Table, columns: Columns) -> Table:
    gone = {*columns.drop, columns.target, columns.client, columns.split}
    for name in (*columns.drop, *columns.categorical):
        if name not in table.columns:
            raise UserError(
                f"{table.files[0]} has no column {name!r} to drop or take as a category"
            )
    return replace(
        table,
        columns={name: cells for name, cells in table.columns.items() if name not in gone},
        text=columns.text,
        categorical=columns.categorical,
        vocabulary=columns.vocabulary,
        length=columns.length,
    )


# --- the target ---


def _read_target(
    table: Table, target: str | None, classes: Sequence[str] | None
) -> tuple[Array, tuple[str, ...]]:
    """The class number of each row, -1 where it has none, and the names of the classes."""
    if target is None:
        return np.full(len(table), -1), tuple(classes or ())
    cells = table.columns.get(target)
    if cells is None:
        cells = np.full(len(table), np.nan)
    words = as_words(cells)
    missing = find_missing(words)
    names = _name_classes(target, words[~missing]) if classes is None else tuple(classes)
    numbers = {name: number for number, name in enumerate(names)}
    for row in np.flatnonzero(~missing):
        if words[row] not in numbers:
            raise UserError(
                f"{table.place(int(row))}: {target!r} is {words[row][:40]!r}, which is none of the "
                f"classes {', '.join(names[:5])}"
            )
    return np.array([numbers.get(word, -1) for word in words], np.int64), names


def _name_classes(target: str, words: Array) -> tuple[str, ...]:
    """Every different value, numbers by their size and words by the alphabet."""
    seen = set(words.tolist())
    if len(seen) < 2:
        raise UserError(
            f"column {target!r} has {count(len(seen), 'class', 'classes')}; two are the least"
        )
    if len(seen) > MOST_CLASSES or (len(seen) > 100 and 2 * len(seen) > len(words)):
        raise UserError(
            f"column {target!r} has {len(seen):,} different values in {len(words):,} rows; "
            "data.target must name a column of classes, not of numbers or ids"
        )
    try:
        return tuple(sorted(seen, key=float))
    except ValueError:
        return tuple(sorted(seen))


# --- whose a row is, and where it goes ---


def _own_files(clients: Sequence[tuple[str, Table]], joined: Table) -> Owners:
    """Rows of the shared file, which comes last, are nobody's."""
    numbers = np.where(joined.file < len(clients), joined.file, -1)
    return Owners(numbers, tuple(name for name, _ in clients))


def _own_rows(table: Table, client: str | None) -> Owners | None:
    if client is None:
        return None
    words = as_words(take_column(table, "client", client))
    owners = read_owners(words, len(table))
    return _sort_owners(owners)


def _sort_owners(owners: Owners) -> Owners:
    """Clients 2 and 10 in the order of numbers."""
    order = sorted(range(len(owners.names)), key=lambda i: _natural(Path(owners.names[i])))
    places = np.empty(len(order) + 1, np.int64)
    places[order], places[-1] = np.arange(len(order)), -1
    return Owners(places[owners.numbers], tuple(owners.names[i] for i in order))


def _tell_unlabelled(target: str | None, y: Array) -> tuple[str, ...]:
    """A class that is called "none" would vanish without a word."""
    rows = int((y < 0).sum())
    if not rows or target is None:
        return ()
    empty = "an empty cell, NA, N/A, nan, null, none and ? count as missing"
    return (f"{count(rows, 'row has', 'rows have')} no {target!r} and can only be public: {empty}",)


def _read_parts(table: Table, columns: Columns, y: Array, owners: Owners | None) -> Array | None:
    """Where each row must go; a row without a class can only be public."""
    if columns.split is not None and columns.split in table.columns:
        part = _read_split(table, table.columns[columns.split])
    else:
        part = np.full(len(table), ANYWHERE)
    unlabelled = y < 0
    wrong = np.flatnonzero(unlabelled & (part != PUBLIC) & (part != ANYWHERE))
    if len(wrong):
        raise UserError(
            f"{table.place(int(wrong[0]))}: no class, and data.split does not say public; "
            f"{count(len(wrong), 'row is', 'rows are')} like this"
        )
    mine = unlabelled if owners is None else unlabelled & (owners.numbers >= 0)
    if owners is not None and (mine & (part != PUBLIC)).any():
        row = int(np.flatnonzero(mine & (part != PUBLIC))[0])
        raise UserError(
            f"{table.place(row)}: a row of client {owners.names[owners.numbers[row]]} has no class;"
            " fill it in, or take the row out of the client's data"
        )
    part[unlabelled] = PUBLIC
    return None if (part == ANYWHERE).all() else part


def _read_split(table: Table, cells: Array) -> Array:
    known = PARTS | {"": ANYWHERE}
    found = np.empty(len(table), np.int64)
    for row, cell in enumerate(as_categories(cells)):
        word = cell.strip().lower()
        if word not in known:
            raise UserError(
                f"{table.place(row)}: the split is {cell[:40]!r}; it must be train, test or public"
            )
        found[row] = known[word]
    return found
