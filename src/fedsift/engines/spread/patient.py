"""The engine behind `auto` on a CPU: threads first, worker processes once they pay."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fedsift.checks import warn_user
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.spread.parcels import pack
from fedsift.engines.spread.processes import WorkerEngine
from fedsift.engines.threads import Stop
from fedsift.types import Fit, Model, UserError, Work

# multiplications per sample: below, the steps of a program are so short that threads wait for
# Python's lock
SMALL = 500_000
# steps of small networks: as many as lose by threads what it costs to start processes
STEPS = 100_000


class PatientEngine(BatchedEngine):
    """The batched engine on a CPU. After many steps of small networks it hands them to as many
    worker processes as it has threads, which compute the same bits.

    It counts steps and looks at no clock.
    """

    def __init__(
        self,
        threads: int | None = None,
        precision: str = "float32",
        memory: float | None = None,
        steps: int = STEPS,
    ) -> None:
        super().__init__("cpu", threads, precision, memory)
        self._how = precision, memory
        self._steps_left = steps if self.workers.threads > 1 and os.name != "nt" else None
        self._travels: dict[Model, bool] = {}
        self._processes: WorkerEngine | None = None

    def run(self, jobs: Sequence[Work], stop: Stop | None = None) -> list[Any]:
        """The answers, in the order of the jobs."""
        if self._steps_left is None or not all(self._is_small(job) for job in jobs):
            return super().run(jobs, stop)
        if self._steps_left > 0:
            self._steps_left -= sum(_count_steps(job) for job in jobs)
            return super().run(jobs, stop)
        return self._run_in_processes(jobs)

    def _run_in_processes(self, jobs: Sequence[Work]) -> list[Any]:
        """Jobs are pure: where processes fail, threads do them again, and for good."""
        if self._processes is None:
            self._processes = WorkerEngine("cpu", self.workers.threads, *self._how)
        try:
            return self._processes.run(jobs)
        except Exception as error:
            self._processes = self._steps_left = None
            answers = super().run(jobs)  # a faulty job says so here
            warn_user(f"worker processes are given up, and threads go on: {error}")
            return answers

    def _is_small(self, job: Work) -> bool:
        program = self._program_for(job)
        small = not isinstance(program, str) and program.macs <= SMALL
        return small and self._can_travel(job.model)

    def _can_travel(self, model: Model) -> bool:
        if model not in self._travels:
            try:
                pack(model)
                self._travels[model] = True
            except UserError:
                self._travels[model] = False
        return self._travels[model]


def _count_steps(job: Work) -> int:
    if not isinstance(job, Fit):
        return 0
    return job.recipe.epochs * -(-len(job.data) // job.recipe.batch)
