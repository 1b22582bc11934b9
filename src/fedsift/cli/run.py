"""`fedsift run`: one run, or all cells of a sweep side by side."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from fedsift.cli.comparison import print_baselines, print_comparison
from fedsift.cli.console import error_handler, note, say, user_error, warn
from fedsift.cli.json_output import print_json
from fedsift.cli.options import (
    Address,
    Device,
    EngineName,
    Json,
    Out,
    Overrides,
    PrecisionName,
    Track,
    Workers,
    name_engine,
)
from fedsift.cli.progress import (
    choose_engine,
    describe_models,
    describe_progress,
    new_folder,
    raise_first_error,
    resume_hint,
    run_group,
)
from fedsift.cli.trackers import read_trackers
from fedsift.cli.watch import watching

if TYPE_CHECKING:
    from fedsift.config import Experiment
    from fedsift.runs import Group, History
    from fedsift.sweeps import Sweep


class RunCommand(TyperCommand):
    """`fedsift run`, which tells keys of an experiment from options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for option in self.params for name in option.opts} | {"--help"}
        for word, following in zip(args, [*args[1:], ""], strict=False):
            name, equals, value = word.partition("=")
            if word == "--":
                break
            if name.startswith("--") and name not in known:
                with error_handler():
                    _explain_key(name, value if equals else following)
        return super().parse_args(ctx, args)


def _explain_key(option: str, value: str) -> None:
    """A key of an experiment is written without dashes."""
    from fedsift import config

    key = option.removeprefix("--")
    if config.full_path(key) in config.flat(config.Experiment().model_dump()):
        example = "VALUE" if not value or value.startswith("-") else value
        raise user_error(f"{option} is not an option but a key; write {key}={example}")


def run(
    source: Annotated[
        str | None, typer.Argument(help="A preset or a TOML file.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    out: Out = None,
    engine: EngineName = None,
    device: Device = None,
    precision: PrecisionName = None,
    workers: Workers = None,
    address: Address = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, help="Run N seeds side by side (same as sweep.seed=[0,...,N-1])."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run or the sweep in --out.")
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="With --resume: also where the file of a plug-in has changed."
        ),
    ] = False,
    track: Track = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a live page on it, as fedsift watch does.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No progress display; print only the folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment: fedsift run digits-fas alpha=0.1 sampler=low-entropy seed=3

    Or many side by side: fedsift run digits-fas --seeds 3 sweep.alpha=[0.1,1,100]

    All keys with their meaning: fedsift new PRESET FILE.toml
    """
    with error_handler():
        from fedsift import config, sweeps

        if (
            source and "=" in source
        ):  # fedsift run --resume --out DIR needs no preset, but takes no overrides either
            raise user_error(
                f"the first argument is a preset or a TOML file, not {source!r} (fedsift ls"
                " presets)"
            )
        if source is None and not (resume and out):
            raise user_error(
                "name a preset or a TOML file (fedsift ls presets), or give --resume and --out"
            )
        if resume and not out:
            raise user_error("--resume needs --out: the folder of the run to resume")
        named = name_engine(engine, address)
        where = {"engine": named, "device": device, "precision": precision, "workers": workers}
        settings = [
            *(overrides or []),
            *(f"{key}={value}" for key, value in where.items() if value),
        ]
        if seeds:
            if {"seed", "sweep.seed"} & set(map(config.full_path, settings)):
                raise user_error("give --seeds or a seed of your own, not both")
            settings.append(f"sweep.seed={list(range(seeds))}")
        if source:
            sweep = sweeps.read(source, settings)
        else:
            sweep = sweeps.read_folder(Path(out or ""), settings)
        folder = out or new_folder(
            Path("runs"), re.sub(r"[^\w.+-]+", "-", sweep.name).strip("-.") or "run"
        )
        how: dict[str, Any] = {"resume": resume, "accept_changes": accept_changes}
        how["track"] = read_trackers(track)
        how |= {"quiet": quiet, "as_json": as_json}
        browse = sys.stdout.isatty() and not (quiet or as_json)
        with watching(folder, watch, browse):
            if sweep.axes:
                run_sweep(sweep, folder, overrides or [], **how)
            else:
                (only,) = sweep.cells.values()
                run_one(only, folder, overrides or [], **how)


def run_one(
    experiment: Experiment,
    folder: Path,
    overrides: list[str],
    *,
    resume: bool,
    accept_changes: bool,
    track: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    from fedsift import runs

    if not resume:
        runs.check_new(folder)
    _check_plugins({folder: experiment}, resume, accept_changes)
    engine, why = choose_engine(*experiment.where)
    with resume_hint(runs.resume_command(folder), folder / runs.CONFIG):
        group = runs.Group({folder: experiment}, accept_changes=accept_changes)
        group.begin(resume=resume, note=why)
        raise_first_error(group)
        _warn_unused([experiment], overrides)
        if not quiet:
            warn("\n".join([f"{experiment.name}: {why}", *describe_models(engine, group.runs)]))
            _tell_notes(group)
            if resume:
                warn(describe_progress(group.runs[0]) if group.runs else "finished already")
        run_group(group, engine, quiet, track=track)
        raise_first_error(group)
    history = runs.load_run(folder)
    if as_json:
        print_json(history.summary())
    elif quiet:
        say(str(folder))
    else:
        print_comparison([history])
        print_baselines([history])
        if history.stopped_early:
            say(
                f"stopped after round {len(history.metrics)} of {experiment.rounds}: "
                f"{experiment.patience} without a better validation accuracy"
            )
        say(f"{history.seconds:.1f} s; run folder: {folder}")


def run_sweep(
    sweep: Sweep,
    folder: Path,
    overrides: list[str],
    *,
    resume: bool,
    accept_changes: bool,
    track: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    from fedsift import runs, sweeps

    cells = {folder / name: cell for name, cell in sweep.cells.items()}
    _check_plugins(cells, resume, accept_changes)
    shared = next(iter(sweep.cells.values()))
    engine, why = choose_engine(*shared.where)
    with resume_hint(runs.resume_command(folder), folder / sweeps.SWEEP):
        group = sweeps.begin_sweep(
            folder, sweep, resume=resume, note=why, accept_changes=accept_changes
        )
        _warn_unused(list(sweep.cells.values()), overrides)
        if not quiet:
            about = f"{sweep.name}: {len(sweep.cells)} cells side by side: {why}"
            warn("\n".join([about, *describe_models(engine, group.runs)]))
            _tell_notes(group)
            if resume:
                warn(_describe_sweep(group))
        for cell, why_failed in group.failed.items():
            warn(f"cell {cell.name} failed: {why_failed}")
        run_group(group, engine, quiet, "cell", track=track)
    histories = [runs.load_run(cell) for cell in group.finished]
    if as_json:
        print_json(_summarize_sweep(folder, group, histories))
    elif quiet:
        say(str(folder))
    else:
        if histories:
            print_comparison(histories)
            print_baselines(histories)
        say(f"{sum(history.seconds for history in histories):.1f} s; sweep folder: {folder}")
    if group.failed:
        names = ", ".join(cell.name for cell in group.failed)
        failed = f"{len(group.failed)} of {len(group.folders)} cells failed: {names}"
        again = f"Once the causes are fixed, try them again with:\n  {runs.resume_command(folder)}"
        warn(f"{failed}\n{again}")
        raise typer.Exit(1)


def _check_plugins(experiments: dict[Path, Experiment], resume: bool, accept_changes: bool) -> None:
    """Name the user's own code, and refuse changed code before any of it is imported."""
    from fedsift import config, runs

    if not resume:
        return
    for folder, experiment in experiments.items():
        makes_engine = "engine" in dict(config.list_plugins(experiment))
        if makes_engine or not runs.is_finished_as(folder, experiment):
            runs.check_code(folder, experiment, accept_changes)
    named = dict.fromkeys(filter(None, map(config.tell_plugins, experiments.values())))
    if named:
        warn("plug-ins: " + ", ".join(named))


MOST_NOTES = 20


def _tell_notes(group: Group) -> None:
    """What was found in the data, and chosen, once for all runs."""
    tasks = [(run.federation.task, run.experiment) for run in group.runs]
    notes = dict.fromkeys(text for task, _ in tasks for text in task.notes)
    idle = [task.given for task, e in tasks if task.given and e.partition.kind != "given"]
    if idle:
        told = f"the data name {len(idle[0])} clients, which are not used"
        notes[f"{told}; set partition.kind=given"] = None
    for text in list(notes)[:MOST_NOTES]:
        note(text)
    if len(notes) > MOST_NOTES:
        note(f"and {len(notes) - MOST_NOTES} more")


def _warn_unused(experiments: list[Experiment], overrides: list[str]) -> None:
    """Overrides without any effect."""
    if not overrides:
        return
    from fedsift import config
    from fedsift.overrides import SWEPT

    explained = [config.explain_unused(experiment) for experiment in experiments]
    unused = {
        key: why for key, why in explained[0].items() if all(key in other for other in explained)
    }
    for path in (config.full_path(override).removeprefix(SWEPT) for override in overrides):
        for key, why in unused.items():
            if path == key or (key.endswith(".") and path.startswith(key)):
                note(
                    f"{path} is not used: {why}" if why else f"this experiment does not use {path}"
                )


def _describe_sweep(group: Group) -> str:
    going = group.unfinished
    done = len(group.folders) - len(going) - len(group.failed)
    begun = sum(run.state.round > 0 for run in going)
    return (
        f"{done} of {len(group.folders)} cells finished already, {begun} resumed where they stopped"
    )


def _summarize_sweep(folder: Path, group: Group, histories: list[History]) -> dict[str, object]:
    from fedsift import report

    cells = [
        h.summary() | {"name": h.experiment.name, "seed": h.experiment.seed} for h in histories
    ]
    return {
        "sweep": str(folder),
        "methods": [method.row() for method in report.methods(histories)],
        "cells": cells,
        "failed": [{"run": str(cell), "error": why} for cell, why in group.failed.items()],
    }
