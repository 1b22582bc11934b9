"""`fedsift reproduce PAPER ITEM...`: run what is missing, and report it beside the paper."""

from __future__ import annotations

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
from fedsift.cli.reproduction import Part, report_found, run_and_report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedsift.reproduction.paper import Paper
    from fedsift.reproduction.plans import Plan

    Report = dict[str, Any]

MOST_ROWS = 200  # of cells in the terminal
WIDE = 100  # columns from which claims are a table

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PAPER ITEM... [key=value]...",
        help="A paper, its items (or: all) and settings. Without items they are listed.",
        show_default=False,
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="A small version: minutes on a CPU.")]
Recipe = Annotated[
    str | None,
    typer.Option("--recipe", help="A recipe of the paper, or a TOML file (default: ours)."),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        min=1,
        help="Seeds per cell (default: as many as the item has, mostly 3).",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="GLOB",
        help="Only the runs of these curves, or with such names: '*-alpha-0.1-seed-0'.",
        show_default=False,
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        min=0,
        help="Stop after the last round that ends in this time; the same command resumes.",
        show_default=False,
    ),
]
Slim = Annotated[
    bool, typer.Option("--slim", help="Delete the checkpoints (models) of finished runs.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Folder of runs and reports (default: reproduction/PAPER/SETTING-RECIPE)."
    ),
]
OnlyReport = Annotated[
    bool, typer.Option("--report", help="Run nothing; report on what is in --out.")
]
Merge = Annotated[
    Path | None,
    typer.Option(
        "--merge",
        metavar="DIR",
        help="Take cells that were not run here from the reports in this folder.",
        show_default=False,
    ),
]


def reproduce(
    words: Words = None,
    quick: Quick = False,
    recipe: Recipe = None,
    seeds: Seeds = None,
    only: Only = None,
    seconds: Seconds = None,
    slim: Slim = False,
    out: Out = None,
    report: OnlyReport = False,
    merge: Merge = None,
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

        if not words:
            _list_papers(PAPERS.values(), as_json)
            return
        paper = _find_paper(words)
        if len(words) == 1:
            _list_items(paper, as_json)
            return
        named = name_engine(engine, address)
        where = {"engine": named, "device": device, "precision": precision, "workers": workers}
        plan = _make_plan(paper, words[1:], quick, recipe, seeds, where)
        items = paper.select([word for word in words[1:] if "=" not in word])
        if not items:
            raise user_error(f"name what to reproduce: {', '.join(paper.reports)} or all")
        name = f"{plan.setting}-{Path(plan.recipe).stem}"
        folder = out or Path("reproduction") / paper.name / name
        part = Part(tuple(only or ()), seconds, slim, merge)
        if report:
            made, kept = report_found(items, plan, folder, part)
        else:
            made, kept = run_and_report(items, plan, folder, quiet, part), {}
        _print_reports(items, made, kept, folder, as_json)


def _make_plan(
    paper: Paper,
    words: list[str],
    quick: bool,
    recipe: str | None,
    seeds: int | None,
    where: dict[str, Any],
) -> Plan:
    """By the settings among these words, and where it runs if that is said."""
    from fedsift.reproduction.plans import Plan

    overrides = [word for word in words if "=" in word]
    overrides += [f"{key}={value}" for key, value in where.items() if value]
    setting = paper.choose_setting(quick)
    return Plan(paper, setting, recipe or paper.recipe, seeds, tuple(overrides))


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
