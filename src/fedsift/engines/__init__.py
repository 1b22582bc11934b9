"""Engines do the heavy work: `run(list of Fit, Predict and Pretrain) -> list of answers`.
`choose_engine` picks one and says why. README.md in this folder is a map of the files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedsift import registry
from fedsift.engines.auto import AutoEngine
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.precision import PRECISIONS, Precision, resolve_precision, tell_faster
from fedsift.engines.router import Router
from fedsift.engines.sequential import SequentialEngine
from fedsift.engines.spread.on_ray import RayEngine
from fedsift.engines.spread.processes import WorkerEngine
from fedsift.types import Engine, UserError

__all__ = [
    "DEVICES",
    "ENGINES",
    "PRECISIONS",
    "Router",
    "check_engine",
    "choose_engine",
    "place",
    "resolve_precision",
    "tell_faster",
]


# Name -> what makes the engine; of device, precision, memory and workers it is given those it
# takes.
ENGINES: dict[str, Callable[..., Engine]] = {
    "auto": AutoEngine,
    "batched": BatchedEngine,
    "sequential": SequentialEngine,
    "workers": WorkerEngine,
    "ray": RayEngine,
}
DEVICES = ("auto", "cpu", "cuda")


def check_engine(engine: str, device: str, precision: str = "float32") -> None:
    """A name, device or precision that is not there is an error, not a fallback."""
    name = registry.parse_spec(engine)[0]
    registry.find(ENGINES, "engine", name)
    if device not in DEVICES:
        raise UserError(registry.unknown_name("device", device, DEVICES, "--device auto|cpu|cuda"))
    elsewhere = name == "ray"  # the workers' devices are on other machines
    if device == "cuda" and not elsewhere and not torch.cuda.is_available():
        raise UserError(
            "device cuda was asked for, but torch finds no CUDA device here; "
            "use --device cpu or auto"
        )
    Precision(precision, torch.device(place(device)))


def place(device: str) -> str:
    """Where "auto" is: a GPU where there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def choose_engine(
    engine: str | Engine = "auto",
    device: str = "auto",
    precision: str = "float32",
    memory: float | None = None,
    workers: int | None = None,
) -> tuple[Router, str]:
    """The engine, and one line on what was chosen and why. `engine.describe(model)` says how it
    runs a model.

    engine: "auto", "batched", "sequential", "workers", "ray", a plug-in "mine:Engine", or an
        object of your own with `run` and `describe`
    device: "auto", "cpu" or "cuda"
    precision: of matrix products: "float32", "tf32" (CUDA), "bfloat16" or "auto"
    memory: GiB for stacked networks (default: 1, on CUDA half of what is free)
    workers: how many worker processes; with "auto" or "batched" it means "workers"

    "auto" is the batched engine everywhere. It stacks what pays and leaves the rest to the
    sequential one, by rule and not by the clock, so that two runs of an experiment compute the
    same. On a CPU it moves long trainings of small networks to worker processes, which changes no
    bit. The sequential engine trains one network per thread and needs no bound on its memory.

    The choice is about networks. Models that are none (see docs/any-client.md) go to an engine of
    their own: what is returned is a `Router`, which has the chosen engine as `networks`.

    An engine changes settings of the whole process. When it is made, it asks the C library (glibc)
    to keep freed memory. When it runs on a CPU, it sets torch to one thread per job
    (`torch.set_num_threads(1)`), because sums must not depend on what else is running.
    """
    if isinstance(engine, Router):
        return engine, "engine as chosen before"
    if not isinstance(engine, str):
        own = Router(_check_members(engine))
        return own, f"engine of type {type(engine).__name__} (your own)"
    check_engine(engine, device, precision)
    if workers is not None and engine in ("auto", "batched"):
        engine = "workers"
    precision = resolve_precision(precision, torch.device(place(device)))
    offered = {"device": place(device), "precision": precision, "memory": memory}
    plan = registry.plan(ENGINES, "engine", engine, offered | {"workers": workers})
    if workers is not None and "workers" in plan.unused:
        raise UserError(f"engine {engine} has no workers; leave the engine out, or the workers")
    chosen = _check_members(plan.build())
    why = "asked for" if engine != "auto" else "auto: stacks equal networks where that pays"
    summary = getattr(chosen, "summary", lambda: f"engine {engine}")
    return Router(chosen), f"{summary()} ({why})"


def _check_members(engine: Any) -> Engine:
    if isinstance(engine, type):
        raise UserError(f"engine {engine.__name__} is a class; pass an object, {engine.__name__}()")
    missing = [name for name in ("run", "describe") if not callable(getattr(engine, name, None))]
    if missing:
        raise UserError(
            f"an engine of type {type(engine).__name__} has no {' and no '.join(missing)}; "
            "an engine has run(jobs) -> list of answers and describe(model) -> str"
        )
    return engine
