"""Run folders to a report: one dictionary per item, which is also its JSON, and Markdown of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedsift import config, evaluation, ledger, runs
from fedsift.config import Experiment
from fedsift.data import TEST
from fedsift.files import write_atomic
from fedsift.report import Method
from fedsift.reproduction import merging, tables
from fedsift.reproduction.paper import Item
from fedsift.reproduction.plans import Cell, Plan, run_folder
from fedsift.reproduction.verdicts import judge_claim
from fedsift.runs import History
from fedsift.types import UserError

# what is told of a cell's costs, besides the accuracy they bought
COSTS = (
    "uplink_bytes_per_upload",
    "uplink_bytes_largest",
    "downlink_bytes_per_download",
    "total_bytes",
    "total_bytes_broadcast",
    "client_steps_per_round",
    "server_steps_per_round",
)
FEW = 12  # cells left out for one reason that are still named one by one
MANY = 100  # that are counted and not named
WHERE = {"name", *config.WHERE}  # runs may differ in these from what would be run here


def gather_report(
    name: str,
    item: Item,
    plan: Plan,
    out: Path,
    left_out: Mapping[Cell, str],
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All that is known of an item: its cells, by seed and by round, and the verdicts.

    Where runs are not finished, all are compared after as many rounds as the shortest has.
    Cells that are left out are taken from an `earlier` report on the same item, if it has them.
    """
    cells = item.cells(plan)
    seeds = plan.seeds_of(item)
    whole = {
        cell: _load_histories(out, cell, plan, seeds) for cell in cells if cell not in left_out
    }
    every = [run for of in whole.values() for run in of]
    rounds = min(len(run.metrics) for run in every)
    found = {cell: [_cut(run, rounds) for run in of] for cell, of in whole.items()}
    same_samples = all(run.measured_on == TEST for run in every)
    published = item.published if plan.comparable and same_samples else {}
    kept = merging.find_kept(earlier, left_out, seeds, rounds) if earlier else {}
    left_out = {cell: why for cell, why in left_out.items() if cell not in kept}
    return {
        "paper": plan.paper.name,
        "item": name,
        "title": item.title,
        "layout": item.layout,
        "setting": plan.setting,
        **({"data": item.data[plan.setting]} if plan.setting in item.data else {}),
        "recipe": plan.recipe,
        "overrides": list(plan.overrides),
        "seeds": len(seeds),
        **({"first_seed": seeds.start} if seeds.start else {}),
        "rounds": rounds,
        "planned": max(run.experiment.rounds for run in every),
        # of all rounds, also those that are not compared; each has its run's share of the time
        "minutes": round(sum(run.seconds for run in every) / 60, 1),
        "command": _format_command(name, plan, len(seeds), every[0].experiment),
        "environment": _join_environments(every),
        **(merging.describe_source(earlier, kept) if earlier and kept else {}),
        **_tell_held_out(every),
        **_describe_cells(item, plan, found, whole, published, kept),
        "unfinished": {
            run.folder.name: len(run.metrics)
            for run in every
            if len(run.metrics) < run.experiment.rounds
        },
        "left_out": {str(cell): why for cell, why in left_out.items()},
        "claims": _judge_claims(item, plan, found, kept),
    }


def _describe_cells(
    item: Item,
    plan: Plan,
    found: Mapping[Cell, Sequence[History]],
    whole: Mapping[Cell, Sequence[History]],
    published: Mapping[Cell, float],
    kept: Mapping[Cell, dict[str, Any]],
) -> dict[str, Any]:
    """The cells, and what the layout of the item draws from all of them."""
    made = {
        cell: _describe_cell(cell, found[cell], whole[cell], published.get(cell))
        | {"label": item.labels.get(cell.curve) or plan.label(cell.curve)}
        | (dict(item.figures(found[cell])) if item.figures else {})
        for cell in found
    }
    every = {**made, **kept}
    cells = [every[cell] for cell in item.cells(plan) if cell in every]
    if item.reference:
        seeds = plan.seeds_of(item)
        cells = [
            tables.add_gap(cell, cells, item.reference(cell["curve"]), seeds) for cell in cells
        ]
    best = {"best_by_budget": tables.find_best(cells, item.budgets)} if item.budgets else {}
    chosen = {"chosen": tables.choose_variants(cells)} if item.layout == "choice" else {}
    return {"cells": cells} | best | chosen


def _tell_held_out(every: Sequence[History]) -> dict[str, str]:
    """Accuracies are of the test samples, or the report says otherwise; one report has one kind."""
    kinds = {run.measured_on for run in every}
    if len(kinds) > 1:
        raise UserError(
            "some of these runs are measured on the test samples and some on validation samples; "
            "give all of them the same data.validation"
        )
    return {} if kinds == {TEST} else {"measured_on": kinds.pop()}


def _judge_claims(
    item: Item,
    plan: Plan,
    found: Mapping[Cell, Sequence[History]],
    kept: Mapping[Cell, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    figures = {
        "accuracy": {
            cell: [evaluation.average_last(run.accuracies) for run in of]
            for cell, of in found.items()
        },
        "pace": {cell: [fmean(run.accuracies) for run in of] for cell, of in found.items()},
    }
    figures["accuracy"] |= {cell: of["by_seed"] for cell, of in kept.items()}
    figures["pace"] |= {cell: [fmean(run) for run in of["by_round"]] for cell, of in kept.items()}
    sizes = {cell: [ledger.upload_sizes(run.ledger) for run in of] for cell, of in found.items()}
    uploads = {
        "mean": {cell: [fmean(run) for run in of] for cell, of in sizes.items()},
        "largest": {cell: [float(max(run)) for run in of] for cell, of in sizes.items()},
    }
    for kind, key in {"mean": "uplink_bytes_per_upload", "largest": "uplink_bytes_largest"}.items():
        uploads[kind] |= {cell: [of[key]] * len(of["by_seed"]) for cell, of in kept.items()}
    return [
        judge_claim(claim, figures[claim.figure], item.published, uploads)
        for claim in item.claims(plan)
    ]


def _load_histories(out: Path, cell: Cell, plan: Plan, seeds: Sequence[int]) -> list[History]:
    found = [runs.load_run(run_folder(out, cell, seed)) for seed in seeds]
    for seed, run in zip(seeds, found, strict=True):
        changed = config.differences(run.experiment, plan.experiment(cell, seed))
        differing = [
            f"{key} is {there!r} there, {here!r} here"
            for key, (there, here) in changed.items()
            if key not in WHERE
        ]
        if differing:
            raise UserError(
                f"{run.folder} was made with other settings: {', '.join(differing)}; "
                "give the same recipe and overrides"
            )
    return found


def _cut(run: History, rounds: int) -> History:
    """What a run was after so many rounds; its seconds are those of all."""
    return replace(run, metrics=run.metrics[:rounds], ledger=run.ledger[:rounds])


def _join_environments(every: Sequence[History]) -> dict[str, Any]:
    """What the runs were made and resumed with; where they differ, all of it in turn."""
    made = [
        each for run in every for each in (run.environment, *run.environment.get("resumed", []))
    ]
    kept = ("fedsift", "commit", "torch", "processor", "cores", "gpu", "engine")
    joined = {key: _join_values([each.get(key) for each in made]) for key in kept}
    return joined | {"precision": _join_values([run.experiment.precision for run in every])}


def _join_values(values: Sequence[Any]) -> Any:
    """The value all have, or the different ones, joined."""
    different = list(dict.fromkeys(values))
    if len(different) == 1:
        return different[0]
    return ", ".join("not known" if value is None else str(value) for value in different)


def _format_command(name: str, plan: Plan, count: int, experiment: Experiment) -> str:
    """The command that makes these runs again."""
    quick = ["--quick"] if plan.setting == plan.paper.quick else []
    recipe = [] if plan.recipe == plan.paper.recipe else ["--recipe", plan.recipe]
    seeds = ["--seeds", str(count)]
    where = [] if experiment.precision == "float32" else ["--precision", experiment.precision]
    ours = [setting for setting in plan.overrides if setting.partition("=")[0] not in config.WHERE]
    words = ["fedsift", "reproduce", plan.paper.name, name]
    return shlex.join([*words, *quick, *recipe, *seeds, *where, *ours])


def _describe_cell(
    cell: Cell, of: Sequence[History], whole: Sequence[History], published: float | None
) -> dict[str, Any]:
    """`of` are the runs as far as they are compared, `whole` as far as they were run."""
    settled = [evaluation.average_last(run.accuracies) for run in of]
    costs = Method(cell.curve, tuple(of)).costs()
    first = of[0].experiment
    return {
        "curve": cell.curve,
        "alpha": cell.alpha,
        "budget": first.algorithm.budget,
        "public": first.data.public,
        "pool": first.algorithm.pool,
        "accuracy": round(fmean(settled), 6),
        "sd": round(stdev(settled), 6) if len(settled) > 1 else None,
        "by_seed": [round(value, 6) for value in settled],
        "best_round": [round(max(run.accuracies), 6) for run in of],
        "paper": published,
        **{key: costs[key] for key in COSTS},
        "labels_right": _average_right(of),
        "by_round": [[round(value, 4) for value in run.accuracies] for run in whole],
    }


def _average_right(of: Sequence[History]) -> float | None:
    """The share of uploaded labels that are true, where labels are uploaded and that is known."""
    rows = [row["uploaded_labels"] for run in of for row in run.metrics if "uploaded_labels" in row]
    return round(fmean(row["right"] for row in rows), 6) if rows else None


# --- Markdown ---


def markdown(report: Mapping[str, Any], item: Item | None = None) -> str:
    """The whole report; an item may have tables of its own."""
    seeds, made = report["seeds"], report["environment"]
    lines = [
        f"## {report['title']}",
        "",
        f"{describe_runs(report)}{', ± over the seeds' if seeds > 1 else ''}.",
        "",
    ]
    if item is not None and item.tables is not None:
        lines += item.tables(report)
    else:
        lines += _format_grid(report) if report["layout"] == "table" else tables.list_cells(report)
    lines += tables.list_best(report) + tables.list_chosen(report)
    for line in _describe_left_out(report["left_out"]):
        lines += ["", line]
    if report["unfinished"]:
        lines += ["", f"{describe_unfinished(report)}; the JSON names them."]
    if report["claims"]:
        once = " (one seed: none for good)" if seeds == 1 else ""
        lines += ["", f"| claim | verdict{once} | decided by (the paper's gap) |", "|---|---|---|"]
        lines += [
            f"| {c['claim']} | **{tables.describe_verdict(c)}** | {tables.describe_evidence(c)} |"
            for c in report["claims"]
        ]
    where = made.get("gpu") or made.get("processor")
    made_with = f"fedsift {made.get('fedsift')}, {_format_commits(made)}, {where}"
    lines += ["", f"`{report['command']}`, {made_with}; every gap is in the JSON."]
    lines += merging.list_sources(report)
    return "\n".join(lines) + "\n"


def _describe_left_out(left_out: Mapping[str, str]) -> list[str]:
    """A line for each; where many have the same reason, one line for all of them."""
    by_reason: dict[str, list[str]] = {}
    for cell, why in left_out.items():
        by_reason.setdefault(why, []).append(cell)
    many = {why: cells for why, cells in by_reason.items() if len(cells) > FEW}
    lines = [f"Left out: {cell} ({why})." for cell, why in left_out.items() if why not in many]
    return lines + [f"Left out ({why}): {_name_cells(cells)}." for why, cells in many.items()]


def _name_cells(cells: Sequence[str]) -> str:
    if len(cells) > MANY:
        return f"{len(cells):,} cells, which the JSON names"
    return ", ".join(cells)


def _format_commits(made: Mapping[str, Any]) -> str:
    commits = made.get("commit") or "not known"
    return f"commit{'s' if ', ' in commits else ''} {commits}"


def describe_runs(report: Mapping[str, Any]) -> str:
    """What was run, in a line."""
    rounds, seeds = report["rounds"], report["seeds"]
    size = f", {_describe_samples(report['cells'][0])}" if report["layout"] == "table" else ""
    each = f"{seeds} seeds" if seeds > 1 else "one seed"
    many = "one round" if rounds == 1 else f"{rounds} rounds"
    over = "that of this round" if rounds == 1 else f"the {evaluation.describe_average(rounds)}"
    data = report.get("data", report["setting"])
    made = f"{data}{size}, recipe {report['recipe']}, {many}, {each}"
    of = f"{report['measured_on']} " if "measured_on" in report else ""
    return f"{made}; {of}accuracy is {over}"


def _describe_samples(cell: Mapping[str, Any]) -> str:
    budget, public = f"{cell['budget']:,}", f"{cell['public']:,}"
    if pool := cell.get("pool"):
        return f"{budget} of {pool:,} public samples, drawn again in every round from {public}"
    return f"{budget} of {public} public samples"


def describe_unfinished(report: Mapping[str, Any]) -> str:
    every = report["seeds"] * len(report["cells"])
    some = f"{len(report['unfinished'])} of {every} runs are unfinished"
    return f"{some}, so all are compared after round {report['rounds']} of {report['planned']}"


def _format_grid(report: Mapping[str, Any]) -> list[str]:
    """Curves across, skew down, the published figure in brackets."""
    at = {(cell["label"], cell["alpha"]): cell for cell in report["cells"]}
    labels = list(dict.fromkeys(label for label, _ in at))
    alphas = list(dict.fromkeys(alpha for _, alpha in at))
    rows = [f"| alpha | {' | '.join(labels)} |", "|---" * (len(labels) + 1) + "|"]
    for alpha in alphas:
        figures = [
            tables.format_figure(at[label, alpha]) if (label, alpha) in at else ""
            for label in labels
        ]
        rows.append(f"| {alpha:g} | {' | '.join(figures)} |")
    return rows


# --- files ---


def count_seeds(out: Path, name: str) -> int:
    """How many seeds an older report in this folder is on; 0 without one."""
    try:
        return int(json.loads((out / f"{name}.json").read_text())["seeds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def write_report(report: Mapping[str, Any], out: Path, text: str) -> list[Path]:
    """ITEM.json, and `text` as ITEM.md, below `out`."""
    files = {
        out / f"{report['item']}.json": json.dumps(report, indent=1) + "\n",
        out / f"{report['item']}.md": text,
    }
    out.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_atomic(file, content.encode())
    return list(files)


def read_report(plan: Plan, name: str, out: Path) -> dict[str, Any]:
    """The report that is kept as ITEM.json below `out`, checked: anybody may have written it."""
    file = out / f"{name}.json"
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {file}: {error}") from None
    if not isinstance(report, dict) or report.get("item") != name:
        raise UserError(f"{file} is not a report on {name}")
    if any(not text.isprintable() for text in _find_texts(report)):
        raise UserError(f"{file} has control characters in its texts; it is not used")
    try:
        if name in plan.paper.extras:
            plan.paper.extras[name].markdown(report)
        else:
            markdown(report)
            for cell in report["cells"]:  # a grid does not show all that a terminal does
                f"{cell['label']} {cell['alpha']:g} {cell['uplink_bytes_per_upload']:,}"
                tables.format_figure(cell)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{file} is not a whole report on {name} ({what})") from None
    _check_made_with(report, plan, file)
    return report


def _check_made_with(report: Mapping[str, Any], plan: Plan, file: Path) -> None:
    asked = {"paper": plan.paper.name, "setting": plan.setting, "recipe": plan.recipe}
    for key, here in asked.items():
        if (there := report.get(key, here)) != here:
            cure = f"; add --recipe {there}" if key == "recipe" else ""
            raise UserError(f"{file} was made with another {key}: {there} there, {here} here{cure}")


def _find_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _find_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _find_texts(inner)
