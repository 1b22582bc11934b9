"""A sweep: every combination of the values in a [sweep] table, run side by side, each in a run
folder of its own.

sweep.toml      the experiment and the values that vary: enough to resume without naming the source
CELL/           a run folder, as `runs` makes it, for each combination
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsift import config, files, runs
from fedsift.config import Experiment
from fedsift.overrides import SWEPT, Axes, set_value, short_name
from fedsift.runs import SWEEP as SWEEP
from fedsift.runs import Group
from fedsift.types import UserError

SHARED = {"name", *config.WHERE}  # one engine runs all cells, and a cell's name says what varies
MOST = 10_000
LONGEST = 80  # letters in the name of a cell's folder
EXAMPLE = """
# [sweep]                 # every combination of these values, all runs side by side
# seed = [0, 1, 2]
# alpha = [0.1, 1, 100]
# local.lr = [0.001, 0.002]
"""


@dataclass(frozen=True)
class Sweep:
    """The cells by folder name. Without axes it is one plain experiment, its only cell."""

    name: str
    axes: Axes
    cells: dict[str, Experiment]


def read(source: str, overrides: Sequence[str] = ()) -> Sweep:
    """A preset or TOML file and overrides (`config.read`), with [sweep] or `sweep.key=[...]`."""
    values, axes = config.read_values(source, overrides)
    _check(axes)
    cells: dict[str, Experiment] = {}
    taken: set[str] = set()
    for choice in itertools.product(*axes.values()):
        chosen = dict(zip(axes, choice, strict=True))
        folder = _folder_name(chosen, taken)
        taken.add(folder.lower())
        cells[folder] = _cell(values, chosen, folder)
    _check_distinct(cells)
    return Sweep(str(values["name"]), axes, cells)


def read_folder(folder: Path, overrides: Sequence[str] = ()) -> Sweep:
    """What is run in the folder of a sweep or of a run."""
    file = find_config(folder)
    try:
        read(str(file))
    except UserError as error:
        made = next(iter(sorted(folder.glob(f"*/{runs.ENVIRONMENT}"))), file).parent
        raise runs.blame_version(made, error) from None
    return read(str(file), overrides)


def find_config(folder: Path) -> Path:
    """The file that says what is run in a folder: a sweep or a run."""
    for name in (SWEEP, runs.CONFIG):
        if (folder / name).is_file():
            return folder / name
    if runs.is_blank(folder) and any(folder.iterdir()):
        raise UserError(
            f"{folder} was killed while it was being set up; run the same command without --resume"
        )
    raise UserError(f"{folder} is not a run folder: it has no {runs.CONFIG}")


def _check(axes: Axes) -> None:
    for path, choices in axes.items():
        if path in SHARED:
            raise UserError(
                f"{path} cannot be swept: one engine runs all cells, and a cell's name says"
                " what varies"
            )
        probe: dict[str, Any] = {}
        set_value(probe, path, choices[0])
        try:
            config.check_keys(probe)
        except UserError as error:
            raise UserError(f"sweep: {error}") from None
    if (count := math.prod(map(len, axes.values()))) > MOST:
        raise UserError(f"the sweep has {count} cells; {MOST} are the most")


def _cell(values: dict[str, Any], chosen: dict[str, Any], folder: str) -> Experiment:
    """The name says what varies, except the seed: cells that differ only in seed are one method."""
    varying = [f"{short_name(path)}={value}" for path, value in chosen.items() if path != "seed"]
    cell = copy.deepcopy(values)
    if varying:
        cell["name"] = " ".join([str(values["name"]), *varying])
    try:
        for path, value in chosen.items():
            set_value(cell, path, value)
        return config.check_experiment(cell)
    except UserError as error:
        raise _error_in(folder, error) from None


def _error_in(cell: str, error: UserError) -> UserError:
    return UserError(f"cell {cell}: {error}" if cell else str(error))


def _folder_name(chosen: dict[str, Any], taken: set[str]) -> str:
    """Readable, safe in every shell and file system, and not taken (letters in lower case)."""
    words = "-".join(f"{short_name(path)}-{value}" for path, value in chosen.items())
    stem = re.sub(r"[^A-Za-z0-9._+]+", "-", words)[:LONGEST].strip("-.")
    names = itertools.chain([stem], (f"{stem}-{n}" for n in itertools.count(2)))
    return next(name for name in names if name.lower() not in taken)


def _check_distinct(cells: dict[str, Experiment]) -> None:
    seen: dict[str, str] = {}
    for folder, experiment in cells.items():
        twin = seen.setdefault(experiment.model_copy(update={"name": ""}).model_dump_json(), folder)
        if twin != folder:
            raise UserError(
                f"cells {twin} and {folder} are the same experiment; give every value of a key once"
            )


# --- running ---


def begin_sweep(
    folder: Path,
    sweep: Sweep,
    *,
    resume: bool = False,
    note: str = "",
    accept_changes: bool = False,
) -> Group:
    """Begin all cells, new or where they stopped; finished ones are left alone."""
    old = folder.exists() and not _is_blank(folder)
    if old:
        _check_old(folder, sweep, resume)
    cells = {folder / name: experiment for name, experiment in sweep.cells.items()}
    group = Group(cells, kind="cell", accept_changes=accept_changes, within=folder)
    folder.mkdir(parents=True, exist_ok=True)
    group.hold(files.lock_folder(folder))
    try:
        if not old:
            _write(folder / SWEEP, sweep)
    except BaseException:
        group.release()
        raise
    group.begin(resume=True, note=note)
    return group


def _write(path: Path, sweep: Sweep) -> None:
    """An experiment with a [sweep] table like any other; varied keys have their first values."""
    first = next(iter(sweep.cells.values())).model_copy(update={"name": sweep.name})
    files.write_atomic(path, config.to_toml(first, sweep.axes).encode())


def _is_blank(folder: Path) -> bool:
    """Empty, or holding only what a sweep killed at its very start leaves behind."""
    return folder.is_dir() and all(
        entry.name == files.LOCK or files.is_temporary(entry) for entry in folder.iterdir()
    )


def _check_old(folder: Path, sweep: Sweep, resume: bool) -> None:
    if not (folder / SWEEP).is_file():
        raise UserError(f"{folder} exists and is not the folder of a sweep; choose another --out")
    if not resume:
        raise UserError(
            f"sweep folder {folder} exists; add --resume to resume it, or choose another --out"
        )
    was = read_folder(folder)
    if not _are_same(was, sweep):
        changes = "; ".join(_changes(was, sweep)) or "its keys or values come in another order"
        raise UserError(
            f"{folder} was made with another sweep: {changes}; "
            "choose another --out or resume without changes"
        )


def _are_same(was: Sweep, asked: Sweep) -> bool:
    return was.cells.keys() == asked.cells.keys() and not any(
        runs.changed_settings(was.cells[name], cell) for name, cell in asked.cells.items()
    )


def _changes(was: Sweep, asked: Sweep) -> Iterator[str]:
    axes = {**was.axes, **asked.axes}
    for path in axes:
        a, b = (sweep.axes.get(path, "not swept") for sweep in (was, asked))
        if a != b:
            yield f"{SWEPT}{short_name(path)} is {a} there, {b} here"
    one, other = (
        next(iter(sweep.cells.values())).model_copy(update={"name": sweep.name})
        for sweep in (was, asked)
    )
    for key, (a, b) in runs.changed_settings(one, other).items():
        if key not in axes:
            yield f"{key} is {a!r} there, {b!r} here"
