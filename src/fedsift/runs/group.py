"""Many runs side by side, with one failure policy: a run that fails stops alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

from fedsift import files
from fedsift.baselines import baselines_turn
from fedsift.config import Experiment
from fedsift.federation import Record, start_federations
from fedsift.runs.folder import BASELINES, CHECKPOINT
from fedsift.runs.history import is_finished, read_config
from fedsift.runs.rounds import play_rounds
from fedsift.runs.run import Built, Run, begin_run, build, changed_settings, check_code
from fedsift.runs.states import describe_error
from fedsift.starts import Tell
from fedsift.turns import run_turns
from fedsift.types import Engine, UserError


class Group:
    """Run folders and their experiments, run side by side: one, or all cells of a sweep.

        group = Group({Path("runs/a"): one, Path("runs/b"): other})
        group.begin(resume=True)
        for run, outcome in group.run(engine):
            ...  # a Record, or the exception that stopped this run

    Making a group builds every experiment, so an error in one shows before a folder is made.
    Runs that are finished are left alone. A folder that makes trouble fails alone. So does a run:
    it writes the reason to failed.json, and the others continue.
    """

    def __init__(
        self,
        experiments: Mapping[Path, Experiment],
        *,
        kind: str = "run",
        strict: bool = True,
        accept_changes: bool = False,
        within: Path | None = None,
    ) -> None:
        """`kind` is the word for one of them in an error, where there are several. `within` is the
        folder around them that the user named: no link below it is followed.

        Where it is not `strict`, an experiment that cannot be built fails alone too. Plug-ins that
        have changed since a folder was made are refused unless `accept_changes`.
        """
        self.experiments = dict(experiments)
        self._accept_changes = accept_changes
        self.runs: list[Run] = []
        self.errors: dict[Path, Exception] = {}
        self._locks: list[files.Lock] = []
        self._built: dict[Path, Built] = {}
        for folder, experiment in self.experiments.items():
            try:
                if within is not None:
                    files.check_no_link(folder, within)
                if not is_finished_as(folder, experiment):
                    check_code(folder, experiment, accept_changes)
                    self._built[folder] = build(experiment)
            except UserError as error:
                if strict:
                    alone = len(self.experiments) == 1
                    label = "" if alone else f"{kind} {folder.name}: "
                    raise UserError(f"{label}{error}") from None
                self.errors[folder] = error

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Group:
        """A group of runs that have begun already."""
        group = cls({})
        group.experiments = {run.folder: run.experiment for run in runs}
        group.runs = list(runs)
        return group

    def __repr__(self) -> str:
        states = f"{len(self.runs)} begun, {len(self.failed)} failed"
        return f"Group({len(self.experiments)} runs, {states})"

    @property
    def folders(self) -> list[Path]:
        return list(self.experiments)

    @property
    def failed(self) -> dict[Path, str]:
        """What the failed ones said, in one line each."""
        return {folder: describe_error(error) for folder, error in self.errors.items()}

    @property
    def unfinished(self) -> list[Run]:
        """The runs that have rounds to go and have not failed."""
        return [run for run in self.runs if not run.finished and run.folder not in self.errors]

    @property
    def finished(self) -> list[Path]:
        """The folders with all their rounds."""
        waiting = {run.folder for run in self.runs if not run.finished} | self._built.keys()
        return [folder for folder in self.folders if folder not in waiting | self.errors.keys()]

    def hold(self, lock: files.Lock) -> None:
        """Keep a lock until the group ends."""
        self._locks.append(lock)

    def begin(self, *, resume: bool = False, note: str = "") -> None:
        """Begin or resume every run that is not finished; `note` says which engine runs them."""
        try:
            for folder in list(self._built):
                self._begin(folder, resume, note)
        except BaseException:
            self.release()
            raise

    def run(
        self, engine: Engine, tell: Tell | None = None, seconds: float | None = None
    ) -> Generator[tuple[Run, Record | Exception], None, None]:
        """Run a round of each at a time; a round is on disk before it is yielded.

        The exception of a run that fails is yielded in place of its record. What students start
        from is made before all rounds; `tell` is told the epochs done and those in all. With
        `seconds`, no round is begun that would not end in time if it took as long as the longest.
        On an engine with two lanes, one half of many runs can be a round ahead of the other.
        """
        try:
            end = None if seconds is None else time.perf_counter() + seconds
            yield from self._start(engine, tell)
            yield from self._measure_baselines(engine)
            with contextlib.closing(play_rounds(self.unfinished, engine, end)) as played:
                for run, outcome in played:
                    self._settle(run, outcome)
                    yield run, outcome
        finally:
            self.release()

    def run_or_raise(
        self, engine: Engine, seconds: float | None = None
    ) -> Iterator[tuple[Run, Record]]:
        """As `run`, but the first failure ends the group and is raised."""
        with contextlib.closing(self.run(engine, seconds=seconds)) as outcomes:
            for run, outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
                yield run, outcome

    def release(self) -> None:
        """Let other processes into the folders."""
        for lock in [*(run.lock for run in self.runs), *self._locks]:
            lock.release()

    def _begin(self, folder: Path, resume: bool, note: str) -> None:
        built = self._built.pop(folder)
        try:
            run = begin_run(
                folder,
                self.experiments[folder],
                resume=resume,
                note=note,
                built=built,
                accept_changes=self._accept_changes,
            )
            self.runs.append(run)
            _check_next_round(run)
        except Exception as error:
            self.errors[folder] = error

    def _start(self, engine: Engine, tell: Tell | None) -> Iterator[tuple[Run, Exception]]:
        """What new runs start from, equal starts once; one that fails stops its runs alone."""
        waiting = [run for run in self.unfinished if run.waits]
        begun = time.perf_counter()
        states = start_federations([run.federation for run in waiting], engine, tell)
        seconds = (time.perf_counter() - begun) / max(1, len(waiting))
        for run, state in zip(waiting, states, strict=True):
            if isinstance(state, Exception):
                self.errors[run.folder] = state
                run.fail(state)
                yield run, state
            else:
                run.state, run.waits, run.start_seconds = state, False, seconds

    def _measure_baselines(self, engine: Engine) -> Iterator[tuple[Run, Exception]]:
        """Before the first round, side by side; a run that has them already keeps them."""
        waiting = [
            run
            for run in self.unfinished
            if run.experiment.baselines and not (run.folder / BASELINES).is_file()
        ]
        turns = [
            baselines_turn(run.federation, run.experiment.local, run.experiment.rounds, run.state)
            for run in waiting
        ]
        for run, found in zip(waiting, run_turns(turns, engine), strict=True):
            if isinstance(found, Exception):
                self._settle(run, found)
                yield run, found
            else:
                files.write_json(run.folder / BASELINES, found.to_json())

    def _settle(self, run: Run, outcome: Record | Exception) -> None:
        """A run goes on when its round is told, and not while others are still being written."""
        if isinstance(outcome, Record):
            run.go_on(outcome)
        else:
            self.errors[run.folder] = outcome
            run.fail(outcome)


def is_finished_as(folder: Path, experiment: Experiment) -> bool:
    """Whether there is nothing left to do; of any trouble `begin_run` will complain."""
    with contextlib.suppress(UserError):
        return not changed_settings(read_config(folder), experiment) and is_finished(folder)
    return False


def _check_next_round(run: Run) -> None:
    """Take the first step of the next round, which reads what the checkpoint remembers, and throw
    it away: jobs are pure. What does not fit fails here and not in the middle of a round.
    """
    if run.finished or not run.state.round:
        return
    turn = run.federation.round_turn(run.state)
    try:
        next(turn)
    except OSError:
        raise
    except Exception as error:  # what does not fit fails in many ways; the user needs one answer
        raise UserError(
            f"cannot read {run.folder / CHECKPOINT}: {describe_error(error)}"
        ) from error
    finally:
        turn.close()
