"""The split of a data set into private, public and test parts that never overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedsift import registry, seeding
from fedsift.checks import check_type, check_whole
from fedsift.data.dataset import Dataset, read_inputs
from fedsift.types import Array, Labelled, Samples, Store, UserError


@dataclass(frozen=True, eq=False)
class Task:
    """The three parts. `public` has no labels at all: what is not there cannot leak."""

    private: Labelled
    public: Samples
    test: Labelled

    def __repr__(self) -> str:
        sizes = f"{len(self.private)} private, {len(self.public)} public, {len(self.test)} test"
        return f"Task({sizes}, shape {self.public.shape}, {self.private.classes} classes)"

    def normalise(self, x: Any) -> torch.Tensor:
        """New raw inputs as the trained network expects them: `net(task.normalise(x))`.

        x: samples [S, ...] in the values and one of the shapes that `make_dataset` takes
        """
        samples = self.private.samples
        inputs = read_inputs("x", x)
        if inputs.shape[1:] != samples.shape:
            raise UserError(
                f"x has samples of shape {inputs.shape[1:]}, the task of shape {samples.shape}; "
                "the first dimension of x counts the samples"
            )
        return samples.store.normalise(torch.from_numpy(inputs))


def split(
    data: Dataset,
    private: int,
    public: int,
    test: int | None = None,
    seed: int = 0,
    normalise: str = "scale",
) -> Task:
    """Disjoint parts, drawn at random.

    data: what `load_dataset` or `make_dataset` gave
    private: how many samples are dealt to the clients
    public: how many samples every party knows; their labels are left out
    test: how many samples are for the test (default: the official test set, or what is left)
    seed: of the draw
    normalise: "scale" divides by the largest value; "standard" gives mean 0 and deviation 1 per
        channel

    Where the public part comes from elsewhere, the samples that would have been public are left
    out, unless too few would be left. So the private and the test part are the same with every
    public set.

    Inputs are normalised by figures taken from the *public* part, the one part every party knows.
    `Task.normalise` does the same to new inputs.
    """
    name = repr(data) if isinstance(data, str) else "'digits'"
    cure = f"pass a data set, fedsift.load_dataset({name}) or fedsift.make_dataset(x, y)"
    check_type(data, Dataset, "data", cure)
    check_whole("seed", seed)
    order = seeding.rng(seed, "split").permutation(len(data.x))
    for name, size in (("private", private), ("public", public)):
        check_whole(name, size)
        if size < 1:
            raise UserError(f"the {name} part needs at least one sample, not {size}")
    if test is not None:
        check_whole("test", test)
    own_public = data.public is None
    needed = private + (public if own_public else 0)
    if needed > len(order):
        parts = f"private {private} + public {public}" if own_public else f"private {private}"
        raise UserError(f"{needed} samples asked for ({parts}), {len(order)} there")
    if data.public is not None and public > len(data.public):
        raise UserError(f"{public} public samples asked for, {len(data.public)} there")
    private_rows, rest = order[:private], order[private:]
    if data.public is None:
        shared, public_rows, rest = data.x, rest[:public], rest[public:]
    else:
        shared, public_rows = (
            data.public,
            seeding.rng(seed, "public").permutation(len(data.public))[:public],
        )
        rest = rest[public:] if len(rest) >= public + (test or 1) else rest
    tested, truth = (data.x, data.y) if data.test is None else data.test
    test_rows = rest if data.test is None else seeding.rng(seed, "test").permutation(len(tested))
    if not 0 < (len(test_rows) if test is None else test) <= len(test_rows):
        asked = "at least 1" if test is None else test
        raise UserError(
            f"{len(test_rows)} samples left for the test part, {asked} needed; make private "
            "or public smaller"
        )
    mean, std = registry.lookup(NORMALISATIONS, "normalisation", normalise, "standard or scale")(
        shared[public_rows]
    )
    stores = {
        id(array): Store(torch.from_numpy(array), mean, std) for array in (data.x, shared, tested)
    }
    return Task(
        _take_labelled(stores[id(data.x)], private_rows, data.y, data.classes),
        Samples(stores[id(shared)], public_rows),
        _take_labelled(stores[id(tested)], test_rows[:test], truth, data.classes),
    )


def _take_labelled(store: Store, rows: Array, labels: Array, classes: int) -> Labelled:
    return Labelled(
        Samples(store, rows), F.one_hot(torch.from_numpy(labels[rows]), classes).float()
    )


def _standard(x: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Per channel of images, per column of rows; a constant one is only centred."""
    axes, shape = ((0, 2, 3), (-1, 1, 1)) if x.ndim == 4 else ((0,), (-1,))
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


NORMALISATIONS = {"standard": _standard, "scale": _scale}
