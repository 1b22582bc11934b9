"""A run is a folder that explains itself and can be killed at any moment.

    config.toml             every value of the experiment      environment.json   versions, machine, command
    clients.json            model and labels of clients        data.json          sizes and a digest of the data
    metrics.jsonl           a line a round                     ledger.jsonl       bytes a round, way and client
    timing.jsonl            seconds a round                    checkpoint.safetensors   all that survives a round
    failed.json             why a run of a sweep stopped, until it is resumed

A round is appended to the .jsonl files first and counts once the checkpoint has replaced the last
one; on resume, lines the checkpoint does not know are dropped and their round is played again, bit
for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedsift import config, evaluation, files, ledger
from fedsift.checkpoints import from_bytes as from_bytes
from fedsift.checkpoints import rounds_of
from fedsift.checkpoints import to_bytes as to_bytes
from fedsift.config import Experiment
from fedsift.data import Task
from fedsift.environment import environment as environment
from fedsift.federation import Federation, FederationState, Record, run_turns
from fedsift.ledger import RoundBytes
from fedsift.types import Engine, UserError

CONFIG, ENVIRONMENT, CLIENTS, DATA = "config.toml", "environment.json", "clients.json", "data.json"
METRICS, LEDGER, TIMING = "metrics.jsonl", "ledger.jsonl", "timing.jsonl"
CHECKPOINT, LOCK, FAILED = "checkpoint.safetensors", files.LOCK, "failed.json"
# clients.json has all clients up to so many, and beyond that so many of those that take part
LISTED = 10_000
OURS = {CONFIG, ENVIRONMENT, CLIENTS, DATA, METRICS, LEDGER, TIMING, CHECKPOINT, LOCK}


@dataclass
class Run:
    """A run being played: its folder, what it plays, and how far it is."""

    folder: Path
    experiment: Experiment
    federation: Federation
    state: FederationState
    lock: files.Lock

    @property
    def finished(self) -> bool:
        return self.state.round >= self.experiment.rounds

    def save(self, record: Record, seconds: float, **measured: int) -> None:
        """A finished round; what was `measured` beside the seconds differs between equal runs, as
        they do.
        """
        row: dict[str, Any] = {
            "round": record.round,
            "accuracy": record.accuracy,
            "accuracies": record.accuracies,
        }
        extra = {"client_accuracy": record.client_accuracy, "disagreement": record.disagreement}
        row |= {name: value for name, value in extra.items() if value is not None} | record.counts
        row |= {"missing": record.bytes.missing} if record.bytes.missing else {}
        files.append_row(self.folder / METRICS, row)
        files.append_row(self.folder / LEDGER, record.bytes.to_json())
        files.append_row(
            self.folder / TIMING, {"round": record.round, "seconds": round(seconds, 4)} | measured
        )
        files.write_atomic(self.folder / CHECKPOINT, to_bytes(record.state))
        self.state = record.state

    def fail(self, error: Exception) -> None:
        """Write down why this run stopped."""
        told = {
            "rounds": self.state.round,
            "error": in_words(error),
            "traceback": traceback.format_exception(error),
        }
        with contextlib.suppress(OSError):  # the disk may be what failed
            files.write_json(self.folder / FAILED, told)


Built = tuple[Federation, FederationState]


def build(experiment: Experiment) -> Built:
    """The federation and its first state; a mistake in the experiment shows here, before a folder
    is made.
    """
    federation = config.build_federation(experiment)
    return federation, federation.start()


def begin(
    folder: Path,
    experiment: Experiment,
    *,
    resume: bool = False,
    note: str = "",
    built: Built | None = None,
) -> Run:
    """A new run in a new folder, or, with `resume`, an old one where it stopped.

    The federation is the one the experiment describes, unless its parties are elsewhere and another
    was built for them.
    """
    federation, first = built or build(experiment)
    old = folder.exists() and not _is_blank(folder)
    if old:
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder} exists and is not a run folder; choose another --out")
        if not resume:
            raise UserError(
                f"run folder {folder} exists; add --resume to go on with it, or choose another --out"
            )
        _same(experiment, stored(folder), folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = files.lock_folder(folder)
    try:
        state = (
            _go_on(folder, federation, first, note)
            if old
            else _set_up(folder, experiment, federation, first, note)
        )
        (folder / FAILED).unlink(missing_ok=True)
    except BaseException:
        lock.release()
        raise
    return Run(folder, experiment, federation, state, lock)


def _go_on(
    folder: Path, federation: Federation, first: FederationState, note: str
) -> FederationState:
    if _read_json(folder / DATA) != _fingerprint(federation.task):
        raise UserError(
            f"the data are not those {folder} was made with; resume with the same file or start a new run"
        )
    state = _last_state(folder) or first
    kept = {name: _rows_up_to(state.round, folder / name) for name in (METRICS, LEDGER, TIMING)}
    if state.round < stored(folder).rounds:
        was = _read_json(folder / ENVIRONMENT)
        files.write_json(
            folder / ENVIRONMENT, was | {"resumed": [*was.get("resumed", []), environment(note)]}
        )
    for name, rows in kept.items():
        files.write_atomic(folder / name, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return state


def _set_up(
    folder: Path, experiment: Experiment, federation: Federation, first: FederationState, note: str
) -> FederationState:
    files.write_json(folder / ENVIRONMENT, environment(note))
    files.write_json(folder / DATA, _fingerprint(federation.task))
    files.write_json(folder / CLIENTS, _describe(federation, experiment.rounds))
    files.write_atomic(
        folder / CONFIG, config.to_toml(experiment).encode()
    )  # last: now it is a run folder
    return first


def play(runs: Sequence[Run], engine: Engine) -> Iterator[tuple[Run, Record]]:
    """Play runs side by side, a round of each at a time; a round is on disk before it is
    yielded.
    """
    for run, outcome in play_apart(runs, engine):
        if isinstance(outcome, Exception):
            raise outcome
        yield run, outcome


def play_apart(runs: Sequence[Run], engine: Engine) -> Iterator[tuple[Run, Record | Exception]]:
    """As `play`, but a run that fails stops alone: its exception is yielded and the others go
    on.
    """
    failed: set[int] = set()
    try:
        while active := [run for run in runs if not run.finished and id(run) not in failed]:
            begun = time.perf_counter()
            outcomes = run_turns([run.federation.round_turn(run.state) for run in active], engine)
            seconds = (time.perf_counter() - begun) / len(active)  # a run's share of the time
            for run, outcome in zip(active, outcomes, strict=True):
                outcome = _saved(run, outcome, seconds)
                if isinstance(outcome, Exception):
                    failed.add(id(run))
                yield run, outcome
    finally:
        for run in runs:
            run.lock.release()


def _saved(run: Run, outcome: Record | Exception, seconds: float) -> Record | Exception:
    try:
        if isinstance(outcome, Record):
            run.save(outcome, seconds)
        return outcome
    except Exception as error:
        return error


# --- reading a run ---


@dataclass(frozen=True)
class History:
    """A run as its folder tells it."""

    folder: Path
    experiment: Experiment
    metrics: list[dict[str, Any]]
    ledger: list[RoundBytes]
    seconds: float
    clients: list[dict[str, Any]]
    environment: dict[str, Any]

    @property
    def accuracies(self) -> list[float]:
        return [row["accuracy"] for row in self.metrics]

    def summary(self) -> dict[str, Any]:
        totals = ledger.total(self.ledger)
        return {
            "run": str(self.folder),
            "rounds": len(self.metrics),
            "accuracy": round(evaluation.settled(self.accuracies), 6),
            "accuracy_last": round(self.accuracies[-1], 6),
            "uplink_bytes": totals.uplink,
            "downlink_bytes": totals.downlink,
            "seconds": round(self.seconds, 3),
        }


def load(folder: Path) -> History:
    experiment = stored(folder)
    metrics, rows, timing = (_rows(folder / name) for name in (METRICS, LEDGER, TIMING))
    done = min(len(metrics), len(rows), len(timing))
    if not done:
        raise UserError(f"{folder} has no finished round yet; go on with: {resume_command(folder)}")
    try:
        return History(
            folder,
            experiment,
            metrics[:done],
            [RoundBytes.from_json(row) for row in rows[:done]],
            sum(row["seconds"] for row in timing[:done]),
            _read_json(folder / CLIENTS),
            _read_json(folder / ENVIRONMENT),
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read the run in {folder}: {error}") from None


def has_a_round(folder: Path) -> bool:
    """Whether there is something to load."""
    files = [folder / name for name in (METRICS, LEDGER, TIMING)]
    return all(file.is_file() and file.stat().st_size for file in files)


def is_finished(folder: Path) -> bool:
    """Whether all rounds are played, by the checkpoint."""
    state = _last_state(folder)
    return state is not None and state.round >= stored(folder).rounds


def stored(folder: Path, overrides: Sequence[str] = ()) -> Experiment:
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is not a run folder: it has no {CONFIG}")
    return config.read_experiment(str(folder / CONFIG), overrides)


def rounds_played(folder: Path) -> int:
    """How many rounds of a run, perhaps of another process, are saved for good."""
    try:
        with open(folder / CHECKPOINT, "rb") as file:
            return rounds_of(file)
    except FileNotFoundError:
        return 0


def _last_state(folder: Path) -> FederationState | None:
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    try:
        return from_bytes(path.read_bytes())
    except Exception as error:  # a damaged file fails in many ways; the user needs one answer
        raise UserError(f"cannot read {path}: {error}") from None


def in_words(error: Exception) -> str:
    """In one line: what kind of error, unless the user can mend it, and what it says."""
    said = " ".join(str(error).split())
    return (
        said
        if isinstance(error, UserError)
        else f"{type(error).__name__}: {said}".removesuffix(": ")
    )


def resume_command(folder: Path) -> str:
    return f"fedsift run --resume --out {shlex.quote(str(folder))}"


# --- files
#
#
# ---------------------------------------------------------------------------------------------------------


def _rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a .jsonl file; a last line cut off by a kill is left out."""
    if not path.is_file():
        return []
    lines = path.read_text().split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _rows_up_to(rounds: int, path: Path) -> list[dict[str, Any]]:
    """Those the checkpoint knows: all, but for a round that was being saved when the run was
    killed.
    """
    rows = _rows(path)
    if not rounds <= len(rows) <= rounds + 1:
        raise UserError(
            f"{path} has {len(rows)} rounds, {CHECKPOINT} {rounds}: the folder was changed by hand; "
            f"put back what is missing, or delete {path.parent} to begin anew"
        )
    return rows[:rounds]


@lru_cache(maxsize=32)
def _fingerprint(task: Task) -> dict[str, Any]:
    """The sizes of the parts and a digest of everything in them: other data, another
    fingerprint.
    """
    digest = hashlib.sha256()
    for part in (task.private.samples, task.public, task.test.samples):
        digest.update(part.store.values[torch.from_numpy(part.rows)].numpy().data)
        digest.update(part.store.mean.numpy().tobytes() + part.store.std.numpy().tobytes())
    for labelled in (task.private, task.test):
        digest.update(labelled.targets.numpy().tobytes())
    sizes = {"private": len(task.private), "public": len(task.public), "test": len(task.test)}
    return sizes | {"sha256": digest.hexdigest()}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _is_blank(folder: Path) -> bool:
    """Empty, or holding only what a run killed while it was being set up leaves behind."""
    names = (
        {e.name for e in folder.iterdir() if not files.is_temporary(e)}
        if folder.is_dir()
        else {str(folder)}
    )
    return names <= {ENVIRONMENT, CLIENTS, DATA, LOCK}


def _same(asked: Experiment, kept: Experiment, folder: Path) -> None:
    changed = config.differences(kept, asked)
    changed.pop("memory", None)  # it may be what has to change, and moves last digits at most
    if changed:
        told = ", ".join(f"{key} is {a!r} there, {b!r} here" for key, (a, b) in changed.items())
        raise UserError(
            f"{folder} was made with another config: {told}; choose another --out or resume without changes"
        )


def _describe(federation: Federation, rounds: int) -> list[dict[str, Any]]:
    described = (federation.clients[id] for id in _listed(federation, rounds))
    return [
        {"client": client.id, "model": client.model.name, "labels": client.label_counts.tolist()}
        for client in described
    ]


def _listed(federation: Federation, rounds: int) -> Iterable[int]:
    """Everyone, or where they are too many the first that take part: cohorts are known before they
    are played.
    """
    if len(federation.clients) <= LISTED:
        return range(len(federation.clients))
    taking_part: set[int] = set()
    for number in range(rounds):
        taking_part.update(federation.cohort_ids(number).tolist())
        if len(taking_part) >= LISTED:
            break
    return sorted(taking_part)[:LISTED]
