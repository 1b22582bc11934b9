"""What a process and its workers say to each other; arrays are in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class NewMemory:
    """The jobs that follow are in this memory; its descriptor comes next."""

    size: int


@dataclass(frozen=True)
class NewStore:
    """The values of a data set; the descriptor of their memory comes next."""

    number: int
    size: int  # of the memory
    bytes: int
    kind: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Do:
    """Do the jobs that are written in the first `size` bytes of the memory."""

    text: bytes
    size: int
    alive: frozenset[int]  # the stores that may still be needed


@dataclass(frozen=True)
class StopNow:
    """End what you do between two batches."""


@dataclass(frozen=True)
class Done:
    """An `Answer`, packed. With a size, it is in new memory, whose descriptor comes next."""

    text: bytes
    size: int | None = None
