"""What a round costs beside training: runs of `fedsift reproduce sift main` in lockstep, on an
engine that answers at once.

PYTHONPATH=src python benchmarks/host_time.py [--seeds 2] [--rounds 3] [--json] [--stacks]
PYTHONPATH=src python benchmarks/host_time.py --device cuda --precision bfloat16 \\
    --paper fas-icc2022 --recipe ours --items table1,table2 --seeds 3 --rounds 2

Images are random, of CIFAR-10's number and size. A `Fit` is answered by weights that have moved a
little, a `Predict` by outputs that are right two times out of three. The time of the engine itself
is not counted. Parts are CPU time of the thread that does them, without the parts inside.

With --device the real engine works. Then a thread looks every few milliseconds whether the device
has anything to do, and at what the host does where it has not.
"""

import argparse
import cProfile
import hashlib
import json
import pstats
import sys
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
from fedsift.engines import choose_engine
from fedsift.engines.malloc import keep_memory
from fedsift.papers import PAPERS
from fedsift.reproduction.experiments import make_experiments
from fedsift.reproduction.plans import Plan, make_cells, run_folder
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


class Watcher(threading.Thread):
    """How long a GPU has nothing to do, and what the threads of the host do in the meantime."""

    def __init__(self, cuda, every=0.004):
        super().__init__(daemon=True)
        self._every, self._stream = every, torch.cuda.default_stream() if cuda else None
        self.looks = self.idle = 0
        self.places, self.capturing, self.ended = Counter(), threading.Lock(), False

    def run(self):
        while not self.ended:
            time.sleep(self._every)
            with self.capturing:  # a stream must not be asked while a graph is captured
                idle = self._stream is None or self._stream.query()
            self.looks += 1
            self.idle += idle
            if idle:
                self.places.update(
                    {place for f in sys._current_frames().values() if (place := own(f))}
                )

    def row(self):
        found = {place: n / self.looks for place, n in self.places.most_common(20)}
        row = {"idle": self.idle / max(1, self.looks), "host while idle": found}
        self.looks = self.idle = 0
        self.places.clear()
        return row


def own(frame):
    """The innermost function of fedsift in a stack, and who called it."""
    names = []
    while frame is not None and len(names) < 2:
        code = frame.f_code
        if "fedsift" in code.co_filename:
            names.append(f"{Path(code.co_filename).stem}.{code.co_qualname}")
        frame = frame.f_back
    return " < ".join(names)


class RealEngine:
    """The engine that is asked for, and the time it takes."""

    def __init__(self, device, precision):
        self._inner, _ = choose_engine(device=device, precision=precision)
        self.seconds, self.lanes = 0.0, getattr(self._inner, "lanes", 1)

    def describe(self, model):
        return self._inner.describe(model)

    def run(self, jobs):
        begun = time.perf_counter()
        answers = self._inner.run(jobs)
        self.seconds += time.perf_counter() - begun
        return answers


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


def list_experiments(wanted, folder):
    """By run folder: of the curves, or of the items of a paper."""
    made = folder / "images.npz"
    make_images(made)
    settings = (f"data.name={made}", f"rounds={wanted.rounds + 1}", *wanted.set)
    plan = Plan(
        PAPERS[wanted.paper], setting="cifar10", recipe=wanted.recipe, overrides=settings,
        seeds=wanted.seeds,
    )  # fmt: skip
    if wanted.items:
        found, _ = make_experiments(wanted.items.split(","), plan)
        cells = {(cell, seed): one for cell, row in found.items() for seed, one in row.items()}
    else:
        curves, alphas = wanted.curves.split(","), map(float, wanted.alphas.split(","))
        cells = {
            (cell, seed): plan.experiment(cell, seed)
            for cell in make_cells(curves, list(alphas))
            for seed in range(wanted.seeds)
        }
    return {
        run_folder(folder, cell, seed): one.model_copy(update={"start": None})
        for (cell, seed), one in cells.items()
    }


def measure(wanted, folder, profile):
    """A row per round after the first, in which caches are filled; digests of what was written."""
    experiments = list_experiments(wanted, folder)
    group = runs.Group(experiments)
    group.begin()
    real = wanted.device is not None
    engine = RealEngine(wanted.device, wanted.precision) if real else AnswersAtOnce(60_000)
    clock, watcher = Clock(), Watcher(wanted.device == "cuda") if real else None
    if wanted.device == "cuda":
        _hold_while_capturing(watcher.capturing)
    if watcher is not None:
        watcher.start()
    for part, places in PARTS.items():
        for owner, name in places:
            clock.watch(part, owner, name)
    count, rows, told = len(experiments), [], 0
    begun = time.perf_counter()
    for _ in group.run_or_raise(engine):
        told += 1
        if told % count:
            continue
        now = time.perf_counter()
        seen = {} if watcher is None else {"engine": engine.seconds, **watcher.row()}
        rows.append(
            {
                "wall": now - begun - engine.seconds,
                "parts": {part: clock.seconds[part] for part in PARTS},
                **seen,
            }
        )
        clock.seconds.clear()
        engine.seconds = 0.0
        begun = time.perf_counter()
        if profile is not None and len(rows) == 1:
            profile.enable()
    if profile is not None:
        profile.disable()
    return count, rows[1:], digests(experiments)


def _hold_while_capturing(lock):
    from fedsift.engines.stacked.cuda import graphs

    capture = graphs.GraphTrainer._graph

    def held(self, models):
        with lock:
            capture(self, models)

    graphs.GraphTrainer._graph = held


def digests(experiments):
    """One digest of all metrics, ledgers and checkpoints: the same where every byte is."""
    digest = hashlib.sha256()
    for folder in sorted(experiments):
        for name in ("metrics.jsonl", "ledger.jsonl", "checkpoint.safetensors"):
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def tell_device(count, rows, as_json):
    """Where the time of a round goes, round by round."""
    for row in rows:
        row["wall"] += row["engine"]  # here it counts
    if as_json:
        print(json.dumps({"runs": count, "rounds": rows}))
        return
    for row in rows:
        print(
            f"{count} runs: {row['wall']:.1f} s a round, of which {row['engine']:.1f} in the engine"
        )
        print(
            f"the device had nothing to do in {100 * row['idle']:.1f} % of the time; the host then:"
        )
        for place, share in row["host while idle"].items():
            print(f"  {100 * share:5.1f} %  {place}")
        for part, took in row["parts"].items():
            print(f"  {took:7.2f} s of CPU  {part}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paper", default="sift")
    parser.add_argument("--recipe", default="main")
    parser.add_argument("--items", default="", help="all cells of these, instead of --curves")
    parser.add_argument("--set", action="append", default=[], help="an override: local.epochs=1")
    parser.add_argument("--device", help="let the engine of this device train: cuda or cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--curves", default=CURVES)
    parser.add_argument("--alphas", default=ALPHAS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="counted; one more comes before")
    parser.add_argument("--stacks", action="store_true", help="the functions that took longest")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    profile = cProfile.Profile() if wanted.stacks else None
    with tempfile.TemporaryDirectory() as folder:
        count, rows, digest = measure(wanted, Path(folder), profile)
    if wanted.device is not None:
        tell_device(count, rows, wanted.json)
        return
    each = {"wall, all parts": [row["wall"] for row in rows]}
    each |= {"CPU, all parts": [sum(row["parts"].values()) for row in rows]}
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
