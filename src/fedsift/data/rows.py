"""Which samples are private, public and held out: disjoint, drawn by a seed or as the data say."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from fedsift import seeding
from fedsift.checks import check_whole
from fedsift.data.dataset import ANYWHERE, PUBLIC, TEST_PART, TRAIN, Dataset
from fedsift.types import Array, UserError

TEST, VALIDATION = "test", "validation"
SHARE = 4  # one in so many samples is public, and one for the test, where nobody says how many
NO_PUBLIC = (
    "no public set? hold out unlabelled samples, take some from elsewhere, or generate them "
    "(docs/your-own-data.md#no-public-set)"
)


@dataclass(frozen=True)
class Sizes:
    """How many samples a part has; None: as the data say, or a usual share."""

    private: int | None
    public: int | None
    test: int | None
    validation: int | None

    def check(self) -> None:
        for name, size in asdict(self).items():
            if size is None:
                continue
            check_whole(name, size)
            if size < 1:
                cure = f"; {NO_PUBLIC}" if name == "public" else ""
                raise UserError(f"the {name} part needs at least one sample, not {size}{cure}")


@dataclass(frozen=True, eq=False)
class Rows:
    """Into the samples of a data set; held-out ones into its official test set where `official`."""

    private: Array
    public: Array
    held_out: Array
    official: bool = False


def choose_rows(data: Dataset, sizes: Sizes, seed: int) -> Rows:
    if len(data.y) and (data.y < 0).all():
        raise UserError(
            "no sample has a class; name the column of the classes: data.target=COLUMN, or in "
            "Python load_dataset(..., target=COLUMN)"
        )
    if data.part is None and data.owners is None:
        return _draw_rows(data, _fill_in(data, sizes), seed)
    return _follow_marks(data, sizes, seed)


# --- data that say nothing ---


def _fill_in(data: Dataset, sizes: Sizes) -> Sizes:
    """A quarter is public, a quarter for the test where there is none, the rest private."""
    samples = len(data.x)
    public = sizes.public
    if public is None:
        public = max(1, samples // SHARE) if data.public is None else len(data.public)
    private = sizes.private
    if private is None:
        kept = sizes.validation or 0
        kept += 0 if data.test is not None else sizes.test or max(1, samples // SHARE)
        private = samples - kept - (public if data.public is None else 0)
        if private < 1:
            raise UserError(
                f"{samples} samples are too few for a private part beside {public} public samples "
                f"and {kept} held out; make those smaller"
            )
    return Sizes(private, public, sizes.test, sizes.validation)


def _draw_rows(data: Dataset, sizes: Sizes, seed: int) -> Rows:
    private, public = sizes.private or 0, sizes.public or 0
    _check_enough(data, private, public)
    order = seeding.rng(seed, "split").permutation(len(data.x))
    private_rows, rest = order[:private], order[private:]
    if data.public is None:
        public_rows, rest = rest[:public], rest[public:]
    else:
        public_rows = seeding.rng(seed, "public").permutation(len(data.public))[:public]
        needed = sizes.test or 1
        if sizes.validation is not None:
            needed = _needed(data, sizes.test, sizes.validation)
        rest = rest[public:] if len(rest) >= public + needed else rest
    if sizes.validation is not None:
        rows = _validation_rows(data, rest, sizes.test, sizes.validation)
        return Rows(private_rows, public_rows, rows)
    if data.test is None:
        return Rows(private_rows, public_rows, _test_rows(rest, sizes.test))
    tested, _ = data.test
    order = seeding.rng(seed, "test").permutation(len(tested))
    return Rows(private_rows, public_rows, _test_rows(order, sizes.test), official=True)


def _check_enough(data: Dataset, private: int, public: int) -> None:
    """What is left is checked by who takes it."""
    own_public = data.public is None
    needed = private + (public if own_public else 0)
    if needed > len(data.x):
        parts = f"private {private} + public {public}" if own_public else f"private {private}"
        cure = f"; {NO_PUBLIC}" if own_public and private <= len(data.x) else ""
        raise UserError(f"{needed} samples asked for ({parts}), {len(data.x)} there{cure}")
    if data.public is not None and public > len(data.public):
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


# --- data that say which part, or which client, a sample belongs to ---


def _follow_marks(data: Dataset, sizes: Sizes, seed: int) -> Rows:
    """Parts as the data name them. What they do not name is drawn: from samples of no client, if
    there are some, else from all that are free. All stay in the order of the file.
    """
    samples = len(data.x)
    part = np.full(samples, ANYWHERE) if data.part is None else data.part
    mine = np.ones(samples, bool) if data.owners is None else data.owners.numbers >= 0
    draw = _Draw(data, part, mine, seed)
    public = draw.take_public(sizes)
    held_out, official = draw.take_held_out(sizes)
    private = np.flatnonzero(draw.free & mine)
    if sizes.private is not None:
        if sizes.private > len(private):
            raise UserError(f"{sizes.private} private samples asked for, {len(private)} there")
        private = np.sort(draw.generator.permutation(private)[: sizes.private])
    for name, rows in (("private", private), ("public", public), ("test", held_out)):
        if not len(rows):
            raise UserError(f"no sample is left for the {name} part; make another part smaller")
    return Rows(private, public, held_out, official)


class _Draw:
    """Takes samples away part by part."""

    def __init__(self, data: Dataset, part: Array, mine: Array, seed: int) -> None:
        self.data, self.part, self.mine = data, part, mine
        self.generator = seeding.rng(seed, "split")
        self.free = (part == TRAIN) | (part == ANYWHERE)  # may be private, or drawn for a part
        self.strangers = self.free & ~mine  # nobody's: never private

    def take_public(self, sizes: Sizes) -> Array:
        if self.data.public is not None:
            rows = np.arange(len(self.data.public))
            return self._some(rows, sizes.public, "public")
        if len(named := np.flatnonzero(self.part == PUBLIC)):
            return self._some(named, sizes.public, "public")
        shares = 2 if self.strangers.any() and self._needs_test() else SHARE
        if self.strangers.any() and not self._needs_test() and sizes.validation is None:
            shares = 1
        return self._draw(sizes.public, shares, "public")

    def take_held_out(self, sizes: Sizes) -> tuple[Array, bool]:
        tested = np.flatnonzero(self.part == TEST_PART)
        if sizes.validation is not None:
            return self._draw(sizes.validation, SHARE, "validation"), False
        if self.data.test is not None:
            return self._some(np.arange(len(self.data.test[0])), sizes.test, "test"), True
        if len(tested):
            return self._some(tested, sizes.test, "test"), False
        return self._draw(sizes.test, 1 if self.strangers.any() else SHARE, "test"), False

    def _needs_test(self) -> bool:
        return self.data.test is None and not (self.part == TEST_PART).any()

    def _some(self, rows: Array, size: int | None, name: str) -> Array:
        if size is None:
            return rows
        if size > len(rows):
            raise UserError(f"{size} {name} samples asked for, {len(rows)} there")
        return np.sort(self.generator.permutation(rows)[:size])

    def _draw(self, size: int | None, shares: int, name: str) -> Array:
        pool = np.flatnonzero(self.strangers if self.strangers.any() else self.free)
        if not len(pool):
            raise UserError(f"no sample is left for the {name} part; mark some with data.split")
        size = max(1, len(pool) // shares) if size is None else size
        if size >= len(pool) and not self.strangers.any():
            raise UserError(f"{size} {name} samples asked for, {len(pool)} there for all parts")
        rows = self._some(pool, size, name)
        self.free[rows] = self.strangers[rows] = False
        return rows
