"""Randomness depends on names (seed, round, purpose, client id), not on stored or global state."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import Any

import numpy as np

Names = tuple[int | str, ...]
TORCH = threading.RLock()  # held by whoever seeds torch's global generator, which threads share


def digest(*names: int | str) -> bytes:
    """Equal names, equal bytes, on every machine; numpy integers are integers, 3 and "3" differ."""
    plain = [name if isinstance(name, str) else int(name) for name in names]
    return hashlib.sha256(json.dumps(plain).encode()).digest()


def rng(*names: int | str) -> np.random.Generator:
    return np.random.default_rng(np.frombuffer(digest(*names)[:16], "<u4"))


def torch_seed(*names: int | str) -> int:
    return int.from_bytes(digest(*names)[:7], "little")


def subset(
    generator: np.random.Generator, population: int, size: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """`size` distinct indexes below `population`, ascending. Both ends of a link draw with this."""
    return np.sort(generator.choice(population, size, replace=False)).astype(np.int64)
