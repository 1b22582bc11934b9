"""The scheduler: parts of a list of jobs go to whichever worker is free.

Jobs are pure. What a worker had in hand when it died is done again by another one, a few times.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fedsift.checks import warn_user
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.malloc import keep_memory
from fedsift.engines.spread.parcels import Parcel, Stores, pack
from fedsift.engines.spread.station import Answer, Setting
from fedsift.engines.stacked.schedule import shared_recipe, sort_by_length
from fedsift.engines.threads import Interrupted, Stop
from fedsift.types import Fit, Model, Predict, UserError, Work

TRIES = 3  # times that a part is begun
TOGETHER_ON_CUDA = 8  # networks that a GPU trains in little more time than one
PATIENCE = 5.0  # seconds that workers have to stop between two batches


class WorkerDied(Exception):
    """A worker is gone, with what it had in hand."""


class Worker(Protocol):
    """One place where parts are done, one at a time."""

    def do(self, parcel: Parcel, stores: Stores) -> Answer:
        """Do a part; WorkerDied if the worker dies of it or has died before."""

    def stop(self) -> None:
        """Ask it to end what it does, between two batches."""

    def kill(self) -> None:
        """End it."""


class Crew(Protocol):
    """The workers there are. It makes new ones for those that have died."""

    setting: Setting

    def count(self) -> int:
        """How many workers there are to be for the next list of jobs."""

    def workers(self, count: int) -> list[Worker]:
        """So many of them at most, and one at least."""

    def replace(self, worker: Worker) -> Worker | None:
        """Another in the place of one that has died; None where there is no room for it."""

    def summary(self) -> str:
        """What and where they are, in a few words."""


@dataclass(eq=False)
class Part:
    """Some of the jobs, which are done together."""

    places: list[int]
    jobs: list[Work]
    deaths: list[str] = field(default_factory=list)

    def describe(self) -> str:
        first = self.jobs[0]
        doing = "asking" if isinstance(first, Predict) else "training"
        key = "" if isinstance(first, Predict) else f" {first.key}"
        others = f" and {len(self.jobs) - 1} more" if len(self.jobs) > 1 else ""
        return f"{doing} {first.model.name}{key}{others}"


class SpreadEngine:
    """An engine whose jobs are done by the workers of a crew."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.lanes = 2 if self._cuda else 1  # one works on the host while the other trains
        keep_memory()  # the host's part of a round is done here, whoever trains
        self._stores = Stores()
        self._planners: dict[int, BatchedEngine] = {}
        self._warned: set[str] = set()

    def run(self, jobs: Sequence[Work]) -> list[Any]:
        """The answers, in the order of the jobs."""
        if not jobs:
            return []
        parts = [Part(places, [jobs[i] for i in places]) for places in self.split(jobs)]
        if len(parts) == 1 and not self._cuda:  # here it takes as long, and travels nowhere
            return self._planner(self.crew.count()).run(jobs)
        answers: dict[int, Any] = {}
        for part, answer in zip(parts, self._spread(parts), strict=True):
            answers |= zip(part.places, answer, strict=True)
        return [answers[i] for i in range(len(jobs))]

    def split(self, jobs: Sequence[Work]) -> list[list[int]]:
        """The parts: on a CPU the programs of one process with as many threads, so that every bit
        is the same; on GPUs equal networks in as many parts as there are workers."""
        count = self.crew.count()
        if not self._cuda:
            return self._planner(count).split(jobs)
        groups: dict[Any, list[int]] = {}
        for i, job in enumerate(jobs):
            groups.setdefault(_kind(job), []).append(i)
        return [part for members in groups.values() for part in _deal(jobs, members, count)]

    def summary(self) -> str:
        """What it is and where it runs, in a few words."""
        return f"batched engine in {self.crew.summary()}"

    def describe(self, model: Model) -> str:
        """How networks of this architecture are run, and why."""
        if self._cuda:
            return f"{model.name}: stacked where it can be, by workers on GPUs"
        return self._planner(self.crew.count()).describe(model)

    @property
    def _cuda(self) -> bool:
        return self.crew.setting.device.startswith("cuda")

    def _planner(self, count: int) -> BatchedEngine:
        if count not in self._planners:
            how = self.crew.setting
            self._planners[count] = BatchedEngine("cpu", count, how.precision, how.memory)
        return self._planners[count]

    # --- who does what ---

    def _spread(self, parts: Sequence[Part]) -> list[list[Any]]:
        workers = self.crew.workers(min(len(parts), self.crew.count()))
        shift = _Shift(self, parts, workers)
        with ThreadPoolExecutor(len(workers), "fedsift-worker") as threads:
            try:  # an interrupt may come while the threads are being started
                shift.wait_for([threads.submit(shift.serve, i) for i in range(len(workers))])
            finally:
                shift.end()
        return [shift.answers[part] for part in parts]

    def take(self, part: Part, worker: Worker) -> list[Any]:
        """The answers to one part by one worker."""
        found = worker.do(pack(part.jobs, self._stores), self._stores)
        for text in found.warned:
            if text not in self._warned:
                self._warned.add(text)
                warn_user(text)
        if found.error is not None:
            raise found.error
        assert found.answers is not None
        return found.answers


class _Shift:
    """One list of parts, until all are done or one has failed."""

    def __init__(self, engine: SpreadEngine, parts: Sequence[Part], workers: list[Worker]) -> None:
        self._engine, self._workers, self._waiting = engine, workers, deque(parts)
        self._left, self._in_hand = len(parts), 0
        self._stop, self._change = Stop(), threading.Condition()
        self.answers: dict[Part, list[Any]] = {}

    def serve(self, place: int) -> None:
        """Give part after part to the worker in one place, or to who comes in its stead."""
        while (part := self._next()) is not None:
            worker = self._workers[place]
            try:
                self._finish(part, self._engine.take(part, worker))
            except Interrupted:
                return
            except WorkerDied as death:
                if self._stop.is_set():
                    return
                self._again(part, str(death))
                other = self._engine.crew.replace(worker)
                if other is None:
                    return
                self._workers[place] = other
            finally:
                self._put_down()

    def wait_for(self, served: Sequence[Future[None]]) -> None:
        """Until all is done or one has failed."""
        for future in wait(served, return_when=FIRST_EXCEPTION).done:
            future.result()
        for future in served:
            future.result()
        if self._left:
            raise UserError("no worker is left, and none could be started")

    def end(self) -> None:
        """Nobody takes another part; workers that have one in hand are stopped, at last killed."""
        with self._change:
            self._stop.set()
            self._change.notify_all()
            if not self._in_hand:
                return
        for worker in self._workers:
            worker.stop()
        with self._change:
            if self._change.wait_for(lambda: not self._in_hand, PATIENCE):
                return
        for worker in self._workers:
            worker.kill()

    def _next(self) -> Part | None:
        with self._change:
            while self._left and not self._waiting and not self._stop.is_set():
                self._change.wait()
            if not self._waiting or self._stop.is_set():
                return None
            self._in_hand += 1
            return self._waiting.popleft()

    def _put_down(self) -> None:
        with self._change:
            self._in_hand -= 1
            self._change.notify_all()

    def _finish(self, part: Part, answer: list[Any]) -> None:
        with self._change:
            self.answers[part] = answer
            self._left -= 1
            self._change.notify_all()

    def _again(self, part: Part, death: str) -> None:
        part.deaths.append(death)
        if len(part.deaths) >= TRIES:
            raise UserError(
                f"{len(part.deaths)} workers died one after another while {part.describe()} "
                f"({part.deaths[-1]}); is there enough memory?"
            )
        with self._change:
            self._waiting.appendleft(part)
            self._change.notify_all()


def _kind(job: Work) -> Any:
    """Equal for jobs that a GPU may do as one program."""
    if isinstance(job, Fit):
        return Fit, job.model, shared_recipe(replace(job.recipe)), job.temperature
    return type(job), job.model


def _deal(jobs: Sequence[Work], members: list[int], count: int) -> list[list[int]]:
    """As many parts as there are workers; few networks stay together."""
    fits: Any = [jobs[i] for i in members]
    if isinstance(fits[0], Fit):
        members = [members[i] for i in sort_by_length(fits)]
    pieces = min(count, -(-len(members) // TOGETHER_ON_CUDA))
    return [members[i::pieces] for i in range(pieces)]
