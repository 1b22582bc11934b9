"""The split of a data set into private, public and held-out parts that never overlap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift import registry
from fedsift.checks import check_type, check_whole, count, warn_user
from fedsift.data.dataset import IMAGES, SERIES, TABLE, TOKENS, Dataset, read_inputs
from fedsift.data.partition import Given, deal_given
from fedsift.data.preparation import Preparation, learn_preparation
from fedsift.data.ranges import compare_inputs
from fedsift.data.rows import TEST, VALIDATION, Sizes, choose_rows
from fedsift.types import Array, Labelled, Samples, Store, UserError


@dataclass(frozen=True, eq=False)
class Task:
    """The three parts. `public` has no labels at all: what is not there cannot leak.

    Where the public samples' classes are known, `public_labels` has them, for the metrics of a
    simulation. Parties are given `public` and their own samples, never a task.
    """

    private: Labelled  # the samples that are dealt to the clients
    public: Samples  # the samples that every party has, without labels
    held_out: Labelled  # what accuracy is measured on
    measured_on: str = TEST  # which samples those are: "test", or "validation"
    public_labels: Array | None = None  # [N] int64
    class_names: tuple[str, ...] | None = None  # where classes have names
    given: Given | None = None  # the clients that the data name: a partition of the private part
    notes: tuple[str, ...] = ()  # what was chosen and done, in words
    preparation: Preparation | None = None  # how the columns of a table became inputs

    def __repr__(self) -> str:
        held_out = f"{len(self.held_out)} {self.measured_on}"
        sizes = f"{len(self.private)} private, {len(self.public)} public, {held_out}"
        return f"Task({sizes}, shape {self.public.shape}, {self.private.classes} classes)"

    @property
    def test(self) -> Labelled:
        """The test samples; an error where the task sets validation samples aside instead."""
        if self.measured_on != TEST:
            raise UserError(
                f"this task has {len(self.held_out)} validation samples and no test samples; "
                "use task.held_out, or split without validation"
            )
        return self.held_out

    def normalise(self, x: Any) -> torch.Tensor:
        """New raw inputs as the trained network expects them: `net(task.normalise(x))`.

        x: samples [S, ...] in the values and one of the shapes that `make_dataset` takes, or a
            data set of rows with the columns of this one
        """
        samples = self.private.samples
        if isinstance(x, Dataset) and x.table is not None and self.preparation is not None:
            return samples.store.normalise(torch.from_numpy(self.preparation.apply(x.table)))
        inputs = read_inputs("x", x, SERIES if len(samples.shape) == 2 else None)
        if inputs.shape[1:] != samples.shape:
            raise UserError(
                f"x has samples of shape {inputs.shape[1:]}, the task of shape {samples.shape}; "
                "the first dimension of x counts the samples"
            )
        if samples.vocabulary is not None and not 0 <= inputs.min() <= inputs.max() < (
            samples.vocabulary
        ):
            raise UserError(f"x has token ids that are not from 0 to {samples.vocabulary - 1}")
        return samples.store.normalise(torch.from_numpy(inputs))


def split(
    data: Dataset,
    private: int | None = None,
    public: int | None = None,
    test: int | None = None,
    seed: int = 0,
    normalise: str | None = None,
    validation: int | None = None,
) -> Task:
    """Disjoint parts, drawn at random, or as the data say.

    data: what `load_dataset` or `make_dataset` gave
    private: how many samples are dealt to the clients (default: all that are left)
    public: how many samples every party knows, without their labels (default: those that the data
        name, or a quarter)
    test: how many samples are for the test (default: the official test set, or what is left)
    seed: of the draw
    normalise: "scale" divides by the largest value; "standard" gives mean 0 and deviation 1 per
        channel or column; "none" leaves inputs as they are (default: scale for images, none for
        token ids, else standard)
    validation: how many training samples accuracy is measured on instead of the test part, for
        choosing settings; the test part is then not read (default: none)

    Where the public part comes from elsewhere, the samples that would have been public are left
    out, unless too few would be left. So the private and the test part are the same with every
    public set.

    Validation samples are neither private nor public, and those two parts stay as they are.
    Without an official test set, the test samples are the first of what is left and the validation
    samples the last. With `test` given they do not overlap, whichever of them a task holds.

    Inputs are normalised by figures taken from the *public* part, the one part every party knows.
    So are the categories and the missing values of a table filled in. `Task.normalise` does the
    same to new inputs.
    """
    sizes = Sizes(private, public, test, validation)
    _check_data(data, sizes, seed)
    rows = choose_rows(data, sizes, seed)
    how = choose_normalisation(data.kind, normalise)
    data, preparation, notes = _prepare(data, rows.public)
    shared = data.x if data.public is None else data.public
    mean, std = NORMALISATIONS[how](shared[rows.public])
    if preparation is not None:
        mean, std = keep_plain(mean, std, preparation.plain)
    own = Store(torch.from_numpy(data.x), mean, std, data.vocabulary)
    known = own if shared is data.x else replace(own, values=torch.from_numpy(shared))
    parts = _take_labelled(own, rows.private, data.y, data.classes), Samples(known, rows.public)
    if known is not own and (odd := compare_inputs(parts[0].samples, parts[1])):
        warn_user("; ".join(odd))
    truth = data.y[rows.public] if data.public is None else None
    truth = None if truth is None or (truth < 0).any() else truth
    if rows.official and data.test is not None:
        tested, labels = data.test
        held_out = _take_labelled(
            replace(own, values=torch.from_numpy(tested)), rows.held_out, labels, data.classes
        )
    else:
        held_out = _take_labelled(own, rows.held_out, data.y, data.classes)
    notes = (*data.notes, *notes, *_describe_choice(data, normalise, how, len(rows.public)))
    measured_on = TEST if validation is None else VALIDATION
    given = None if data.owners is None else deal_given(data.owners, rows.private)
    return Task(*parts, held_out, measured_on, truth, data.names, given, notes, preparation)


def _prepare(data: Dataset, public: Array) -> tuple[Dataset, Preparation | None, tuple[str, ...]]:
    """The data with the inputs that a table becomes, how, and notes on it."""
    if data.table is None:
        return data, None, ()
    made, notes = learn_preparation(data.table, public)
    x = made.apply(data.table)
    return replace(data, x=x, vocabulary=made.vocabulary), made, notes


def choose_normalisation(kind: str, normalise: str | None) -> str:
    """As asked for; else what fits the kind of data. Token ids are never scaled."""
    if normalise is None:
        return USUAL[kind]
    registry.lookup(NORMALISATIONS, "normalisation", normalise, "standard, scale or none")
    if kind == TOKENS and normalise != "none":
        raise UserError(
            f"token ids cannot be normalised by {normalise!r}: the words would be lost; "
            "leave normalise out"
        )
    return normalise


def _describe_choice(data: Dataset, asked: str | None, how: str, public: int) -> tuple[str, ...]:
    """What was chosen where nobody asked; for images it has always been so."""
    if asked is not None or data.kind == IMAGES:
        return ()
    figures = "" if how == "none" else f", by figures of the {count(public, 'public sample')}"
    return (f"normalise = {how} for {NOUNS[data.kind]}{figures}",)


def keep_plain(mean: Tensor, std: Tensor, plain: Array | None) -> tuple[Tensor, Tensor]:
    """The figures [F], but 0 and 1 for columns that are not numbers, as those of a category."""
    if plain is None:
        return mean, std
    mask = torch.from_numpy(plain)
    zero, one = torch.zeros(len(plain)), torch.ones(len(plain))
    return torch.where(mask, zero, mean.expand(len(plain))), torch.where(mask, one, std)


def _check_data(data: Any, sizes: Sizes, seed: int) -> None:
    """A data set, and sizes that make sense; whether samples are there is checked by who takes
    them.
    """
    name = repr(data) if isinstance(data, str) else "'digits'"
    cure = f"pass a data set, fedsift.load_dataset({name}) or fedsift.make_dataset(x, y)"
    check_type(data, Dataset, "data", cure)
    check_whole("seed", seed)
    sizes.check()


def _take_labelled(store: Store, rows: Array, labels: Array, classes: int) -> Labelled:
    return Labelled(
        Samples(store, rows), F.one_hot(torch.from_numpy(labels[rows]), classes).float()
    )


def _standard(x: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Per channel of images, per column of rows and series; a constant one is only centred."""
    axes, shape = ((0, 2, 3), (-1, 1, 1)) if x.ndim == 4 else ((0, 1)[: x.ndim - 1], (-1,))
    mean = np.mean(x, axis=axes, dtype=np.float64, keepdims=True)
    squares = sum(
        np.square(x[start : start + 1000] - mean).sum(axes) for start in range(0, len(x), 1000)
    )
    std = np.sqrt(squares / (x.size // mean.size)).reshape(shape)
    return torch.from_numpy(mean.reshape(shape)).float(), torch.from_numpy(
        np.where(std > 1e-8, std, 1.0)
    ).float()


def _scale(x: Array) -> tuple[torch.Tensor, torch.Tensor]:
    largest = max(float(x.max()), -float(x.min())) or 1.0
    return torch.tensor(0.0), torch.tensor(largest)


def _leave(x: Array) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(0.0), torch.tensor(1.0)


NORMALISATIONS = {"standard": _standard, "scale": _scale, "none": _leave}
USUAL = {IMAGES: "scale", TABLE: "standard", SERIES: "standard", TOKENS: "none"}
NOUNS = {IMAGES: "images", TABLE: "a table", SERIES: "series", TOKENS: "token ids"}
