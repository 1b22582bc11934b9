"""Try what `fedsift advise` answers where the frontier was not made, beside what it passed over.

    python tools/try_advice.py --out advice data.name=fashion-mnist data.test=700 \\
        "clients.model=cnn(width=0.25)"

For each number of bytes it asks with and without naming the skew, and runs what is advised. Beside
that run the other methods of the frontier that fit, those that were best there first.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from fedsift import config, runs
from fedsift.engines import choose_engine
from fedsift.models import initial_state
from fedsift.papers.sift import PAPER
from fedsift.papers.sift.advice import Question, advise, rank_methods
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
    parser.add_argument("--seconds", type=float, help="stop after so many; the same resumes")
    parser.add_argument("--methods", type=int, default=4, help="how many are run at most, each")
    given = parser.parse_args()
    setting, *_ = read_measured()
    plan = Plan(PAPER, setting.name, setting.recipe, overrides=tuple(given.overrides))
    points = {
        (bytes_, alpha): choose_points(setting, plan, bytes_, alpha, given.methods)
        for bytes_ in given.bytes
        for alpha in given.alpha
    }
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    folders = {
        (point.curve, alpha): {
            seed: given.out / f"{point.curve}-alpha-{alpha:g}-seed-{seed}" for seed in seeds
        }
        for (_, alpha), found in points.items()
        for point in found
    }
    if left := run_missing(plan, folders, given.seconds):
        print(f"{left} runs are not finished; the same command resumes them")
        return
    print("| bytes | alpha | setting | accuracy | largest upload |")
    print("|---|---|---|---|---|")
    for (bytes_, alpha), found in points.items():
        for point, label in found.items():
            accuracy, largest = read_runs(list(folders[point.curve, alpha].values()))
            print(f"| {bytes_:,} | {alpha:g} | {label} | {accuracy:.3f} | {largest:,} B |")


def choose_points(
    setting: Setting, plan: Plan, bytes_: int, alpha: float, most: int
) -> dict[Point, str]:
    """What is advised, then the best of other methods; and what a table calls them."""
    experiment = plan.experiment(Cell("fedavg", alpha), 0)
    clients = config.build_clients(experiment)
    (model,) = clients.models
    weights = sum(value.numel() for value in initial_state(model, 0).values())
    question = Question(bytes_, len(clients), model.classes, weights=weights)
    named = replace(question, alpha=alpha)
    notes: dict[str, list[str]] = {}
    for asked, note in ((question, "advised"), (named, "advised where the skew is named")):
        notes.setdefault(advise(asked, [setting], PAPER).method, []).append(note)
    ranked = rank_methods(question, setting, alpha)
    ranked.sort(key=lambda point: point.method not in notes)
    return {
        point: " ".join([point.label, *(f"({note})" for note in notes.get(point.method, []))])
        for point in ranked[:most]
    }


def run_missing(
    plan: Plan, folders: dict[tuple[str, float], dict[int, Path]], seconds: float | None
) -> int:
    """Run what is missing for so many seconds; how many runs are left."""
    experiments = {
        folder: plan.experiment(Cell(curve, alpha), seed)
        for (curve, alpha), of in folders.items()
        for seed, folder in of.items()
    }
    engine, why = choose_engine()
    group = runs.Group(experiments)
    group.begin(resume=True, note=why)
    for _ in group.run_or_raise(engine, seconds=seconds):
        pass
    return len(group.unfinished)


def read_runs(folders: list[Path]) -> tuple[float, int]:
    """The mean accuracy of the last rounds, and the largest upload."""
    histories = [runs.load_run(folder) for folder in folders]
    accuracy = fmean(fmean(history.accuracies[-LAST:]) for history in histories)
    return accuracy, max(max(row.up.values()) for history in histories for row in history.ledger)


if __name__ == "__main__":
    main()
