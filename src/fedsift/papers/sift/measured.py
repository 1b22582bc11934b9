"""The measured frontier as it comes with the package: a small file made from committed reports.

`pack_reports` makes it (tools/pack_frontier.py writes it), `read_measured` reads it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any

from fedsift import config
from fedsift.algorithms.sift import Sift
from fedsift.algorithms.weights import FedAvg
from fedsift.papers.sift.items import FEDAVG, NAMES
from fedsift.reproduction.paper import Paper
from fedsift.reproduction.plans import Cell, Plan
from fedsift.types import UserError

FILE = "measured.json"
ITEMS = ("frontier", "main")  # reports that are packed; where both have a cell, the first
LABELS, WEIGHTS = "labels", "weights"
CLASSES = 10  # of every setting of the study
SIZE = re.compile(r"[\d,]+ B")
# What curves were measured with where their files say something else today: by data set, commit of
# the packed reports, and curve. An entry goes when the reports are made again.
CHANGED: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("cifar10", "54665f0-dirty"): {"sift-1500": {"local.milestones": [180, 300]}}
}


@dataclass(frozen=True)
class Point:
    """A curve at one skew: what it reached, and the bytes of an upload."""

    curve: str
    label: str
    alpha: float
    accuracy: float
    sd: float | None
    half: float  # the accuracy half-way: the mean of five rounds that end there
    bytes: int  # of the largest upload
    mean_bytes: int
    uploads: str  # "labels" or "weights"

    @property
    def method(self) -> str:
        """The label without the bytes: what is the same at every budget."""
        words = self.label.split(", ")
        return ", ".join(word for word in words if not SIZE.fullmatch(word))


@dataclass(frozen=True)
class Setting:
    """What was measured in one setting, and with what."""

    name: str
    recipe: str
    clients: int
    cohort: int
    classes: int
    weights: int | None  # of the model, where plain FedAvg was measured
    rounds: int
    seeds: int
    commit: str
    points: tuple[Point, ...]

    def find_changes(self, curve: str) -> dict[str, Any]:
        """Keys in which a curve was measured with another value than its file has today."""
        return CHANGED.get((self.name, self.commit), {}).get(curve, {})


def read_measured() -> list[Setting]:
    """The settings that come with the package; none until a frontier has been committed."""
    try:
        content = json.loads((resources.files(__package__) / FILE).read_text(encoding="utf-8"))
        return [
            Setting(**(one | {"points": tuple(Point(**point) for point in one["points"])}))
            for one in content
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{FILE} of fedsift is damaged ({error}); install fedsift again") from None


def pack_reports(paper: Paper, results: Path) -> str:
    """The content of the file, from the reports on the frontier below a folder of results."""
    packed = []
    for name in paper.settings:
        files = [results / f"{name}-{paper.recipe}" / f"{item}.json" for item in ITEMS]
        reports = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
        if reports:
            packed.append(_pack(paper, reports))
    return json.dumps([asdict(setting) for setting in packed], indent=1) + "\n"


def _pack(paper: Paper, reports: Sequence[Mapping[str, Any]]) -> Setting:
    first = reports[0]
    plan = Plan(paper, first["setting"], first["recipe"])
    clients = plan.experiment(Cell(FEDAVG, 1.0), 0).clients
    cells: dict[tuple[str, float], Mapping[str, Any]] = {}
    for report in reports:
        for cell in report["cells"]:
            cells.setdefault((cell["curve"], cell["alpha"]), cell)
    whole = [cell["uplink_bytes_per_upload"] for (name, _), cell in cells.items() if name == FEDAVG]
    return Setting(
        first["setting"],
        first["recipe"],
        clients.count,
        clients.cohort,
        CLASSES,
        whole[0] // 4 if whole else None,  # in float32
        first["rounds"],
        min(report["seeds"] for report in reports),
        ", ".join(dict.fromkeys(report["environment"]["commit"] for report in reports)),
        tuple(_pack_cell(cell, plan) for cell in cells.values()),
    )


def _pack_cell(cell: Mapping[str, Any], plan: Plan) -> Point:
    return Point(
        cell["curve"],
        NAMES.get(cell["curve"], cell["label"]),
        cell["alpha"],
        cell["accuracy"],
        cell["sd"],
        find_half(cell["by_round"]),
        cell["uplink_bytes_largest"],
        cell["uplink_bytes_per_upload"],
        _find_uploads(cell, plan),
    )


def find_half(by_round: Sequence[Sequence[float]]) -> float:
    """The mean over seeds of the five rounds that end half-way."""
    ends = [math.ceil(len(rounds) / 2) for rounds in by_round]
    means = [fmean(rounds[max(0, n - 5) : n]) for rounds, n in zip(by_round, ends, strict=True)]
    return round(fmean(means), 6)


def _find_uploads(cell: Mapping[str, Any], plan: Plan) -> str:
    """What clients upload. Where sift chooses it itself, its runs tell: labels can be right."""
    experiment = plan.experiment(Cell(cell["curve"], cell["alpha"]), 0)
    made = config.build_algorithm(experiment)
    if isinstance(made, Sift):
        if made.mode in (LABELS, WEIGHTS):
            return made.mode
        return WEIGHTS if cell["labels_right"] is None else LABELS
    return WEIGHTS if isinstance(made, FedAvg) else LABELS
