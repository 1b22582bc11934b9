"""What `auto` means: the batched engine, with worker processes in long trainings of small networks.

Two threads that train small networks wait for Python's lock. Processes do not, but they take
seconds to start. docs/engines.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsift.engines.batched import BatchedEngine
from fedsift.engines.spread.parcels import pack
from fedsift.engines.spread.processes import WorkerEngine, can_start
from fedsift.engines.stacked.program import Vmapped
from fedsift.engines.threads import Stop, count_cores
from fedsift.training import count_steps
from fedsift.types import Fit, Model, UserError, Work

SMALL = 1_000_000  # multiplications per sample: beyond, the lock costs little
STEPS_HERE = 500_000  # of small networks, a minute or so, before workers are started


class AutoEngine(BatchedEngine):
    """The best engine for any work.

    device: as torch names it, e.g. "cpu", "cuda" or "cuda:1"
    precision: of matrix products: "float32", "tf32" (CUDA), "bfloat16" or "auto"
    memory: GiB for stacked networks (default: 1, on CUDA half of what is free)

    On a CPU, when small networks have been trained for 500,000 steps, the next ones are trained in
    worker processes, one a core. Their answers are the same to the last bit.
    """

    def __init__(
        self, device: str = "cpu", precision: str = "float32", memory: float | None = None
    ) -> None:
        super().__init__(device, precision=precision, memory=memory)
        useful = self.device.type == "cpu" and count_cores() > 1 and can_start()
        self._others = WorkerEngine(device, None, self.precision.name, memory) if useful else None
        self._steps = 0  # of small networks, so far
        self._small: dict[Model, bool] = {}

    def run(self, jobs: Sequence[Work], stop: Stop | None = None) -> list[Any]:
        """The answers, in the order of the jobs; whoever sets `stop` ends them between batches."""
        small = [job for job in jobs if isinstance(job, Fit) and self._is_small(job.model)]
        self._steps += sum(map(count_steps, small))
        spread = self._others is not None and stop is None and len(small) == len(jobs) > 1
        if spread and self._steps > STEPS_HERE:
            assert self._others is not None
            return self._others.run(jobs)
        return super().run(jobs, stop)

    def _is_small(self, model: Model) -> bool:
        """Whether two threads that train such networks would wait for each other."""
        if model not in self._small:
            program = self._program(model)
            stacked = not isinstance(program, str | Vmapped) and program.macs <= SMALL
            self._small[model] = stacked and _can_travel(model)
        return self._small[model]


def _can_travel(model: Model) -> bool:
    """A network of a notebook's own, for one, cannot be sent to another process."""
    try:
        pack(model)
    except UserError:
        return False
    return True
