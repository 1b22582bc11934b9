"""One run to its end, or all cells of a sweep side by side; then the table, and the failed ones
named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsift.cli.console import comparison, print_table, say, warn
from fedsift.cli.progress import (
    engine_for,
    how_run,
    run_group,
    saying_how_to_go_on,
    where_it_stands,
)

if TYPE_CHECKING:
    from fedsift.config import Experiment
    from fedsift.runs import Group, History
    from fedsift.sweeps import Sweep


def run_one(
    experiment: Experiment,
    folder: Path,
    overrides: list[str],
    *,
    resume: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    from fedsift import runs

    engine, why = engine_for(*experiment.where)
    with saying_how_to_go_on(runs.resume_command(folder), folder / runs.CONFIG):
        group = runs.Group({folder: experiment})
        group.begin(resume=resume, note=why)
        if folder in group.errors:
            raise group.errors[folder]
        _note_unused([experiment], overrides)
        if not quiet:
            warn("\n".join([f"{experiment.name}: {why}", *how_run(engine, group.runs)]))
            if resume:
                warn(where_it_stands(group.runs[0]) if group.runs else "finished already")
        run_group(group, engine, quiet)
        if folder in group.errors:
            raise group.errors[folder]
    history = runs.load_run(folder)
    if as_json:
        typer.echo(json.dumps(history.summary()))
    elif not quiet:
        print_table(comparison([history]))
        say(f"{history.seconds:.1f} s; run folder: {folder}")


def run_sweep(
    sweep: Sweep, folder: Path, overrides: list[str], *, resume: bool, quiet: bool, as_json: bool
) -> None:
    from fedsift import runs, sweeps

    shared = next(iter(sweep.cells.values()))
    engine, why = engine_for(*shared.where)
    with saying_how_to_go_on(runs.resume_command(folder), folder / sweeps.SWEEP):
        group = sweeps.begin_sweep(folder, sweep, resume=resume, note=why)
        _note_unused(list(sweep.cells.values()), overrides)
        if not quiet:
            about = f"{sweep.name}: {len(sweep.cells)} cells side by side: {why}"
            warn("\n".join([about, *how_run(engine, group.runs)]))
            if resume:
                warn(_where_it_stands(group))
        for cell, said in group.failed.items():
            warn(f"cell {cell.name} failed: {said}")
        run_group(group, engine, quiet, "cell")
    histories = [runs.load_run(cell) for cell in group.finished]
    if as_json:
        typer.echo(json.dumps(_all_in_one(folder, group, histories)))
    elif not quiet:
        if histories:
            print_table(comparison(histories))
        say(f"{sum(history.seconds for history in histories):.1f} s; sweep folder: {folder}")
    if group.failed:
        names = ", ".join(cell.name for cell in group.failed)
        told = f"{len(group.failed)} of {len(group.folders)} cells failed: {names}"
        again = f"Once what they complain of is mended, try them again with:\n  {runs.resume_command(folder)}"
        warn(f"{told}\nEvery finished round is saved. {again}")
        raise typer.Exit(1)


def _note_unused(experiments: list[Experiment], overrides: list[str]) -> None:
    """Overrides without any effect."""
    from fedsift import config
    from fedsift.overrides import SWEPT

    unused = set.intersection(*(set(config.list_unused(experiment)) for experiment in experiments))
    for path in (config.full_path(override).removeprefix(SWEPT) for override in overrides):
        if any(path == key or (key.endswith(".") and path.startswith(key)) for key in unused):
            warn(f"note: this experiment does not use {path}")


def _where_it_stands(group: Group) -> str:
    going = group.unfinished
    done = len(group.folders) - len(going) - len(group.failed)
    begun = sum(run.state.round > 0 for run in going)
    return f"{done} of {len(group.folders)} cells finished already, {begun} going on where they stopped"


def _all_in_one(folder: Path, group: Group, histories: list[History]) -> dict[str, object]:
    from fedsift import report

    cells = [
        h.summary() | {"name": h.experiment.name, "seed": h.experiment.seed} for h in histories
    ]
    return {
        "sweep": str(folder),
        "methods": [method.row() for method in report.methods(histories)],
        "cells": cells,
        "failed": [{"run": str(cell), "error": said} for cell, said in group.failed.items()],
    }
