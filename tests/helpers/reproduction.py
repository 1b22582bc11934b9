"""Plans, runs and reports made by hand, for the tests of reproductions."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from fedsift import config, runs
from fedsift.papers.fas_icc2022 import PAPER
from fedsift.reproduction import reports
from fedsift.reproduction.paper import Item
from fedsift.reproduction.plans import Cell, Plan, run_folder
from fedsift.reproduction.verdicts import Above, Claim

make_plan = partial(Plan, PAPER)

A, B, C, D = (Cell(name, 0.1) for name in "abcd")


DIGITS, CIFAR, LITERAL = (
    make_plan("digits", "ours", 3),
    make_plan("cifar10", "ours", 3),
    make_plan("cifar10", "literal", 3),
)


def by_hand(**cells: list[float]) -> dict[Cell, list[float]]:
    """One figure per seed, of cells at alpha = 0.1."""
    return {Cell(name, 0.1): values for name, values in cells.items()}


def write_run(
    out: Path,
    plan: Plan,
    cell: Cell,
    seed: int,
    accuracies: list[float],
    up: tuple[int, ...] = (10, 30),
) -> None:
    """A run folder by hand: in every round, clients upload as many bytes as `up` says."""
    folder = run_folder(out, cell, seed)
    folder.mkdir(parents=True)
    told = {str(client): size for client, size in enumerate(up)}
    rows: dict[str, list[Any]] = {
        runs.METRICS: [
            {"round": n, "accuracy": a, "accuracies": {"cnn": a}} for n, a in enumerate(accuracies)
        ],
        runs.LEDGER: [
            {"round": n, "up": told, "down": told, "broadcast": 1} for n in range(len(accuracies))
        ],
        runs.TIMING: [{"round": n, "seconds": 6.0} for n in range(len(accuracies))],
    }
    for name, lines in rows.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / runs.CONFIG).write_text(config.to_toml(plan.experiment(cell, seed)))
    (folder / runs.CLIENTS).write_text("[]")
    (folder / runs.ENVIRONMENT).write_text('{"engine": "by hand", "torch": "9", "home": "/secret"}')


NONE, MIXED = Cell("table1-none", 0.1), Cell("table1-mixed", 0.1)
PACE = Claim("mixed is faster", (Above(MIXED, NONE),), figure="pace")
LEVEL = Claim("mixed ends higher", (Above(MIXED, NONE),))


def an_item(*claims: Claim, published: dict[Cell, float] | None = None) -> Item:
    return Item(
        "Two cells",
        lambda plan: [NONE, MIXED],
        lambda plan: list(claims),
        published or {},
        layout="table",
    )


def a_report(**changes: Any) -> dict[str, Any]:
    """Two curves at two alphas, one cell of which is not there."""

    def cell(
        label: str, alpha: float, accuracy: float, sd: float | None, paper: float | None
    ) -> dict[str, Any]:
        by_round = [[0.2, 0.4, 0.6], [0.4, 0.8, 0.8]]
        return {
            "label": label,
            "alpha": alpha,
            "budget": 60,
            "public": 1500,
            "accuracy": accuracy,
            "sd": sd,
            "paper": paper,
            "uplink_bytes_per_upload": 2418,
            "uplink_bytes_largest": 2500,
            "by_round": by_round,
        }

    return {
        "item": "made-up",
        "title": "Table 0",
        "layout": "table",
        "setting": "digits",
        "recipe": "ours",
        "seeds": 2,
        "rounds": 3,
        "planned": 3,
        "command": "fedsift reproduce made-up",
        "environment": {"fedsift": "0.1.0", "commit": "abc1234", "gpu": None, "processor": "A CPU"},
        "cells": [
            cell("none", 100.0, 0.68254, 0.0104, 0.6835),
            cell("none", 0.1, 1.0, 0.0, None),
            cell("mixed", 0.1, 0.05, 0.1, 0.468),
        ],
        "unfinished": {},
        "left_out": {"mixed at alpha = 100": "no such file: x.npz"},
        "claims": [
            {
                "claim": "mixed is better",
                "verdict": "open",
                "decided_by": 1,
                "evidence": [
                    {"comparison": "a above b", "verdict": "holds", "gap": 0.1, "sd": 0.0},
                    {
                        "comparison": "mixed above none",
                        "verdict": "open",
                        "gap": -0.0504,
                        "gaps": [-0.064542, -0.036258],
                        "sd": 0.02,
                        "paper": 0.0036,
                    },
                    {"comparison": "a above c", "verdict": "not run"},
                ],
            }
        ],
    } | changes


RESULTS = Path(__file__).parents[2] / "results"


def list_committed(paper):
    """Names of its committed reports, SETTING-RECIPE/ITEM."""
    files = (RESULTS / paper.name).glob("*/*.json")
    return sorted(f"{file.parent.name}/{file.stem}" for file in files)


def check_committed(paper, name):
    """It is still read, and rendered to the committed text."""
    file = RESULTS / paper.name / name
    setting, recipe = file.parent.name.split("-")
    report = reports.read_report(Plan(paper, setting, recipe), file.name, file.parent)
    assert report == json.loads(file.with_suffix(".json").read_text())
    text = reports.markdown(report, paper.items[file.name])
    assert text.encode() == file.with_suffix(".md").read_bytes()
