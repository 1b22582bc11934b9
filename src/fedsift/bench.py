"""What this machine does: engines against the plain loop, and a federation of a million against one
of a thousand.

What is compared is measured in turn, in the same run, and repeated. A figure is the median with the
lowest and the highest value. A ratio is that of two measurements made one after the other.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fedsift import config, runs, training
from fedsift.engines import ENGINES, check_engine, choose_engine, place, resolve_precision
from fedsift.engines.sequential import SequentialEngine
from fedsift.models import initial_state, make_model
from fedsift.types import Fit, Labelled, Recipe, Samples, Store, UserError, Weights

Spread = dict[str, float]
PLAIN = "plain loop"


def seconds(work: Callable[..., Any], *arguments: Any) -> float:
    begun = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begun


def seconds_each(work: Callable[..., Any], *arguments: Any) -> float:
    """As `seconds`, but repeated for half a second.

    In the first tenth of a second after other work, a machine is still waking up its cores.
    """
    begun, times = time.perf_counter(), 0
    while (took := time.perf_counter() - begun) < LEAST or not times:
        work(*arguments)
        times += 1
    return took / times


LEAST = 0.5  # seconds


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest, to four figures."""
    return {
        name: float(f"{of(values):.4g}")
        for name, of in (("median", median), ("low", min), ("high", max))
    }


# --- engines ---


@dataclass(frozen=True)
class Case:
    """One round's training: `clients` models of one kind, each on `samples` own random images."""

    model: str
    shape: tuple[int, ...] = (3, 32, 32)
    clients: int = 20
    samples: int = 100
    batch: int = 8
    epochs: int = 1

    def cohort(self) -> list[Fit]:
        net, generator = make_model(self.model, self.shape, 10), np.random.default_rng(0)
        every = self.clients * self.samples
        images = torch.from_numpy(generator.random((every, *self.shape), np.float32))
        targets = torch.eye(10)[torch.from_numpy(generator.integers(0, 10, every))]
        data = Labelled(
            Samples(Store(images, torch.zeros(1), torch.ones(1)), np.arange(every)), targets
        )
        state, recipe = initial_state(net, 0), Recipe(epochs=self.epochs, batch=self.batch)
        rows = np.arange(every).reshape(self.clients, self.samples)
        return [Fit(net, state, data[mine], recipe, (0, "bench", i)) for i, mine in enumerate(rows)]


CASES = (
    Case("cnn", (1, 8, 8), samples=40, batch=16, epochs=10),
    Case("resnet8"),
)  # a round of the digits presets; a larger network


def engines(
    cases: Sequence[Case] = CASES,
    device: str = "auto",
    repeats: int = 5,
    precision: str = "float32",
    report: Callable[[str], object] = str,
) -> dict[str, Any]:
    """Every engine against the plain loop, on the same jobs; `report` gets a line on each step."""
    check_engine("auto", device, precision)
    here = place(device)
    precision = resolve_precision(precision, torch.device(here))
    return {
        "machine": runs.environment(),
        "device": here,
        "precision": precision,
        "repeats": repeats,
        "cases": [_compare(case, here, repeats, precision, report) for case in cases],
    }


def plain_loop(jobs: Sequence[Fit], device: str) -> list[Weights]:
    """What everyone writes: client after client, torch's defaults, on a CPU one thread."""
    trained = []
    with _one_thread() if device == "cpu" else contextlib.nullcontext():
        for job in jobs:
            net = job.model.build().to(device)
            net.load_state_dict(job.state)
            x, targets = job.data.samples.tensor().to(device), job.data.targets.to(device)
            optimizer = torch.optim.Adam(net.parameters(), job.recipe.lr)
            for batches in training.draw_batches(job.recipe, len(job.data), job.key):
                for batch in map(torch.from_numpy, batches):
                    optimizer.zero_grad()
                    training.loss(net(x[batch]), targets[batch]).backward()
                    optimizer.step()
            trained.append(net.state_dict())
    if device == "cuda":
        torch.cuda.synchronize()
    return trained


def _compare(
    case: Case, device: str, repeats: int, precision: str, report: Callable[[str], object]
) -> dict[str, Any]:
    jobs, ways = case.cohort(), _ways(device, precision)
    steps = sum(
        len(epoch)
        for job in jobs
        for epoch in training.draw_batches(job.recipe, case.samples, job.key)
    )
    rounds = []
    for way, work in ways.items():
        report(f"{case.model}: {way}, once to warm up")
        work(jobs)
    for n in range(repeats):
        report(f"{case.model}: all in turn, {n + 1} of {repeats}")
        rounds.append({way: seconds_each(work, jobs) for way, work in ways.items()})
    found = [
        {
            "way": way,
            "ms_per_model_step": spread([1000 * took[way] / steps for took in rounds]),
            "models_per_second": spread([case.clients / took[way] for took in rounds]),
            "times_plain_loop": spread([took[PLAIN] / took[way] for took in rounds]),
        }
        for way in ways
    ]
    return asdict(case) | {"model_steps": steps, "ways": found}


def _ways(device: str, precision: str) -> dict[str, Callable[[Sequence[Fit]], Any]]:
    """Name -> what trains a list of jobs: the plain loop, then every engine there is."""
    without = {"auto"} if find_spec("ray") else {"auto", "ray"}
    made: dict[str, Any] = {
        f"{name} engine": ENGINES[name](device, precision=precision)
        for name in ENGINES
        if name not in without
    }
    if device == "cpu":
        made = {
            "sequential engine, one thread": SequentialEngine(
                device, threads=1, precision=precision
            )
        } | made
    return {PLAIN: lambda jobs: plain_loop(jobs, device)} | {
        name: engine.run for name, engine in made.items()
    }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- scale ---

FEW = 1_000  # the federation that the large one is measured against
SMALL = ("model=mlp", "local.epochs=2", "distill.epochs=2", "partition.kind=views")
ALONE = (
    "import json, sys; from fedsift import bench; "
    "json.dump(bench.run_alone(**json.load(sys.stdin)), sys.stdout)"
)


def scale(
    clients: int = 1_000_000, rounds: int = 5, cohort: int = 100, repeats: int = 3
) -> dict[str, Any]:
    """FAS with a small model in a large and in a small federation, each in its own process."""
    if not 1 <= cohort <= min(FEW, clients):
        raise UserError(
            f"a cohort of {cohort} must be drawn from {FEW} and from {clients} clients; make "
            "it smaller"
        )
    machine = runs.environment()
    pairs = [
        [_run_in_new_process(count, rounds, cohort) for count in (FEW, clients)]
        for _ in range(repeats)
    ]
    few, many = zip(*pairs, strict=True)
    return {
        "machine": machine,
        "rounds": rounds,
        "cohort": cohort,
        "repeats": repeats,
        "federations": [_summarise(few), _summarise(many)],
        "round_ratio": _ratio(pairs, "round_s"),
        "round_cpu_ratio": _ratio(pairs, "round_cpu_s"),
    }


def run_alone(clients: int, rounds: int, cohort: int) -> dict[str, Any]:
    """Run an experiment in a run folder, as a user would.

    The first round, in which everything is loaded, is not counted.

    CPU seconds, of all threads together, mean more than the clock where other work runs on the
    machine.
    """
    settings = [*SMALL, f"clients={clients}", f"cohort={cohort}", f"rounds={rounds + 1}"]
    experiment = config.read_experiment("digits-fas", settings)
    engine, _ = choose_engine(device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        run = runs.begin_run(Path(folder) / "run", experiment)
        marks = [clocks(), *(clocks() for _ in runs.Group.of([run]).run_or_raise(engine))]
    wall, cpu = np.diff(marks, axis=0)[1:].T.tolist()
    return {
        "clients": len(run.federation.clients),
        "setup_s": marks[0][0] - begun,
        "round_s": wall,
        "round_cpu_s": cpu,
        "peak_mib": peak_memory() / 2**20,
    }


def peak_memory() -> int:
    """The most bytes this process has ever had in memory."""
    with contextlib.suppress(
        OSError, StopIteration, ValueError
    ):  # Linux: getrusage would count the parent's too
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _run_in_new_process(clients: int, rounds: int, cohort: int) -> dict[str, Any]:
    asked = {"clients": clients, "rounds": rounds, "cohort": cohort}
    return run_in_new_process(ALONE, asked, f"the run with {clients:,} clients")


def run_in_new_process(code: str, asked: dict[str, Any], what: str) -> dict[str, Any]:
    """What code prints as JSON that reads `asked` from its input; `what` failed, if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(asked), capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it was killed; is there enough memory?"])[-1]
        raise UserError(f"{what} ended with code {done.returncode}: {last}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _summarise(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "clients": outcomes[0]["clients"],
        "setup_s": spread([one["setup_s"] for one in outcomes]),
        "round_s": spread([took for one in outcomes for took in one["round_s"]]),
        "round_cpu_s": spread([took for one in outcomes for took in one["round_cpu_s"]]),
        "peak_mib": spread([one["peak_mib"] for one in outcomes]),
    }


def _ratio(pairs: Sequence[Sequence[dict[str, Any]]], figure: str) -> Spread:
    """Of the median round with many clients to that with few, pair by pair."""
    return spread([median(many[figure]) / median(few[figure]) for few, many in pairs])
