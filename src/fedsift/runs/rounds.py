"""Rounds of many runs: all together, or in two lanes, so that a GPU need not wait for the host.

While the engine trains the runs of one lane, a thread does what the runs of the other lane do on
the host: it encodes, averages, measures and writes files. The lanes take turns.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from fedsift.federation import Record
from fedsift.runs.run import Run
from fedsift.turns import Asked, Lane, answer
from fedsift.types import Engine

SAVERS = 8  # runs whose round is written at the same time
FEWEST = 36  # runs of a lane; estimated from times of a step, not measured
SWITCH = 0.0005  # seconds: the engine's thread must not wait long for Python's lock

Outcome = Record | Exception


def play_rounds(
    runs: Sequence[Run], engine: Engine, end: float | None = None
) -> Generator[tuple[Run, Outcome], None, None]:
    """Round after round, until every run has finished or failed; each is on disk when it is told.

    The caller settles each outcome before it asks for the next. With `end`, no round is begun that
    would last beyond it if it took as long as the longest.
    """
    lanes = min(getattr(engine, "lanes", 1), max(1, len(runs) // FEWEST))
    failed: set[int] = set()
    longest = 0.0
    with _Host(lanes) as host:
        waiting = deque[_Round]()
        if end is None or time.perf_counter() <= end:
            every = (_Round(list(runs[i::lanes]), host, lanes) for i in range(lanes))
            waiting += [round for round in every if round.begin(failed)]
        while waiting:
            round = waiting.popleft()
            if work := round.wait():
                round.go_on(answer(work, engine))
                waiting.append(round)
                continue
            for run, outcome in round.written:
                if isinstance(outcome, Exception):
                    failed.add(id(run))
                yield run, outcome
            longest = max(longest, time.perf_counter() - round.begun)
            late = end is not None and time.perf_counter() + longest > end
            if not late and round.begin(failed):
                waiting.append(round)


class _Round:
    """The round that some runs are in."""

    def __init__(self, runs: list[Run], host: _Host, lanes: int) -> None:
        self._runs, self._host, self._lanes = runs, host, lanes
        self.written: list[tuple[Run, Outcome]] = []

    def begin(self, failed: set[int]) -> bool:
        """Begin the next round of the runs that have one; whether there are any."""
        self._active = [run for run in self._runs if not run.finished and id(run) not in failed]
        if not self._active:
            return False
        turns = [run.federation.round_turn(run.state) for run in self._active]
        self._lane: Lane[Record] = Lane(turns)
        self.begun = time.perf_counter()
        self._next = self._host.submit(partial(self._advance, None))
        return True

    def go_on(self, answers: Mapping[int, Any]) -> None:
        self._next = self._host.submit(partial(self._advance, answers))

    def wait(self) -> Asked:
        """The work that is asked for next; nothing when the round is written."""
        asked: Asked = self._next.result()
        return asked

    def _advance(self, answers: Mapping[int, Any] | None) -> Asked:
        asked = self._lane.begin() if answers is None else self._lane.advance(answers)
        if not asked:
            self._write(self._lane.outcomes())
        return asked

    def _write(self, outcomes: Sequence[Outcome]) -> None:
        runs = max(1, self._lanes * len(self._active))  # that share the time
        write = partial(_write, seconds=(time.perf_counter() - self.begun) / runs)
        with ThreadPoolExecutor(SAVERS) as savers:  # they mostly wait for the disk
            written = list(savers.map(write, self._active, outcomes))
        self.written = list(zip(self._active, written, strict=True))


class _Host:
    """Does the work of the host: at once or, for several lanes, in a thread of its own."""

    def __init__(self, lanes: int) -> None:
        self._thread = ThreadPoolExecutor(1, "fedsift-host") if lanes > 1 else None
        self._switch = sys.getswitchinterval()

    def submit(self, work: partial[Asked]) -> Future[Asked]:
        if self._thread is not None:
            return self._thread.submit(work)
        done: Future[Asked] = Future()
        done.set_result(work())
        return done

    def __enter__(self) -> _Host:
        if self._thread is not None:
            sys.setswitchinterval(SWITCH)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            sys.setswitchinterval(self._switch)


def _write(run: Run, outcome: Outcome, seconds: float) -> Outcome:
    try:
        if isinstance(outcome, Record):
            run.write(outcome, seconds)
    except Exception as error:
        return error
    return outcome
