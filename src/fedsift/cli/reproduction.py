"""What `fedsift reproduce` does with the items of a paper: run them, and report on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.cli.console import user_error, warn
from fedsift.cli.progress import choose_engine, describe_models, resume_hint, run_group

if TYPE_CHECKING:
    from fedsift.config import Experiment
    from fedsift.reproduction.plans import Cell, Plan
    from fedsift.runs import Group, Run

    Report = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """How much of the work is done at once, and what is kept of it."""

    only: tuple[str, ...] = ()  # patterns of curves or run folders; none: all
    seconds: float | None = None
    slim: bool = False  # without the models of finished runs
    merge: Path | None = None  # a folder of earlier reports, for the cells that were not run


# --- running ---


def run_and_report(
    items: list[str], plan: Plan, out: Path, quiet: bool, part: Part
) -> dict[str, Report]:
    """What needs no runs first, since it is quick; then all cells of all items at once."""
    extras = [name for name in items if name in plan.paper.extras]
    made = {name: _make_extra(name, plan, out) for name in extras}
    if tables := [name for name in items if name not in extras]:
        left_out, unfinished = _run_missing(tables, plan, out, quiet, part)
        if unfinished:
            _say_unfinished(unfinished)
        elif part.only:
            incomplete = _find_incomplete(tables, plan, out)
            made |= _make_reports(tables, plan, out, incomplete, part.merge)
        else:
            made |= _make_reports(tables, plan, out, dict.fromkeys(tables, left_out), part.merge)
        if unfinished or part.only:
            return made
    if not made:
        raise user_error(_describe_nothing(items, out))
    return made


def _run_missing(
    items: list[str], plan: Plan, out: Path, quiet: bool, part: Part
) -> tuple[dict[Cell, str], list[Run]]:
    """Run what is not finished. Returns the cells that could not be run, and why; and the runs
    that the time was not enough for.
    """
    from fedsift.reproduction.experiments import make_experiments
    from fedsift.runs import Group, drop_model

    experiments, left_out = make_experiments(items, plan)
    if not experiments:
        raise user_error(next(iter(left_out.values())))
    every, cells = _select_runs(experiments, out, part.only)
    engine, why = choose_engine(*next(iter(every.values())).where)
    with resume_hint("the same command again", out):
        group = Group(every, strict=False, within=out)
        group.begin(resume=True, note=why)
        left_out |= _find_failed(group, cells)
        if left_out.keys() >= set(cells.values()):
            group.release()
            raise next(iter(group.errors.values()))
        for cell, reason in left_out.items():
            warn(f"left out: {cell} ({reason})")
        if group.unfinished and not quiet:
            done = f", {len(group.finished)} finished already" if group.finished else ""
            about = f"{len(group.unfinished)} runs side by side{done}: {why}"
            warn("\n".join([about, *describe_models(engine, group.unfinished)]))
        run_group(group, engine, quiet, seconds=part.seconds)
    for folder in group.finished if part.slim else ():
        drop_model(folder)
    return left_out | _find_failed(group, cells), group.unfinished


def _select_runs(
    experiments: dict[Cell, dict[int, Experiment]], out: Path, only: tuple[str, ...]
) -> tuple[dict[Path, Experiment], dict[Path, Cell]]:
    """The runs that are asked for, by folder: their experiments and their cells."""
    from fedsift.reproduction.experiments import is_selected
    from fedsift.reproduction.plans import run_folder

    every, cells = {}, {}
    for cell, of in experiments.items():
        for seed, experiment in of.items():
            folder = run_folder(out, cell, seed)
            if is_selected(folder, cell, only):
                every[folder], cells[folder] = experiment, cell
    if not every:
        some = ", ".join(dict.fromkeys(cell.curve for cell in experiments))
        raise user_error(f"--only {' '.join(only)} matches no run; the curves are {some}")
    return every, cells


def _say_unfinished(unfinished: list[Run]) -> None:
    fewest = min(run.state.round for run in unfinished)
    most = max(run.experiment.rounds for run in unfinished)
    many = f"{len(unfinished)} run{'s' if len(unfinished) > 1 else ''}"
    warn(
        f"the time is up: {many} left, after round {fewest} of {most} or later; "
        "the same command resumes and then reports"
    )


def _find_incomplete(items: list[str], plan: Plan, out: Path) -> dict[str, dict[Cell, str]]:
    """The cells that have not all rounds of all their seeds."""
    from fedsift.reproduction.experiments import find_missing

    return {name: find_missing(name, plan, out, finished=True) for name in items}


def _find_failed(group: Group, cells: dict[Path, Cell]) -> dict[Cell, str]:
    """The cells of which a run failed, and why the first of them did."""
    found: dict[Cell, str] = {}
    for folder, cell in cells.items():
        if folder in group.failed:
            found.setdefault(cell, group.failed[folder])
    return found


# --- reporting ---


def report_found(
    items: list[str], plan: Plan, out: Path, part: Part
) -> tuple[dict[str, Report], dict[str, Report]]:
    """Reports on the runs in a folder, and those that are kept there as JSON alone.

    With --only a report is on the cells that are finished.
    """
    from fedsift.reproduction.experiments import find_missing
    from fedsift.reproduction.reports import read_report

    tables = [name for name in items if name not in plan.paper.extras]
    keep = [name for name in items if (out / f"{name}.json").is_file()]
    if (out / "runs").is_dir():
        keep = [name for name in keep if name not in tables]
    kept = {name: read_report(plan, name, out) for name in keep}
    tables = [name for name in tables if name not in kept]
    extras = [name for name in items if name in plan.paper.extras and name not in kept]
    made = {name: _make_extra(name, plan, out) for name in extras}
    finished = bool(part.only)
    missing = {name: find_missing(name, plan, out, finished=finished) for name in tables}
    made |= _make_reports(tables, plan, out, missing, part.merge)
    if not made and not kept:
        several = any(len(plan.seeds_of(plan.paper.items[name])) > 1 for name in tables)
        fewer = ", or fewer --seeds" if several else ""
        again = f"; give the command without --report to run it{fewer}"
        raise user_error(_describe_nothing(items, out) + again)
    return made, kept


def _describe_nothing(items: list[str], out: Path) -> str:
    names = ", ".join(items)
    return f"nothing to report on: no cell of {names} in {out} has rounds of all its seeds"


def _make_reports(
    items: list[str],
    plan: Plan,
    out: Path,
    left_out: dict[str, dict[Cell, str]],
    merge: Path | None,
) -> dict[str, Report]:
    found = {name: _make_report(name, plan, out, left_out[name], merge) for name in items}
    return {name: report for name, report in found.items() if report}


def _make_report(
    name: str, plan: Plan, out: Path, left_out: dict[Cell, str], merge: Path | None
) -> dict[str, Any] | None:
    """The report on an item, also written to files; or none, if it has no cell."""
    from fedsift.reproduction import pictures, reports

    item = plan.paper.items[name]
    mine = {cell: why for cell, why in left_out.items() if cell in item.cells(plan)}
    if len(mine) == len(item.cells(plan)):
        warn(f"{name}: nothing to report ({next(iter(mine.values()))})")
        return None
    earlier = reports.read_report(plan, name, merge) if merge else None
    report = reports.gather_report(name, item, plan, out, mine, earlier)
    if (before := reports.count_seeds(out, name)) > (now := report["seeds"]):
        warn(
            f"{name}: the report on {before} seeds in {out} is replaced by one on {now}; "
            f"--seeds {before} brings it back"
        )
    reports.write_report(report, out, reports.markdown(report, item))
    (item.draw or pictures.draw)(report, out / f"{name}.png")
    return report


def _make_extra(name: str, plan: Plan, out: Path) -> dict[str, Any]:
    from fedsift.reproduction import reports

    extra = plan.paper.extras[name]
    report = extra.make()
    reports.write_report(report, out, extra.markdown(report))
    extra.draw(report, out / f"{name}.png")
    return report
