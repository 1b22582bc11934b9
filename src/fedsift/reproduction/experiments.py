"""The experiments that the items of a paper need, and which of them have not been run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsift import runs
from fedsift.config import Experiment
from fedsift.reproduction.plans import Cell, NotWithThisRecipe, Plan, run_folder


def list_cells(items: Sequence[str], plan: Plan) -> list[Cell]:
    """The cells of all these items, each once."""
    found = (cell for name in items for cell in plan.paper.items[name].cells(plan))
    return list(dict.fromkeys(found))


def make_experiments(
    items: Sequence[str], plan: Plan
) -> tuple[dict[Cell, list[Experiment]], dict[Cell, str]]:
    """The cells with one experiment per seed; and those the recipe cannot have, and why."""
    found: dict[Cell, list[Experiment]] = {}
    impossible: dict[Cell, str] = {}
    for cell in list_cells(items, plan):
        try:
            found[cell] = [plan.experiment(cell, seed) for seed in range(plan.seeds)]
        except NotWithThisRecipe as error:
            impossible[cell] = str(error)
    return found, impossible


def list_folders(cell: Cell, plan: Plan, out: Path) -> list[Path]:
    """The run folders of a cell, one per seed."""
    return [run_folder(out, cell, seed) for seed in range(plan.seeds)]


def find_missing(items: Sequence[str], plan: Plan, out: Path) -> dict[Cell, str]:
    """The cells that cannot be reported on, and why: a run failed or has no finished round."""
    experiments, missing = make_experiments(items, plan)
    for cell in experiments:
        folders = list_folders(cell, plan, out)
        begun = sum(map(runs.has_a_round, folders))
        if begun < plan.seeds:
            missing[cell] = f"{begun} of {plan.seeds} seeds run" if begun else "not run"
        elif any((folder / runs.FAILED).is_file() for folder in folders):
            missing[cell] = f"stopped: {runs.FAILED} of its run says why"
    return missing
