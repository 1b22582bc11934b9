"""Try what `fedsift advise` answers where the frontier was not made, beside what it passed over.

    python tools/try_advice.py --out advice data.name=fashion-mnist data.test=700 \\
        "clients.model=cnn(width=0.25)"

For each number of bytes it asks with and without naming the skew, and runs what is advised with the
recipe of the digits. Beside that run the other methods of the frontier that fit, those that were
best there first.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from fedsift import config, runs
from fedsift.engines import choose_engine
from fedsift.models import initial_state
from fedsift.papers.sift import PAPER
from fedsift.papers.sift.advice import Question, advise, make_settings, rank_methods
from fedsift.papers.sift.measured import Point, Setting, read_measured
from fedsift.reproduction.plans import Cell, Plan

LAST = 5  # rounds whose mean counts, as in the study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="+", help="of the setting: data.name=... and others")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs; it resumes")
    parser.add_argument("--bytes", type=int, nargs="+", default=[150, 600, 5000])
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", type=int, default=4, help="how many are run at most, each")
    parser.add_argument("--seconds", type=float, help="stop after so many; the same resumes")
    given = parser.parse_args()
    trial = Trial(given.out, tuple(given.overrides), given.first_seed, given.seeds)
    found = {
        (bytes_, alpha): trial.choose_points(bytes_, alpha, given.methods)
        for bytes_ in given.bytes
        for alpha in given.alpha
    }
    cells = [cell for of in found.values() for cell in of]
    if left := trial.run_missing(cells, given.seconds):
        print(f"{left} runs are not finished; the same command resumes them")
        return
    print("| bytes | alpha | setting | accuracy | largest upload |")
    print("|---|---|---|---|---|")
    for (bytes_, alpha), of in found.items():
        for cell, label in of.items():
            accuracy, largest = trial.read_runs(cell)
            print(f"| {bytes_:,} | {alpha:g} | {label} | {accuracy:.3f} | {largest:,} B |")


@dataclass(frozen=True)
class Capped:
    """A curve at one skew, with the cap on bytes that suits the model, if it has one."""

    cell: Cell
    cap: int | None

    @property
    def name(self) -> str:
        cap = "" if self.cap is None else f"-bytes-{self.cap}"
        return f"{self.cell.curve}{cap}-alpha-{self.cell.alpha:g}"


@dataclass(frozen=True)
class Trial:
    out: Path
    overrides: tuple[str, ...]
    first_seed: int
    seeds: int

    @cached_property
    def measured(self) -> list[Setting]:
        return read_measured()

    @cached_property
    def setting(self) -> Setting:
        return next(setting for setting in self.measured if setting.name == PAPER.quick)

    def choose_points(self, bytes_: int, alpha: float, most: int) -> dict[Capped, str]:
        """What is advised, then the best of other methods; and what a table calls them."""
        clients = config.build_clients(self.plan().experiment(Cell("fedavg", alpha), 0))
        (model,) = clients.models
        weights = sum(value.numel() for value in initial_state(model, 0).values())
        question = Question(bytes_, len(clients), model.classes, weights=weights)
        named = replace(question, alpha=alpha)
        notes: dict[str, list[str]] = {}
        for asked, note in ((question, "advised"), (named, "advised where the skew is named")):
            notes.setdefault(advise(asked, self.measured, PAPER).method, []).append(note)
        ranked = rank_methods(question, self.setting, alpha)
        ranked.sort(key=lambda point: point.method not in notes)
        return {
            self.cap(question, point): " ".join(
                [point.label, *(f"({note})" for note in notes.get(point.method, []))]
            )
            for point in ranked[:most]
        }

    def cap(self, question: Question, point: Point) -> Capped:
        values = make_settings(question, self.setting, point, PAPER)
        return Capped(Cell(point.curve, point.alpha), values["algorithm"].get("bytes"))

    def plan(self, *more: str) -> Plan:
        overrides = (*self.overrides, *more)
        return Plan(PAPER, self.setting.name, self.setting.recipe, overrides=overrides)

    def folders(self, cell: Capped) -> dict[int, Path]:
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return {seed: self.out / f"{cell.name}-seed-{seed}" for seed in seeds}

    def run_missing(self, cells: list[Capped], seconds: float | None) -> int:
        """Run what is missing for so many seconds; how many runs are left."""
        experiments = {}
        for cell in dict.fromkeys(cells):
            plan = self.plan(*(() if cell.cap is None else (f"algorithm.bytes={cell.cap}",)))
            for seed, folder in self.folders(cell).items():
                experiments[folder] = plan.experiment(cell.cell, seed)
        engine, why = choose_engine()
        group = runs.Group(experiments)
        group.begin(resume=True, note=why)
        for _ in group.run_or_raise(engine, seconds=seconds):
            pass
        return len(group.unfinished)

    def read_runs(self, cell: Capped) -> tuple[float, int]:
        """The mean accuracy of the last rounds, and the largest upload."""
        histories = [runs.load_run(folder) for folder in self.folders(cell).values()]
        accuracy = fmean(fmean(history.accuracies[-LAST:]) for history in histories)
        return accuracy, max(max(row.up.values()) for of in histories for row in of.ledger)


if __name__ == "__main__":
    main()
