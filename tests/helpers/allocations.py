"""What reading a message allocates: Python and NumPy by tracemalloc, torch by its profiler."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch.profiler import ProfilerActivity, profile, record_function

T = TypeVar("T")
_MARK = "one of several"


def measure_peaks(act: Callable[[T], Any], on: Sequence[T]) -> list[int]:
    """For each, the most bytes that were there at once beyond what was there before."""
    of_python, of_torch = measure_python(act, on), measure_torch(act, on)
    return [one + other for one, other in zip(of_python, of_torch, strict=True)]


def measure_python(act: Callable[[T], Any], on: Sequence[T]) -> list[int]:
    found = []
    tracemalloc.start()
    try:
        for each in on:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            act(each)
            found.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return found


def measure_torch(act: Callable[[T], Any], on: Sequence[T]) -> list[int]:
    """Tensors on the CPU. What one operation takes and gives back by itself is not seen."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        for each in on:
            with record_function(_MARK):
                act(each)
    found: list[int] = []
    level = 0
    for event in sorted(seen.events(), key=lambda event: event.time_range.start):
        if event.name == _MARK:
            found.append(0)
            level = 0
        elif found:
            level += event.self_cpu_memory_usage
            found[-1] = max(found[-1], level)
    assert len(found) == len(on)
    return found


def limit_growth(size: int) -> None:
    """From here on this process cannot take more than so many bytes beyond what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
