"""Threads that do an engine's tasks side by side and stop between two batches when one fails or the
user interrupts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

Stop = threading.Event
Task = Callable[[Stop], Any]


class Interrupted(Exception):
    """The run is stopping; a task gave up between two batches."""


class Workers:
    """On a CPU every task has one intra-op thread, however many there are: its sums never depend on
    its company.
    """

    def __init__(self, device: torch.device, threads: int | None = None) -> None:
        cpu = self._cpu = device.type == "cpu"
        self.threads = (
            (threads or cores()) if cpu else 1
        )  # a GPU is one, and its programs are not shared
        if cpu:
            keep_memory()
        self._pool = ThreadPoolExecutor(self.threads, "fedsift")

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        """The answers, in the order of the tasks."""
        stop = Stop()
        futures = [self._pool.submit(self._do, task, stop) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:
            stop.set()
            for future in futures:
                future.cancel()
            wait(futures)

    def _do(self, task: Task, stop: Stop) -> Any:
        # every time: a part of this setting is one for all threads, and the caller may have changed
        # it
        if self._cpu:
            torch.set_num_threads(1)
        return task(stop)


def carry_on(stop: Stop) -> None:
    """Called between two batches."""
    if stop.is_set():
        raise Interrupted


def keep_memory() -> None:
    """Ask the C library (glibc) to keep memory that is freed for the next step, which needs as
    much: by default it goes back to the system after every step and is zeroed page by page when it
    returns, a tenth of the time."""
    trim_threshold, mmap_threshold = -1, -3
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, 2**30)
        libc.mallopt(mmap_threshold, 2**25)


class _Heap(ctypes.Structure):
    """What glibc's mallinfo2 tells: ten numbers, of which the ninth is the bytes that are free."""

    _fields_ = [
        ("others", 8 * ctypes.c_size_t),
        ("free", ctypes.c_size_t),
        ("on_top", ctypes.c_size_t),
    ]


def give_back_memory(beyond: float) -> None:
    """Return what is free to the system where that is more than the next step can use. After a
    large program its answers lie scattered in what it has freed, the next one does not fit in
    between, and a process would grow with every one."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = _Heap
        if libc.mallinfo2().free > beyond:
            libc.malloc_trim(0)


def cores() -> int:
    """The cores this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
