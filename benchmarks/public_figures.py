"""What it costs to standardise by figures of the public set alone, beside figures of all data.

    python benchmarks/public_figures.py [--seeds 5]

Prints accuracy (mean of the last five of eight rounds) and its standard deviation over seeds, for
the digits and, where scikit-learn is installed, for the breast-cancer table.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch

import fedsift
from fedsift.data import NORMALISATIONS, Dataset, Task
from fedsift.types import Labelled, Samples


def pool_figures(task: Task) -> Task:
    """The same task, standardised by its private and public samples together."""
    store = task.public.store
    rows = np.concatenate([task.private.samples.rows, task.public.rows])
    mean, std = NORMALISATIONS["standard"](store.values[torch.from_numpy(rows)].numpy())
    new = replace(store, mean=mean, std=std)

    def move(samples: Samples) -> Samples:
        return Samples(new, samples.rows)

    def move_labelled(part: Labelled) -> Labelled:
        return Labelled(move(part.samples), part.targets)

    return replace(
        task,
        private=move_labelled(task.private),
        public=move(task.public),
        held_out=move_labelled(task.held_out),
    )


def measure(task: Task, model: str, clients: int, seed: int) -> float:
    made = fedsift.make_clients(
        task.private, clients, fedsift.Dirichlet(1.0), model=model, seed=seed
    )
    budget = max(1, len(task.public) // 3)
    records = fedsift.federate(fedsift.fas(budget), made, task, rounds=8, cohort=clients, seed=seed)
    return float(np.mean([record.accuracy for record in records][-5:]))


def load_breast_cancer() -> Dataset | None:
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError:
        return None
    x, y = load_breast_cancer(return_X_y=True)
    return fedsift.make_dataset(x, y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    cases = [("breast cancer", load_breast_cancer(), "mlp", 4, 300, (10, 30, 130))]
    cases += [("digits", fedsift.load_dataset("digits"), "cnn", 8, 800, (20, 100, 500))]
    for name, data, model, clients, private, sizes in cases:
        if data is None:
            continue
        for public in sizes:
            tasks = [fedsift.split(data, private, public, 130, s, "standard") for s in seeds]
            found = {
                "public": [
                    measure(t, model, clients, s) for s, t in zip(seeds, tasks, strict=True)
                ],
                "pooled": [
                    measure(pool_figures(t), model, clients, s)
                    for s, t in zip(seeds, tasks, strict=True)
                ],
            }
            gaps = np.subtract(found["public"], found["pooled"])
            told = "  ".join(
                f"{k} {np.mean(v):.3f} ± {np.std(v, ddof=1):.3f}" for k, v in found.items()
            )
            print(
                f"{name}, {public} public: {told}  gap {gaps.mean():+.3f} ± {gaps.std(ddof=1):.3f}"
            )


if __name__ == "__main__":
    main()
