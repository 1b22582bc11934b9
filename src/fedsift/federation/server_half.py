"""The server's half of a round: once the clients have answered, its turn, then the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsift import evaluation
from fedsift.codecs.weights import find_not_finite
from fedsift.codecs.wire import one_line
from fedsift.data import Task
from fedsift.evaluation import DistilledLabels, LabelTally
from fedsift.federation.conversations import Conversation, Listener, count_parts
from fedsift.federation.records import FederationState, Record
from fedsift.federation.uploads import CheckedUploads, ClientResults, NothingUsable
from fedsift.ledger import RoundBytes
from fedsift.losses import FitLog, losses_turn
from fedsift.memory import is_empty, model_in, to_tree
from fedsift.suspects import find_guilty
from fedsift.training import count_steps
from fedsift.turns import watch_turn
from fedsift.types import (
    Algorithm,
    Array,
    Fit,
    GoesThroughEdges,
    Predict,
    Round,
    Server,
    SoftLabels,
    Turn,
    UserError,
)

PROBED = 64  # public samples that students must be able to predict, beside all held-out ones
LONGEST_REASON = 300  # letters


class Useless(UserError):
    """The students cannot be used after the server's turn."""

    def __init__(self, problem: str, cause: str) -> None:
        self.problem = problem
        super().__init__(
            f"{problem} after the server's turn, and leaving out uploads does not help:"
            f" training diverged; lower {cause}"
        )


class StepCounter:
    """Counts the training steps of the work that it is shown."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, job: Any) -> None:
        self.steps += count_steps(job) if isinstance(job, Fit) else 0


@dataclass(frozen=True, eq=False)
class ServerHalf:
    """A round whose clients have answered.

    An upload that is refused makes its client missing, as if it had not taken its turn. So does one
    that makes the students useless: the server's turn is then repeated without it. Where that does
    not help, the error leaves the last state as it was.
    """

    algorithm: Algorithm
    task: Task
    r: Round
    state: FederationState  # before the round
    results: ClientResults
    record: bool = False  # whether some of what is said is kept

    def turn(self) -> Turn[Record]:
        whole = yield from self._try({})
        if isinstance(whole, Record):
            return whole
        if isinstance(whole, NothingUsable):
            raise whole
        guilty = yield from find_guilty(list(self.results.uploads), self._spoils)
        why = f"its upload is left out: with it {describe_problem(whole)}"
        if guilty:
            rest = yield from self._try(dict.fromkeys(guilty, why))
            if isinstance(rest, Record):
                return rest
        raise whole

    def _spoils(self, heard: Sequence[int]) -> Turn[bool]:
        """Whether a round with these clients alone would be useless."""
        left_out = dict.fromkeys(self.results.uploads.keys() - set(heard), "")
        found = yield from self._try(left_out)
        return not isinstance(found, Record | NothingUsable)

    def _try(self, left_out: Mapping[int, str]) -> Turn[Record | Exception]:
        """The round without some clients, or what went wrong with it."""
        try:
            return (yield from self._play(dict(left_out)))
        except (OSError, MemoryError):
            raise
        except Exception as error:  # an upload can do it, and then it must not stop the others
            return error

    def _play(self, missing: dict[int, str]) -> Turn[Record]:
        """`missing` are left out; those whose uploads are refused are added to it."""
        truth, steps, log = self.task.public_labels, StepCounter(), FitLog()
        tally = None if truth is None else LabelTally(truth)
        listener = Listener(self.r, self.results.uploads) if self.record else None
        uploads = CheckedUploads(
            self.algorithm, self.state.server, self.results, missing, tally, self.r, listener
        )
        turn = self.algorithm.server_turn(self.state.server, uploads, self.r)
        server = yield from watch_turn(turn, steps, log)
        cause = "distill.lr" if steps.steps else "local.lr"
        if problem := (yield from self._find_problem(server)):
            raise Useless(problem, cause)
        losses = yield from losses_turn([log])
        distilled = None if truth is None else _score(server.distilled, truth)
        state, sent = self._next_state(server, missing), self._count_bytes(server, missing)
        record, blind = yield from self._evaluate(state, sent)
        for name in sorted(blind & server.students.keys()):
            raise Useless(_say_outputs(name), cause)
        told = None if listener is None else (yield from self._recall(listener, server, sent))
        return replace(
            record,
            conversation=told,
            uploaded_labels=None if tally is None else tally.scores(),
            distilled_labels=distilled,
            server_steps=steps.steps,
            losses=losses,
            verdicts=server.verdicts,
        )

    def _count_bytes(self, server: Server, missing: Mapping[int, str]) -> RoundBytes:
        """Of all messages; where there are edge servers, also of theirs."""
        sent, downloads = self.results.sent.without(missing), self.results.downloads
        if not isinstance(self.algorithm, GoesThroughEdges) or self.algorithm.edges is None:
            return sent
        edges, everyone = self.algorithm.edges, self.r.population
        return sent.over_edges(
            server.edge_up, downloads, {id: edges.edge_of(id, everyone) for id in downloads}
        )

    def _recall(self, listener: Listener, server: Server, sent: RoundBytes) -> Turn[Conversation]:
        """What is kept of the round: where its bytes went, and some of what was said."""
        results = self.results
        counted = count_parts(self.r.number, results.uploads, results.downloads, sent)
        return (yield from listener.finish_turn(server, self.r.models, counted))

    def _find_problem(self, server: Server) -> Turn[str | None]:
        """Whether students, or what they say on some public samples, are not finite."""
        models = [model for model in self.r.models if model.name in server.students]
        for model in models:
            if bad := find_not_finite(server.students[model.name]):
                return f"the weights {bad!r} of model {model.name} are not finite"
        count = len(self.r.public)
        some = self.r.public[np.linspace(0, count - 1, min(count, PROBED)).astype(int)]
        jobs = [Predict(model, server.students[model.name], some) for model in models]
        for job, logits in zip(jobs, (yield jobs) if jobs else [], strict=True):
            if not np.isfinite(logits).all():
                return _say_outputs(job.model.name)
        return None

    def _next_state(self, server: Server, missing: Mapping[int, str]) -> FederationState:
        """The state after the round; of missing clients it keeps what it had."""
        memories = self.results.memories.items()
        kept = {id: _normalise(m) for id, m in memories if id not in missing and not is_empty(m)}
        keep_models = getattr(self.algorithm, "clients_keep_models", True)
        accuracies = self.results.accuracies.items() if keep_models else ()  # else: no model
        reported = {id: a for id, a in accuracies if id not in missing and 0 <= a <= 1}
        return replace(
            self.state,
            round=self.state.round + 1,
            server=Server(server.students, _normalise(server.memory), server.counts),
            memories=self.state.memories | kept,
            reported_accuracies=self.state.reported_accuracies | reported,
        )

    def _evaluate(
        self, state: FederationState, sent: RoundBytes
    ) -> Turn[tuple[Record, frozenset[str]]]:
        """The record, and the models that cannot predict."""
        weights = {id: w for id, m in sorted(state.memories.items()) if (w := model_in(m))}
        own = {f"client {id}": (self.r.model_of(id), w) for id, w in weights.items()}
        reported = {f"client {id}": a for id, a in sorted(state.reported_accuracies.items())}
        keepers = {id: state.memories[id] for id in weights}
        models = self.algorithm.models_to_evaluate(state.server, keepers, self.r)
        scores = yield from evaluation.evaluate(models | own, self.task.held_out, models)
        found = scores.accuracies
        accuracies = {name: found[name] for name in models if name in found} or reported
        clients = [*(found[name] for name in own if name in found), *reported.values()]
        told = ["accuracy"] if reported and not models else []
        told += ["client_accuracy"] if reported else []
        record = Record(
            self.r.number,
            accuracies,
            sent,
            state,
            models,
            sum(clients) / len(clients) if clients else None,
            scores.disagreement,
            state.server.counts,
            self.task.measured_on,
            quality=scores.quality,
            reported_by_clients=tuple(told),
        )
        return record, scores.not_finite


def describe_problem(error: Exception) -> str:
    """What an upload has done, in one line."""
    if isinstance(error, Useless):
        return error.problem
    told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    first = one_line(told.splitlines()[0] if told else "")  # it may quote an upload
    return f"the server's turn fails: {first}"[:LONGEST_REASON]


def _say_outputs(model: str) -> str:
    return f"the outputs of model {model} are not finite"


def _score(labels: SoftLabels | None, truth: Array) -> DistilledLabels | None:
    return None if labels is None else evaluation.score_distilled(labels, truth)


def _normalise(memory: Any) -> Any:
    """Plain dicts as they will be after a resume: the keys are strings, the leaves arrays."""
    return to_tree(memory) if isinstance(memory, dict) else memory
