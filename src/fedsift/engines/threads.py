"""Threads that run an engine's tasks in parallel and stop between batches on error or interrupt."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

from fedsift.engines.malloc import keep_memory

Stop = threading.Event
Task = Callable[[Stop], Any]


class Interrupted(Exception):
    """The run is stopping; a task gave up between two batches."""


class Workers:
    """On a CPU each task has one intra-op thread, always: its sums never depend on other tasks."""

    def __init__(self, device: torch.device, threads: int | None = None) -> None:
        self._device, self._cpu = device, device.type == "cpu"
        # a GPU is one, and its programs are not shared
        self.threads = (threads or count_cores()) if self._cpu else 1
        keep_memory()  # a round's messages and answers on the host need it as much as its steps
        self._pool = ThreadPoolExecutor(self.threads, "fedsift")

    def run(self, tasks: Sequence[Task], stop: Stop | None = None) -> list[Any]:
        """The answers, in the order of the tasks; whoever sets `stop` ends them early."""
        stop = stop or Stop()
        futures = [self._pool.submit(self._do, task, stop) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:
            stop.set()
            for future in futures:
                future.cancel()
            wait(futures)

    def _do(self, task: Task, stop: Stop) -> Any:
        # every time: part of this setting is one for all threads; the caller may have changed it
        if self._cpu:
            torch.set_num_threads(1)
        elif self._device.type == "cuda" and self._device.index is not None:
            torch.cuda.set_device(self._device)  # kernels and streams are those of a thread's GPU
        return task(stop)


def raise_if_stopped(stop: Stop) -> None:
    """Called between two batches."""
    if stop.is_set():
        raise Interrupted


def count_cores() -> int:
    """The cores this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
