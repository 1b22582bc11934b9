"""The trackers, a few lines each. All write to this machine, unless the user's own settings of
the tool, as MLFLOW_TRACKING_URI, name another place.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedsift.files import check_no_link, write_atomic
from fedsift.tracking.figures import FIGURES

PROJECT = "fedsift"  # what MLflow calls an experiment, and Weights & Biases a project


@dataclass(frozen=True)
class Place:
    """What a tracker is told of its run."""

    folder: Path
    name: str
    settings: Mapping[str, Any]  # every key that has a value
    rounds: int = 0  # that it has been told before
    id: str = ""  # its own, of the run; empty at first


class Tracker(Protocol):
    """Told one round after the other, from 0."""

    @property
    def id(self) -> str: ...

    def log(self, round: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Csv:
    """figures.csv in the run folder: a line per round, a column per figure."""

    id = ""

    def __init__(self, place: Place) -> None:
        self.path = place.folder / "figures.csv"
        self._rows: list[dict[str, Any]] = []
        if place.rounds and self.path.is_file():
            with open(self.path, newline="") as file:
                self._rows = list(csv.DictReader(file))[: place.rounds]

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self._rows.append({"round": round, **figures})
        text = io.StringIO()
        writer = csv.DictWriter(text, ["round", *FIGURES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_atomic(self.path, text.getvalue().encode())

    def close(self) -> None:
        """Every line is written already."""


class TensorBoard:
    """Event files in RUN/tensorboard (tensorboardX): tensorboard --logdir runs"""

    id = ""

    def __init__(self, place: Place) -> None:
        from tensorboardX import SummaryWriter

        again = {"purge_step": place.rounds} if place.rounds else {}  # what a kill left half told
        # its files are named by the second: a resume in the same one must not write over them
        suffix = f".{place.rounds:06}"
        where = str(place.folder / "tensorboard")
        self._writer = SummaryWriter(where, filename_suffix=suffix, **again)
        if not place.rounds:
            lines = (f"    {key} = {value}" for key, value in place.settings.items())
            self._writer.add_text("settings", "\n".join(lines))

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """RUN/mlflow.db, or the server that MLFLOW_TRACKING_URI names (mlflow-skinny)."""

    def __init__(self, place: Place) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it reads this when imported
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)

        database = f"sqlite:///{place.folder.resolve() / 'mlflow.db'}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or database)
        self.id = place.id or self._create_run(place.name)
        if not place.id:
            params = [Param(key, str(value)) for key, value in place.settings.items()]
            self._client.log_batch(self.id, params=params)

    def _create_run(self, name: str) -> str:
        known = self._client.get_experiment_by_name(PROJECT)
        home = known.experiment_id if known else self._client.create_experiment(PROJECT)
        return str(self._client.create_run(home, run_name=name).info.run_id)

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        told = [Metric(name, float(value), now, round) for name, value in figures.items()]
        self._client.log_batch(self.id, metrics=told)

    def close(self) -> None:
        self._client.set_terminated(self.id)


class WeightsAndBiases:
    """RUN/wandb, offline; `wandb sync` sends it where the user wants it to be."""

    def __init__(self, place: Place) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.id = place.id or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            project=PROJECT,
            mode="offline",
            dir=str(place.folder),
            id=self.id,
            name=place.name,
            config=dict(place.settings),
            resume="allow" if place.id else None,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
            reinit="create_new",
        )

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=round, commit=True)  # else it waits for the next round

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Place], Tracker]] = {
    "csv": Csv,
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
NEEDS = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}  # to be installed
OWN = {"csv": "figures.csv", "tensorboard": "tensorboard", "mlflow": "mlflow.db", "wandb": "wandb"}


def check_own_files(name: str, folder: Path) -> None:
    """Refuse links where a tracker is about to write: the run folder may come from a stranger.

    Files beside its own count too: SQLite writes to mlflow.db-journal and the like.
    """
    if name not in OWN:
        return
    found = [path for path in folder.iterdir() if path.name.startswith(OWN[name])]
    if name == "tensorboard" and (folder / OWN[name]).is_dir():
        found += (folder / OWN[name]).iterdir()
    for path in found:
        check_no_link(path, folder)
