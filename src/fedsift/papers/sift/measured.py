"""The measured frontier as it comes with the package: a small file made from committed reports.

`pack_reports` makes it (tools/pack_frontier.py writes it), `read_measured` reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedsift import config
from fedsift.algorithms.sift import Sift
from fedsift.algorithms.weights import FedAvg
from fedsift.papers.sift.items import FEDAVG
from fedsift.reproduction.paper import Paper
from fedsift.reproduction.plans import Cell, Plan
from fedsift.types import UserError

FILE = "measured.json"
ITEM = "frontier"
LABELS, WEIGHTS = "labels", "weights"
CLASSES = 10  # of every setting of the study
SIZE = re.compile(r"[\d,]+ B")


@dataclass(frozen=True)
class Point:
    """A curve at one skew: what it reached, and the bytes of an upload."""

    curve: str
    label: str
    alpha: float
    accuracy: float
    sd: float | None
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
    files = sorted(results.glob(f"*-{paper.recipe}/{ITEM}.json"))
    packed = [_pack(paper, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    order = {name: n for n, name in enumerate(paper.settings)}
    packed.sort(key=lambda setting: order[setting.name])
    return json.dumps([asdict(setting) for setting in packed], indent=1) + "\n"


def _pack(paper: Paper, report: Mapping[str, Any]) -> Setting:
    plan = Plan(paper, report["setting"], report["recipe"])
    clients = plan.experiment(Cell(FEDAVG, 1.0), 0).clients
    whole = [cell["uplink_bytes_per_upload"] for cell in report["cells"] if cell["curve"] == FEDAVG]
    return Setting(
        report["setting"],
        report["recipe"],
        clients.count,
        clients.cohort,
        CLASSES,
        whole[0] // 4 if whole else None,  # in float32
        report["rounds"],
        report["seeds"],
        report["environment"]["commit"],
        tuple(_pack_cell(cell, plan) for cell in report["cells"]),
    )


def _pack_cell(cell: Mapping[str, Any], plan: Plan) -> Point:
    return Point(
        cell["curve"],
        cell["label"],
        cell["alpha"],
        cell["accuracy"],
        cell["sd"],
        cell["uplink_bytes_largest"],
        cell["uplink_bytes_per_upload"],
        _find_uploads(cell, plan),
    )


def _find_uploads(cell: Mapping[str, Any], plan: Plan) -> str:
    """What clients upload. Where sift chooses it itself, its runs tell: labels can be right."""
    experiment = plan.experiment(Cell(cell["curve"], cell["alpha"]), 0)
    made = config.build_algorithm(experiment)
    if isinstance(made, Sift):
        if made.mode in (LABELS, WEIGHTS):
            return made.mode
        return WEIGHTS if cell["labels_right"] is None else LABELS
    return WEIGHTS if isinstance(made, FedAvg) else LABELS
