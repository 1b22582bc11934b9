"""The batched engine answers as the sequential one does: every registered network, every recipe,
any mixture.
"""

import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedsift import models
from fedsift.engines import batched
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.engines.stacked import cuda, training
from fedsift.engines.stacked.ops import ReferenceOps
from fedsift.engines.stacked.program import stack
from fedsift.types import Labelled, Model, Predict, Recipe, Samples, Store, UserError
from tests.helpers import parity, toys
from tests.helpers.parity import SGD
from tests.helpers.tiers import slow_but

NETWORKS = [
    "mlp",
    "cnn",
    "cnn(width=0.5)",
    "resnet8",
    "resnet8(norm=group, width=0.5)",
    "resnet20(width=0.25)",
]
RECIPES = {
    "sgd": SGD,
    "plain sgd": replace(SGD, momentum=0.0),
    "nesterov": replace(SGD, nesterov=True, weight_decay=0.01),
    "adam": Recipe(epochs=2, batch=8, lr=2e-3, weight_decay=0.01),
    "adamw": Recipe(epochs=2, batch=8, lr=2e-3, optimizer="adamw", weight_decay=0.1),
}


@pytest.fixture(autouse=True)
def stack_every_network(monkeypatch):
    """Large networks are left to threads on a CPU; here they are stacked, too."""
    monkeypatch.setattr(batched, "LARGEST_ON_CPU", 10**12)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def engine(request):
    return BatchedEngine(request.param, threads=2 if request.param == "cpu" else None)


@pytest.fixture(scope="module")
def reference():
    return SequentialEngine("cpu", threads=2)


def network(name, shape=(3, 8, 8)):
    return models.make_model(name, shape, parity.CLASSES)


# --- parity ---


def count_flips(name):
    """Signs flip in one of four networks, in which ones depends on the processor: only in deep
    networks and in those with group norm have any been seen."""
    return int(name.startswith("resnet20") or "group" in name)


def test_every_network_is_tested_here_or_with_tokens_and_series():
    here = {name.partition("(")[0] for name in NETWORKS}
    assert here | {"bag", "text-cnn", "series-cnn"} == set(models.MODELS)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", slow_but(NETWORKS, *NETWORKS[:5]))
def test_every_network_and_optimiser(engine, reference, name, recipe):
    model = network(name)
    assert engine.describe(model).startswith(f"{name}: stacked (known layers")
    jobs = parity.fits(model, recipe=RECIPES[recipe])
    parity.agree(engine, reference, jobs, count_flips(name))


VARIATIONS: dict[str, dict[str, Any]] = {
    "soft targets": {"soft": True},
    "temperature": {"soft": True, "temperature": 3.0},
    "crops": {"recipe": replace(SGD, augment="crop-flip")},
    "milestones": {"recipe": replace(SGD, epochs=3, milestones=(4, 6)), "epoch": 3},
    "one sample left over": {"sizes": (17, 9, 8, 2)},
    "batches of their own size": {"sizes": (26, 13, 25), "recipe": replace(SGD, batch=13)},
    "batches of one": {"sizes": (3, 2), "recipe": replace(SGD, batch=1, lr=0.01)},
    "less than a batch": {"sizes": (5, 3, 4), "recipe": replace(SGD, batch=64)},
    "one client": {"sizes": (11,)},
}


VARIED = ["mlp", "cnn", "resnet8(width=0.5)", "resnet8(norm=group, width=0.5)"]
PAIRS = [
    pytest.param(name, variation, marks=[] if name in VARIED else pytest.mark.slow)
    for name in (*VARIED, "resnet20(width=0.25)")
    for variation in VARIATIONS
    # left out: a batch norm of four values, nineteen times. There the plain loop is as far from
    # float64 as from us.
    if (name, variation) != ("resnet20(width=0.25)", "batches of one")
]


@pytest.mark.parametrize(("name", "variation"), PAIRS)
def test_every_variation_of_a_recipe(engine, reference, name, variation):
    parity.agree(
        engine,
        reference,
        parity.fits(network(name), **VARIATIONS[variation]),
        count_flips(name),
    )


@pytest.mark.slow
def test_a_mixed_list_comes_back_in_order(engine, reference):
    """Architectures, recipes, stores and normalisations, fits and predictions side by side."""
    stores = [parity.store((3, 8, 8), seed) for seed in (0, 1)]
    stores.append(
        Store(stores[0].values, torch.tensor(100.0), torch.tensor(50.0))
    )  # one figure for all channels
    stores.append(
        Store(stores[0].values, stores[1].mean, stores[1].std)
    )  # the same images, other figures
    jobs = [
        job
        for i, of in enumerate(stores)
        for name in ("mlp", "cnn", "resnet8(width=0.25)")
        for job in parity.fits(
            network(name), (9, 21), replace(SGD, epochs=1 + i % 2), of=of, epoch=i
        )
    ]
    everything = [work for job in jobs for work in (*parity.asks([job]), job)]
    shuffled = [everything[i] for i in np.random.default_rng(0).permutation(len(everything))]
    assert parity.near(engine.run(shuffled), reference.run(shuffled), 2e-5)


def test_one_set_of_images_normalised_in_many_ways(engine, reference):
    """One group, as the memory is one; each model has figures of its own, and asks for the same
    rows.
    """
    figures = [parity.store((3, 8, 8), seed) for seed in range(4)]
    jobs = [
        replace(
            parity.fits(network("cnn"), (9,), of=Store(figures[0].values, own.mean, own.std))[0],
            key=(i,),
        )
        for i, own in enumerate(figures)
    ]
    everything = [*jobs, *parity.asks(jobs)]
    assert parity.near(engine.run(everything), reference.run(everything), 2e-5)


def test_jobs_that_differ_in_temperature_alone(engine, reference):
    (job,) = parity.fits(network("mlp"), (9,), soft=True)
    jobs = [replace(job, temperature=t) for t in (1.0, 4.0, 1.0, 4.0)]
    assert parity.near(engine.run(jobs), reference.run(jobs), 2e-5)


@pytest.mark.parametrize("sizes", [(9, 9, 9, 9), (21, 8, 5, 13)], ids=str)
@pytest.mark.parametrize("recipe", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["mlp", "resnet8(width=0.25)"])
def test_step_sizes_and_schedules_of_their_own_in_one_program(
    engine, reference, monkeypatch, name, recipe, sizes
):
    """A sweep over step sizes is one group; every model follows its own recipe."""
    parts = parity.watch_parts(monkeypatch)
    jobs = parity.fits(network(name), sizes, RECIPES[recipe], epoch=3)
    own: list[dict[str, Any]] = [
        {},
        {"lr": 0.01},
        {"milestones": (2, 4)},
        {"milestones": (2,), "decay": 0.5},
    ]
    jobs = parity.with_recipes(jobs, own)
    found = engine.run(jobs)
    assert sum(map(len, parts)) == 4 and len(parts) <= 2  # a part a worker
    parity.agree(engine, reference, jobs)
    assert not parity.near(
        found, [engine.run([replace(job, recipe=jobs[0].recipe)])[0] for job in jobs], 1e-4
    )


def test_rows_of_features(engine, reference):
    parity.agree(engine, reference, parity.fits(network("mlp", (7,))))


def test_one_set_of_samples_asked_of_many_networks(engine, reference):
    """The public set: the same rows for everyone, more of them than go into one piece."""
    of = parity.store((1, 8, 8), rows=150)
    model = network("cnn", (1, 8, 8))
    asks = [
        Predict(model, models.initial_state(model, i), Samples(of, np.arange(150)))
        for i in range(3)
    ]
    assert parity.near(engine.run(asks), reference.run(asks), 1e-5)


# --- padding ---


@pytest.mark.parametrize("size", [20, 64])
def test_predictions_on_unlike_numbers_of_samples_share_a_program(reference, size):
    """As on a GPU: the shorter ones are padded, in one piece or in several of `size` samples."""
    of, model = parity.store((1, 8, 8), rows=150), network("cnn", (1, 8, 8))
    asks = [
        Predict(model, models.initial_state(model, i), Samples(of, np.arange(i, i + count)))
        for i, count in enumerate([50, 33, 64])
    ]
    program = stack(model, ReferenceOps())
    found = training.predict(program, asks, of.values, size, threading.Event())
    assert [len(answers) for answers in found] == [50, 33, 64]
    assert parity.near(found, reference.run(asks), 1e-5)


@pytest.mark.parametrize("name", ["cnn", "resnet8(width=0.5)"])
def test_what_fills_a_short_batch_changes_nothing(name):
    """Batches of 5 are made 8 with copies of the first sample. Were they counted, statistics and
    gradient would be those of 8 samples: here of 5 equal ones and of 5 unlike ones, next to torch
    on the 5 alone."""
    model = network(name)
    jobs = parity.fits(model, (5,), replace(SGD, epochs=1))
    (found,), (expected,) = (
        BatchedEngine(threads=1).run(jobs),
        SequentialEngine(threads=1).run(jobs),
    )
    data = jobs[0].data
    eight = Labelled(
        data.samples[np.array([0, 1, 2, 3, 4, 0, 0, 0])], data.targets[[0, 1, 2, 3, 4, 0, 0, 0]]
    )
    (counted,) = SequentialEngine(threads=1).run([replace(jobs[0], data=eight)])
    assert parity.difference(found, expected) < 1e-5 < 1e-3 < parity.difference(counted, expected)


# --- company ---

COMPANY = [
    "mlp",
    "cnn",
    "resnet8(width=0.5)",
    "resnet8(norm=group, width=0.5)",
    "resnet20(width=0.25)",
]
THIRTEEN = (21, 5, 12, 8, 16, 17, 3, 30, 2, 9, 11, 24, 7)


@pytest.mark.parametrize("batch", slow_but([8, 16, 64], 16))
@pytest.mark.parametrize("name", slow_but(COMPANY, "mlp", "cnn"))
def test_an_answer_is_the_same_to_the_last_bit_in_any_company(name, batch):
    jobs = parity.fits(network(name), THIRTEEN, replace(SGD, batch=batch, epochs=1))
    everything = [*jobs, *parity.asks(jobs)]
    together = BatchedEngine(threads=1).run(everything)
    assert not parity.same(together[0], together[1])
    others = {
        "backwards": BatchedEngine(threads=1).run(everything[::-1])[::-1],
        "two threads": BatchedEngine(threads=2).run(everything),
        "little memory": BatchedEngine(threads=1, memory=1e-6).run(everything),
    }
    for how, answers in others.items():
        assert all(map(parity.same, together, answers)), how
    alone = BatchedEngine(threads=1)
    for i in (0, 3, 6, 7, 8, 13, 19):
        assert parity.same(together[i], alone.run([everything[i]])[0]), i


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "model",
    slow_but(
        [("cnn", (1, 8, 8)), ("resnet8", (3, 32, 32)), ("resnet20", (3, 16, 16))],
        ("cnn", (1, 8, 8)),
    ),
    ids=str,
)
def test_so_it_is_with_adam_and_real_images_in_either_precision(model, precision):
    if precision == "bfloat16" and not batched.has_bfloat16():
        pytest.skip("this processor does not compute with bfloat16")
    recipe = Recipe(epochs=1, batch=8, lr=1e-3, weight_decay=0.01, augment="crop-flip")
    jobs = parity.fits(network(*model), (40, 37, 24, 16), recipe)
    together = BatchedEngine(threads=1, precision=precision).run(jobs)
    for job, answer in zip(jobs, together, strict=True):
        assert parity.same(answer, BatchedEngine(threads=1, precision=precision).run([job])[0])


def needed(job: Any, engine: BatchedEngine | None = None) -> int:
    """What the engine thinks one model of its program takes."""
    engine = engine or BatchedEngine(threads=1)
    program = engine._program(job.model)
    assert not isinstance(program, str)
    return engine._bytes(program, job)


def test_little_memory_cuts_a_group_and_much_does_not(monkeypatch):
    sizes = []
    honest = BatchedEngine._split_group

    def spy(self, jobs, members):
        parts = honest(self, jobs, members)
        sizes.append([len(part) for part in parts])
        return parts

    monkeypatch.setattr(BatchedEngine, "_split_group", spy)
    model = network("mlp", (1, 8, 8))
    jobs = parity.fits(model, (8,) * 13)
    need = needed(jobs[0])
    answers = [
        BatchedEngine(threads=1, memory=share * need / batched.GIB).run(jobs)
        for share in (0.5, 4.5, 100)
    ]
    assert [max(parts) for parts in sizes] == [1, 4, 13] and [sum(parts) for parts in sizes] == [
        13
    ] * 3
    assert all(parity.same(a, b) and parity.same(a, c) for a, b, c in zip(*answers, strict=True))


def test_every_worker_gets_long_and_short_jobs_where_each_has_one_part():
    jobs = parity.fits(network("mlp", (1, 8, 8)), (8, 24, 8, 32, 16))
    parts = BatchedEngine(threads=2)._split_group(jobs, list(range(5)))
    assert parts == [[3, 4, 2], [1, 0]]  # 32, 16, 8 and 24, 8 samples


GROWS = """
import sys
from dataclasses import replace
import numpy as np, torch
from torch import nn
from fedsift import models
from fedsift.engines import batched
from fedsift.types import Fit, Labelled, Predict, Recipe, Samples, Store

class Mixed(nn.Sequential):
    def __init__(self, shape, classes):
        layers = nn.Conv2d(3, 32, 3, padding=1), nn.LayerNorm((32, 32, 32)), nn.GELU()
        ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes)
        super().__init__(*layers, *ends)

def most():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**20

batched.LARGEST_ON_CPU = 10**12
kind, name, batch, memory, count = sys.argv[1:]
batch, memory, count = int(batch), float(memory), int(count)
model = models.make_model(Mixed if name == "Mixed" else name, (3, 32, 32), 10)
drawn = np.random.default_rng(0).integers(0, 256, (4 * batch, 3, 32, 32), np.uint8)
store = Store(torch.from_numpy(drawn), torch.tensor(127.0), torch.tensor(64.0))
rows = np.arange(4 * batch)
data = Labelled(Samples(store, rows), torch.eye(10)[rows % 10])
recipe = Recipe(epochs=1, batch=batch, lr=1e-3, augment="crop-flip")
state = models.initial_state(model, 0)
fit, ask = Fit(model, state, data, recipe, (0,)), Predict(model, state, data.samples)
jobs = [replace(fit, key=(i,)) if kind == "fit" else ask for i in range(count)]
engine = batched.BatchedEngine(threads=1, memory=memory)
engine.describe(model)
parts = engine._split_group(jobs, list(range(count)))
before = most()
engine.run(jobs)
print(len(parts), (most() - before) / memory)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "kind, name, batch, memory, count",
    [
        pytest.param("fit", "cnn", 16, 0.05, 16, marks=pytest.mark.slow),
        pytest.param("fit", "resnet8", 8, 0.1, 16, marks=pytest.mark.slow),
        pytest.param("fit", "Mixed", 16, 0.3, 16, marks=pytest.mark.slow),
        # the heap is left full of holes: it grew with every program, to 2.6 of these
        pytest.param("fit", "mlp", 512, 0.2, 64, marks=pytest.mark.slow),
        ("ask", "cnn", 16, 0.1, 16),
        pytest.param("ask", "Mixed", 16, 0.2, 16, marks=pytest.mark.slow),
    ],
)
def test_memory_is_a_bound(kind, name, batch, memory, count):
    """What networks make a process grow by at its highest, beside the setting: several programs,
    one after another; a tenth of it and more, or the setting would be no measure at all; estimates
    are rough, by half at most."""
    asked = [
        sys.executable,
        "-W",
        "error",
        "-c",
        GROWS,
        kind,
        name,
        str(batch),
        str(memory),
        str(count),
    ]
    parts, share = subprocess.run(
        asked, capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert int(parts) >= 2 and 0.1 < float(share) < 1.5


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_memory_is_a_bound_on_a_gpu_too(precision):
    """Eight ResNet-8 of which about three fit; the same answers as with room for all."""
    model, of = (
        models.make_model("resnet8", (3, 32, 32), parity.CLASSES),
        parity.store((3, 32, 32), rows=60),
    )
    jobs = parity.fits(model, (40,) * 8, replace(SGD, lr=0.01), of=of)
    free = BatchedEngine("cuda", precision=precision)
    limit = 3.5 * needed(jobs[0], free)
    expected = free.run(jobs)
    del free
    torch.cuda.empty_cache()
    engine = BatchedEngine("cuda", precision=precision, memory=limit / batched.GIB)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = engine.run(jobs)
    assert 0.2 < (torch.cuda.max_memory_allocated() - before) / limit < 1
    assert parity.astray(jobs, found, expected) < 1e-2


@pytest.mark.gpu
def test_data_are_brought_to_the_device_once_and_as_bytes():
    of = parity.store(network("cnn").shape)
    jobs = parity.fits(network("cnn"), of=of) + parity.fits(network("mlp"), of=of)
    engine = BatchedEngine("cuda")
    engine.run([*jobs, *parity.asks(jobs)])
    engine.run(jobs)
    ((_, here),) = engine._resident.values()
    assert here.dtype == torch.uint8 and here.device.type == "cuda"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_without_triton_everything_runs_on_a_gpu_all_the_same(monkeypatch, reference, precision):
    monkeypatch.setattr(batched, "has_triton", lambda: False)
    engine = BatchedEngine("cuda", precision=precision)
    jobs = parity.fits(network("resnet8(width=0.5)"), recipe=replace(SGD, lr=0.01))
    assert engine.describe(jobs[0].model).startswith("resnet8(width=0.5): stacked (known layers")
    assert "CUDA graphs" not in engine.describe(jobs[0].model)
    assert parity.astray(jobs, engine.run(jobs), reference.run(jobs)) < (
        5e-2 if precision == "float32" else 0.2
    )


def test_a_group_is_cut_so_that_every_thread_has_work(monkeypatch):
    seen = []

    def task(self, part):
        seen.append(len(part))
        return lambda stop: part

    monkeypatch.setattr(BatchedEngine, "_task", task)
    BatchedEngine(threads=2).run(parity.fits(network("mlp"), (8,) * 10))
    BatchedEngine(threads=2).run(parity.fits(network("mlp"), (8,) * 50))
    assert sorted(seen[:2]) == [5, 5] and sorted(seen[2:]) == [
        12,
        12,
        13,
        13,
    ]  # at most 16 together


def test_graphs_that_are_kept_share_the_memory(monkeypatch):
    """Each kind of job has a graph of its own; the one used longest ago goes where the next would
    be too much.
    """

    class Kept:
        def __init__(self, program, jobs, plan, values, bytes):
            self.bytes = bytes

        def has_room_for(self, jobs, plan):
            return True

        def fit(self, jobs, plan, stop):
            return [job.state for job in jobs]

    fake = SimpleNamespace(
        plan_steps=lambda program, jobs: SimpleNamespace(positions=np.zeros((1, 1, 1))),
        GraphTrainer=Kept,
    )
    monkeypatch.setitem(sys.modules, "fedsift.engines.stacked.cuda.graphs", fake)
    monkeypatch.setattr(cuda, "graphs", fake, raising=False)
    monkeypatch.setattr(BatchedEngine, "_uses_graphs", lambda self, program: True)
    model = network("mlp")
    jobs = [parity.fits(model, (8,), replace(SGD, weight_decay=decay)) for decay in (0.0, 0.1, 0.2)]
    need = needed(jobs[0][0])
    engine = BatchedEngine(threads=1, memory=2.5 * need / batched.GIB)
    for kind in (0, 1, 0, 2, 1):
        engine.run(jobs[kind])
        assert engine._graph_bytes() == len(engine._trainers) * need <= 2.5 * need
    assert [key[1].weight_decay for key in engine._trainers] == [
        0.2,
        0.1,
    ]  # 0.1 went for 0.2, then 0 for 0.1


def test_memory_must_be_something():
    with pytest.raises(UserError, match="memory is a number of GiB above 0, not 0"):
        BatchedEngine(memory=0)


# --- the rule for large networks ---


def test_large_networks_run_one_by_one_on_a_cpu_without_a_warning(monkeypatch):
    """resnet8 on 8x8 has 3 x 3 x (3 x 16 x 64 + 2 x 16 x 16 x 64 + ...) multiplications: more than
    a thousand.
    """
    monkeypatch.setattr(batched, "LARGEST_ON_CPU", 1000)
    monkeypatch.setattr(batched, "LARGEST_TRAINED_ON_CPU", 1000)
    model = network("resnet8(width=0.25)")
    engine = BatchedEngine(threads=2)
    assert engine.describe(model).endswith("million multiplications per sample keep a core busy)")
    jobs = parity.fits(model)
    assert all(map(parity.same, engine.run(jobs), SequentialEngine(threads=1).run(jobs)))


def test_networks_of_middle_size_are_stacked_to_train_and_asked_one_by_one(monkeypatch):
    monkeypatch.setattr(batched, "LARGEST_ON_CPU", 1000)
    model = network("resnet8(width=0.25)")
    engine = BatchedEngine(threads=2)
    assert (
        engine.describe(model)
        == "resnet8(width=0.25): stacked (known layers, predictions one by one)"
    )
    asks = parity.asks(parity.fits(model))
    assert all(map(parity.same, engine.run(asks), SequentialEngine(threads=1).run(asks)))
    group = network("resnet8(norm=group, width=0.25)")
    assert engine.describe(group).endswith("million multiplications per sample keep a core busy)")


@pytest.mark.parametrize(
    ("factory", "shape", "macs"),
    [
        (toys.linear, (6,), 12),  # 6 x 2
        (
            lambda shape, classes: models.cnn(shape, classes),
            (1, 8, 8),
            9 * 16 * 64 + 9 * 16 * 32 * 16 + 128 * 2,
        ),
    ],
)
def test_multiplications_are_counted_by_hand(factory, shape, macs):
    assert stack(Model("counted", factory, shape, 2), ReferenceOps()).macs == macs


def test_empty_work_is_no_work():
    assert BatchedEngine().run([]) == []
