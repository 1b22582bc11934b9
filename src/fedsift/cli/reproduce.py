"""`fedsift reproduce`: run what is missing, side by side, and say what came of it beside what the
paper says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.console import error_handler, new_table, print_table, say, user_error, warn
from fedsift.cli.options import Device, EngineName, Json, PrecisionName, Quiet
from fedsift.cli.progress import choose_engine, describe_models, resume_hint, show_progress

if TYPE_CHECKING:
    from fedsift.config import Experiment
    from fedsift.reproduction.plans import Cell, Plan
    from fedsift.runs import Run


def reproduce(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ITEM... [key=value]...",
            help="table1, table2, fig-data, fig-size, fig-aggregation, download, theory, or all of these: all; budget, beyond, beyond2.",
            show_default=False,
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version: 8x8 digits, minutes on a CPU.")
    ] = False,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            help="ours, literal (the paper to the letter), fresh (other public samples in every round) or a TOML file; --quick: ours.",
        ),
    ] = "ours",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of every cell.")] = 3,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of runs and reports (default: reproduction/SETTING-RECIPE)."
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Run nothing; report on the runs in --out.")
    ] = False,
    engine: EngineName = None,
    device: Device = None,
    precision: PrecisionName = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tables and figures of the paper: run what is missing, then paper | ours | verdict. The same
    command again goes on.
    """
    with error_handler():
        from fedsift.papers.fas_icc2022 import PAPER
        from fedsift.reproduction.plans import Plan

        setting = PAPER.choose_setting(quick)
        where = {"engine": engine, "device": device, "precision": precision}
        overrides = [word for word in words if "=" in word]
        settings = [*overrides, *(f"{key}={value}" for key, value in where.items() if value)]
        plan = Plan(PAPER, setting, recipe, seeds, tuple(settings))
        folder = out or Path("reproduction") / f"{setting}-{Path(recipe).stem}"
        items = names([word for word in words if "=" not in word])
        reproduce_items(items, plan, folder, play=not report, quiet=quiet, as_json=as_json)


def names(wanted: list[str]) -> list[str]:
    """The items that words stand for, each once."""
    from fedsift import registry
    from fedsift.papers.fas_icc2022 import PAPER

    known = {name: [name] for name in PAPER.reports} | {"all": list(PAPER.main)}
    if not wanted:
        raise user_error(f"name what to reproduce: {', '.join(known)}")
    found = [registry.lookup(known, "item", word, "fedsift reproduce --help") for word in wanted]
    return list(dict.fromkeys(name for names in found for name in names))


def reproduce_items(
    items: list[str], plan: Plan, out: Path, *, play: bool, quiet: bool, as_json: bool
) -> None:
    """The theorem first, since it is quick; then all cells of all items in one go, and a report on
    each item. Without `play`, a report on what there is already."""
    reports: dict[str, dict[str, Any]] = {}
    if "theory" in items:
        reports["theory"] = _theorem(out)
    if tables := [name for name in items if name != "theory"]:
        left_out = _run_cells(tables, plan, out, quiet) if play else _missing(tables, plan, out)
        reports |= {
            name: report for name in tables if (report := _reported(name, plan, out, left_out))
        }
    if not reports:
        fewer = ", or fewer --seeds" if plan.seeds > 1 else ""
        again = f"; give the command without --report to run it{fewer}" if not play else ""
        raise user_error(
            f"nothing to report on: no cell of {', '.join(items)} in {out} has rounds of all its seeds{again}"
        )
    items = [name for name in items if name in reports]
    if as_json:
        typer.echo(json.dumps([reports[name] for name in items]))
        return
    for name in items:
        _tell(reports[name])
    say(
        f"\nwritten: {', '.join(f'{name}.json' for name in items)}, with the same as .md and .png, in {out}"
    )


def _cells(items: list[str], plan: Plan) -> list[Cell]:
    return list(
        dict.fromkeys(cell for name in items for cell in plan.paper.items[name].cells(plan))
    )


def _experiments(
    items: list[str], plan: Plan
) -> tuple[dict[Cell, list[Experiment]], dict[Cell, str]]:
    """The cells with an experiment a seed; and those the recipe cannot have, and why."""
    from fedsift.reproduction.plans import NotWithThisRecipe

    found: dict[Cell, list[Experiment]] = {}
    impossible: dict[Cell, str] = {}
    for cell in _cells(items, plan):
        try:
            found[cell] = [plan.experiment(cell, seed) for seed in range(plan.seeds)]
        except NotWithThisRecipe as error:
            impossible[cell] = str(error)
    return found, impossible


def _missing(items: list[str], plan: Plan, out: Path) -> dict[Cell, str]:
    """The cells that have a run without a finished round, or one that failed."""
    from fedsift import runs
    from fedsift.reproduction.plans import run_folder

    experiments, impossible = _experiments(items, plan)
    every = {
        cell: [run_folder(out, cell, seed) for seed in range(plan.seeds)] for cell in experiments
    }
    failed = {
        cell: "stopped: failed.json of its run says why"
        for cell, of in every.items()
        if any((f / runs.FAILED).is_file() for f in of)
    }
    there = {cell: sum(map(runs.has_a_round, of)) for cell, of in every.items()}
    few = {
        cell: f"{count} of {plan.seeds} seeds run" if count else "not run"
        for cell, count in there.items()
        if count < plan.seeds
    }
    return impossible | failed | few


def _run_cells(items: list[str], plan: Plan, out: Path, quiet: bool) -> dict[Cell, str]:
    """Play the runs that are not finished yet. Returns the cells that could not be run, and why."""
    from fedsift import runs
    from fedsift.reproduction.plans import run_folder
    from fedsift.types import UserError

    experiments, left_out = _experiments(items, plan)
    if not experiments:
        raise user_error(next(iter(left_out.values())))
    engine, why = choose_engine(*next(iter(experiments.values()))[0].where)
    playing: list[Run] = []
    with resume_hint("the same command again", out):
        for cell, of in experiments.items():
            begun: list[Run] = []
            try:
                for seed, experiment in enumerate(of):
                    begun.append(
                        runs.begin_run(
                            run_folder(out, cell, seed), experiment, resume=True, note=why
                        )
                    )
                playing += begun
            except UserError as error:
                left_out[cell] = str(error)
                for run in begun:
                    run.lock.release()
        if not playing:
            raise user_error(left_out[next(iter(experiments))])
        for cell, reason in left_out.items():
            warn(f"left out: {cell} ({reason})")
        todo = [run for run in playing if not run.finished]
        if todo and not quiet:
            done = (
                f", {len(playing) - len(todo)} finished already" if len(todo) < len(playing) else ""
            )
            warn(
                "\n".join(
                    [f"{len(todo)} runs side by side{done}: {why}", *describe_models(engine, todo)]
                )
            )
        failed = _play(todo, engine, quiet)
    for run in playing:
        run.lock.release()
    for cell in experiments:
        told = [
            failed[folder]
            for seed in range(plan.seeds)
            if (folder := run_folder(out, cell, seed)) in failed
        ]
        left_out |= {cell: told[0]} if told else {}
    return left_out


def _play(todo: list[Run], engine: Any, quiet: bool) -> dict[Path, str]:
    """What the failed ones said, by their folder; the others go on without them."""
    from fedsift import runs

    failed: dict[Path, str] = {}
    with show_progress(todo, quiet) as tell:
        for run, outcome in runs.Group.of(todo).run(engine):
            if isinstance(outcome, Exception):
                failed[run.folder] = runs.describe_error(outcome)
                warn(f"{run.folder.name} failed: {failed[run.folder]}")
            tell(run, outcome)
    return failed


def _reported(name: str, plan: Plan, out: Path, left_out: dict[Cell, str]) -> dict[str, Any] | None:
    """The report on an item, also written to files; or none, if it has no cell."""
    from fedsift.reproduction import pictures, reports

    item = plan.paper.items[name]
    mine = {cell: why for cell, why in left_out.items() if cell in item.cells(plan)}
    if len(mine) == len(item.cells(plan)):
        warn(f"{name}: nothing to report ({next(iter(mine.values()))})")
        return None
    report = reports.gather_report(name, item, plan, out, mine)
    if (before := reports.count_seeds(out, name)) > plan.seeds:
        warn(
            f"{name}: the report on {before} seeds in {out} gives way to one on {plan.seeds}; --seeds {before} brings it back"
        )
    reports.write_report(report, out, reports.markdown(report))
    pictures.draw(report, out / f"{name}.png")
    return report


def _theorem(out: Path) -> dict[str, Any]:
    from fedsift.papers.fas_icc2022 import theorem
    from fedsift.reproduction import reports

    report = theorem.make_report()
    reports.write_report(report, out, theorem.markdown(report))
    theorem.draw(report, out / "theory.png")
    return report


# --- telling
#
#
# -------------------------------------------------------------------------------------------------------


def _tell(report: dict[str, Any]) -> None:
    from fedsift.reproduction.reports import format_accuracy

    say("")
    if "cells" in report:
        beside = any(cell["paper"] is not None for cell in report["cells"])
        table = new_table(
            report["title"], "curve", "alpha", *["paper"] * beside, "ours", "an upload"
        )
        for cell in report["cells"]:
            paper = ["" if cell["paper"] is None else f"{cell['paper']:.4f}".lstrip("0")] * beside
            ours, size = (
                format_accuracy(cell["accuracy"], cell["sd"]),
                f"{cell['uplink_bytes_per_upload']:,} B",
            )
            table.add_row(cell["label"], f"{cell['alpha']:g}", *paper, ours, size)
        print_table(table)
    if report.get("unfinished"):
        from fedsift.reproduction.reports import describe_unfinished

        say(f"{describe_unfinished(report)}\n")
    if report["claims"]:
        doubt = (
            "unfinished"
            if report.get("unfinished")
            else "one seed"
            if report.get("seeds") == 1
            else ""
        )
        claims = new_table(
            f"claims{f' ({doubt}: no verdict for good)' if doubt else ''}",
            "claim",
            "verdict",
            "decided by (the paper's gap)",
        )
        for claim in report["claims"]:
            claims.add_row(claim["claim"], claim["verdict"], _evidence(claim))
        claims.columns[2].no_wrap = False
        print_table(claims)


def _evidence(claim: dict[str, Any]) -> str:
    from fedsift.reproduction.reports import describe_evidence

    return describe_evidence(claim)
