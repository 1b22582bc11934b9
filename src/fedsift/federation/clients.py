"""Who takes part: private data dealt to clients, and a model for each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

from fedsift import registry, seeding
from fedsift.checks import check_type, check_whole, describe
from fedsift.data.partition import PARTITIONS, Dirichlet, Given, Partition, deal
from fedsift.models import make_model
from fedsift.types import Array, Client, Labelled, Model, UserError

ModelLike = str | Callable[..., Any]
STUDENT = "mlp"  # taught where no client has a network; takes inputs of any shape
STUDENT_OF_TEXTS = "bag"


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

    def __init__(
        self,
        private: Labelled,
        parts: Sequence[Array],
        models: Sequence[Model],
        student: Model | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """`student`: a network that the server teaches beside those of the clients. `names`: of the
        clients, where the data name them.
        """
        if len(models) != len(parts):
            raise UserError(f"{len(models)} models for {len(parts)} clients")
        self.names = tuple(names)
        self._private, self._parts, self._models = private, parts, ClientModels.of(models)
        self.models = self._models.distinct
        self.student = student
        names = [model.name for model in dict.fromkeys((*self.models, *self.students))]
        if len(set(names)) < len(names):
            raise UserError(
                f"two different models have one name ({', '.join(names)}); rename a factory"
            )

    def __repr__(self) -> str:
        models = ", ".join(model.name for model in self.models)
        return f"Clients({len(self)}, {len(self._private)} private samples, models: {models})"

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def students(self) -> tuple[Model, ...]:
        """The networks that the server teaches: those of the clients and its own."""
        networks = [model for model in self.models if model.is_network]
        extra = [] if self.student is None else [self.student]
        return tuple(dict.fromkeys([*networks, *extra])) or (self._usual_student,)

    @cached_property
    def _usual_student(self) -> Model:
        samples = self._private.samples
        name = STUDENT if samples.vocabulary is None else STUDENT_OF_TEXTS
        return make_model(name, samples.shape, self._private.classes, samples.vocabulary)

    @property
    def others(self) -> tuple[Model, ...]:
        """The models of clients that are no networks."""
        return tuple(model for model in self.models if not model.is_network)

    def name_of(self, id: int) -> str:
        """ "client 2 (hospital-c)" """
        return f"client {id}" + (f" ({self.names[id]})" if self.names else "")

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
    student: ModelLike | None = None,
) -> Clients:
    """Deal the private samples to clients, and give each a model.

    private: the private part of a task, `task.private`
    count: how many clients there are
    partition: how samples are dealt, for example Dirichlet(0.1) or "dirichlet(0.1)" (default:
        Dirichlet(1)); `task.given` where the data name the clients
    model: a name ("cnn", "sklearn:RandomForestClassifier"), a factory (shape, classes) ->
        nn.Module, an estimator with fit and predict_proba, or {model: how many clients have it}
    seed: of the deal
    student: a network that the server teaches beside those of the clients (default: none; where no
        client has a network, "mlp")
    """
    cure = "pass task.private, of task = fedsift.split(data, private=..., public=...)"
    check_type(private, Labelled, "private", cure)
    check_whole("count", count)
    check_whole("seed", seed)
    how = registry.resolve(
        PARTITIONS, "partition", Dirichlet(1.0) if partition is None else partition
    )
    parts = deal(private.labels, count, how, seeding.rng(seed, "partition"))
    samples, names = private.samples, how.names if isinstance(how, Given) else ()
    about = samples.shape, private.classes, samples.vocabulary
    models = assign_models(model, count, *about)
    return Clients(private, parts, models, make_student(student, *about), names)


def make_student(
    student: ModelLike | None,
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int | None = None,
) -> Model | None:
    """A network that the server teaches beside those of the clients."""
    if student is None:
        return None
    made = make_model(student, shape, classes, vocabulary)
    if not made.is_network:
        raise UserError(f"a student is a network, which {made.name} is not; set student=mlp")
    return made


def assign_models(
    model: ModelLike | Mapping[Any, int],
    count: int,
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int | None = None,
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
    return ClientModels(
        (make_model(what, shape, classes, vocabulary), n) for what, n in mix.items()
    )
