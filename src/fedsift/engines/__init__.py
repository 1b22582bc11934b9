"""Engines do the heavy work: `run(list of Fit and Predict) -> list of answers`. `choose` picks one and says why."""

from __future__ import annotations

import torch

from fedsift import shelf
from fedsift.engines.sequential import Sequential
from fedsift.types import Engine, Mistake

ENGINES = {"sequential": Sequential}
DEVICES = ("auto", "cpu", "cuda")


def check(engine: str, device: str) -> None:
    """A name or device that is not there is an error, not a fallback."""
    if engine != "auto":
        shelf.find(ENGINES, "engine", engine)
    if device not in DEVICES:
        raise Mistake(shelf.unknown("device", device, DEVICES, "--device auto|cpu|cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise Mistake("device cuda was asked for, but torch finds no CUDA device here; use --device cpu or auto")


def choose(engine: str = "auto", device: str = "auto") -> tuple[Engine, str]:
    """The engine, and one line on what was chosen and why."""
    check(engine, device)
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    name = "sequential" if engine == "auto" else engine
    chosen = ENGINES[name](place)
    why = "asked for" if engine != "auto" else "auto"
    return chosen, f"{name} engine on {place}, {chosen.threads} job(s) at a time ({why})"
