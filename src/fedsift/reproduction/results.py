"""From run folders to what is said about them: one dictionary an item, which is also its JSON, and
Markdown made of it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedsift import config, evaluation, runs
from fedsift.config import Experiment
from fedsift.files import write_atomic
from fedsift.reproduction.curves import PAPERS, Cell, Plan, run_folder
from fedsift.reproduction.items import Item
from fedsift.reproduction.verdicts import judged
from fedsift.runs import History
from fedsift.types import UserError

WHERE = {"name", *config.WHERE}  # runs may differ in these from what would be played here


def gathered(
    name: str, item: Item, plan: Plan, out: Path, left_out: Mapping[Cell, str]
) -> dict[str, Any]:
    """All that is known of an item: its cells, seed by seed and round by round, and the verdicts.
    Where runs are not finished, all are compared after as many rounds as the shortest has."""
    cells = item.cells(plan)
    whole = {cell: _histories(out, cell, plan) for cell in cells if cell not in left_out}
    every = [run for of in whole.values() for run in of]
    rounds = min(len(run.metrics) for run in every)
    found = {cell: [_until(rounds, run) for run in of] for cell, of in whole.items()}
    figures = {
        "accuracy": {
            cell: [evaluation.settled(run.accuracies) for run in of] for cell, of in found.items()
        },
        "pace": {cell: [fmean(run.accuracies) for run in of] for cell, of in found.items()},
    }
    uploads = {cell: [fmean(_uploads(run)) for run in of] for cell, of in found.items()}
    paper = item.paper if plan.setting == PAPERS else {}
    return {
        "item": name,
        "title": item.title,
        "layout": item.layout,
        "setting": plan.setting,
        "recipe": plan.recipe,
        "overrides": list(plan.overrides),
        "seeds": plan.seeds,
        "rounds": rounds,
        "planned": max(run.experiment.rounds for run in every),
        "minutes": round(
            sum(run.seconds for run in every) / 60, 1
        ),  # all rounds played, each a run's share of its time
        "command": _command(name, plan, every[0].experiment),
        "environment": _environment(every),
        "cells": [
            _cell(cell, found[cell], whole[cell], paper.get(cell))
            | {"label": item.labels.get(cell.curve) or plan.label(cell.curve)}
            for cell in found
        ],
        "unfinished": {
            run.folder.name: len(run.metrics)
            for run in every
            if len(run.metrics) < run.experiment.rounds
        },
        "left_out": {str(cell): why for cell, why in left_out.items()},
        "claims": [
            judged(claim, figures[claim.figure], item.paper, uploads) for claim in item.claims(plan)
        ],
    }


def _uploads(run: History) -> list[int]:
    """The bytes of every upload."""
    return [size for row in run.ledger for size in row.up.values()]


def _histories(out: Path, cell: Cell, plan: Plan) -> list[History]:
    found = [runs.load_run(run_folder(out, cell, seed)) for seed in range(plan.seeds)]
    for seed, run in enumerate(found):
        changed = config.differences(run.experiment, plan.experiment(cell, seed))
        if told := [
            f"{k} is {a!r} there, {b!r} here" for k, (a, b) in changed.items() if k not in WHERE
        ]:
            raise UserError(
                f"{run.folder} was made with other settings: {', '.join(told)}; give the same recipe and overrides"
            )
    return found


def _until(rounds: int, run: History) -> History:
    """What a run was after so many rounds; its seconds are those of all."""
    return replace(run, metrics=run.metrics[:rounds], ledger=run.ledger[:rounds])


def _environment(every: Sequence[History]) -> dict[str, Any]:
    """What the runs were made with, and gone on with; where they differ, all of it in turn."""
    made = [
        each for run in every for each in (run.environment, *run.environment.get("resumed", []))
    ]
    kept = ("fedsift", "commit", "torch", "processor", "cores", "gpu", "engine")
    said = {key: [each.get(key) for each in made] for key in kept}
    return {key: _in_turn(values) for key, values in said.items()} | {
        "precision": _in_turn([run.experiment.precision for run in every])
    }


def _in_turn(values: Sequence[Any]) -> Any:
    """The value all have, or the different ones, joined."""
    different = list(dict.fromkeys(values))
    return (
        different[0]
        if len(different) == 1
        else ", ".join("not known" if v is None else str(v) for v in different)
    )


def _command(name: str, plan: Plan, experiment: Experiment) -> str:
    """What makes these runs again."""
    quick = [] if plan.setting == PAPERS else ["--quick"]
    recipe = [] if plan.recipe == "ours" else ["--recipe", plan.recipe]
    seeds = ["--seeds", str(plan.seeds)]
    where = [] if experiment.precision == "float32" else ["--precision", experiment.precision]
    ours = [setting for setting in plan.overrides if setting.partition("=")[0] not in config.WHERE]
    return shlex.join(["fedsift", "reproduce", name, *quick, *recipe, *seeds, *where, *ours])


def _cell(
    cell: Cell, of: Sequence[History], whole: Sequence[History], paper: float | None
) -> dict[str, Any]:
    """`of` are the runs as far as they are compared, `whole` as far as they were played."""
    settled = [evaluation.settled(run.accuracies) for run in of]
    uploads = [_uploads(run) for run in of]
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
        "paper": paper,
        "uplink_bytes_per_upload": round(fmean(fmean(sizes) for sizes in uploads)),
        "uplink_bytes_largest": max(max(sizes) for sizes in uploads),
        "by_round": [[round(value, 4) for value in run.accuracies] for run in whole],
    }


# --- Markdown
#
#
# ------------------------------------------------------------------------------------------------------


def markdown(report: Mapping[str, Any]) -> str:
    seeds, made = report["seeds"], report["environment"]
    lines = [
        f"## {report['title']}",
        "",
        f"{about(report)}{', ± over the seeds' if seeds > 1 else ''}.",
        "",
    ]
    lines += _grid(report) if report["layout"] == "table" else _list(report)
    for cell, why in report["left_out"].items():
        lines += ["", f"Left out: {cell} ({why})."]
    if report["unfinished"]:
        lines += ["", f"{unfinished(report)}; the JSON names them."]
    if report["claims"]:
        once = " (one seed: none for good)" if seeds == 1 else ""
        lines += ["", f"| claim | verdict{once} | decided by (the paper's gap) |", "|---|---|---|"]
        lines += [
            f"| {c['claim']} | **{c['verdict']}** | {evidence_in_words(c)} |"
            for c in report["claims"]
        ]
    where = made.get("gpu") or made.get("processor")
    lines += [
        "",
        f"`{report['command']}`, fedsift {made.get('fedsift')}, {_commits(made)}, {where}; every gap is in the JSON.",
    ]
    return "\n".join(lines) + "\n"


def _commits(made: Mapping[str, Any]) -> str:
    told = made.get("commit") or "not known"
    return f"commit{'s' if ', ' in told else ''} {told}"


def about(report: Mapping[str, Any]) -> str:
    """What was run, in a line."""
    rounds, seeds = report["rounds"], report["seeds"]
    each = f"{seeds} seeds" if seeds > 1 else "one seed"
    first = report["cells"][0]
    size = f", {_samples(first)}" if report["layout"] == "table" else ""
    if rounds == 1:
        return f"{report['setting']}{size}, recipe {report['recipe']}, one round, {each}; accuracy is that of this round"
    over = evaluation.settled_over(rounds)
    return f"{report['setting']}{size}, recipe {report['recipe']}, {rounds} rounds, {each}; accuracy is the {over}"


def _samples(cell: Mapping[str, Any]) -> str:
    if pool := cell.get("pool"):
        return f"{cell['budget']:,} of {pool:,} public samples, drawn anew in every round from {cell['public']:,}"
    return f"{cell['budget']:,} of {cell['public']:,} public samples"


def unfinished(report: Mapping[str, Any]) -> str:
    some = f"{len(report['unfinished'])} of {report['seeds'] * len(report['cells'])} runs are unfinished"
    return f"{some}, so all are compared after round {report['rounds']} of {report['planned']}"


def told(accuracy: float, sd: float | None) -> str:
    return f"{accuracy:.3f}".lstrip("0") + ("" if sd is None else f" ± {sd:.3f}".replace("0.", "."))


def _grid(report: Mapping[str, Any]) -> list[str]:
    """Curves across, skew down, the paper's figure in brackets."""
    at = {(cell["label"], cell["alpha"]): cell for cell in report["cells"]}
    labels, alphas = (
        list(dict.fromkeys(label for label, _ in at)),
        list(dict.fromkeys(alpha for _, alpha in at)),
    )
    rows = [f"| alpha | {' | '.join(labels)} |", "|---" * (len(labels) + 1) + "|"]
    for alpha in alphas:
        figures = [_figure(at[label, alpha]) if (label, alpha) in at else "" for label in labels]
        rows.append(f"| {alpha:g} | {' | '.join(figures)} |")
    return rows


def _figure(cell: Mapping[str, Any]) -> str:
    paper = "" if cell["paper"] is None else f" ({cell['paper']:.4f})".replace("(0.", "(.")
    return told(cell["accuracy"], cell["sd"]) + paper


def _list(report: Mapping[str, Any]) -> list[str]:
    rows = ["| | alpha | accuracy | bytes an upload | the largest |", "|---|---|---|---|---|"]
    for cell in report["cells"]:
        sizes = f"{cell['uplink_bytes_per_upload']:,} | {cell['uplink_bytes_largest']:,}"
        rows.append(f"| {cell['label']} | {cell['alpha']:g} | {_figure(cell)} | {sizes} |")
    return rows


def evidence_in_words(claim: Mapping[str, Any]) -> str:
    """The comparison that decides a claim, with its gap."""
    if claim["decided_by"] is None:
        return ""
    row = claim["evidence"][claim["decided_by"]]
    return f"{row['comparison']}: {_gap(row)}"


def _gap(row: Mapping[str, Any]) -> str:
    if row.get("unit") == "bytes":
        return f"{row['gap']:+,.0f} bytes"
    sd = "" if row["sd"] is None else f" ± {row['sd']:.3f}".replace("0.", ".")
    paper = f" ({row['paper']:+.3f})".replace("0.", ".") if "paper" in row else ""
    return f"{row['gap']:+.3f}".replace("0.", ".") + sd + paper


def seeds_of(out: Path, name: str) -> int:
    """How many seeds the report that is there already is on."""
    try:
        return int(json.loads((out / f"{name}.json").read_text())["seeds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def write(report: Mapping[str, Any], out: Path) -> list[Path]:
    """ITEM.json and ITEM.md below `out`."""
    files = {
        out / f"{report['item']}.json": json.dumps(report, indent=1) + "\n",
        out / f"{report['item']}.md": markdown(report),
    }
    out.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        write_atomic(file, text.encode())
    return list(files)
