"""A sweep: every combination of the values in a [sweep] table, played side by side, each in a run
folder of its own.

sweep.toml      the experiment and the values that vary: enough to go on without naming the source
CELL/           a run folder, as `runs` makes it, for each combination
"""

from __future__ import annotations

import contextlib
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
from fedsift.federation import Record
from fedsift.overrides import SWEPT, Axes, set_value, short_name
from fedsift.runs import Run
from fedsift.types import Engine, UserError

SWEEP = "sweep.toml"
SHARED = {"name", *config.WHERE}  # one engine plays all cells, and a cell's name says what varies
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
    """The cells by the name of their folder. Without axes it is one plain experiment, its only
    cell.
    """

    name: str
    axes: Axes
    cells: dict[str, Experiment]


def read(source: str, overrides: Sequence[str] = ()) -> Sweep:
    """A preset or TOML file with overrides, as `config.read` takes them, and with a [sweep] table
    or `sweep.key=[...]`.
    """
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


def kept(folder: Path) -> Path:
    """The file that says what is played in a folder: a sweep or a run."""
    for name in (SWEEP, runs.CONFIG):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} is not a run folder: it has no {runs.CONFIG}")


def _check(axes: Axes) -> None:
    for path, choices in axes.items():
        if path in SHARED:
            raise UserError(
                f"{path} cannot be swept: one engine plays all cells, and a cell's name says what varies"
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
    """The name says what varies, but not the seed: cells that differ only in their seed are one
    method.
    """
    varying = [f"{short_name(path)}={value}" for path, value in chosen.items() if path != "seed"]
    cell = copy.deepcopy(values)
    if varying:
        cell["name"] = " ".join([str(values["name"]), *varying])
    try:
        for path, value in chosen.items():
            set_value(cell, path, value)
        return config.check_experiment(cell)
    except UserError as error:
        raise _mistake_in(folder, error) from None


def _mistake_in(cell: str, error: UserError) -> UserError:
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


# --- playing
#
#
# -------------------------------------------------------------------------------------------------------


@dataclass
class Playing:
    """A sweep being played: the folders of all cells, the runs to play, and what the failed ones
    said.
    """

    folder: Path
    cells: list[Path]
    runs: list[Run]
    failed: dict[Path, str]
    lock: files.Lock

    @property
    def finished(self) -> list[Path]:
        """Once all is played."""
        return [cell for cell in self.cells if cell not in self.failed]


def begin(folder: Path, sweep: Sweep, *, resume: bool = False, note: str = "") -> Playing:
    """All cells, new or where they stopped; finished ones are left alone.

    A mistake in any experiment shows before a folder is made; a cell whose own folder makes trouble
    fails alone.
    """
    old = folder.exists() and not _is_blank(folder)
    if old:
        _check_old(folder, sweep, resume)
    cells = {folder / name: experiment for name, experiment in sweep.cells.items()}
    built = {cell: _built(cell, e) for cell, e in cells.items() if not _is_finished(cell, e)}
    folder.mkdir(parents=True, exist_ok=True)
    playing = Playing(folder, list(cells), [], {}, files.lock_folder(folder))
    try:
        if not old:
            _write(folder / SWEEP, sweep)
        for cell in built:
            try:
                run = runs.begin(cell, cells[cell], resume=True, note=note, built=built[cell])
                playing.runs.append(run)
            except Exception as error:
                playing.failed[cell] = runs.in_words(error)
    except BaseException:
        playing.lock.release()
        raise
    return playing


def play(playing: Playing, engine: Engine) -> Iterator[tuple[Run, Record | Exception]]:
    """A round of each run at a time; one that fails notes why in its folder, and the others go
    on.
    """
    try:
        for run, outcome in runs.play_apart(playing.runs, engine):
            if isinstance(outcome, Exception):
                playing.failed[run.folder] = runs.in_words(outcome)
                run.fail(outcome)
            yield run, outcome
    finally:
        playing.lock.release()


def _write(path: Path, sweep: Sweep) -> None:
    """An experiment with a [sweep] table like any other; of the keys that vary it has the first
    values.
    """
    first = next(iter(sweep.cells.values())).model_copy(update={"name": sweep.name})
    files.write_atomic(path, config.to_toml(first, sweep.axes).encode())


def _built(cell: Path, experiment: Experiment) -> runs.Built:
    try:
        return runs.build(experiment)
    except UserError as error:
        raise _mistake_in(cell.name, error) from None


def _is_finished(cell: Path, experiment: Experiment) -> bool:
    with contextlib.suppress(
        UserError
    ):  # of a folder that is not there, or that `begin` will complain about
        return runs.stored(cell) == experiment and runs.is_finished(cell)
    return False


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
            f"sweep folder {folder} exists; add --resume to go on with it, or choose another --out"
        )
    was = read(str(folder / SWEEP))
    if _but_for_memory(was) != _but_for_memory(sweep):
        told = "; ".join(_changes(was, sweep)) or "its keys or values come in another order"
        raise UserError(
            f"{folder} was made with another sweep: {told}; choose another --out or resume without changes"
        )


def _but_for_memory(sweep: Sweep) -> dict[str, Experiment]:
    """Memory may be what has to change, as for a run."""
    return {
        name: experiment.model_copy(update={"memory": None})
        for name, experiment in sweep.cells.items()
    }


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
    for key, (a, b) in config.differences(one, other).items():
        if key not in axes:
            yield f"{key} is {a!r} there, {b!r} here"
