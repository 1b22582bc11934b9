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
    play,
    play_sweep,
    saying_how_to_go_on,
    where_it_stands,
)

if TYPE_CHECKING:
    from fedsift.config import Experiment
    from fedsift.runs import History
    from fedsift.sweeps import Playing, Sweep


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
        playing = runs.begin(folder, experiment, resume=resume, note=why)
        _note_unused([experiment], overrides)
        if not quiet:
            warn("\n".join([f"{experiment.name}: {why}", *how_run(engine, [playing])]))
            if resume:
                warn(where_it_stands(playing))
        play([playing], engine, quiet)
    history = runs.load(folder)
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
        playing = sweeps.begin(folder, sweep, resume=resume, note=why)
        _note_unused(list(sweep.cells.values()), overrides)
        if not quiet:
            about = f"{sweep.name}: {len(sweep.cells)} cells side by side: {why}"
            warn("\n".join([about, *how_run(engine, playing.runs)]))
            if resume:
                warn(_where_it_stands(playing))
        for cell, said in playing.failed.items():
            warn(f"cell {cell.name} failed: {said}")
        play_sweep(playing, engine, quiet)
    histories = [runs.load(cell) for cell in playing.finished]
    if as_json:
        typer.echo(json.dumps(_all_in_one(playing, histories)))
    elif not quiet:
        if histories:
            print_table(comparison(histories))
        say(f"{sum(history.seconds for history in histories):.1f} s; sweep folder: {folder}")
    if playing.failed:
        names = ", ".join(cell.name for cell in playing.failed)
        told = f"{len(playing.failed)} of {len(playing.cells)} cells failed: {names}"
        again = f"Once what they complain of is mended, try them again with:\n  {runs.resume_command(folder)}"
        warn(f"{told}\nEvery finished round is saved. {again}")
        raise typer.Exit(1)


def _note_unused(experiments: list[Experiment], overrides: list[str]) -> None:
    """Overrides without any effect."""
    from fedsift import config
    from fedsift.overrides import SWEPT

    unused = set.intersection(*(set(config.unused(experiment)) for experiment in experiments))
    for path in (config.full_path(override).removeprefix(SWEPT) for override in overrides):
        if any(path == key or (key.endswith(".") and path.startswith(key)) for key in unused):
            warn(f"note: this experiment does not use {path}")


def _where_it_stands(playing: Playing) -> str:
    going = [run for run in playing.runs if not run.finished]
    done = len(playing.cells) - len(going) - len(playing.failed)
    begun = sum(run.state.round > 0 for run in going)
    return f"{done} of {len(playing.cells)} cells finished already, {begun} going on where they stopped"


def _all_in_one(playing: Playing, histories: list[History]) -> dict[str, object]:
    from fedsift import report

    cells = [
        h.summary() | {"name": h.experiment.name, "seed": h.experiment.seed} for h in histories
    ]
    return {
        "sweep": str(playing.folder),
        "methods": [method.row() for method in report.methods(histories)],
        "cells": cells,
        "failed": [{"run": str(cell), "error": said} for cell, said in playing.failed.items()],
    }
