"""A run being executed: begin it or resume it, and save one round after the other.

A round is appended to the .jsonl files first and counts once the checkpoint has replaced the last
one. On resume, lines that the checkpoint does not know are dropped, and their round is run again,
bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedsift import __version__, config, files
from fedsift.checkpoints import restore_state, to_bytes
from fedsift.config import Experiment
from fedsift.data import TEST, VALIDATION, Task
from fedsift.environment import environment
from fedsift.evaluation import has_stalled
from fedsift.federation import Federation, FederationState, Record
from fedsift.runs.folder import (
    BEST,
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    DATA,
    ENVIRONMENT,
    FAILED,
    FORMAT,
    LEDGER,
    METRICS,
    RECORDING,
    SAMPLES,
    TIMING,
    Row,
    check_clients,
    check_object,
    check_rows,
    is_blank,
    read_json,
    read_rows,
)
from fedsift.runs.history import read_config, read_environment
from fedsift.runs.previews import describe_samples
from fedsift.runs.recording import cut_recording, to_row
from fedsift.runs.states import describe_error, last_state
from fedsift.types import Server, UserError

# clients.json has all clients up to so many, and beyond that so many of those that take part
LISTED = 10_000
# on resume: memory may be what has to change, and moves last digits at most; a recording none
MAY_CHANGE = {"memory", "record"}
Built = tuple[Federation, FederationState]


@dataclass(repr=False)
class Run:
    """A run being executed: its folder, its experiment, and how far it is."""

    folder: Path
    experiment: Experiment
    federation: Federation
    state: FederationState
    lock: files.Lock
    waits: bool = False  # for the weights that its students start from
    start_seconds: float = 0.0  # its share of the time that these took
    accuracies: tuple[float, ...] = ()  # of the rounds played

    def __repr__(self) -> str:
        done = f"{self.state.round} of {self.experiment.rounds} rounds"
        return f"Run({str(self.folder)!r}, {self.experiment.name}, {done})"

    @property
    def finished(self) -> bool:
        """All rounds are played, or enough have passed without a better one."""
        stalled = has_stalled(self.accuracies, self.experiment.patience)
        return stalled or self.state.round >= self.experiment.rounds

    def save(self, record: Record, seconds: float, **measured: int) -> None:
        """Save a finished round. Seconds and what is `measured` differ between equal runs."""
        self.write(record, seconds, **measured)
        self.go_on(record)

    def write(self, record: Record, seconds: float, **measured: int) -> None:
        """The first half of `save`: the files."""
        row: dict[str, Any] = {
            "round": record.round,
            "accuracy": record.accuracy,
            "accuracies": record.accuracies,
        }
        extra = {"client_accuracy": record.client_accuracy, "disagreement": record.disagreement}
        row |= {name: value for name, value in extra.items() if value is not None} | record.counts
        row |= {} if record.measured_on == TEST else {"measured_on": record.measured_on}
        told = record.reported_by_clients
        row |= {"reported_by_clients": list(told)} if told else {}
        row |= {"missing": record.bytes.missing} if record.bytes.missing else {}
        row |= _quality_rows(record) | _label_rows(record) | _step_rows(record)
        row |= self._hostile_rows(record) | self._verdict_rows(record)
        files.append_row(self.folder / METRICS, row)
        files.append_row(self.folder / LEDGER, record.bytes.to_json())
        timing = {"round": record.round, "seconds": round(seconds + self.start_seconds, 4)}
        timing |= {"start_seconds": round(self.start_seconds, 4)} if self.start_seconds else {}
        files.append_row(self.folder / TIMING, timing | measured)
        if record.conversation is not None:
            row = to_row(record.round, record.conversation)
            files.append_row(self.folder / RECORDING, row)
        if self._is_best(record):
            files.write_atomic(self.folder / BEST, _pack_students(record.state))
        files.write_atomic(self.folder / CHECKPOINT, to_bytes(record.state))

    def go_on(self, record: Record) -> None:
        """The other half of `save`: from here the next round goes on."""
        self.state, self.start_seconds = record.state, 0.0
        self.accuracies = (*self.accuracies, record.accuracy)

    def _is_best(self, record: Record) -> bool:
        """Whether its models are kept: by validation samples alone, and of equal rounds the first.

        Should the run be killed before the checkpoint is there, the round is played again, and
        the same file written again.
        """
        students = record.state.server.students
        better = all(record.accuracy > before for before in self.accuracies)
        return record.measured_on == VALIDATION and bool(students) and better

    def _hostile_rows(self, record: Record) -> Row:
        threat = self.federation.threat
        if threat is None:
            return {}
        return {
            "attack": threat.name,
            "attackers": threat.share,
            "hostile": list(record.hostile),
        }

    def _verdict_rows(self, record: Record) -> Row:
        """Whom the server trusts, and who has no vote; with attackers, how many honest ones."""
        if not record.verdicts:
            return {}
        voteless = [id for id, verdict in record.verdicts.items() if verdict.voteless]
        alarms = {"false_alarms": len(set(voteless) - set(record.hostile))}
        return {
            "trust": {id: round(one.trust, 4) for id, one in record.verdicts.items()},
            "voteless": voteless,
            **(alarms if self.federation.threat else {}),
        }

    def fail(self, error: Exception) -> None:
        """Write down why this run stopped."""
        reason = {
            "rounds": self.state.round,
            "error": describe_error(error),
            "traceback": traceback.format_exception(error),
        }
        with contextlib.suppress(Exception):  # the disk may be what failed
            files.write_json(self.folder / FAILED, reason)


def _quality_rows(record: Record) -> Row:
    """Figures that are there, rounded; so equal runs write equal rows on most machines."""
    quality = {} if record.quality is None else asdict(record.quality)
    return {
        name: _round(value)
        for name, value in (quality | record.losses).items()
        if value is not None
    }


def _round(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_round(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def _label_rows(record: Record) -> Row:
    scores = {
        "uploaded_labels": record.uploaded_labels,
        "distilled_labels": record.distilled_labels,
    }
    return {
        name: {key: round(value, 6) for key, value in asdict(of).items()}
        for name, of in scores.items()
        if of is not None
    }


def _step_rows(record: Record) -> Row:
    steps = {"steps": record.steps} if record.steps else {}
    return steps | ({"server_steps": record.server_steps} if record.server_steps else {})


def _pack_students(state: FederationState) -> bytes:
    return to_bytes(FederationState(state.round, Server(state.server.students)))


def build(experiment: Experiment) -> Built:
    """Build the federation and its first state; experiment errors show before a folder is made."""
    federation = config.build_federation(experiment)
    return federation, federation.start()


def begin_run(
    folder: Path,
    experiment: Experiment,
    *,
    resume: bool = False,
    note: str = "",
    built: Built | None = None,
    accept_changes: bool = False,
) -> Run:
    """Begin a new run in a new folder or, with `resume`, an old one where it stopped.

    The federation is the one the experiment describes, unless its clients are elsewhere and another
    was built for them. Plug-ins that have changed are refused unless `accept_changes`.
    """
    old = folder.exists() and not is_blank(folder)
    if old:
        _check_old(folder, experiment, resume)
    check_code(folder, experiment, accept_changes)  # before it is imported
    federation, first = built or build(experiment)
    if not old:
        federation.check_start_file()
    folder.mkdir(parents=True, exist_ok=True)
    lock = files.lock_folder(folder)
    try:
        if old:
            state = _resume(folder, experiment, federation, first, note)
        else:
            state = _set_up(folder, experiment, federation, first, note)
        (folder / FAILED).unlink(missing_ok=True)
    except BaseException:
        lock.release()
        raise
    waits = federation.start_from is not None and not state.round
    played = tuple(row["accuracy"] for row in read_rows(folder / METRICS)) if old else ()
    return Run(folder, experiment, federation, state, lock, waits, accuracies=played)


def changed_settings(kept: Experiment, asked: Experiment) -> dict[str, tuple[Any, Any]]:
    """Full key -> both values, where they differ and must not on resume."""
    changed = config.differences(kept, asked)
    return {key: both for key, both in changed.items() if key not in MAY_CHANGE}


def _check_old(folder: Path, experiment: Experiment, resume: bool) -> None:
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} exists and is not a run folder; choose another --out")
    if not resume:
        check_new(folder)
    _check_same_config(experiment, read_config(folder), folder)


def check_new(folder: Path) -> None:
    """Refuse a folder that has a run in it."""
    if (folder / CONFIG).is_file():
        raise UserError(
            f"run folder {folder} exists; add --resume to resume it, or choose another --out"
        )


def _check_same_config(asked: Experiment, kept: Experiment, folder: Path) -> None:
    if changed := changed_settings(kept, asked):
        told = ", ".join(f"{key} is {a!r} there, {b!r} here" for key, (a, b) in changed.items())
        raise UserError(
            f"{folder} was made with another config: {told}; "
            "choose another --out or resume without changes"
        )


def check_code(folder: Path, experiment: Experiment, accept_changes: bool = False) -> None:
    """Refuse to resume a run with other code of its plug-ins than it was made with."""
    if accept_changes or not config.list_plugins(experiment) or not (folder / CONFIG).is_file():
        return
    was = read_environment(folder)
    latest = [was, *was.get("resumed", [])][-1]
    recorded = latest.get("plugins") if isinstance(latest, dict) else None
    config.check_plugins(recorded, experiment, folder)


def _plugins(experiment: Experiment) -> Row:
    """For environment.json: the files of the user's own code, and their digests."""
    found = config.describe_plugins(experiment)
    return {"plugins": found} if found else {}


def _resume(
    folder: Path,
    experiment: Experiment,
    federation: Federation,
    first: FederationState,
    note: str,
) -> FederationState:
    if read_json(folder / DATA, check_object) != fingerprint_task(federation.task):
        raise UserError(
            f"the data are not those {folder} was made with; "
            "resume with the same file or start a new run"
        )
    read_json(folder / CLIENTS, check_clients)
    state = _read_checkpoint(folder, experiment, federation, first)
    kept = {name: _rows_up_to(state.round, folder / name) for name in (METRICS, LEDGER, TIMING)}
    was = read_environment(folder)
    if state.round < experiment.rounds:
        _check_version(folder, was)
        resumed = [*was.get("resumed", []), environment(note) | _plugins(experiment)]
        files.write_json(folder / ENVIRONMENT, was | {"resumed": resumed})
    for name, rows in kept.items():
        files.write_atomic(folder / name, "".join(json.dumps(row) + "\n" for row in rows).encode())
    cut_recording(folder, state.round)
    if not (folder / SAMPLES).is_file():
        _write_samples(folder, federation)
    return state


def _check_version(folder: Path, was: Row) -> None:
    """An older format can be read; that its rounds continue bit for bit, nobody has promised."""
    if was.get("format", 1) != FORMAT:
        raise UserError(
            f"{folder} was made by fedsift {was.get('fedsift')}; "
            f"this version ({__version__}) can show it but not resume it: start a new run"
        )


def _set_up(
    folder: Path, experiment: Experiment, federation: Federation, first: FederationState, note: str
) -> FederationState:
    about = {"format": FORMAT} | environment(note) | _plugins(experiment)
    files.write_json(folder / ENVIRONMENT, about)
    files.write_json(folder / DATA, fingerprint_task(federation.task))
    files.write_json(folder / CLIENTS, _describe_clients(federation, experiment.rounds))
    _write_samples(folder, federation)
    config_text = config.to_toml(experiment).encode()
    files.write_atomic(folder / CONFIG, config_text)  # last: now it is a run folder
    return first


def _write_samples(folder: Path, federation: Federation) -> None:
    """Public samples to look at, where what is said of them is recorded."""
    if federation.record:
        files.write_json(folder / SAMPLES, describe_samples(federation.task, federation.seed))


def _rows_up_to(rounds: int, path: Path) -> list[Row]:
    """Those the checkpoint knows: all, except a round being saved when the run was killed."""
    rows = read_rows(path)
    if not rounds <= len(rows) <= rounds + 1:
        raise UserError(
            f"{path} has {len(rows)} rounds, {CHECKPOINT} {rounds}: the folder was changed by "
            f"hand; put back what is missing, or delete {path.parent} to start again"
        )
    check_rows(path, rows[:rounds])
    return rows[:rounds]


# --- the checkpoint ---


def _read_checkpoint(
    folder: Path, experiment: Experiment, federation: Federation, first: FederationState
) -> FederationState:
    saved = last_state(folder)
    if saved is None:
        return first
    try:
        if not 0 <= saved.round <= experiment.rounds:
            raise UserError(f"it has {saved.round} rounds, the config {experiment.rounds}")
        return restore_state(saved, federation)
    except Exception as error:  # as in `last_state`: one answer for all ways to fail
        raise UserError(f"cannot read {folder / CHECKPOINT}: {describe_error(error)}") from None


# --- what a run writes down at its start ---


@lru_cache(maxsize=32)
def fingerprint_task(task: Task) -> dict[str, Any]:
    """The sizes of the parts and a digest of all in them: other data, other fingerprint."""
    digest = hashlib.sha256()
    for part in (task.private.samples, task.public, task.held_out.samples):
        digest.update(part.store.values[torch.from_numpy(part.rows)].numpy().data)
        digest.update(part.store.mean.numpy().tobytes() + part.store.std.numpy().tobytes())
    for labelled in (task.private, task.held_out):
        digest.update(labelled.targets.numpy().tobytes())
    sizes = {"private": len(task.private), "public": len(task.public)}
    held_out = {task.measured_on: len(task.held_out)}
    names = {} if task.class_names is None else {"classes": list(task.class_names)}
    return sizes | held_out | names | {"sha256": digest.hexdigest()}


def _describe_clients(federation: Federation, rounds: int) -> list[dict[str, Any]]:
    clients = federation.clients
    listed = (clients[id] for id in _list_clients(federation, rounds))
    return [
        {"client": client.id, "model": client.model.name, "labels": client.label_counts.tolist()}
        | ({"name": clients.names[client.id]} if clients.names else {})
        for client in listed
    ]


def _list_clients(federation: Federation, rounds: int) -> Iterable[int]:
    """All, or where they are too many the first that take part: cohorts are known in advance."""
    if len(federation.clients) <= LISTED:
        return range(len(federation.clients))
    taking_part: set[int] = set()
    for number in range(rounds):
        taking_part.update(federation.cohort_ids(number).tolist())
        if len(taking_part) >= LISTED:
            break
    return sorted(taking_part)[:LISTED]
