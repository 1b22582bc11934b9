"""What a trained model of a run says about new samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedsift.data import Dataset, Task, images, load_dataset, load_inputs
from fedsift.data.preparation import Preparation
from fedsift.numerics import softmax
from fedsift.runs.export import list_classes, load_trained
from fedsift.runs.history import History
from fedsift.runs.models import LAST_ROUND, TrainedModel
from fedsift.types import Array, UserError

BATCH = 512


@dataclass(frozen=True, eq=False)
class Predictions:
    """A probability per class for each sample."""

    samples: Sequence[str]  # what each is called
    classes: Sequence[str]
    probs: Array  # [n, C]
    notes: tuple[str, ...] = ()  # what was done to the samples, in words

    def to_csv(self) -> str:
        """A row per sample: its name, the likeliest class, and the probability of every class."""
        text = io.StringIO()
        write = csv.writer(text, lineterminator="\n").writerow
        write(["sample", "class", *self.classes])
        for name, row in zip(self.samples, self.probs, strict=True):
            best = self.classes[int(row.argmax())]
            write([name, best, *(f"{p:.6g}" for p in row.tolist())])
        return text.getvalue()


def predict_file(
    history: History, path: Path, name: str | None = None, round: str = LAST_ROUND
) -> Predictions:
    """Of the samples in a file, prepared as those of the run were.

    path: as `fedsift.data.load_inputs` takes it
    name, round: as for `History.network`
    """
    trained = load_trained(history, name, round)
    if path.suffix.lower() in (".csv", ".parquet"):
        return _predict_table(trained, path)
    x, samples = load_inputs(path)
    x, notes = _fit_pictures(x, path, trained.task)
    return Predictions(samples, list_classes(trained.task), predict(trained, x), notes)


def _predict_table(trained: TrainedModel, path: Path) -> Predictions:
    """Rows are called by their lines."""
    if trained.task.preparation is None:
        raise UserError(f"{path} is a table, but the run was not trained on one; give FILE.npz")
    new = load_dataset(path)
    lines = [] if new.table is None else new.table.line.tolist()
    notes = _compare_columns(trained.task.preparation, new, path)
    classes, probs = list_classes(trained.task), predict(trained, new)
    return Predictions([f"line {line}" for line in lines], classes, probs, notes)


def _compare_columns(prepared: Preparation, new: Dataset, path: Path) -> tuple[str, ...]:
    """A note on columns that are not there; refused where none is."""
    if prepared.tokenizer is not None or new.table is None:
        return ()  # without its text a table is refused by who reads it
    wanted = [column.name for column in prepared.columns]
    gone = [name for name in wanted if name not in new.table.columns]
    if len(gone) == len(wanted):
        few = ", ".join(wanted[:5]) + (", ..." if len(wanted) > 5 else "")
        raise UserError(f"{path} has none of the columns of the run ({few})")
    return tuple(f"{path} has no column {name!r}: its values count as missing" for name in gone)


def predict(trained: TrainedModel, x: Array | Dataset) -> Array:
    """Probabilities [n, C] for raw inputs [n, ...], or the rows of a table."""
    net, inputs = trained.build(), trained.task.normalise(x)
    with torch.no_grad():
        logits = torch.cat([net(part).float() for part in inputs.split(BATCH)])
    return softmax(logits.numpy(), 1.0)


def _fit_pictures(x: Array, path: Path, task: Task) -> tuple[Array, tuple[str, ...]]:
    """Pictures get the channels, the size and the range of values of the run's images."""
    pictures = path.is_dir() or path.suffix.lower() not in (".npz", ".npy")
    samples = task.private.samples
    if not pictures or len(samples.shape) != 3:
        return x, ()
    like = samples.store.values[torch.from_numpy(samples.rows)].numpy()
    moved = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    fitted = images.fit_images(moved, like)
    if moved.shape[1:] == samples.shape:
        return fitted, ()
    there, here = moved.shape[1:], samples.shape
    return fitted, (f"pictures of shape {there} are made {here}, as the run has them",)
