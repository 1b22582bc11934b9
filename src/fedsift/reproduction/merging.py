"""Cells of an earlier report in a new one: a study may be run in parts, on several machines."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from fedsift.reproduction.plans import Cell
from fedsift.types import UserError

NEEDED = ("by_seed", "by_round", "label", "uplink_bytes_per_upload", "uplink_bytes_largest")
MADE = ("fedsift", "commit", "gpu", "processor")  # what is told of where they were run


def find_kept(
    earlier: Mapping[str, Any], wanted: Container[Cell], seeds: Sequence[int], rounds: int
) -> dict[Cell, dict[str, Any]]:
    """The cells of an earlier report that are wanted; all have the same seeds and rounds."""
    first = earlier.get("first_seed", 0)
    if (first, earlier["seeds"], earlier["rounds"]) != (seeds[0], len(seeds), rounds):
        raise UserError(
            f"the earlier report is on {earlier['seeds']} seeds from {first} on and"
            f" {earlier['rounds']} rounds, this one on {len(seeds)} from {seeds[0]} on and {rounds}"
        )
    found = {Cell(cell["curve"], cell["alpha"]): cell for cell in earlier["cells"]}
    kept = {
        cell: {key: value for key, value in of.items() if key != "gap"}
        for cell, of in found.items()
        if cell in wanted
    }
    for cell, of in kept.items():
        if lacking := [key for key in NEEDED if key not in of]:
            raise UserError(f"the earlier report lacks {', '.join(lacking)} of {cell}")
    return kept


def describe_source(
    earlier: Mapping[str, Any], kept: Mapping[Cell, Mapping[str, Any]]
) -> dict[str, Any]:
    """Where the cells that were not run here come from, and where those before them came from."""
    made = {key: earlier["environment"].get(key) for key in MADE}
    source = made | {"command": earlier["command"], "minutes": earlier["minutes"]}
    before = earlier.get("merged", [])
    still = [one | {"cells": _only(one["cells"], kept)} for one in before]
    older = {cell for one in still for cell in one["cells"]}
    own = [str(cell) for cell in kept if str(cell) not in older]
    return {"merged": [one for one in still if one["cells"]] + [source | {"cells": own}]}


def _only(names: Sequence[str], kept: Mapping[Cell, Any]) -> list[str]:
    known = {str(cell) for cell in kept}
    return [name for name in names if name in known]


def list_sources(report: Mapping[str, Any]) -> list[str]:
    """A line for each earlier report that cells were taken from."""
    return [
        line
        for one in report.get("merged", [])
        for line in (
            "",
            f"From an earlier run (commit {one['commit']}, {one['gpu'] or one['processor']}): "
            f"{', '.join(one['cells'])}.",
        )
    ]
