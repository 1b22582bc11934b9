"""`fedsift reproduce PAPER ITEM...`: run what is missing, and report it beside the paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.console import (
    error_handler,
    format_entry,
    get_width,
    new_table,
    print_table,
    say,
    user_error,
    warn,
    wrap_lines,
)
from fedsift.cli.json_output import print_json
from fedsift.cli.options import (
    Address,
    Device,
    EngineName,
    Json,
    PrecisionName,
    Quiet,
    Workers,
    name_engine,
)
from fedsift.cli.progress import choose_engine, describe_models, resume_hint, run_group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedsift.config import Experiment
    from fedsift.reproduction.paper import Paper
    from fedsift.reproduction.plans import Cell, Plan
    from fedsift.runs import Group, Run

    Report = dict[str, Any]

MOST_ROWS = 200  # of cells in the terminal
WIDE = 100  # columns from which claims are a table


@dataclass(frozen=True)
class Part:
    """How much of the work is done at once, and what is kept of it."""

    only: tuple[str, ...] = ()  # patterns of curves or run folders; none: all
    seconds: float | None = None
    slim: bool = False  # without the models of finished runs
    merge: Path | None = None  # a folder of earlier reports, for the cells that were not run


def reproduce(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PAPER ITEM... [key=value]...",
            help="A paper, its items (or: all) and settings. Without items they are listed.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version: minutes on a CPU.")
    ] = False,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="A recipe of the paper, or a TOML file (default: ours)."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=1,
            help="Seeds per cell (default: as many as the item has, mostly 3).",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="GLOB",
            help="Only the runs of these curves, or with such names: '*-alpha-0.1-seed-0'.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=0,
            help="Stop after the last round that ends in this time; the same command resumes.",
            show_default=False,
        ),
    ] = None,
    slim: Annotated[
        bool, typer.Option("--slim", help="Delete the checkpoints (models) of finished runs.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of runs and reports (default: reproduction/PAPER/SETTING-RECIPE).",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Run nothing; report on what is in --out.")
    ] = False,
    merge: Annotated[
        Path | None,
        typer.Option(
            "--merge",
            metavar="DIR",
            help="Take cells that were not run here from the reports in this folder.",
            show_default=False,
        ),
    ] = None,
    engine: EngineName = None,
    device: Device = None,
    precision: PrecisionName = None,
    workers: Workers = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Reproduce a paper: run what is missing, then print its figures, ours and verdicts.

    For example: fedsift reproduce fas-icc2022 table1 --quick. The same command again resumes.
    """
    with error_handler():
        from fedsift.papers import PAPERS
        from fedsift.reproduction.plans import Plan

        if not words:
            _list_papers(PAPERS.values(), as_json)
            return
        paper = _find_paper(words)
        if len(words) == 1:
            _list_items(paper, as_json)
            return
        setting, recipe = paper.choose_setting(quick), recipe or paper.recipe
        named = name_engine(engine, address)
        where = {"engine": named, "device": device, "precision": precision, "workers": workers}
        overrides = [word for word in words[1:] if "=" in word]
        overrides += [f"{key}={value}" for key, value in where.items() if value]
        plan = Plan(paper, setting, recipe, seeds, tuple(overrides))
        items = paper.select([word for word in words[1:] if "=" not in word])
        if not items:
            raise user_error(f"name what to reproduce: {', '.join(paper.reports)} or all")
        folder = out or Path("reproduction") / paper.name / f"{setting}-{Path(recipe).stem}"
        part = Part(tuple(only or ()), seconds, slim, merge)
        if report:
            made, kept = _report_found(items, plan, folder, part)
        else:
            made, kept = _run_and_report(items, plan, folder, quiet, part), {}
        _print_reports(items, made, kept, folder, as_json)


# --- papers and items ---


def _list_papers(papers: Iterable[Paper], as_json: bool) -> None:
    if as_json:
        print_json({paper.name: paper.title for paper in papers})
        return
    say("Papers that can be reproduced:\n")
    for paper in papers:
        say(f"  {paper.name}")
        say(wrap_lines(f"    {paper.title}\n    {paper.citation}", "      "))
    say("\nList the items of one: fedsift reproduce PAPER")


def _list_items(paper: Paper, as_json: bool) -> None:
    from fedsift.reproduction.paper import ALL

    if as_json:
        print_json(paper.reports)
        return
    say(wrap_lines(f"{paper.title}\n{paper.citation}\n", "  "))
    for name, title in paper.reports.items():
        say(format_entry(name, title, "  ", 16))
    say(format_entry(ALL, ", ".join(paper.main or paper.reports), "  ", 16))
    for setting in paper.settings:
        how = "--quick" if setting == paper.quick else "default"
        say(f"\n{setting} ({how}) has recipes: {', '.join(paper.recipes(setting))}")
    say(f"\nRun one: fedsift reproduce {paper.name} {next(iter(paper.reports))}")


def _find_paper(words: list[str]) -> Paper:
    from fedsift import registry
    from fedsift.papers import PAPERS

    for name, paper in PAPERS.items():
        if words[0] not in PAPERS and words[0] in (*paper.reports, "all"):
            again = " ".join(["fedsift reproduce", name, *words])
            raise user_error(f"name the paper first: {again}")
    if "=" in words[0]:
        raise user_error(f"name the paper first: one of {', '.join(PAPERS)}")
    found: Paper = registry.lookup(PAPERS, "paper", words[0], "fedsift reproduce lists them")
    return found


# --- running ---


def _run_and_report(
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


def _report_found(
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


# --- printing ---


def _print_reports(
    items: list[str], made: dict[str, Report], kept: dict[str, Report], out: Path, as_json: bool
) -> None:
    found = {name: (made | kept)[name] for name in items if name in made or name in kept}
    if as_json:
        print_json(list(found.values()))
        return
    for report in found.values():
        _print_report(report)
    if made:
        files = ", ".join(f"{name}.json" for name in found if name in made)
        say(f"\nwritten: {files}, with the same as .md and .png, in {out}")
    if kept:
        files = ", ".join(f"{name}.json" for name in found if name in kept)
        say(f"\nread: {files} in {out}; nothing was run or written for them")


def _print_report(report: dict[str, Any]) -> None:
    from fedsift.reproduction.reports import describe_unfinished

    say("")
    if "cells" in report:
        _print_cells(report)
    if report.get("unfinished"):
        say(f"{describe_unfinished(report)}\n")
    if report["claims"]:
        _print_claims(report)


def _print_cells(report: dict[str, Any]) -> None:
    from fedsift.reproduction.tables import format_accuracy, format_gap

    if len(report["cells"]) > MOST_ROWS:
        say(f"{report['title']}: {len(report['cells']):,} cells; the Markdown file has the tables")
        return
    beside = any(cell["paper"] is not None for cell in report["cells"])
    gaps = any("gap" in cell for cell in report["cells"])
    columns = ("curve", "alpha", *["paper"] * beside, "ours", *["gap"] * gaps, "per upload")
    table = new_table(report["title"], *columns)
    for cell in report["cells"]:
        paper = ["" if cell["paper"] is None else f"{cell['paper']:.4f}".lstrip("0")] * beside
        ours = format_accuracy(cell["accuracy"], cell["sd"])
        size = f"{cell['uplink_bytes_per_upload']:,} B"
        gap = [format_gap(cell)] * gaps
        table.add_row(cell["label"], f"{cell['alpha']:g}", *paper, ours, *gap, size)
    same = len({cell["alpha"] for cell in report["cells"]}) == 1
    print_table(table, ("alpha",) if same else ())


def _print_claims(report: dict[str, Any]) -> None:
    from fedsift.reproduction.tables import describe_evidence, describe_verdict

    doubt = "one seed" if report.get("seeds") == 1 else ""
    doubt = "unfinished" if report.get("unfinished") else doubt
    title = f"claims ({doubt}: no verdict for good)" if doubt else "claims"
    if (get_width() or WIDE) < WIDE:
        say(wrap_lines(f"{title}; below each, what decides it (the paper's gap)\n"))
        for claim in report["claims"]:
            say(wrap_lines(f"{describe_verdict(claim)}: {claim['claim']}", "  "))
            say(wrap_lines(f"    {describe_evidence(claim)}", "    "))
        return
    table = new_table(title, "claim", "verdict", "decided by (the paper's gap)")
    for claim in report["claims"]:
        table.add_row(claim["claim"], describe_verdict(claim), describe_evidence(claim))
    table.columns[2].no_wrap = False
    print_table(table)
