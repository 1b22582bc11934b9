"""Engines do the heavy work: `run(list of Fit and Predict) -> list of answers`. `choose` picks one
and says why.
"""

from __future__ import annotations

from typing import Any

import torch

from fedsift import registry
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.precision import PRECISIONS, Precision
from fedsift.engines.sequential import SequentialEngine
from fedsift.types import UserError

__all__ = ["DEVICES", "ENGINES", "PRECISIONS", "check_engine", "choose_engine", "place"]

ENGINES: dict[str, type[BatchedEngine] | type[SequentialEngine]] = {
    "batched": BatchedEngine,
    "sequential": SequentialEngine,
}
DEVICES = ("auto", "cpu", "cuda")


def check_engine(engine: str, device: str, precision: str = "float32") -> None:
    """A name, device or precision that is not there is an error, not a fallback."""
    if engine not in ("auto", *ENGINES):
        raise UserError(
            registry.unknown_name("engine", engine, ("auto", *ENGINES), "fedsift ls engines")
        )
    if device not in DEVICES:
        raise UserError(registry.unknown_name("device", device, DEVICES, "--device auto|cpu|cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device cuda was asked for, but torch finds no CUDA device here; use --device cpu or auto"
        )
    Precision(precision, torch.device(place(device)))


def place(device: str) -> str:
    """Where "auto" is: a GPU where there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def choose_engine(
    engine: str = "auto",
    device: str = "auto",
    precision: str = "float32",
    memory: float | None = None,
) -> tuple[BatchedEngine | SequentialEngine, str]:
    """The engine, and one line on what was chosen and why. `engine.describe(model)` says how it runs
    a network.

    "auto" is the batched engine everywhere: it stacks what pays and leaves the rest to the
    sequential one, by rule and not by the clock, so that two runs of an experiment compute the
    same. `memory` bounds its programs, in GiB; the sequential engine trains one network a thread
    and needs no bound.
    """
    check_engine(engine, device, precision)
    name = "batched" if engine == "auto" else engine
    bound: dict[str, Any] = {} if memory is None or name == "sequential" else {"memory": memory}
    chosen = ENGINES[name](place(device), precision=precision, **bound)
    why = "asked for" if engine != "auto" else "auto: stacks equal networks where that pays"
    return (
        chosen,
        f"{name} engine on {chosen.device.type}, {precision}, {chosen.workers.threads} thread(s) ({why})",
    )
