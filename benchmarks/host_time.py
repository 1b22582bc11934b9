"""What a round costs beside training: runs of `fedsift reproduce sift main` in lockstep, on an
engine that answers at once.

PYTHONPATH=src python benchmarks/host_time.py [--seeds 2] [--rounds 3] [--json] [--stacks]

Images are random, of CIFAR-10's number and size. A `Fit` is answered by weights that have moved a
little, a `Predict` by outputs that are right two times out of three. The time of the engine itself
is not counted. Parts are CPU time of the thread that does them, without the parts inside.
"""

import argparse
import cProfile
import hashlib
import json
import pstats
import tempfile
import threading
import time
from collections import Counter
from functools import wraps
from pathlib import Path
from statistics import median

import numpy as np
import torch

from fedsift import evaluation, runs
from fedsift.algorithms import averages, soft_label_downlink, soft_labels, weight_downlink
from fedsift.algorithms import soft_label_uplink as uplink
from fedsift.algorithms import weights as weight_algorithms
from fedsift.engines.malloc import keep_memory
from fedsift.papers import PAPERS
from fedsift.reproduction.plans import Cell, Plan
from fedsift.runs.run import Run
from fedsift.types import Predict

CURVES = "sift-1500,sift-9000,fedavg-parts,fedpaq-4-parts,cfd-parts,ds-fl-parts"
ALPHAS = "0.1,1"
BOTH = (soft_labels.SoftLabelFD, weight_algorithms.FedAvg)
PARTS = {
    "prepare downloads": [(kind, "prepare_downloads") for kind in BOTH],
    "read downloads": [
        (weight_downlink.WeightDownlink, "decode"),
        (soft_label_downlink.SoftLabelDownlink, "decode"),
    ],
    "pick samples": [(uplink.SoftLabelUplink, "_pick")],
    "encode uploads": [(kind, "encode_answer") for kind in BOTH],
    "read uploads": [(kind, "check_upload") for kind in BOTH],
    "join uploads": [(averages.Averaging, "average"), (soft_labels, "run_and_judge")],
    "soft labels of logits": [(soft_labels, "softmax")],
    "metrics": [(evaluation, name) for name in ("accuracy", "disagreement", "measure_quality")],
    "write files": [(Run, "write")],
}


class Clock:
    """CPU seconds by part, of all threads; a part inside a part is not counted twice."""

    def __init__(self):
        self.seconds, self._lock, self._mine = Counter(), threading.Lock(), threading.local()

    def watch(self, part, owner, name):
        inner = getattr(owner, name)

        @wraps(inner)
        def timed(*args, **kwargs):
            stack = self._mine.__dict__.setdefault("stack", [])
            stack.append(0.0)
            begun = time.thread_time()
            try:
                return inner(*args, **kwargs)
            finally:
                took, below = time.thread_time() - begun, stack.pop()
                if stack:
                    stack[-1] += took
                with self._lock:
                    self.seconds[part] += took - below

        setattr(owner, name, timed)


class AnswersAtOnce:
    """An engine without training: jobs are answered by what a training might have given."""

    def __init__(self, images, classes=10):
        self.seconds = 0.0
        keep_memory()  # as every engine does
        generator = np.random.default_rng(0)
        noise = generator.normal(size=(8, images, classes)).astype(np.float32)
        noise[:, np.arange(images), np.arange(images) % classes] += 1.5
        self._logits, self._noise = noise, torch.from_numpy(generator.normal(size=2**21)).float()

    def describe(self, model):
        return "answers at once"

    def run(self, jobs):
        begun = time.perf_counter()
        answers = [self._answer(job) for job in jobs]
        self.seconds += time.perf_counter() - begun
        return answers

    def _answer(self, job):
        if isinstance(job, Predict):
            return self._logits[_draw(job.state) % 8, job.samples.rows]
        at = _draw(job.state, job.key)
        return {name: self._move(name, value, at) for name, value in job.state.items()}

    def _move(self, name, value, at):
        if not value.is_floating_point():
            return value + 100
        first = (at + 7919 * len(name)) % (len(self._noise) - value.numel())
        noise = self._noise[first : first + value.numel()].reshape(value.shape)
        if name.endswith("running_var"):
            return value * (0.1 * noise).exp()
        return value + 0.02 * noise * (value.abs().mean() + 0.01)


def _draw(state, key=()):
    """A number that depends on the weights and the key alone."""
    digest = hashlib.sha256(repr(key).encode())
    digest.update(next(iter(state.values())).numpy().tobytes())
    return int.from_bytes(digest.digest()[:4], "little")


def make_images(path, train=50_000, test=10_000):
    generator = np.random.default_rng(0)
    sizes = {"x": train, "x_test": test}
    images = {n: generator.integers(0, 256, (s, 3, 32, 32), np.uint8) for n, s in sizes.items()}
    labels = {n.replace("x", "y"): np.arange(s) % 10 for n, s in sizes.items()}
    np.savez(path, **images, **labels)


def measure(curves, alphas, seeds, rounds, folder, profile):
    """A row per round after the first, in which caches are filled; digests of what was written."""
    make_images(folder / "images.npz")
    settings = (f"data.name={folder / 'images.npz'}", f"rounds={rounds + 1}")
    plan = Plan(PAPERS["sift"], setting="cifar10", recipe="main", overrides=settings)
    experiments = {
        folder / f"{curve}-{alpha}-{seed}": plan.experiment(
            Cell(curve, float(alpha)), seed
        ).model_copy(update={"start": None})
        for curve in curves.split(",")
        for alpha in alphas.split(",")
        for seed in range(seeds)
    }
    group = runs.Group(experiments)
    group.begin()
    clock, engine = Clock(), AnswersAtOnce(60_000)
    for part, places in PARTS.items():
        for owner, name in places:
            clock.watch(part, owner, name)
    count, rows, told = len(experiments), [], 0
    begun, cpu = time.perf_counter(), time.process_time()
    for _ in group.run_or_raise(engine):
        told += 1
        if told % count:
            continue
        now, used = time.perf_counter(), time.process_time()
        rows.append(
            {
                "wall": now - begun - engine.seconds,
                "cpu": used - cpu - engine.seconds,
                "parts": {part: clock.seconds[part] for part in PARTS},
            }
        )
        clock.seconds.clear()
        engine.seconds = 0.0
        begun, cpu = time.perf_counter(), time.process_time()
        if profile is not None and len(rows) == 1:
            profile.enable()
    if profile is not None:
        profile.disable()
    return count, rows[1:], digests(experiments)


def digests(experiments):
    """One digest of all metrics, ledgers and checkpoints: the same where every byte is."""
    digest = hashlib.sha256()
    for folder in sorted(experiments):
        for name in ("metrics.jsonl", "ledger.jsonl", "checkpoint.safetensors"):
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", default=CURVES)
    parser.add_argument("--alphas", default=ALPHAS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="counted; one more comes before")
    parser.add_argument("--stacks", action="store_true", help="the functions that took longest")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    profile = cProfile.Profile() if wanted.stacks else None
    with tempfile.TemporaryDirectory() as folder:
        count, rows, digest = measure(
            wanted.curves, wanted.alphas, wanted.seeds, wanted.rounds, Path(folder), profile
        )
    each = {"wall, all parts": [row["wall"] for row in rows]}
    each |= {"CPU, all parts": [row["cpu"] for row in rows]}
    each |= {part: [row["parts"][part] for row in rows] for part in PARTS}
    table = {part: [1000 * one / count for one in found] for part, found in each.items()}
    if wanted.json:
        print(json.dumps({"runs": count, "ms_per_run_round": table, "digest": digest}))
        return
    print(f"{count} runs, ms per run and round beside training: median (lowest to highest)")
    for part, found in table.items():
        print(f"{part:24} {median(found):8.1f} ({min(found):.1f} to {max(found):.1f})")
    print(f"digest of all metrics, ledgers and checkpoints: {digest[:16]}")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        pstats.Stats(profile).sort_stats("cumtime").print_stats(60)


if __name__ == "__main__":
    main()
