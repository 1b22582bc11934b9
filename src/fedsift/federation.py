"""A federation and its round loop. `federate` yields one record per round."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isroutine
from itertools import accumulate, groupby
from types import NoneType
from typing import Any

import numpy as np
from torch import nn

from fedsift import evaluation, registry, seeding
from fedsift.attacks import Attack, Threat, read_threat
from fedsift.checks import check_type, check_whole, describe, warn_user
from fedsift.codecs import WireError
from fedsift.codecs.weights import find_not_finite
from fedsift.data import TEST, Task
from fedsift.data.partition import PARTITIONS, Dirichlet, Partition, deal
from fedsift.engines import choose_engine
from fedsift.evaluation import DistilledLabels, LabelTally, UploadedLabels
from fedsift.ledger import RoundBytes
from fedsift.memory import is_empty, model_in, to_tree
from fedsift.models import check_model, make_model
from fedsift.starts import (
    Start,
    StartFile,
    Tell,
    Wanted,
    check_start,
    make_starts,
    read_start,
    read_weights,
)
from fedsift.suspects import find_guilty
from fedsift.training import count_steps
from fedsift.turns import batch_turns, run_turn, watch_turn
from fedsift.types import (
    Algorithm,
    Array,
    Attackable,
    Client,
    Engine,
    Fit,
    Labelled,
    Model,
    PeerToPeer,
    Predict,
    Pretext,
    Round,
    Server,
    SharesLabels,
    SoftLabels,
    Turn,
    UserError,
    Verdict,
    Weights,
)

PROBED = 64  # public samples that students must be able to predict, beside all held-out ones
FEW = 5  # reasons that an error lists
LONGEST_REASON = 300  # letters


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
        id = range(len(self))[
            int(id)
        ]  # a client's id is its number, also where it is counted from the end
        return Client(id, self._models[id], self._private[self._parts[id]])


ModelLike = str | Callable[..., nn.Module]


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


@dataclass(frozen=True, eq=False)
class FederationState:
    """All that survives a round."""

    round: int  # rounds finished
    server: Server
    memories: dict[int, Any] = field(default_factory=dict)  # by client, as the algorithm defines
    # of clients on other machines, which keep their memories and models to themselves:
    last_rounds: dict[int, int] = field(default_factory=dict)  # the last round a memory is of
    reported_accuracies: dict[int, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        models = ", ".join(self.server.students) or "none"
        memories = len(self.memories)
        return f"FederationState(round={self.round}, students: {models}, {memories} memories)"


def build_network(
    models: Mapping[str, tuple[Model, Weights]], name: ModelLike | None, whose: str
) -> nn.Module:
    """The one of these models that is asked for, or the only one, with its weights."""
    there = ", ".join(models)
    if not models:
        raise UserError(f"{whose} has no model: its clients keep theirs to themselves")
    if name is None and len(models) > 1:
        raise UserError(f"{whose} has {there}; name one")
    wanted = next(iter(models)) if name is None else getattr(name, "__name__", name)
    model, weights = registry.lookup(models, "model", str(wanted), f"{whose} has {there}")
    net = model.build()
    net.load_state_dict(weights)
    return net.eval()


@dataclass(frozen=True, eq=False)
class Record:
    """One round: what it cost and what came of it. `state` is enough to resume from here."""

    round: int
    accuracies: dict[str, float]
    bytes: RoundBytes = field(repr=False)
    state: FederationState = field(repr=False)
    models: dict[str, tuple[Model, Weights]] = field(repr=False)
    client_accuracy: float | None = None  # mean over the models that clients keep of their own
    disagreement: float | None = None  # how often two of those differ on a test sample
    counts: dict[str, int] = field(
        default_factory=dict
    )  # what the algorithm counts (Server.counts)
    measured_on: str = TEST  # what all accuracies are of: the test or the validation samples
    # of a simulation where the public samples' classes are known:
    uploaded_labels: UploadedLabels | None = None
    distilled_labels: DistilledLabels | None = None
    steps: dict[int, int] = field(default_factory=dict)  # training steps of each simulated client
    verdicts: dict[int, Verdict] = field(default_factory=dict)  # on the clients heard, if judged
    server_steps: int = 0
    reported_by_clients: tuple[str, ...] = ()  # which of these figures nobody else has measured
    hostile: tuple[int, ...] = ()  # the hostile clients that took part, in a simulation

    def __repr__(self) -> str:
        up, down = self.bytes.uplink, self.bytes.downlink
        name = "accuracy" if self.measured_on == TEST else f"{self.measured_on}_accuracy"
        return f"Record(round={self.round}, {name}={self.accuracy:.4f}, up={up} B, down={down} B)"

    @property
    def accuracy(self) -> float:
        """The mean over the models the algorithm reports: its students, or else its clients'."""
        return sum(self.accuracies.values()) / len(self.accuracies)

    def network(self, name: ModelLike | None = None) -> nn.Module:
        """A trained model, ready to predict: give it `task.normalise(x)`.

        name: which one, where there are several: its name, or what makes it
        """
        return build_network(self.models, name, "this record")

    @property
    def uplink_bytes(self) -> int:
        return self.bytes.uplink

    @property
    def downlink_bytes(self) -> int:
        return self.bytes.downlink


class StepCounter:
    """Counts the training steps of the work that it is shown."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, job: Any) -> None:
        self.steps += count_steps(job) if isinstance(job, Fit) else 0


class NothingUsable(UserError):
    """No upload of a round can be used."""

    def __init__(self, round: int, reasons: Mapping[int, str]) -> None:
        told = [f"client {client}: {why}" for client, why in sorted(reasons.items())]
        more = f"; and {len(told) - FEW} more" if len(told) > FEW else ""
        super().__init__(
            f"round {round} has no upload that can be used: {'; '.join(told[:FEW])}{more};"
            " the state before it is kept"
        )


class Useless(UserError):
    """The students cannot be used after the server's turn."""

    def __init__(self, problem: str, cause: str) -> None:
        self.problem = problem
        super().__init__(
            f"{problem} after the server's turn, and leaving out uploads does not help:"
            f" training diverged; lower {cause}"
        )


def describe_problem(error: Exception) -> str:
    """What an upload has done, in one line."""
    if isinstance(error, Useless):
        return error.problem
    told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return f"the server's turn fails: {told.splitlines()[0] if told else ''}"[:LONGEST_REASON]


@dataclass(frozen=True, eq=False)
class Rereadable:
    """What can be read again; uploads are then decoded again."""

    read: Callable[[], Iterator[tuple[int, Any]]]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self.read()


@dataclass(frozen=True, eq=False)
class Answers:
    """What came from the clients of a round."""

    uploads: Mapping[int, bytes]
    memories: Mapping[int, Any]
    sent: RoundBytes
    accuracies: Mapping[int, float]  # reported, of models that clients keep to themselves
    checked: Mapping[int, Any]  # uploads that are decoded already


@dataclass(frozen=True, eq=False)
class Federation:
    """Who takes part, on what, by which algorithm: all that is fixed for a run."""

    algorithm: Algorithm
    clients: Clients
    task: Task
    cohort: int
    seed: int
    start_from: Start | None = None  # what the students' first weights come from; None: chance
    threat: Threat | None = None  # the hostile clients; None: all are honest

    def __post_init__(self) -> None:
        _check_parts(self.algorithm, self.clients, self.task)
        check_whole("cohort", self.cohort)
        check_whole("seed", self.seed)
        if not 1 <= self.cohort <= len(self.clients):
            most = len(self.clients)
            raise UserError(
                f"a cohort of {self.cohort} cannot be drawn from {most} clients; set cohort to"
                f" 1 .. {most}"
            )
        if self.threat is not None:
            self.threat.check_fits(self.algorithm, self.round(0))

    @property
    def hostile(self) -> frozenset[int]:
        """The ids of the hostile clients."""
        threat = self.threat
        return frozenset() if threat is None else threat.hostile(self.seed, len(self.clients))

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
            None if self.start_from is None else {},
        )

    def cohort_ids(self, number: int) -> Array:
        """Who takes part in a round, ascending: a function of seed and round, known in advance."""
        return seeding.subset(
            seeding.rng(*self.round(number).key("cohort")), len(self.clients), self.cohort
        )

    def start(self, weights: Mapping[str, Weights] | None = None) -> FederationState:
        """The state before the first round, with the weights that students start from.

        Without them, where there should be some, it serves to check and not to run: see
        `start_federations`.
        """
        for model in self.clients.models:
            check_model(model)
        r = self.round(0)
        if self.start_from is None:
            return FederationState(0, self.algorithm.start(r))
        check_start(self.start_from, self.clients.models, self.task.public)
        server = self.algorithm.start(replace(r, start=dict(weights or {})))
        if not server.students:
            raise UserError(
                "start: this algorithm sends no model down, so clients cannot start from one;"
                " leave start out"
            )
        return FederationState(0, server)

    def check_start_file(self) -> None:
        """Read the file of starting weights, if there is one, to see whether it fits."""
        if isinstance(self.start_from, StartFile):
            for model in self.clients.models:
                read_weights(self.start_from, model, self.seed)

    def draw_cohort(self, r: Round) -> list[Client]:
        """The cohort of a round."""
        cohort = [self.clients[id] for id in self.cohort_ids(r.number)]
        if self.threat is None:
            return cohort
        return [self.threat.poison(c, r) if c.id in self.hostile else c for c in cohort]

    def round_turn(self, state: FederationState) -> Turn[Record]:
        """One round: downloads, the cohort side by side, the server, the test."""
        r = self.round(state.round)
        cohort = self.draw_cohort(r)
        downloads = self.algorithm.prepare_downloads(state.server, cohort, r)
        memories = {c.id: state.memories.get(c.id, self._no_memory()) for c in cohort}
        steps = {c.id: StepCounter() for c in cohort}
        turns = [
            watch_turn(self._client_turn(c, memories[c.id], downloads[c.id], r), steps[c.id])
            for c in cohort
        ]
        outcomes = yield from batch_turns(turns)
        outcomes = yield from self._alter_answers(state.server, cohort, outcomes, r)
        uploads = {c.id: upload for c, (_, upload) in zip(cohort, outcomes, strict=True)}
        client_memories = {c.id: memory for c, (memory, _) in zip(cohort, outcomes, strict=True)}
        sent = RoundBytes.count(r.number, uploads, downloads, self._receivers(uploads, r))
        record = yield from self.finish_round(state, uploads, client_memories, sent)
        return replace(
            record,
            steps={id: counter.steps for id, counter in steps.items()},
            hostile=tuple(c.id for c in cohort if c.id in self.hostile),
        )

    def _client_turn(self, client: Client, memory: Any, download: bytes, r: Round) -> Turn[Any]:
        """A client's turn; of one whose answer will be altered, the half before it is encoded."""
        algorithm = self.algorithm
        if self._alters(client) and isinstance(algorithm, Attackable):
            return algorithm.answer_turn(client, memory, download, r)
        return algorithm.client_turn(client, memory, download, r)

    def _alters(self, client: Client) -> bool:
        return self.threat is not None and self.threat.alters_answers and client.id in self.hostile

    def _alter_answers(
        self, server: Server, cohort: Sequence[Client], outcomes: list[Any], r: Round
    ) -> Turn[list[Any]]:
        """The outcomes of all turns, once the hostile clients have heard the honest ones."""
        answers = {c.id: o for c, o in zip(cohort, outcomes, strict=True) if self._alters(c)}
        if not answers or self.threat is None or not isinstance(self.algorithm, Attackable):
            return outcomes
        found = dict(zip((c.id for c in cohort), outcomes, strict=True))
        uploads = {id: outcome[1] for id, outcome in found.items() if id not in answers}
        hear = partial(self._overhear, server, uploads, r)
        clients = {c.id: c for c in cohort}
        found |= yield from self.threat.alter_turn(self.algorithm, clients, answers, hear, r)
        return [found[c.id] for c in cohort]

    def _overhear(self, server: Server, uploads: Mapping[int, bytes], r: Round) -> dict[int, Any]:
        """What is in these uploads; one that the server will refuse says nothing."""
        heard: dict[int, Any] = {}
        for id, upload in uploads.items():
            with suppress(WireError):
                checked = self.algorithm.check_upload(server, id, upload, r)
                if isinstance(self.algorithm, Attackable):
                    heard[id] = self.algorithm.overhear(checked, r)
        return heard

    def finish_round(
        self,
        state: FederationState,
        uploads: Mapping[int, bytes],
        client_memories: Mapping[int, Any],
        sent: RoundBytes,
        reported_accuracies: Mapping[int, float] | None = None,
        checked: Mapping[int, Any] | None = None,
    ) -> Turn[Record]:
        """A round once the clients have answered: the server's turn, then the test.

        Each upload is checked when the server asks for it, unless it is `checked` already. One that
        is refused makes its client missing, as if it had not taken its turn. So does one that makes
        the students useless: the server's turn is then repeated without it. Where that does not
        help, the error leaves the last state as it was. `reported_accuracies` are of models that
        clients keep to themselves.
        """
        answers = Answers(uploads, client_memories, sent, reported_accuracies or {}, checked or {})
        whole = yield from self._try_round(state, answers, {})
        if isinstance(whole, Record):
            return whole
        if isinstance(whole, NothingUsable):
            raise whole
        guilty = yield from find_guilty(list(uploads), partial(self._spoils, state, answers))
        why = f"its upload is left out: with it {describe_problem(whole)}"
        if guilty:
            rest = yield from self._try_round(state, answers, dict.fromkeys(guilty, why))
            if isinstance(rest, Record):
                return rest
        raise whole

    def _spoils(self, state: FederationState, answers: Answers, heard: Sequence[int]) -> Turn[bool]:
        """Whether a round with these clients alone would be useless."""
        left_out = dict.fromkeys(answers.uploads.keys() - set(heard), "")
        found = yield from self._try_round(state, answers, left_out)
        return not isinstance(found, Record | NothingUsable)

    def _try_round(
        self, state: FederationState, answers: Answers, left_out: Mapping[int, str]
    ) -> Turn[Record | Exception]:
        """The round without some clients, or what went wrong with it."""
        missing = dict(left_out)
        try:
            return (yield from self._play_round(state, answers, missing))
        except (OSError, MemoryError):
            raise
        except Exception as error:  # an upload can do it, and then it must not stop the others
            return error

    def _play_round(
        self, state: FederationState, answers: Answers, missing: dict[int, str]
    ) -> Turn[Record]:
        """`missing` are left out; those whose uploads are refused are added to it."""
        r = self.round(state.round)
        truth, steps = self.task.public_labels, StepCounter()
        tally = None if truth is None else LabelTally(truth)
        uploads = Rereadable(partial(self._read_uploads, state.server, answers, missing, tally, r))
        turn = self.algorithm.server_turn(state.server, uploads, r)
        server = yield from watch_turn(turn, steps)
        cause = "distill.lr" if steps.steps else "local.lr"
        if problem := (yield from self._find_problem(server, r)):
            raise Useless(problem, cause)
        distilled = None if truth is None else _score(server.distilled, truth)
        memories = answers.memories.items()
        kept = {id: _normalise(m) for id, m in memories if id not in missing and not is_empty(m)}
        keep_models = getattr(self.algorithm, "clients_keep_models", True)
        accuracies = answers.accuracies.items() if keep_models else ()  # else there is no model
        reported = {id: a for id, a in accuracies if id not in missing and 0 <= a <= 1}
        state = replace(
            state,
            round=state.round + 1,
            server=replace(server, memory=_normalise(server.memory), distilled=None, verdicts={}),
            memories=state.memories | kept,
            reported_accuracies=state.reported_accuracies | reported,
        )
        record, blind = yield from self._evaluate(state, answers.sent.without(missing), r)
        for name in sorted(blind & server.students.keys()):
            raise Useless(_say_outputs(name), cause)
        uploaded = None if tally is None else tally.scores()
        record = replace(record, uploaded_labels=uploaded, distilled_labels=distilled)
        return replace(record, server_steps=steps.steps, verdicts=server.verdicts)

    def _find_problem(self, server: Server, r: Round) -> Turn[str | None]:
        """Whether students, or what they say on some public samples, are not finite."""
        models = [model for model in r.models if model.name in server.students]
        for model in models:
            if bad := find_not_finite(server.students[model.name]):
                return f"the weights {bad!r} of model {model.name} are not finite"
        count = len(r.public)
        some = r.public[np.linspace(0, count - 1, min(count, PROBED)).astype(int)]
        jobs = [Predict(model, server.students[model.name], some) for model in models]
        for job, logits in zip(jobs, (yield jobs) if jobs else [], strict=True):
            if not np.isfinite(logits).all():
                return _say_outputs(job.model.name)
        return None

    def _evaluate(
        self, state: FederationState, sent: RoundBytes, r: Round
    ) -> Turn[tuple[Record, frozenset[str]]]:
        """The record, and the models that cannot predict."""
        weights = {id: w for id, m in sorted(state.memories.items()) if (w := model_in(m))}
        own = {f"client {id}": (r.model_of(id), w) for id, w in weights.items()}
        reported = {f"client {id}": a for id, a in sorted(state.reported_accuracies.items())}
        keepers = {id: state.memories[id] for id in weights}
        models = self.algorithm.models_to_evaluate(state.server, keepers, r)
        scores = yield from evaluation.evaluate(models | own, self.task.held_out)
        accuracies = {name: scores.accuracies[name] for name in models} or reported
        clients = [*(scores.accuracies[name] for name in own), *reported.values()]
        record = Record(
            r.number,
            accuracies,
            sent,
            state,
            models,
            sum(clients) / len(clients) if clients else None,
            scores.disagreement,
            state.server.counts,
            self.task.measured_on,
        )
        told = ["accuracy"] if reported and not models else []
        told += ["client_accuracy"] if reported else []
        return replace(record, reported_by_clients=tuple(told)), scores.not_finite

    def _check_uploads(
        self, server: Server, answers: Answers, missing: dict[int, str], r: Round
    ) -> Iterator[tuple[int, Any]]:
        """One at a time, when the server asks for it; who is refused is noted in `missing`."""
        heard = 0
        for client, upload in answers.uploads.items():
            if client in missing:
                continue
            try:
                found = (
                    answers.checked[client]
                    if client in answers.checked
                    else self.algorithm.check_upload(server, client, upload, r)
                )
            except WireError as error:
                missing[client] = f"its message is refused: {error}"
                continue
            heard += 1
            yield client, found
        if not heard:
            raise NothingUsable(r.number, missing)

    def _read_uploads(
        self,
        server: Server,
        answers: Answers,
        missing: dict[int, str],
        tally: LabelTally | None,
        r: Round,
    ) -> Iterator[tuple[int, Any]]:
        """Once more from the beginning."""
        if tally is not None:
            tally.clear()
        yield from self._score_uploads(self._check_uploads(server, answers, missing, r), tally, r)

    def _score_uploads(
        self, uploads: Iterable[tuple[int, Any]], tally: LabelTally | None, r: Round
    ) -> Iterable[tuple[int, Any]]:
        """The same uploads; their soft labels are scored as they pass."""
        algorithm = self.algorithm
        if tally is None or not isinstance(algorithm, SharesLabels):
            return uploads
        return _tell(tally, algorithm, uploads, r)

    def _receivers(self, senders: Iterable[int], r: Round) -> dict[int, list[int]] | None:
        """Who hears whom, where there is no server."""
        if not isinstance(self.algorithm, PeerToPeer):
            return None
        return {client: self.algorithm.receivers(client, r) for client in senders}

    def _no_memory(self) -> Any:
        return getattr(self.algorithm, "client_memory", dict)()


def _say_outputs(model: str) -> str:
    return f"the outputs of model {model} are not finite"


def _tell(
    tally: LabelTally, algorithm: SharesLabels, uploads: Iterable[tuple[int, Any]], r: Round
) -> Iterator[tuple[int, Any]]:
    for client, upload in uploads:
        labels = algorithm.uploaded_labels(upload, r)
        if labels is not None:
            tally.add(labels)
        yield client, upload


def _score(labels: SoftLabels | None, truth: Array) -> DistilledLabels | None:
    return None if labels is None else evaluation.score_distilled(labels, truth)


def start_federations(
    federations: Sequence[Federation], engine: Engine, tell: Tell | None = None
) -> list[FederationState | Exception]:
    """The first state of each. What students start from is made here, side by side and once.

    tell: is told the epochs done and those in all
    """
    wanted = {
        (i, model.name): Wanted(
            federation.start_from, model, federation.task.public, federation.seed
        )
        for i, federation in enumerate(federations)
        for model in federation.clients.models
        if federation.start_from is not None
    }
    made = dict(zip(wanted, make_starts(list(wanted.values()), engine, tell), strict=True))
    return [
        _start(federation, {name: found for (which, name), found in made.items() if which == i})
        for i, federation in enumerate(federations)
    ]


def _start(
    federation: Federation, made: Mapping[str, Weights | Exception]
) -> FederationState | Exception:
    failed = next((found for found in made.values() if isinstance(found, Exception)), None)
    return failed or federation.start({n: w for n, w in made.items() if isinstance(w, dict)})


def _check_parts(algorithm: Any, clients: Any, task: Any) -> None:
    """The three objects of a federation, each in its place."""
    if isinstance(algorithm, str) or isroutine(algorithm):
        cure = "pass an object such as fedsift.fas(budget=60)"
        raise UserError(f"algorithm is {describe(algorithm)}; {cure}")
    if isinstance(clients, Task) and isinstance(task, Clients):
        raise UserError("clients and task are swapped; write federate(algorithm, clients, task)")
    registry.resolve({}, "algorithm", algorithm)
    check_type(
        clients, Clients, "clients", "pass what fedsift.make_clients(task.private, 20) gives"
    )
    check_type(task, Task, "task", "pass what fedsift.split(data, private=..., public=...) gives")


def _normalise(memory: Any) -> Any:
    """Plain dicts as they will be after a resume: the keys are strings, the leaves arrays."""
    return to_tree(memory) if isinstance(memory, dict) else memory


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
    start: str | Pretext | None = None,
    attack: str | Attack | None = None,
    attackers: float | None = None,
) -> Iterator[Record]:
    """Run rounds and yield a `Record` of each. Stop with `break`, resume from `record.state`.

    algorithm: what the parties do, for example fas(budget=60)
    clients: what `make_clients` gave
    task: what `split` gave
    rounds: how many rounds there are in all, also where `state` has some of them
    cohort: how many clients take part in a round
    seed: of the cohorts, the first weights, the batches and the picks
    engine: "auto", "batched", "sequential", or what `choose_engine` gave
    state: where to resume: the `state` of the last record (default: start at the first round)
    start: what the first weights come from: "simclr(epochs=120)", "rotation", or the name of a
        .safetensors file (default: chance)
    attack: what hostile clients do, for example "wrong" (fedsift ls attacks)
    attackers: the share of the clients that is hostile, from 0 to below 1
    """
    check_whole("rounds", rounds)
    cure = "pass the state of a record, record.state"
    check_type(state, (FederationState, NoneType), "state", cure)
    threat = read_threat(attack, attackers)
    federation = Federation(algorithm, clients, task, cohort, seed, read_start(start), threat)
    chosen, _ = choose_engine(engine)
    first = state or federation.start()  # what cannot be started is refused before the first round
    return _run_rounds(federation, rounds, chosen, first, made=state is not None)


def _run_rounds(
    federation: Federation, rounds: int, engine: Engine, state: FederationState, made: bool
) -> Iterator[Record]:
    if not made and federation.start_from is not None and rounds > 0:
        (found,) = start_federations([federation], engine)
        if isinstance(found, Exception):
            raise found
        state = found
    while state.round < rounds:
        record: Record = run_turn(federation.round_turn(state), engine)
        for client, why in record.bytes.missing.items():
            if client not in record.hostile:
                warn_user(f"round {record.round} is without client {client}: {why}")
        yield record
        state = record.state
