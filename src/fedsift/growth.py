"""How the cost of a round grows with the clients, the cohort, the public set, the classes, the
parameters and the rounds: time, memory and bytes, and the exponent of each.

Every point is a run of its own, in a process of its own, on random data.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isqrt
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedsift import bench, config, ledger, runs
from fedsift.engines import choose_engine
from fedsift.registry import lookup
from fedsift.types import UserError

FIGURES = {"round_cpu_s": "CPU seconds per round", "peak_mib": "peak MiB", "bytes": "bytes"}
STEEP = 1.1
LONG = 20.0  # seconds: of rounds that take longer, one is enough
PRIVATE, TEST = 1000, 200  # samples
ALONE = (
    "import json, sys; from fedsift import growth; "
    "json.dump(growth.run_point(json.load(sys.stdin)), sys.stdout)"
)


@dataclass(frozen=True)
class Sizes:
    """One federation: FAS with a small mlp, 100 soft labels of each client in a round."""

    clients: int = 1_000
    cohort: int = 10
    public: int = 1_000
    classes: int = 10
    parameters: int = 10_000
    rounds: int = 3

    @property
    def features(self) -> int:
        """As many as the hidden layer has units, about: its weights are a square."""
        return isqrt(self.parameters)


AXES: dict[str, tuple[int, ...]] = {
    "clients": (1_000, 10_000, 100_000, 1_000_000),
    "cohort": (10, 32, 100, 316, 1_000),
    "public": (1_000, 10_000, 100_000, 1_000_000),
    "classes": (10, 32, 100, 316, 1_000),
    "parameters": (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
    "rounds": (10, 32, 100),  # here the figures are of all rounds, not of one
}


def grow(
    axes: Sequence[str] = tuple(AXES),
    seconds: float = 600.0,
    report: Callable[[str], object] = str,
) -> dict[str, Any]:
    """Points of each axis, the small ones first, as long as there is time; the exponents.

    axes: of AXES
    seconds: for all of them; a point that would take longer than is left is not begun
    report: gets a line on each point
    """
    for axis in axes:
        lookup(AXES, "axis", axis, ", ".join(AXES))
    end, found = time.perf_counter() + seconds, {}
    for number, axis in enumerate(axes):
        share = (end - time.perf_counter()) / (len(axes) - number)
        found[axis] = _grow_along(axis, time.perf_counter() + share, report)
    return {"machine": runs.environment(), "seconds": seconds, "axes": found}


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The slope of log(value) over log(size), by least squares; None for fewer than two points."""
    if len(set(sizes)) < 2 or min(values, default=0) <= 0:
        return None
    x, y = np.log(sizes), np.log(values)
    x, y = x - x.mean(), y - y.mean()
    return round(float((x * y).sum() / (x * x).sum()), 3)


def _grow_along(axis: str, end: float, report: Callable[[str], object]) -> dict[str, Any]:
    points: list[dict[str, Any]] = []
    starting, left_out = 0.0, dict[int, str]()
    for size in AXES[axis]:
        before = points[-1][axis] if points else size
        # a round should not grow faster than that; starting a process does not grow
        expected = points[-1]["round_s"] * size / before if points else 0.0
        fewer = {"rounds": 1} if axis != "rounds" and expected > LONG else {}
        sizes = Sizes(**({axis: size} | fewer))
        times = 1 if axis == "rounds" else sizes.rounds + 1  # there it is the time of all rounds
        needed = starting + expected * times
        if points and time.perf_counter() + needed > end:
            left_out[size] = f"about {needed:.0f} s, more than are left"
            continue
        report(f"{axis} = {size:,}")
        begun = time.perf_counter()
        try:
            points.append({axis: size} | _run_in_new_process(sizes))
        except UserError as error:
            left_out[size] = str(error)
            larger = (other for other in AXES[axis] if other > size)
            left_out |= dict.fromkeys(larger, f"not begun, as {axis} = {size:,} has failed")
            break
        took = time.perf_counter() - begun
        starting = max(0.0, took - points[-1]["round_s"] * times)
    values = {name: [point[name] for point in points] for name in FIGURES}
    where = [point[axis] for point in points]
    return {
        "points": points,
        "exponents": {name: fit_exponent(where, found) for name, found in values.items()},
        "last_exponents": {
            name: fit_exponent(where[-2:], found[-2:]) for name, found in values.items()
        },
        "left_out": {str(size): why for size, why in left_out.items()},
    }


def run_point(asked: dict[str, int]) -> dict[str, Any]:
    """Run one federation in a run folder. The first round is not counted: it loads everything."""
    sizes = Sizes(**asked)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        _write_data(sizes, data)
        experiment = config.read_experiment("digits-fas", _settings(sizes, data))
        begun = time.perf_counter()
        run = runs.begin_run(Path(folder) / "run", experiment)
        setup = time.perf_counter() - begun
        engine, _ = choose_engine(device="cpu")
        marks, sent = [bench.clocks()], []
        for _, record in runs.Group.of([run]).run_or_raise(engine):
            marks.append(bench.clocks())
            sent.append(record.bytes)
    wall, cpu = np.diff(marks, axis=0)[1:].T.tolist()
    totals, whole = ledger.total(sent[1:]), sizes.rounds > Sizes.rounds
    return {
        "setup_s": setup,
        "round_s": sum(wall) if whole else median(wall),
        "round_cpu_s": sum(cpu) if whole else median(cpu),
        "peak_mib": bench.peak_memory() / 2**20,
        "bytes": (totals.uplink + totals.downlink) / (1 if whole else sizes.rounds),
    }


def _write_data(sizes: Sizes, path: Path) -> None:
    """Noise; its classes in turn, so that each has samples."""
    generator = np.random.default_rng(0)
    train = max(PRIVATE, sizes.classes) + sizes.public
    counts = {"": train, "_test": max(TEST, sizes.classes)}
    parts: dict[str, Any] = {
        f"{kind}{part}": generator.integers(0, 256, (count, sizes.features), np.uint8)
        if kind == "x"
        else np.arange(count) % sizes.classes
        for part, count in counts.items()
        for kind in "xy"
    }
    np.savez(path, **parts)


def _settings(sizes: Sizes, data: Path) -> list[str]:
    hidden = sizes.parameters / (sizes.features + 1 + sizes.classes)
    return [
        f"data.name={data}",
        f"data.private={max(PRIVATE, sizes.classes)}",
        f"data.public={sizes.public}",
        f"clients={max(sizes.clients, sizes.cohort)}",
        f"cohort={sizes.cohort}",
        f"rounds={sizes.rounds + 1}",
        f"model=mlp(width={max(hidden / 64, 1 / 64):.6f})",
        "budget=100",
        *("partition.kind=views", "local.epochs=1", "distill.epochs=1"),
        *("local.batch=64", "distill.batch=64"),
    ]


def _run_in_new_process(sizes: Sizes) -> dict[str, Any]:
    return bench.run_in_new_process(ALONE, asdict(sizes), "the run")


def list_steep(result: dict[str, Any]) -> list[str]:
    """What grows faster than linearly over the last step, beyond what noise does."""
    return [
        f"{FIGURES[name]} with {axis} ({exponent:.2f})"
        for axis, found in result["axes"].items()
        for name, exponent in found["last_exponents"].items()
        if exponent is not None and exponent > STEEP
    ]
