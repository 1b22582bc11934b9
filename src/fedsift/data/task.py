"""The split of a data set into private, public and held-out parts that never overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedsift import registry, seeding
from fedsift.checks import check_type, check_whole, warn_user
from fedsift.data.dataset import Dataset, read_inputs
from fedsift.data.ranges import compare_inputs
from fedsift.types import Array, Labelled, Samples, Store, UserError

TEST, VALIDATION = "test", "validation"


@dataclass(frozen=True, eq=False)
class Task:
    """The three parts. `public` has no labels at all: what is not there cannot leak.

    Where the public samples' classes are known, `public_labels` has them, for the metrics of a
    simulation. Parties are given `public` and their own samples, never a task.
    """

    private: Labelled
    public: Samples
    held_out: Labelled  # what accuracy is measured on
    measured_on: str = TEST  # which samples those are: "test", or "validation"
    public_labels: Array | None = None  # [N] int64

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
    validation: int | None = None,
) -> Task:
    """Disjoint parts, drawn at random.

    data: what `load_dataset` or `make_dataset` gave
    private: how many samples are dealt to the clients
    public: how many samples every party knows, without their labels
    test: how many samples are for the test (default: the official test set, or what is left)
    seed: of the draw
    normalise: "scale" divides by the largest value; "standard" gives mean 0 and deviation 1 per
        channel
    validation: how many training samples accuracy is measured on instead of the test part, for
        choosing settings; the test part is then not read (default: none)

    Where the public part comes from elsewhere, the samples that would have been public are left
    out, unless too few would be left. So the private and the test part are the same with every
    public set.

    Validation samples are neither private nor public, and those two parts stay as they are.
    Without an official test set, the test samples are the first of what is left and the validation
    samples the last. With `test` given they do not overlap, whichever of them a task holds.

    Inputs are normalised by figures taken from the *public* part, the one part every party knows.
    `Task.normalise` does the same to new inputs.
    """
    _check_split(data, private, public, test, seed, validation)
    order = seeding.rng(seed, "split").permutation(len(data.x))
    private_rows, rest = order[:private], order[private:]
    if data.public is None:
        shared, public_rows, rest = data.x, rest[:public], rest[public:]
    else:
        shared = data.public
        public_rows = seeding.rng(seed, "public").permutation(len(data.public))[:public]
        needed = (test or 1) if validation is None else _needed(data, test, validation)
        rest = rest[public:] if len(rest) >= public + needed else rest
    figures = registry.lookup(NORMALISATIONS, "normalisation", normalise, "standard or scale")
    mean, std = figures(shared[public_rows])
    own = Store(torch.from_numpy(data.x), mean, std)
    known = own if shared is data.x else Store(torch.from_numpy(shared), mean, std)
    parts = _take_labelled(own, private_rows, data.y, data.classes), Samples(known, public_rows)
    if known is not own and (odd := compare_inputs(parts[0].samples, parts[1])):
        warn_user("; ".join(odd))
    truth = data.y[public_rows] if data.public is None else None
    if validation is not None:
        rows = _validation_rows(data, rest, test, validation)
        return Task(*parts, _take_labelled(own, rows, data.y, data.classes), VALIDATION, truth)
    if data.test is None:
        rows = _test_rows(rest, test)
        return Task(*parts, _take_labelled(own, rows, data.y, data.classes), TEST, truth)
    tested, classes = data.test
    rows = _test_rows(seeding.rng(seed, "test").permutation(len(tested)), test)
    store = Store(torch.from_numpy(tested), mean, std)
    return Task(*parts, _take_labelled(store, rows, classes, data.classes), TEST, truth)


def _check_split(
    data: Any, private: int, public: int, test: int | None, seed: int, validation: int | None
) -> None:
    """The sizes make sense and are there; what is left is checked by who takes it."""
    name = repr(data) if isinstance(data, str) else "'digits'"
    cure = f"pass a data set, fedsift.load_dataset({name}) or fedsift.make_dataset(x, y)"
    check_type(data, Dataset, "data", cure)
    check_whole("seed", seed)
    sizes = {"private": private, "public": public, TEST: test, VALIDATION: validation}
    for name, size in sizes.items():
        if size is None:
            continue
        check_whole(name, size)
        if size < 1:
            raise UserError(f"the {name} part needs at least one sample, not {size}")
    own_public = data.public is None
    needed = private + (public if own_public else 0)
    if needed > len(data.x):
        parts = f"private {private} + public {public}" if own_public else f"private {private}"
        raise UserError(f"{needed} samples asked for ({parts}), {len(data.x)} there")
    if not own_public and public > len(data.public):
        raise UserError(f"{public} public samples asked for, {len(data.public)} there")


def _test_rows(left: Array, test: int | None) -> Array:
    if not len(left) or len(left) < (test or 1):
        asked = "at least 1" if test is None else test
        raise UserError(
            f"{len(left)} samples left for the test part, {asked} needed; make private "
            "or public smaller"
        )
    return left[:test]


def _validation_rows(data: Dataset, left: Array, test: int | None, validation: int) -> Array:
    """The last of them, so that neither other sizes nor a test part of `test` samples change it."""
    if _needed(data, test, validation) > len(left):
        kept = "" if data.test is not None or not test else f" beside {test} for the test"
        raise UserError(
            f"{len(left)} training samples left for the validation part, {validation} needed"
            f"{kept}; make validation, private or public smaller"
        )
    return left[len(left) - validation :]


def _needed(data: Dataset, test: int | None, validation: int) -> int:
    """How many samples must be left: where there is no official test set, also those of a test."""
    return validation + (test or 0 if data.test is None else 0)


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
