"""A federation: all that is fixed for a run, and one round of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import isroutine
from typing import Any

from fedsift import registry, seeding
from fedsift.attacks import Threat
from fedsift.checks import check_type, check_whole, describe, warn_user
from fedsift.data import Task
from fedsift.federation.clients import STUDENT, Clients
from fedsift.federation.hostility import Hostility
from fedsift.federation.records import FederationState, Record
from fedsift.federation.server_half import ServerHalf, StepCounter
from fedsift.federation.uploads import ClientResults, NothingUsable
from fedsift.ledger import RoundBytes
from fedsift.losses import MODELS, FitLog, losses_turn, spread
from fedsift.models import check_model, check_samples
from fedsift.starts import Start, StartFile, check_start, read_weights
from fedsift.turns import Missing, batch_turns, try_turn, watch_turn
from fedsift.types import (
    REMOTE,
    Algorithm,
    Array,
    Client,
    PeerToPeer,
    Round,
    Server,
    Turn,
    UserError,
    Weights,
)


@dataclass(frozen=True, eq=False)
class Federation:
    """Who takes part, on what, by which algorithm: all that is fixed for a run."""

    algorithm: Algorithm  # what the parties do
    clients: Clients  # what `make_clients` gave
    task: Task  # what `split` gave
    cohort: int  # clients that take part in a round
    seed: int  # of cohorts, weights, batches and picks
    start_from: Start | None = None  # what the students' first weights come from; None: chance
    threat: Threat | None = None  # the hostile clients; None: all are honest
    record: bool = False  # whether records have a conversation

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
            c.students,
            c.model_of,
            len(c),
            self.cohort,
            None if self.start_from is None else {},
            c.others,
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
        for model in dict.fromkeys((*self.clients.models, *self.clients.students)):
            check_model(model)
            check_samples(model, self.task.public)
        r = self.round(0)
        if self.start_from is None:
            server = self.algorithm.start(r)
            self._explain_others(server)
            return FederationState(0, server)
        check_start(self.start_from, self.clients.students, self.task.public)
        server = self.algorithm.start(replace(r, start=dict(weights or {})))
        if not server.students:
            raise UserError(
                "start: this algorithm sends no model down, so clients cannot start from one;"
                " leave start out"
            )
        self._explain_others(server)
        return FederationState(0, server)

    def _explain_others(self, server: Server) -> None:
        """Say what clients without a network do not get, and whom the server teaches then."""
        others = self.clients.others
        boxes = [model.name for model in others if model.kind == REMOTE]
        down = getattr(self.algorithm, "clients_keep_models", True)
        if others and not down:
            names = ", ".join(model.name for model in others)
            warn_user(
                f"weights travel down, which {names} cannot use: such clients only upload;"
                " with download=soft-labels they learn from the others"
            )
        if boxes:
            warn_user(f"{', '.join(boxes)} is asked and never trained: a black box stays as it is")
        alone = not any(model.is_network for model in self.clients.models)
        if alone and self.clients.student is None and server.students:
            warn_user(
                f"no client has a network, so the server teaches {STUDENT}; choose another with"
                " clients.student"
            )

    def check_start_file(self) -> None:
        """Read the file of starting weights, if there is one, to see whether it fits."""
        if isinstance(self.start_from, StartFile):
            for model in self.clients.students:
                read_weights(self.start_from, model, self.seed)

    def draw_cohort(self, r: Round) -> list[Client]:
        """The cohort of a round."""
        return self._hostility.poison((self.clients[id] for id in self.cohort_ids(r.number)), r)

    def round_turn(self, state: FederationState) -> Turn[Record]:
        """One round: downloads, the cohort side by side, the server, the test."""
        r, hostility = self.round(state.round), self._hostility
        cohort, absent = self._leave_out_empty(self.draw_cohort(r), r)
        downloads = self.algorithm.prepare_downloads(state.server, cohort, r)
        memories = {c.id: state.memories.get(c.id, self._no_memory()) for c in cohort}
        steps = {c.id: StepCounter() for c in cohort}
        logs = {cohort[i].id: FitLog() for i in spread(len(cohort), MODELS)}
        turns = [
            watch_turn(
                hostility.client_turn(c, memories[c.id], downloads[c.id], r),
                steps[c.id],
                logs.get(c.id),
            )
            for c in cohort
        ]
        outcomes = yield from batch_turns([try_turn(turn) for turn in turns])
        pairs = list(zip(cohort, outcomes, strict=True))
        failed = {c.id: lost.why for c, lost in pairs if isinstance(lost, Missing)}
        everyone, cohort = cohort, [c for c in cohort if c.id not in failed]
        outcomes = [outcome for outcome in outcomes if not isinstance(outcome, Missing)]
        losses = yield from losses_turn(logs.values())
        outcomes = yield from hostility.alter_turn(state.server, cohort, outcomes, r)
        uploads = {c.id: upload for c, (_, upload) in zip(cohort, outcomes, strict=True)}
        memories = {c.id: memory for c, (memory, _) in zip(cohort, outcomes, strict=True)}
        heard = self._receivers(uploads, r)
        sent = RoundBytes.count(r.number, uploads, downloads, heard, absent).without(failed)
        results = ClientResults(uploads, memories, sent, downloads=downloads)
        record = yield from self.finish_round(state, results)
        return replace(
            record,
            steps={id: counter.steps for id, counter in steps.items()},
            losses=losses | record.losses,
            hostile=tuple(c.id for c in everyone if c.id in hostility.ids),
        )

    def _leave_out_empty(
        self, drawn: list[Client], r: Round
    ) -> tuple[list[Client], dict[int, str]]:
        """Who has something to learn from, and why the others are missing."""
        absent = {
            c.id: f"{self.clients.name_of(c.id)} has no private samples, so it does not take part"
            for c in drawn
            if not len(c.data)
        }
        if len(absent) == len(drawn):
            raise NothingUsable(r.number, absent)
        if absent and isinstance(self.algorithm, PeerToPeer):
            raise UserError(f"{min(absent.values())}; without a server every client must")
        return [client for client in drawn if client.id not in absent], absent

    def finish_round(self, state: FederationState, results: ClientResults) -> Turn[Record]:
        """A round once the clients have answered: the server's turn, then the test."""
        r = self.round(state.round)
        return ServerHalf(self.algorithm, self.task, r, state, results, self.record).turn()

    @property
    def _hostility(self) -> Hostility:
        return Hostility(self.algorithm, self.threat, self.hostile)

    def _receivers(self, senders: Iterable[int], r: Round) -> dict[int, list[int]] | None:
        """Who hears whom, where there is no server."""
        if not isinstance(self.algorithm, PeerToPeer):
            return None
        return {client: self.algorithm.receivers(client, r) for client in senders}

    def _no_memory(self) -> Any:
        return getattr(self.algorithm, "client_memory", dict)()


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
