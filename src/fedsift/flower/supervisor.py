"""A run that is submitted again after a crash, until its last round is saved. Resuming is exact, so
the numbers are those of a run without a crash.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsift.files import LOCK, Lock
from fedsift.flower.superlink import RunEnded, SuperLink, follow
from fedsift.runs import rounds_played
from fedsift.types import UserError

BUSY = "another process is running in"  # how a server says that its run folder is taken


@dataclass(frozen=True)
class Patience:
    """Pauses grow from the first to the longest; a finished round starts them anew."""

    tries: int = 10  # submissions in a row without a finished round
    first: float = 5.0  # seconds
    longest: float = 300.0

    def pause(self, failures: int) -> float:
        return min(self.first * 2.0 ** (failures - 1), self.longest)


def supervise(
    link: SuperLink,
    submit: Callable[[], str],
    folder: Path,
    rounds: int,
    tell: Callable[[str], None],
    patience: Patience,
) -> Iterator[int]:
    """The number of rounds saved, when it has grown, until all are."""
    seen, failures = rounds_played(folder), 0
    while (before := rounds_played(folder)) < rounds:
        try:
            link.revive()
            for seen in _watch_other(folder, before, rounds, tell):
                yield seen
            if (done := rounds_played(folder)) < rounds:
                run = submit()
                tell(f"run {run} is submitted at round {done + 1} of {rounds}")
                for seen in follow(link, run, folder, done, rounds):
                    yield seen
            continue
        except (UserError, OSError) as error:
            if is_final(error):
                raise
            why = str(error)
        failures = 1 if rounds_played(folder) > before else failures + 1
        if failures >= patience.tries:
            raise UserError(f"given up after {failures} tries without a finished round: {why}")
        pause = patience.pause(failures)
        tell(f"{why}; trying again in {pause:g} s ({failures} of {patience.tries - 1})")
        time.sleep(pause)
    if seen < rounds:  # the last ones were saved during a pause
        yield rounds


def is_final(error: Exception) -> bool:
    """Whether the same would happen again: a mistake in the experiment, or somebody stopped it.

    What clients sent may be better next time: a `RoundError` is not final.
    """
    if not isinstance(error, RunEnded):
        return False
    mistake = re.match(r"[\w.]*\bUserError:", error.reason) and BUSY not in error.reason
    return bool(mistake) or error.status == "finished:stopped"


def _watch_other(
    folder: Path, done: int, rounds: int, tell: Callable[[str], None]
) -> Iterator[int]:
    """While another server runs in the folder, as after a restart of the supervisor alone."""
    if _is_taken(folder):
        tell(f"a server is running in {folder}; watching it")
    while _is_taken(folder) and done < rounds:
        time.sleep(1.0)
        if (now := rounds_played(folder)) > done:
            done = now
            yield done


def _is_taken(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        try:
            Lock(folder / LOCK, BUSY).release()
        except UserError:
            return True
    return False
