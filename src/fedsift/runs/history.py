"""Reading a run folder: what was run, what came of it, and how far it is."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedsift import __version__, config, evaluation, ledger
from fedsift.baselines import Baselines, read_baselines
from fedsift.config import Experiment
from fedsift.data import CLASS_NAMES, TEST, VALIDATION
from fedsift.federation import ModelLike
from fedsift.files import write_json
from fedsift.ledger import RoundBytes
from fedsift.runs.folder import (
    BASELINES,
    BEST,
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    DATA,
    ENVIRONMENT,
    FINISHED,
    FORMAT,
    LEDGER,
    METRICS,
    SWEEP,
    TIMING,
    Row,
    check_clients,
    check_environment,
    check_object,
    check_rows,
    read_json,
    read_rows,
)
from fedsift.runs.models import LAST_ROUND, load_model
from fedsift.runs.states import last_state
from fedsift.types import UserError

UNKNOWN = {"engine": "unknown engine", "torch": "unknown", "processor": "unknown processor"}
RENAMED = {"rested": "voteless"}  # keys of metrics, as folders made before 0.3.0 was out have them


@dataclass(frozen=True, repr=False)
class History:
    """A run as its folder tells it."""

    folder: Path
    experiment: Experiment
    metrics: list[dict[str, Any]]
    ledger: list[RoundBytes]
    seconds: float
    clients: list[dict[str, Any]]
    environment: dict[str, Any]
    # the sizes of the parts of the data and a digest of them; empty where it is not known
    data: dict[str, Any] = field(default_factory=dict)
    baselines: Baselines | None = None

    def __repr__(self) -> str:
        done = f"{len(self.metrics)} of {self.experiment.rounds} rounds"
        settled = (
            f"accuracy {evaluation.average_last(self.accuracies):.3f}" if self.metrics else "empty"
        )
        return f"History({str(self.folder)!r}, {self.experiment.name}, {done}, {settled})"

    @property
    def accuracies(self) -> list[float]:
        return [row["accuracy"] for row in self.metrics]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the classes, where they have names; else nothing."""
        found = self.data.get("classes", CLASS_NAMES.get(self.experiment.data.name))
        return tuple(map(str, found)) if isinstance(found, list | tuple) else ()

    @property
    def stopped_early(self) -> bool:
        """Whether it ended before its last round, for lack of a better one."""
        stalled = evaluation.has_stalled(self.accuracies, self.experiment.patience)
        return stalled and len(self.metrics) < self.experiment.rounds

    @property
    def length(self) -> int:
        """Rounds that are done, where a run that stopped early counts as whole."""
        return self.experiment.rounds if self.stopped_early else len(self.metrics)

    @property
    def measured_on(self) -> str:
        """What the accuracies are of: the "test" or the "validation" samples."""
        return TEST if self.experiment.data.validation is None else VALIDATION

    def network(self, name: ModelLike | None = None, round: str = LAST_ROUND) -> nn.Module:
        """A trained model, ready to predict: give it `build_task(experiment).normalise(x)`.

        It is built from the config, so the data set is loaded and plug-ins that the config names
        are imported and run. Do not call it on a folder that you do not trust.

        name: which one, where there are several: an architecture, or "client 3" for what that
            client keeps
        round: "last", or "best" by the validation samples
        """
        return load_model(self.folder, self.experiment, name, round).build()

    def summary(self) -> dict[str, Any]:
        totals = ledger.total(self.ledger)
        beside: dict[str, Any] = {}
        if totals.edge_up is not None:
            beside = {
                "edge_uplink_bytes": totals.edge_up,
                "edge_downlink_bytes": totals.edge_down,
            }
        beside |= {"baselines": self.baselines.to_json()} if self.baselines else {}
        return {
            "run": str(self.folder),
            "rounds": len(self.metrics),
            "accuracy": round(evaluation.average_last(self.accuracies), 6),
            "accuracy_last": round(self.accuracies[-1], 6),
            "measured_on": self.measured_on,
            "uplink_bytes": totals.uplink,
            "downlink_bytes": totals.downlink,
            "seconds": round(self.seconds, 3),
        } | beside


def load_run(folder: Path | str) -> History:
    """Read the finished rounds of a run, whether or not it has ended."""
    folder = Path(folder)
    experiment = read_config(folder)
    metrics, sent, timing = rounds_in_all(folder)
    if not metrics:
        raise UserError(
            f"{folder} has no finished round yet; resume it with: {resume_command(folder)}"
        )
    environment = read_environment(folder)
    return History(
        folder,
        experiment,
        metrics,
        [RoundBytes.from_json(row) for row in sent],
        sum(row["seconds"] for row in timing),
        read_json(folder / CLIENTS, check_clients),
        UNKNOWN | environment,
        read_json(folder / DATA, check_object) if (folder / DATA).is_file() else {},
        _load_baselines(folder),
    )


def _load_baselines(folder: Path) -> Baselines | None:
    """None where the experiment did not ask for them."""
    path = folder / BASELINES
    return read_json(path, read_baselines) if path.is_file() else None


def rounds_in_all(folder: Path) -> tuple[list[Row], list[Row], list[Row]]:
    """The rows of the rounds that metrics, ledger and timing all know."""
    every = {name: read_rows(folder / name) for name in (METRICS, LEDGER, TIMING)}
    done = min(map(len, every.values()))
    for name, rows in every.items():
        check_rows(folder / name, rows[:done])
    metrics = [_rename_keys(row) for row in every[METRICS][:done]]
    return metrics, every[LEDGER][:done], every[TIMING][:done]


def _rename_keys(row: Row) -> Row:
    """A row of metrics with the names of today."""
    return {RENAMED.get(key, key): value for key, value in row.items()}


def has_a_round(folder: Path) -> bool:
    """Whether there is something to load."""
    files = [folder / name for name in (METRICS, LEDGER, TIMING)]
    return all(file.is_file() and file.stat().st_size for file in files)


def is_finished(folder: Path) -> bool:
    """Whether all files have every round. A checkpoint may have been deleted, by `drop_model`."""
    state, experiment = last_state(folder), read_config(folder)
    rounds = experiment.rounds
    if state is None and not ((folder / FINISHED).is_file() and _rounds_finished(folder) == rounds):
        return False
    if state is not None and state.round < (rounds if experiment.patience is None else 1):
        return False
    history = load_run(folder)
    wanted = len(history.metrics) if history.stopped_early else rounds
    return len(history.metrics) == wanted and (state is None or state.round >= wanted)


def drop_model(folder: Path) -> None:
    """Delete the models of a finished run. A small file says that there were some."""
    write_json(folder / FINISHED, {"rounds": read_config(folder).rounds})
    for name in (CHECKPOINT, BEST):
        (folder / name).unlink(missing_ok=True)


def _rounds_finished(folder: Path) -> Any:
    return read_json(folder / FINISHED, check_object).get("rounds")


def find_runs(folder: Path, levels: int = 2) -> list[Path]:
    """The runs that a folder stands for: itself, or those so many levels below it.

    A sweep has its runs one level below, a reproduction two.
    """
    if (folder / CONFIG).is_file():
        return [folder]
    inner = sorted(path for path in folder.glob("*") if path.is_dir()) if levels else []
    return [run for one in inner for run in find_runs(one, levels - 1)]


def read_config(folder: Path | str) -> Experiment:
    """The experiment of a run folder."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise _explain_no_run(folder)
    try:
        return config.read_experiment(str(folder / CONFIG))
    except UserError as error:
        raise blame_version(folder, error) from None


def _explain_no_run(folder: Path) -> UserError:
    """A folder of runs is not a run, but it has some to choose from."""
    inner = find_runs(folder)
    if not inner:
        return UserError(f"{folder} is not a run folder: it has no {CONFIG}")
    kind = "sweep" if (folder / SWEEP).is_file() else "folder"
    count = f"{len(inner)} run{'s' if len(inner) > 1 else ''}"
    return UserError(f"{folder} is a {kind} of {count}; show one of them: {inner[0]}")


def read_environment(folder: Path) -> Row:
    """What the run was made with; a folder of a later format is refused."""
    environment = read_json(folder / ENVIRONMENT, check_environment)
    if environment.get("format", 1) > FORMAT:
        raise UserError(
            f"{folder} was made by fedsift {environment.get('fedsift')}, "
            f"which is newer than this version ({__version__}); update fedsift to read it"
        )
    return environment


def blame_version(folder: Path, error: UserError) -> UserError:
    """The same error, or where another version made the folder, one that names both versions."""
    try:
        made_by = read_json(folder / ENVIRONMENT, check_environment).get("fedsift", __version__)
    except UserError:
        return error
    if made_by == __version__:
        return error
    reason = str(error).partition(";")[0]  # what comes after it is advice on writing a config
    return UserError(
        f"{folder} was made by fedsift {made_by}, whose settings this version ({__version__}) "
        f"cannot read: {reason}"
    )


def resume_command(folder: Path) -> str:
    return f"fedsift run --resume --out {shlex.quote(str(folder))}"
