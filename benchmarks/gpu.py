"""One training step of M stacked ResNet-8 on a GPU, beside the plain loop in the same run.

PYTHONPATH=src python benchmarks/gpu.py [--profile] [--json] [--blocks rows=64,norm_values=8192]
PYTHONPATH=src python benchmarks/gpu.py --terms prior,prox,ntd,mixup,all [--device cpu] [--json]
PYTHONPATH=src python benchmarks/gpu.py --networks resnet18,vit-tiny [--device cpu] [--json]
PYTHONPATH=src python benchmarks/gpu.py --precisions float32-torch,float32-kernels --models 8,96

float32-torch and float32-kernels are float32 by torch's products, and by three tf32 products of our
kernels; float32 is the one that the engine takes.

With --terms: a step with each term of a recipe beside a plain step, in turn, as a ratio; on a CPU
it is that of whole fits on the batched engine.

With --networks: steps of other networks, and how the batched engine runs them. A step there is the
difference of a long and a short fit of the engine, so that drawing batches is in it, and bringing
weights there and back is not. In bfloat16 the plain loop has autocast.
"""

import argparse
import contextlib
import json
import sys
import threading
import time
import warnings
from dataclasses import replace
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedsift import training
from fedsift.engines import PRECISIONS, batched
from fedsift.engines.batched import BatchedEngine, choose_ops
from fedsift.engines.precision import Precision
from fedsift.engines.stacked.program import stack
from fedsift.models import BasicBlock, initial_state, make_model
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
FLOAT32 = {"float32-torch": False, "float32-kernels": True}  # whose products float32 has
SHORT, LONG = 2, 10  # epochs of the two fits whose difference is taken
SAMPLES = 64  # of a model in those fits


class ResNet18(nn.Module):
    """He et al. 2015 as CIFAR takes it: a 3x3 stem, no first pooling, widths 64 to 512."""

    def __init__(self, shape, classes, width=64):
        super().__init__()
        self.stem = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage in range(4):
            outputs = width * 2**stage
            blocks += [
                BasicBlock(inputs, outputs, 2 if stage else 1, "batch"),
                BasicBlock(outputs, outputs, 1, "batch"),
            ]
            inputs = outputs
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        # [b, T, 3 width] -> three of [b, heads, T, width / heads]
        parts = self.into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.out(found.transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VitTiny(nn.Module):
    """ViT-Ti of Touvron et al. 2021 (width 192, depth 12, 3 heads) on patches of 4x4 pixels."""

    def __init__(self, shape, classes, patch=4, width=192, depth=12, heads=3):
        super().__init__()
        channels, height, side = shape
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        places = (height // patch) * (side // patch) + 1
        self.places = nn.Parameter(0.02 * torch.randn(1, places, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x)[:, 0]))


# what is no name here is one of fedsift's, as in resnet8
NETWORKS = {"resnet18": ResNet18, "vit-tiny": VitTiny}


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


def read_precisions(given):
    """The names in a list with commas."""
    names, known = given.split(","), [*PRECISIONS, *FLOAT32]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"unknown precision {unknown[0]!r}; there are {', '.join(known)}")
    return names


@contextlib.contextmanager
def products_of(name):
    """The engine's word for a precision, which means the products asked for while it lasts."""
    before = batched.FLOAT32_BY_KERNELS
    batched.FLOAT32_BY_KERNELS = FLOAT32.get(name, before)
    try:
        yield "float32" if name in FLOAT32 else name
    finally:
        batched.FLOAT32_BY_KERNELS = before


def stacked(jobs, precision, repeats=5):
    """Seconds a step, by events around replays; seconds of the first fit, compilation included; the
    place.
    """
    place, plan, first = captured(jobs, precision)
    return [step_time(place, jobs, plan) for _ in range(repeats)], first, place


def captured(jobs, precision):
    """The place of these jobs, their plan, and the seconds of their first fit there."""
    from fedsift.engines.stacked.cuda import graphs  # needs triton

    with products_of(precision) as word:
        program = stack(jobs[0].model, choose_ops(True, word))
    plan = graphs.plan_steps(program, jobs)
    values = jobs[0].data.samples.store.values.cuda()
    place = graphs.GraphTrainer(program, jobs, plan, values, 0)
    begun = time.perf_counter()
    with Precision(word, values.device).products():  # as in the engine; a graph keeps its kernels
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
    engine = make_engine(device, precision)
    steps = jobs[0].recipe.epochs * -(-len(jobs[0].data) // jobs[0].recipe.batch)

    def fit():
        begun = time.perf_counter()
        engine.run(jobs)
        return (time.perf_counter() - begun) / steps

    fit()
    return fit


def make_engine(device, precision):
    """A batched engine; whose products it has is settled now."""
    with products_of(precision) as word:
        return BatchedEngine(device, precision=word)


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


def plain_loop(job, steps=30, device="cuda", autocast=False, warm_up=10):
    """Seconds a step of one model: eager torch, its defaults, as everyone writes it."""
    net = job.model.build().to(device)
    x, t = job.data.samples.tensor().to(device), job.data.targets.to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    batch = torch.arange(job.recipe.batch, device=device)
    how = torch.autocast(device, torch.bfloat16) if autocast else contextlib.nullcontext()
    for step in range(steps + warm_up):
        if step == warm_up:
            wait_for(device)
            begun = time.perf_counter()
        optimizer.zero_grad()
        with how:
            said = net(x[batch])
        training.loss(said.float(), t[batch]).backward()
        optimizer.step()
    wait_for(device)
    return (time.perf_counter() - begun) / steps


def wait_for(device):
    if device == "cuda":
        torch.cuda.synchronize()


def compare_networks(networks, precisions, models, device="cuda", **sizes):
    """A row for each network, precision and number of models, as they are found; a row that cannot
    be measured says why.
    """
    for name in networks:
        for precision in precisions:
            engine = make_engine(device, precision)
            for many in models:
                head = {"network": name, "precision": precision, "models": many}
                try:
                    yield head | compare_network(engine, name, many, **sizes)
                except Exception as error:  # such as too little memory: the other rows go on
                    yield head | {"failed": " ".join(f"{type(error).__name__}: {error}".split())}
            del engine  # and what it holds on the device
            if device == "cuda":
                torch.cuda.empty_cache()


def compare_network(engine, name, models, batch=8, samples=SAMPLES, repeats=3, plain_steps=30):
    """Steps of M such networks on the engine, and of one in the plain loop, in turn."""
    device, half = engine.device.type, engine.precision.name == "bfloat16"
    long = cohort(models, batch, NETWORKS.get(name, name), samples)
    long = [replace(job, recipe=replace(job.recipe, epochs=LONG)) for job in long]
    short = [replace(job, recipe=replace(job.recipe, epochs=SHORT)) for job in long]
    steps = (LONG - SHORT) * -(-samples // batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be stacked is in the row
        how = engine.describe(long[0].model)
    first = seconds_of(engine, long)
    times, plain, alone = [], [], []
    for _ in range(repeats):
        took = seconds_of(engine, long) - seconds_of(engine, short)
        times.append(took / steps)
        plain.append(plain_loop(long[0], plain_steps, device, autocast=half))
        if half:
            alone.append(plain_loop(long[0], plain_steps, device))
    each = median(times) / models
    row = {
        "how": how.partition(": ")[2],
        "programs": len(engine.split(long)),  # all models in one, where memory allows
        "parameters": sum(value.numel() for value in long[0].model.build().parameters()),
        "batch": batch,
        "step_ms": round(1000 * median(times), 3),
        "us_per_model_step": round(1e6 * each, 1),
        "low_high_us": [round(1e6 * t / models, 1) for t in (min(times), max(times))],
        "plain_us": round(1e6 * median(plain)),
        "times_plain": round(median(plain) / each, 1),
        "first_fit_s": round(first, 2),
    }
    if half:
        row["plain_without_autocast_us"] = round(1e6 * median(alone))
    return row


def seconds_of(engine, jobs):
    """Of a fit: its answers are on the host when it ends."""
    begun = time.perf_counter()
    engine.run(jobs)
    return time.perf_counter() - begun


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


def print_networks(wanted):
    split = wanted.networks.split(","), read_precisions(wanted.precisions)
    models, rows = [int(many) for many in wanted.models.split(",")], []
    for row in compare_networks(*split, models, wanted.device, batch=wanted.batch):
        rows.append(row)
        print(row, file=sys.stderr if wanted.json else sys.stdout, flush=True)
    if wanted.json:
        print(json.dumps(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument(
        "--precisions",
        default="tf32,bfloat16,float32",
        help=f"some of {', '.join([*PRECISIONS, *FLOAT32])}",
    )
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
    parser.add_argument(
        "--networks",
        default="",
        help=f"steps of these beside the plain loop: {', '.join(NETWORKS)}, or fedsift's own",
    )
    parser.add_argument("--batch", type=int, default=8, help="of --networks")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="of --terms and --networks"
    )
    wanted = parser.parse_args()
    if wanted.blocks:
        set_blocks(wanted.blocks)
    if wanted.networks:
        print_networks(wanted)
        return
    rows = []
    for precision in read_precisions(wanted.precisions):
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
