"""The experiments that the items of a paper need, and which of them have not been run."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from fedsift import runs
from fedsift.config import Experiment
from fedsift.reproduction.plans import Cell, NotWithThisRecipe, Plan, run_folder


def list_cells(items: Sequence[str], plan: Plan) -> list[Cell]:
    """The cells of all these items, each once."""
    found = (cell for name in items for cell in plan.paper.items[name].cells(plan))
    return list(dict.fromkeys(found))


def list_seeds(items: Sequence[str], plan: Plan) -> dict[Cell, list[int]]:
    """The seeds of each cell: those of all the items that have it."""
    found: dict[Cell, set[int]] = {cell: set() for cell in list_cells(items, plan)}
    for item in (plan.paper.items[name] for name in items):
        for cell in item.cells(plan):
            found[cell] |= set(plan.seeds_of(item))
    return {cell: sorted(seeds) for cell, seeds in found.items()}


def make_experiments(
    items: Sequence[str], plan: Plan
) -> tuple[dict[Cell, dict[int, Experiment]], dict[Cell, str]]:
    """The cells with one experiment per seed; and those the recipe cannot have, and why."""
    found: dict[Cell, dict[int, Experiment]] = {}
    impossible: dict[Cell, str] = {}
    for cell, seeds in list_seeds(items, plan).items():
        try:
            found[cell] = {seed: plan.experiment(cell, seed) for seed in seeds}
        except NotWithThisRecipe as error:
            impossible[cell] = str(error)
    return found, impossible


def is_selected(folder: Path, cell: Cell, only: Sequence[str]) -> bool:
    """Whether a run is asked for: by its curve, or by the name of its folder."""
    return not only or any(
        fnmatch(name, pattern) for pattern in only for name in (cell.curve, folder.name)
    )


def find_missing(item: str, plan: Plan, out: Path, *, finished: bool = False) -> dict[Cell, str]:
    """The cells that cannot be reported on, and why: a run failed or has no finished round.

    With `finished`, a run that is still short of rounds is missing too.
    """
    seeds = plan.seeds_of(plan.paper.items[item])
    experiments, missing = make_experiments([item], plan)
    for cell in experiments:
        folders = [run_folder(out, cell, seed) for seed in seeds]
        begun = sum(map(runs.has_a_round, folders))
        if begun < len(seeds):
            missing[cell] = f"{begun} of {len(seeds)} seeds run" if begun else "not run"
        elif any((folder / runs.FAILED).is_file() for folder in folders):
            missing[cell] = f"stopped: {runs.FAILED} of its run says why"
        elif finished and not all(map(runs.is_finished, folders)):
            missing[cell] = "not finished"
    return missing
