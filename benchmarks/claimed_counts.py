"""What a cap on claimed sample counts costs honest clients, and what it takes from a liar.

    python benchmarks/claimed_counts.py

Honest: 20 clients of very unequal sizes, 8 in a round. Hostile: one of five turns its update round
and claims 2^32 - 1 samples. FedAvg on the digits; the mean accuracy of the last three rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import numpy as np

import fedsift
from fedsift.algorithms import averages

CAPS = (3, 10, 2**32)  # lower medians; the last one caps nobody


def measure(seed: int, clients: int, cohort: int, rounds: int, partition: str, **hostile: object):
    task = fedsift.split(fedsift.load_dataset("digits"), private=800, public=500, seed=seed)
    parts = fedsift.make_clients(task.private, clients, partition, model="cnn", seed=seed)
    options = {"rounds": rounds, "cohort": cohort, "seed": seed, **hostile}
    return last_of(fedsift.federate(fedsift.fedavg(), parts, task, **options))


def last_of(records: Iterable[fedsift.Record]) -> float:
    return float(np.mean([record.accuracy for record in records][-3:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    lie = {"attack": "inflated-counts", "attackers": 0.2}
    for most in CAPS:
        averages.MOST = most
        honest = [measure(seed, 20, 8, 10, "dirichlet-free(0.1)") for seed in seeds]
        hostile = [measure(seed, 5, 5, 8, "dirichlet(1)", **lie) for seed in seeds]
        for what, found in (("honest", honest), ("1 of 5 lies", hostile)):
            each = " ".join(f"{accuracy:.3f}" for accuracy in found)
            print(f"cap {most:>10}  {what:<12} {np.mean(found):.4f}  ({each})", flush=True)


if __name__ == "__main__":
    main()
