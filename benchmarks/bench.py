"""What the foundation costs on this machine: index codes, start-up, and the engine against the plain loop.

    make bench            (or: python benchmarks/bench.py --json)

Every comparison is made in the same run, repeated, and reported as the median with the lowest and highest value.
Ratios are paired: the two sides of each repeat are measured one after the other.
"""

import argparse
import json
import subprocess
import sys
import time
from math import comb, log2
from statistics import median

import numpy as np
import torch

from fedsift import runs, training
from fedsift.codecs import indexes
from fedsift.engines.sequential import Sequential
from fedsift.models import initial_state, model
from fedsift.types import Fit, Labelled, Recipe, Samples, Store

REPEATS = 5


def seconds(work, *arguments):
    begun = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begun


def spread(values, digits=4):
    return {
        "median": round(median(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
    }


def index_codes():
    rows = []
    for population, size in ((500, 60), (2_000, 400), (8_000, 2_000), (1_000_000, 100_000)):
        sets = [np.sort(np.random.default_rng(s).choice(population, size, replace=False)) for s in range(REPEATS)]
        codes = [indexes.encode(chosen, population) for chosen in sets]
        ideal = log2(comb(population, size))
        rows.append(
            {
                "indexes": f"{size:,} of {population:,}",
                "bytes": len(codes[0]),
                "over_ideal_percent": round(100 * (max(map(len, codes)) * 8 / ideal - 1), 3),
                "encode_s": spread([seconds(indexes.encode, c, population) for c in sets]),
                "decode_s": spread([seconds(indexes.decode, c, population, size) for c in codes]),
            }
        )
    return rows


def start_up():
    command = [sys.executable, "-m", "fedsift", "--help"]
    return spread([seconds(lambda: subprocess.run(command, capture_output=True, check=True)) for _ in range(REPEATS)])


def cohort(name, shape, samples, clients, recipe):
    """A round's local training: one Fit a client on random images."""
    net = model(name, shape, 10)
    generator = np.random.default_rng(0)
    store = Store(
        torch.from_numpy(generator.random((clients * samples, *shape), np.float32)), torch.zeros(1), torch.ones(1)
    )
    targets = torch.eye(10)[torch.from_numpy(generator.integers(0, 10, clients * samples))]
    everything, state = Labelled(Samples(store, np.arange(clients * samples)), targets), initial_state(net, 0)
    return [
        Fit(net, state, everything[np.arange(i * samples, (i + 1) * samples)], recipe, (0, "bench", i))
        for i in range(clients)
    ]


def plain_loop(jobs):
    """What everyone writes: client after client, torch's defaults, one thread."""
    for job in jobs:
        net = job.model.build()
        net.load_state_dict(job.state)
        x, targets = job.data.samples.tensor(), job.data.targets
        optimizer = torch.optim.Adam(net.parameters(), job.recipe.lr)
        for batches in training.batches(job.recipe, len(job.data), job.key):
            for batch in map(torch.from_numpy, batches):
                optimizer.zero_grad()
                training.loss(net(x[batch]), targets[batch]).backward()
                optimizer.step()


def engine():
    rows = []
    one, all_cores = Sequential("cpu", threads=1), Sequential("cpu")
    for name, shape, samples, clients, recipe in (
        ("cnn", (1, 8, 8), 40, 20, Recipe(epochs=3, batch=16)),
        ("resnet8", (3, 32, 32), 100, 20, Recipe(epochs=1, batch=8)),
    ):
        jobs = cohort(name, shape, samples, clients, recipe)
        steps = sum(len(epoch) for job in jobs for epoch in training.batches(recipe, samples, job.key))
        one.run(jobs[:1]), all_cores.run(jobs[:2])  # warm
        times: dict[str, list[float]] = {"plain loop": [], "engine, 1 thread": [], "engine": []}
        for _ in range(REPEATS):
            times["plain loop"].append(seconds(plain_loop, jobs))
            times["engine, 1 thread"].append(seconds(one.run, jobs))
            times["engine"].append(seconds(all_cores.run, jobs))
        for way, measured in times.items():
            ratios = [plain / mine for plain, mine in zip(times["plain loop"], measured, strict=True)]
            per_step = spread([1000 * t / steps for t in measured], 3)
            rows.append(
                {"model": name, "way": way, "ms_per_model_step": per_step, "times_plain_loop": spread(ratios, 2)}
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "machine": runs.environment(),
        "index_codes": index_codes(),
        "help_s": start_up(),
        "engine": engine(),
    }
    if wanted.json:
        print(json.dumps(result))
        return
    for section, content in result.items():
        print(f"\n{section}")
        for row in content if isinstance(content, list) else [content]:
            print("  " + "  ".join(f"{key}: {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
