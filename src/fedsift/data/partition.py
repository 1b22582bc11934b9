"""How the private samples are dealt to clients. A partition is a callable

    (labels [n], clients, generator) -> one index array per client

The arrays are disjoint, unless the partition is `overlapping`. Every client gets at least one
sample; one may well end up with a single class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedsift import seeding
from fedsift.checks import check_number, check_whole, describe
from fedsift.data.dataset import Owners
from fedsift.numerics import apportion
from fedsift.types import Array, UserError

SMALLEST = 1e-6  # of an alpha: below, every client has one class whatever it is
LARGEST = 1e6  # beyond, a Dirichlet draw is uniform but for rounding errors
Partition = Callable[[Array, int, np.random.Generator], Sequence[Array]]


def iid(labels: Array, clients: int, generator: np.random.Generator) -> list[Array]:
    """Equal sizes, every client drawn from the same pool.

    labels: [S] classes of the private samples
    clients: how many there are
    generator: the randomness of the deal
    """
    return np.array_split(generator.permutation(len(labels)), clients)


@dataclass(frozen=True)
class Dirichlet:
    """The paper's: equal sizes; each client's class proportions are drawn from Dirichlet(alpha,
    ..., alpha).

    Clients take turns in random order. Where a class is used up, a client takes from what is left,
    in proportion to its own preferences. If it wants none of what is left, it takes in proportion
    to what is left.
    """

    alpha: float  # label skew: 100 is almost none, 0.1 is strong

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def __call__(self, labels: Array, clients: int, generator: np.random.Generator) -> list[Array]:
        classes = int(labels.max()) + 1
        pools = [generator.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
        left = np.array([len(pool) for pool in pools])
        sizes = _equal_sizes(len(labels), clients)
        parts: list[Array] = [np.empty(0, np.int64)] * clients
        for client in generator.permutation(clients):
            wish = generator.dirichlet(np.full(classes, self.alpha))
            take = _take(sizes[client], wish, left)
            parts[client] = np.concatenate(
                [pools[c][left[c] - take[c] : left[c]] for c in range(classes)]
            )
            left = left - take
        return parts


@dataclass(frozen=True)
class DirichletFree:
    """Free sizes: each class is cut over the clients in Dirichlet(alpha) proportions."""

    alpha: float  # label skew: 100 is almost none, 0.1 is strong

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def __call__(self, labels: Array, clients: int, generator: np.random.Generator) -> list[Array]:
        owner = np.empty(len(labels), np.int64)
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(clients, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
            for client, piece in enumerate(np.split(rows, cuts)):
                owner[piece] = client
        _feed_the_empty(owner, clients, generator)
        return [np.flatnonzero(owner == client) for client in range(clients)]


@dataclass(frozen=True)
class Shards:
    """Sorted by label, cut into clients x shards pieces, dealt at random (McMahan et al.)."""

    shards: int = 2  # pieces per client

    def __post_init__(self) -> None:
        _positive("shards", self.shards)

    def __call__(self, labels: Array, clients: int, generator: np.random.Generator) -> list[Array]:
        if clients * self.shards > len(labels):
            raise UserError(
                f"{clients} clients x {self.shards} shards need more than {len(labels)} samples"
            )
        shuffled = generator.permutation(len(labels))
        shards = np.array_split(
            shuffled[np.argsort(labels[shuffled], kind="stable")], clients * self.shards
        )
        deal = generator.permutation(len(shards)).reshape(clients, self.shards)
        return [np.concatenate([shards[s] for s in mine]) for mine in deal]


class LazyParts(Sequence[Array]):
    """Parts that are worked out when they are asked for, `part(client)`; none is kept."""

    def __init__(self, clients: int, part: Callable[[int], Array]) -> None:
        self._ids, self._part = range(clients), part

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, client: Any) -> Any:
        return self._part(self._ids[int(client)])


@dataclass(frozen=True)
class Views:
    """Any number of clients: each sees `samples` samples in Dirichlet(alpha) proportions.

    A client's view is drawn on demand, from its number and one number for them all. So a million
    clients take no more room than ten. Its samples are distinct, but other clients may see them
    too. Where a class is too small, the client fills its place as in `Dirichlet`.
    """

    alpha: float  # label skew: 100 is almost none, 0.1 is strong
    samples: int = 40  # of each client
    overlapping: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        _positive("samples", self.samples)

    def __call__(
        self, labels: Array, clients: int, generator: np.random.Generator
    ) -> Sequence[Array]:
        if self.samples > len(labels):
            raise UserError(
                f"views of {self.samples} samples, but only {len(labels)} private ones; make "
                "samples smaller"
            )
        pools = [np.flatnonzero(labels == c) for c in range(int(labels.max()) + 1)]
        return LazyParts(clients, partial(self._view, pools, int(generator.integers(2**63))))

    def _view(self, pools: list[Array], root: int, client: int) -> Array:
        generator = seeding.rng(root, "view", client)
        wish = generator.dirichlet(np.full(len(pools), self.alpha))
        take = _take(self.samples, wish, np.array([len(pool) for pool in pools]))
        return np.concatenate(
            [generator.choice(pools[c], take[c], replace=False) for c in np.flatnonzero(take)]
        )


@dataclass(frozen=True, eq=False)
class Given:
    """The clients that the data name, each with its samples; one may have none."""

    parts: tuple[Array, ...]  # indexes into the private samples
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        return f"Given({len(self)} clients: {', '.join(self.names[:NAMED])})"

    def __call__(self, labels: Array, clients: int, generator: np.random.Generator) -> list[Array]:
        if clients != len(self.parts):
            raise UserError(
                f"the data have {len(self)} clients ({_list(self.names)}), not {clients}; "
                f"set clients={len(self)} and a cohort of at most as many"
            )
        return list(self.parts)


NAMED = 5  # clients that a message lists


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def deal_given(owners: Owners, private: Array) -> Given:
    """Each client's share of the private samples, which are rows of the data."""
    mine = owners.numbers[private]
    parts = [np.flatnonzero(mine == client) for client in range(len(owners.names))]
    return Given(tuple(parts), owners.names)


def given(labels: Array, clients: int, generator: np.random.Generator) -> list[Array]:
    """As the data say: data.client=COLUMN, data.clients=FILES, or an array client in an npz."""
    raise UserError(NOBODY)


NOBODY = (
    "partition given needs data that name the client of each sample: data.client=COLUMN, "
    "data.clients='hospital-*.csv', or an array client in an npz; in Python pass task.given"
)


PARTITIONS: dict[str, Partition | type[Partition]] = {
    "iid": iid,
    "dirichlet": Dirichlet,
    "dirichlet-free": DirichletFree,
    "shards": Shards,
    "views": Views,
    "given": given,
}


def deal(
    labels: Array, clients: int, how: Partition, generator: np.random.Generator
) -> Sequence[Array]:
    """Partition with the checks that belong to all of them."""
    if clients < 1:
        raise UserError(f"a federation needs at least one client, not {clients}")
    empty = isinstance(how, Given)
    if clients > len(labels) and not empty and not getattr(how, "overlapping", False):
        raise UserError(
            f"{clients} clients but only {len(labels)} private samples: each client needs at "
            "least one"
        )
    parts = how(labels, clients, generator)
    if not isinstance(parts, Sequence | np.ndarray) or len(parts) != clients:
        given = f"{len(parts)} parts" if hasattr(parts, "__len__") else type(parts).__name__
        raise UserError(f"the partition gives {given} for {clients} clients; give each one array")
    overlapping = getattr(how, "overlapping", False)
    if overlapping and not isinstance(parts, list | tuple):  # perhaps for a million clients
        return LazyParts(clients, partial(_checked_part, parts, len(labels)))
    checked = [_checked_part(parts, len(labels), client, empty) for client in range(clients)]
    if not overlapping:
        _check_cover(np.concatenate(checked), len(labels))
    return checked


def _checked_part(parts: Sequence[Any], samples: int, client: int, empty: bool = False) -> Array:
    part = parts[client]
    if empty and not len(part):
        return np.empty(0, np.int64)
    try:
        rows = np.asarray(part)
    except ValueError:  # lists of different lengths
        rows = np.empty(())
    if rows.ndim != 1 or not len(rows):
        found = "no samples" if rows.ndim == 1 else describe(part)
        raise UserError(
            f"the partition gives client {client} {found}; "
            "give each client an array of at least one index"
        )
    if rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= samples:
        raise UserError(
            f"the partition gives client {client} values that are not indexes from "
            f"0 to {samples - 1}"
        )
    return rows.astype(np.int64)


def _check_cover(rows: Array, samples: int) -> None:
    """Every private sample belongs to one client."""
    times = np.bincount(rows, minlength=samples)
    if (times != 1).any():
        lost, shared = int((times == 0).sum()), int((times > 1).sum())
        raise UserError(
            f"the partition leaves out {lost} samples and deals {shared} more than once; deal "
            "every "
            "index once, or set `overlapping = True` on it to allow both"
        )


def _equal_sizes(samples: int, clients: int) -> Array:
    return np.full(clients, samples // clients) + (np.arange(clients) < samples % clients)


def _take(size: int, wish: Array, left: Array) -> Array:
    """How many of each class: `size` in proportion to the wish, at most what is left of a class."""
    take = np.zeros_like(left)
    while (missing := size - take.sum()) > 0:
        still = left - take
        want = np.where(still > 0, wish, 0.0)
        if want.sum() < 1e-12:
            want = still.astype(float)
        take = take + np.minimum(apportion(want, missing), still)
    return take


def _feed_the_empty(owner: Array, clients: int, generator: np.random.Generator) -> None:
    """Give every client without samples one from the client that has most."""
    for client in np.setdiff1d(np.arange(clients), owner):
        richest = np.bincount(owner, minlength=clients).argmax()
        owner[generator.choice(np.flatnonzero(owner == richest))] = client


def _check_alpha(alpha: float) -> None:
    check_number("alpha", alpha)
    if not SMALLEST <= alpha <= LARGEST:
        raise UserError(f"alpha must be from {SMALLEST:g} to {LARGEST:g}, not {alpha}")


def _positive(name: str, value: int) -> None:
    check_whole(name, value)
    if not 0 < value <= LARGEST:
        raise UserError(f"{name} must be above 0 and at most {LARGEST:g}, not {value}")
