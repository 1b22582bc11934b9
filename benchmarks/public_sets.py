"""What a public set of the wrong kind costs: the accuracy of FAS with public samples of four kinds.

    python benchmarks/public_sets.py [--seeds 3]

own        held-out samples of the same data
shuffled   generated: every column (or pixel) drawn by itself from the held-out samples
noise      generated: every column evenly between its lowest and highest value
swapped    images of another kind: the quarters of each held-out image change places

Private and test samples are the same with all of them. Inputs are standardised by the public set.
Each line is the mean over the last five of eight rounds, and its deviation over the seeds.
"""

import argparse
from dataclasses import replace

import numpy as np

import fedsift
from fedsift.data import Dataset
from fedsift.types import Array

TEST, ROUNDS = 130, 8


def shuffle(x: Array, rng: np.random.Generator) -> Array:
    flat = x.reshape(len(x), -1)
    return rng.permuted(flat, axis=0).reshape(x.shape)


def make_noise(x: Array, rng: np.random.Generator) -> Array:
    low, high = x.min(0), x.max(0)
    return (low + (high - low) * rng.random(x.shape)).astype(np.float32)


def swap_quarters(x: Array, rng: np.random.Generator) -> Array:
    return np.roll(x, (x.shape[2] // 2, x.shape[3] // 2), (2, 3))


KINDS = {"own": lambda x, rng: x, "shuffled": shuffle, "noise": make_noise}


def replace_public(data: Dataset, private: int, public: int, seed: int, kind: str) -> Dataset:
    """The same data with public samples made from those that would have been public."""
    task = fedsift.split(data, private, public, TEST, seed, "standard")
    rows = task.public.rows
    make = swap_quarters if kind == "swapped" else KINDS[kind]
    made = make(data.x[rows].astype(np.float32), np.random.default_rng(seed))
    return replace(data, x=data.x.astype(np.float32), public=made)


def measure(data: Dataset, model: str, clients: int, sizes: tuple[int, int], seed: int) -> float:
    task = fedsift.split(data, *sizes, TEST, seed, "standard")
    how = fedsift.Dirichlet(1.0)
    made = fedsift.make_clients(task.private, clients, how, model=model, seed=seed)
    fas = fedsift.fas(sizes[1] // 3)
    records = fedsift.federate(fas, made, task, rounds=ROUNDS, cohort=clients, seed=seed)
    return float(np.mean([record.accuracy for record in records][-5:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    table, images = (fedsift.load_dataset(name) for name in ("breast-cancer", "digits"))
    for name, data, model, clients, sizes, kinds in (
        ("breast cancer", table, "mlp", 4, (300, 130), list(KINDS)),
        ("digits", images, "cnn", 8, (800, 100), [*KINDS, "swapped"]),
    ):
        for kind in kinds:
            found = [
                measure(replace_public(data, *sizes, seed, kind), model, clients, sizes, seed)
                for seed in seeds
            ]
            print(f"{name}, {kind}: {np.mean(found):.3f} ± {np.std(found, ddof=1):.3f}", flush=True)


if __name__ == "__main__":
    main()
