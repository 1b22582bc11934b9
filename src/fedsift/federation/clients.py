"""Who takes part: private data dealt to clients, and a model for each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from torch import nn

from fedsift import registry, seeding
from fedsift.checks import check_type, check_whole, describe
from fedsift.data.partition import PARTITIONS, Dirichlet, Partition, deal
from fedsift.models import make_model
from fedsift.types import Array, Client, Labelled, Model, UserError

ModelLike = str | Callable[..., nn.Module]


class ClientModels(Sequence[Model]):
    """The model of every client, kept as blocks of (model, how many clients in a row have it)."""

    def __init__(self, blocks: Iterable[tuple[Model, int]]) -> None:
        blocks = [(model, count) for model, count in blocks if count]
        self._models = [model for model, _ in blocks]
        self._ends = [*accumulate(count for _, count in blocks)]
        self.distinct = tuple(dict.fromkeys(self._models))

    @classmethod
    def of(cls, models: Sequence[Model]) -> ClientModels:
        if isinstance(models, ClientModels):
            return models
        return cls((model, len(list(row))) for model, row in groupby(models))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, id: Any) -> Any:
        return self._models[bisect_right(self._ends, range(len(self))[int(id)])]


class Clients(Sequence[Client]):
    """The clients of a federation, made when asked for: views of the private data, never copies."""

    def __init__(self, private: Labelled, parts: Sequence[Array], models: Sequence[Model]) -> None:
        if len(models) != len(parts):
            raise UserError(f"{len(models)} models for {len(parts)} clients")
        self._private, self._parts, self._models = private, parts, ClientModels.of(models)
        self.models = self._models.distinct
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise UserError(
                f"two different models have one name ({', '.join(names)}); rename a factory"
            )

    def __repr__(self) -> str:
        models = ", ".join(model.name for model in self.models)
        return f"Clients({len(self)}, {len(self._private)} private samples, models: {models})"

    def __len__(self) -> int:
        return len(self._parts)

    def model_of(self, id: int) -> Model:
        return self._models[id]

    def __getitem__(self, id: Any) -> Any:
        id = range(len(self))[int(id)]  # its number, also where it is counted from the end
        return Client(id, self._models[id], self._private[self._parts[id]])


def make_clients(
    private: Labelled,
    count: int,
    partition: Partition | str | None = None,
    model: ModelLike | Mapping[Any, int] = "cnn",
    seed: int = 0,
) -> Clients:
    """Deal the private samples to clients, and give each a model.

    private: the private part of a task, `task.private`
    count: how many clients there are
    partition: how samples are dealt, for example Dirichlet(0.1) or "dirichlet(0.1)" (default:
        Dirichlet(1))
    model: a name or a factory (shape, classes) -> nn.Module, or {model: how many clients have it}
    seed: of the deal
    """
    cure = "pass task.private, of task = fedsift.split(data, private=..., public=...)"
    check_type(private, Labelled, "private", cure)
    check_whole("count", count)
    check_whole("seed", seed)
    how = registry.resolve(
        PARTITIONS, "partition", Dirichlet(1.0) if partition is None else partition
    )
    parts = deal(private.labels, count, how, seeding.rng(seed, "partition"))
    return Clients(
        private, parts, assign_models(model, count, private.samples.shape, private.classes)
    )


def assign_models(
    model: ModelLike | Mapping[Any, int], count: int, shape: tuple[int, ...], classes: int
) -> ClientModels:
    """The model of every client, in the order of their ids."""
    if isinstance(model, list | tuple | set):
        raise UserError("model is several models; say how many clients have each: {'cnn': 12, ...}")
    mix = model if isinstance(model, Mapping) else {model: count}
    for what, clients in mix.items():
        check_whole(f"the number of clients with model {describe(what)}", clients)
    if sum(mix.values()) != count:
        raise UserError(f"models are given to {sum(mix.values())} clients, but there are {count}")
    if min(mix.values()) < 0:
        raise UserError(f"a model cannot be given to {min(mix.values())} clients")
    return ClientModels((make_model(what, shape, classes), n) for what, n in mix.items())
