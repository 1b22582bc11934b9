"""The round loop. `batch_turns` advances many turns in lockstep; `federate` yields one record a
round.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from typing import Any

from torch import Tensor, nn

from fedsift import evaluation, registry, seeding
from fedsift.data import Task
from fedsift.data.partition import Dirichlet, Partition, deal
from fedsift.engines import choose_engine
from fedsift.ledger import RoundBytes
from fedsift.models import check_model, make_model
from fedsift.types import (
    Algorithm,
    Array,
    Client,
    Engine,
    Labelled,
    Model,
    PeerToPeer,
    Round,
    Server,
    Tree,
    Turn,
    UserError,
)


class ClientModels(Sequence[Model]):
    """The model of every client, kept as blocks of (model, how many clients in a row have it)."""

    def __init__(self, blocks: Iterable[tuple[Model, int]]) -> None:
        blocks = [(model, count) for model, count in blocks if count]
        self._models, self._ends = (
            [model for model, _ in blocks],
            [*accumulate(count for _, count in blocks)],
        )
        self.distinct = tuple(dict.fromkeys(self._models))

    @classmethod
    def of(cls, models: Sequence[Model]) -> ClientModels:
        return (
            models
            if isinstance(models, ClientModels)
            else cls((m, len(list(row))) for m, row in groupby(models))
        )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, id: Any) -> Any:
        return self._models[bisect_right(self._ends, range(len(self))[int(id)])]


class Clients(Sequence[Client]):
    """The clients of a federation, each made when asked for: a view of the private data, never a
    copy.
    """

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

    def __len__(self) -> int:
        return len(self._parts)

    def model_of(self, id: int) -> Model:
        return self._models[id]

    def __getitem__(self, id: Any) -> Any:
        id = range(len(self))[
            int(id)
        ]  # a client's id is its number, also where it is counted from the end
        return Client(id, self._models[id], self._private[self._parts[id]])


ModelLike = str | Callable[..., nn.Module]


def make_clients(
    private: Labelled,
    count: int,
    partition: Partition | None = None,
    model: ModelLike | Mapping[Any, int] = "cnn",
    seed: int = 0,
) -> Clients:
    """Deal the private samples to `count` clients (the paper's Dirichlet(1) unless you say
    otherwise).

    `model` is a name or factory, or {model: how many clients have it}.
    """
    parts = deal(private.labels, count, partition or Dirichlet(1.0), seeding.rng(seed, "partition"))
    return Clients(
        private, parts, assign_models(model, count, private.samples.shape, private.classes)
    )


def assign_models(
    model: ModelLike | Mapping[Any, int], count: int, shape: tuple[int, ...], classes: int
) -> ClientModels:
    """The model of every client, in the order of their ids."""
    mix = model if isinstance(model, Mapping) else {model: count}
    if sum(mix.values()) != count:
        raise UserError(f"models are given to {sum(mix.values())} clients, but there are {count}")
    if min(mix.values()) < 0:
        raise UserError(f"a model cannot be given to {min(mix.values())} clients")
    return ClientModels((make_model(what, shape, classes), n) for what, n in mix.items())


@dataclass(frozen=True, eq=False)
class FederationState:
    """All that survives a round."""

    round: int  # rounds played
    server: Server
    memories: dict[int, Tree] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Record:
    """One round: what it cost and what came of it. `state` is enough to go on from here."""

    round: int
    accuracies: dict[str, float]
    bytes: RoundBytes = field(repr=False)
    state: FederationState = field(repr=False)
    models: dict[str, tuple[Model, dict[str, Tensor]]] = field(repr=False)
    client_accuracy: float | None = (
        None  # mean over the models clients keep of their own, after local training
    )
    disagreement: float | None = None  # how often two of those differ on a test sample
    counts: dict[str, int] = field(
        default_factory=dict
    )  # what the algorithm wants counted (Server.notes["counts"])

    @property
    def accuracy(self) -> float:
        """The mean over the models the algorithm reports: its students, or where there are none its
        clients'.
        """
        return sum(self.accuracies.values()) / len(self.accuracies)

    def network(self, name: str | Callable[..., nn.Module] | None = None) -> nn.Module:
        """A trained model, ready to predict; by name, or by what makes it, where there are
        several.
        """
        wanted = next(iter(self.models)) if name is None else getattr(name, "__name__", name)
        model, weights = registry.lookup(
            self.models, "model", str(wanted), f"this record has {', '.join(self.models)}"
        )
        net = model.build()
        net.load_state_dict(weights)
        return net.eval()

    @property
    def uplink_bytes(self) -> int:
        return self.bytes.uplink

    @property
    def downlink_bytes(self) -> int:
        return self.bytes.downlink


@dataclass(frozen=True, eq=False)
class Federation:
    """Who takes part, on what, by which algorithm: all that is fixed for a run."""

    algorithm: Algorithm
    clients: Clients
    task: Task
    cohort: int
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.cohort <= len(self.clients):
            most = len(self.clients)
            raise UserError(
                f"a cohort of {self.cohort} cannot be drawn from {most} clients; set cohort to 1 .. {most}"
            )

    def round(self, number: int) -> Round:
        c = self.clients
        return Round(
            number,
            self.seed,
            self.task.public,
            self.task.private.classes,
            c.models,
            c.model_of,
            len(c),
            self.cohort,
        )

    def cohort_ids(self, number: int) -> Array:
        """Who takes part in a round, ascending: a function of seed and round, so it is known before
        it is played.
        """
        return seeding.subset(
            seeding.rng(*self.round(number).key("cohort")), len(self.clients), self.cohort
        )

    def start(self) -> FederationState:
        for model in self.clients.models:
            check_model(model)
        return FederationState(0, self.algorithm.start(self.round(0)))

    def draw_cohort(self, r: Round) -> list[Client]:
        """The cohort of a round."""
        return [self.clients[id] for id in self.cohort_ids(r.number)]

    def round_turn(self, state: FederationState) -> Turn:
        """One round as a turn: announce, the cohort side by side, the server, the test. Returns the
        Record.
        """
        r = self.round(state.round)
        cohort = self.draw_cohort(r)
        heard = self.algorithm.prepare_downloads(state.server, cohort, r)
        turns = [
            self.algorithm.client_turn(c, state.memories.get(c.id, {}), heard[c.id], r)
            for c in cohort
        ]
        spoken = yield from batch_turns(turns)
        said = {client.id: message for client, (_, message) in zip(cohort, spoken, strict=True)}
        learnt = {
            client.id: memory for client, (memory, _) in zip(cohort, spoken, strict=True) if memory
        }
        return (yield from self.finish_round(state, heard, said, learnt))

    def finish_round(
        self,
        state: FederationState,
        heard: Mapping[int, bytes],
        said: Mapping[int, bytes],
        learnt: Mapping[int, Tree],
        missing: Mapping[int, str] | None = None,
    ) -> Turn:
        """A round once the clients have spoken: the server's turn, the test, the count. Returns the
        Record.

        Where clients keep their models to themselves, `learnt` has the accuracy each has measured
        in place of a model.
        """
        r = self.round(state.round)
        server = yield from self.algorithm.server_turn(state.server, said, r)
        state = FederationState(state.round + 1, server, state.memories | dict(learnt))
        here = {id: memory for id, memory in sorted(state.memories.items()) if "model" in memory}
        own = {f"client {id}": (r.model_of(id), memory["model"]) for id, memory in here.items()}
        told = {
            f"client {id}": float(memory["accuracy"])
            for id, memory in sorted(state.memories.items())
            if "accuracy" in memory
        }
        models = self.algorithm.models_to_evaluate(server, here, r)
        every = yield from evaluation.evaluate(models | own, self.task.test)
        accuracies = {name: every.accuracies[name] for name in models} or told
        clients = [*(every.accuracies[name] for name in own), *told.values()]
        peers = self.algorithm if isinstance(self.algorithm, PeerToPeer) else None
        edges = {client: peers.receivers(client, r) for client in said} if peers else None
        counted = RoundBytes.count(r.number, said, heard, edges, missing)
        counts = {name: int(count) for name, count in server.notes.get("counts", {}).items()}
        return Record(
            r.number,
            accuracies,
            counted,
            state,
            models,
            mean_of(clients),
            every.disagreement,
            counts,
        )


def mean_of(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def federate(
    algorithm: Algorithm,
    clients: Clients,
    task: Task,
    *,
    rounds: int,
    cohort: int,
    seed: int = 0,
    engine: Engine | str = "auto",
    state: FederationState | None = None,
) -> Iterator[Record]:
    """Play rounds and yield a record of each; stop with `break`, go on later from
    `record.state`.
    """
    federation = Federation(algorithm, clients, task, cohort, seed)
    engine, _ = choose_engine(engine)
    state = state or federation.start()
    while state.round < rounds:
        record: Record = run_turn(federation.round_turn(state), engine)
        yield record
        state = record.state


def batch_turns(turns: Sequence[Turn]) -> Turn:
    """Many turns as one: advance them side by side and ask for all their work at once. Returns what
    they returned.

    A turn yields one piece of work or a list of them; a `batch_turns` of turns is itself such a turn,
    so cohorts nest in rounds and rounds in sweeps.
    """
    returned: list[Any] = [None] * len(turns)
    answers: dict[int, Any] = dict.fromkeys(range(len(turns)))
    while True:
        asked: dict[int, Any] = {}
        for i, answer in answers.items():
            try:
                asked[i] = turns[i].send(answer)
            except StopIteration as end:
                returned[i] = end.value
        if not asked:
            return returned
        done = iter(
            (
                yield [
                    job
                    for work in asked.values()
                    for job in (work if isinstance(work, list) else [work])
                ]
            )
        )
        answers = {
            i: [next(done) for _ in work] if isinstance(work, list) else next(done)
            for i, work in asked.items()
        }


def run_turn(turn: Turn, engine: Engine) -> Any:
    """Let one turn run to its end on an engine; what it returned."""
    answers: Any = None
    group = batch_turns([turn])
    while True:
        try:
            work = group.send(answers)
        except StopIteration as end:
            return end.value[0]
        answers = engine.run(work)


def run_turns(turns: Sequence[Turn], engine: Engine) -> list[Any]:
    """Drive turns batch_turns, but let one that fails fail alone: its exception stands where its
    result would.
    """
    groups = [batch_turns([turn]) for turn in turns]
    ended: dict[int, Any] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(turns)))
    while answers:
        asked: dict[int, list[Any]] = {}
        for i, answer in answers.items():
            try:
                asked[i] = (
                    groups[i].throw(answer)
                    if isinstance(answer, Exception)
                    else groups[i].send(answer)
                )
            except StopIteration as end:
                ended[i] = end.value[0]
            except Exception as error:
                ended[i] = error
        answers = _answers(asked, engine)
    return [ended[i] for i in range(len(turns))]


def _answers(asked: dict[int, list[Any]], engine: Engine) -> dict[int, Any]:
    """All work at once. Where that fails, each turn's work by itself, which finds the guilty one:
    jobs are pure.
    """
    if not asked:
        return {}
    try:
        done = iter(engine.run([job for jobs in asked.values() for job in jobs]))
        return {i: list(islice(done, len(jobs))) for i, jobs in asked.items()}
    except Exception as error:
        if len(asked) == 1:
            return dict.fromkeys(asked, error)
    return {
        i: answer for one in asked.items() for i, answer in _answers(dict([one]), engine).items()
    }
