"""One training step of M stacked ResNet-8 on a GPU, beside the plain loop in the same run.

PYTHONPATH=src python benchmarks/gpu.py [--profile] [--json] [--blocks rows=64,norm_values=8192]
PYTHONPATH=src python benchmarks/gpu.py --terms prior,prox,ntd,mixup,all [--device cpu] [--json]

With --terms: a step with each term of a recipe beside a plain step, in turn, as a ratio; on a CPU
it is that of whole fits on the batched engine.
"""

import argparse
import json
import sys
import threading
import time
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from fedsift import training
from fedsift.engines.batched import BatchedEngine, choose_ops
from fedsift.engines.stacked.program import stack
from fedsift.models import initial_state, make_model
from fedsift.types import Fit, Labelled, Recipe, Samples, Store

STEPS = 100
TERMS = {
    "plain": {},  # beside itself: how far a ratio is from 1 by chance
    "prior": {"prior": 1.0},
    "prox": {"prox": 0.01},
    "ntd": {"ntd": 0.3},
    "mixup": {"mixup": 0.2},
}
TERMS["all"] = {key: value for term in TERMS.values() for key, value in term.items()}


def cohort(models, batch, name="resnet8", samples=256, **term):
    generator = np.random.default_rng(0)
    values = torch.from_numpy(generator.integers(0, 256, (4096, 3, 32, 32), np.uint8))
    figures = torch.full((3, 1, 1), 127.0), torch.full((3, 1, 1), 64.0)
    store, net = Store(values, *figures), make_model(name, (3, 32, 32), 10)
    epochs = 1 + STEPS * batch // samples
    recipe = Recipe(epochs=epochs, batch=batch, lr=1e-3, augment="crop-flip", **term)
    targets = torch.eye(10)[torch.from_numpy(generator.integers(0, 10, samples))]
    state = initial_state(net, 0)
    return [
        Fit(
            net,
            state,
            Labelled(Samples(store, generator.permutation(4096)[:samples]), targets),
            recipe,
            (0, i),
            teacher=torch.from_numpy(generator.normal(size=(samples, 10))).float(),
        )
        for i in range(models)
    ]


def stacked(jobs, precision, repeats=5):
    """Seconds a step, by events around replays; seconds of the first fit, compilation included; the
    place.
    """
    place, plan, first = captured(jobs, precision)
    return [step_time(place, jobs, plan) for _ in range(repeats)], first, place


def captured(jobs, precision):
    """The place of these jobs, their plan, and the seconds of their first fit there."""
    from fedsift.engines.stacked.cuda import graphs  # needs triton

    program = stack(jobs[0].model, choose_ops(True, precision))
    plan = graphs.plan_steps(program, jobs)
    values = jobs[0].data.samples.store.values.cuda()
    place = graphs.GraphTrainer(program, jobs, plan, values, 0)
    begun = time.perf_counter()
    place.fit(jobs, plan, threading.Event())
    return place, plan, time.perf_counter() - begun


def step_time(place, jobs, plan):
    """Seconds a step, by events around replays."""
    place._load(jobs, plan)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(STEPS):
        place._graphs[len(jobs)].replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / STEPS / 1000


def watch_steps(jobs, precision, device):
    """What measures the seconds of one step of these jobs, warmed up."""
    if device == "cuda":
        place, plan, _ = captured(jobs, precision)
        return lambda: step_time(place, jobs, plan)
    engine = BatchedEngine(device, precision=precision)
    steps = jobs[0].recipe.epochs * -(-len(jobs[0].data) // jobs[0].recipe.batch)

    def fit():
        begun = time.perf_counter()
        engine.run(jobs)
        return (time.perf_counter() - begun) / steps

    fit()
    return fit


def compare_terms(models, precision, terms, device="cuda", repeats=15, **options):
    """A row for each term: a plain step before it and after it, and how much longer its own is."""
    plain = watch_steps(cohort(models, 8, **options), precision, device)
    rows = []
    for term in terms:
        own = watch_steps(cohort(models, 8, **options, **TERMS[term]), precision, device)
        ratios = []
        for _ in range(repeats):
            before, took = plain(), own()
            ratios.append(2 * took / (before + plain()))
        rows.append(
            {
                "precision": precision,
                "models": models,
                "term": term,
                "step_ms": round(1000 * took, 3),
                "times_plain_step": round(median(ratios), 3),
                "low_high": [round(ratio, 3) for ratio in (min(ratios), max(ratios))],
            }
        )
        del own
    return rows


def plain_loop(job, steps=30):
    """Seconds a step of one model: eager torch, its defaults, as everyone writes it."""
    net = job.model.build().cuda()
    x, t = job.data.samples.tensor().cuda(), job.data.targets.cuda()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    batch = torch.arange(job.recipe.batch, device="cuda")
    for step in range(steps + 10):
        if step == 10:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        optimizer.zero_grad()
        training.loss(net(x[batch]), t[batch]).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def kernels_of(place, models, steps=20):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            place._graphs[models].replay()
        torch.cuda.synchronize()
    rows = [(e.self_device_time_total / steps, e.count / steps, e.key) for e in seen.key_averages()]
    return sorted(rows, reverse=True)[:24]


def set_blocks(given):
    """Other sizes of the kernels' blocks, for all precisions: "rows=64,warps=8"."""
    from fedsift.engines.stacked.cuda import ops  # needs triton

    sizes = {name: int(size) for name, size in (pair.split("=") for pair in given.split(","))}
    for precision, blocks in ops.BLOCKS.items():
        ops.BLOCKS[precision] = replace(blocks, **sizes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--precisions", default="tf32,bfloat16,float32")
    parser.add_argument("--models", default="1,8,12,24,96")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--blocks",
        default="",
        help="other sizes than in ops.BLOCKS, for all precisions: rows=64,warps=8",
    )
    parser.add_argument(
        "--terms", default="", help=f"time these beside a plain step: {', '.join(TERMS)}"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of --terms")
    wanted = parser.parse_args()
    if wanted.blocks:
        set_blocks(wanted.blocks)
    rows = []
    for precision in wanted.precisions.split(","):
        for models in map(int, wanted.models.split(",")):
            if wanted.terms:
                found = compare_terms(models, precision, wanted.terms.split(","), wanted.device)
                rows += found
                print(*found, sep="\n", file=sys.stderr if wanted.json else sys.stdout, flush=True)
                continue
            jobs = cohort(models, 8)
            times, first, place = stacked(jobs, precision)
            plain = [plain_loop(jobs[0]) for _ in range(3)]
            each = median(times) / models
            rows.append(
                {
                    "precision": precision,
                    "models": models,
                    "step_ms": round(1000 * median(times), 3),
                    "us_per_model_step": round(1e6 * each, 1),
                    "low_high_us": [round(1e6 * t / models, 1) for t in (min(times), max(times))],
                    "plain_us": round(1e6 * median(plain)),
                    "times_plain": round(median(plain) / each, 1),
                    "first_fit_s": round(first, 2),
                }
            )
            print(rows[-1], file=sys.stderr if wanted.json else sys.stdout, flush=True)
            if wanted.profile and models in (8, 96):
                for microseconds, count, name in kernels_of(place, models):
                    print(
                        f"   {microseconds:9.1f} us {count:5.1f}  {name[:90]}",
                        file=sys.stderr,
                        flush=True,
                    )
            del place
    if wanted.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
