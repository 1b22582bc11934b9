"""The FD meta-algorithm (Algorithm 1 of the paper): one round, as client and server play it.

Axes: sampler x codec x aggregator x recipe x download. `fedsift.algorithms.fd` has the names on
them: FD, FAS, DS-FL and CFD.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedsift import aggregators, registry, seeding
from fedsift.aggregators import (
    Aggregator,
    AuditAnswers,
    JudgesClients,
    LabelMemory,
    Seen,
    StatefulAggregator,
    mean,
    replace_mean,
    run_and_judge,
)
from fedsift.algorithms import first_weights, students, weight_downlink
from fedsift.algorithms.audits import Audits, derive_secret
from fedsift.algorithms.edges import Edges, MeanOverEdges
from fedsift.algorithms.first_weights import FirstWeights
from fedsift.algorithms.local import check_replay, check_replay_fits, train_locally
from fedsift.algorithms.soft_label_downlink import (
    ABSENT,
    DownlinkMemory,
    Received,
    SoftLabelDownlink,
    merge_labels,
)
from fedsift.algorithms.soft_label_uplink import SoftLabelUplink, Upload
from fedsift.algorithms.votes import Votes
from fedsift.algorithms.weight_downlink import (
    WeightDownlink,
    WeightDownlinkMemory,
    WeightsHeld,
)
from fedsift.checks import check_number, check_whole
from fedsift.codecs import (
    CODECS,
    WEIGHT_CODECS,
    SoftLabelCodec,
    Updates,
    WeightCodec,
)
from fedsift.models import initial_state
from fedsift.numerics import softmax
from fedsift.samplers import DERIVED, Sampler
from fedsift.types import (
    Array,
    Client,
    Fit,
    LabelAnswer,
    Labelled,
    Model,
    Predict,
    Recipe,
    Round,
    Server,
    SoftLabels,
    Tree,
    Turn,
    UserError,
    Weights,
)

TEACH = ("aggregate", "predictions")


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """Empty where weights travel down and the uplink codec keeps no reference."""

    model: Weights | None = None  # soft labels down: the client's own model
    sent: SoftLabels | None = None  # the reference of a delta uplink
    # soft labels down: how far this client is
    received: Received = field(default_factory=Received)
    held: WeightsHeld = field(default_factory=WeightsHeld)  # updates of weights down
    # soft labels down, a model that is trained anew: the newest label of each public sample heard
    lessons: SoftLabels | None = None


class Start(NamedTuple):
    """What a client's training starts from, and what it remembers of the download."""

    weights: Weights
    received: Received
    held: WeightsHeld
    lessons: SoftLabels | None = None


@dataclass(frozen=True, eq=False)
class ServerMemory:
    sent: dict[int, SoftLabels] = field(default_factory=dict)  # references of delta uplinks
    downlink: DownlinkMemory = field(default_factory=DownlinkMemory)
    aggregator: Tree = field(default_factory=dict)  # the aggregator's own
    # soft labels down: weights that clients start from
    first: FirstWeights = field(default_factory=FirstWeights)
    weights: WeightDownlinkMemory = field(default_factory=WeightDownlinkMemory)
    counts: dict[int, int] = field(default_factory=dict)  # of sift's weights: claimed samples
    secret: bytes | None = None  # what audits are drawn from


@dataclass(frozen=True)
class SoftLabelFD:
    """Clients upload soft labels on chosen public samples; the server averages and distils them."""

    sampler: Sampler
    budget: int
    aggregate: Aggregator | StatefulAggregator = mean
    local: Recipe = Recipe()
    distill: Recipe = Recipe()
    temperature: float = 1.0
    up: SoftLabelCodec = CODECS["float32"]
    # its type says what travels down
    down: WeightCodec | Updates | SoftLabelCodec = WEIGHT_CODECS["float32"]
    teach: str = "aggregate"  # soft labels down: the aggregate, or the server's "predictions"
    absent: str = "latest"  # soft labels down: what a returning client receives
    ema: float = 0.0  # how much of its students' old weights the server keeps after each round
    pool: int | None = None  # public samples to choose from, drawn again every round; None: all
    replay: int | None = 0  # public samples a client adds to its own; None: as many as it has
    max_bytes: int | None = None  # the largest upload; None: as long as the budget makes it
    votes: Votes = field(default_factory=Votes)  # how much a client's word counts
    audits: Audits = field(default_factory=Audits)  # samples that all are asked about every round
    # soft labels down, a model that is trained anew: what a public row counts (a private one: 1)
    public_weight: float = 1.0
    edges: Edges | None = None  # servers that join uploads on their way

    client_memory: ClassVar[type] = ClientMemory
    server_memory: ClassVar[type] = ServerMemory

    def __post_init__(self) -> None:
        check_whole("budget", self.budget)
        check_number("temperature", self.temperature)
        check_number("public_weight", self.public_weight)
        if not 0 <= self.public_weight < math.inf:
            raise UserError(f"public_weight must be 0 or more, not {self.public_weight}")
        check_replay(self.replay)
        for name, value in (("pool", self.pool), ("bytes", self.max_bytes)):
            if value is not None:
                check_whole(name, value)
        if self.max_bytes is not None and self.max_bytes < 1:
            raise UserError(
                f"bytes is the most that an upload takes, 1 or more, not {self.max_bytes}"
            )
        if self.budget < 1:
            raise UserError(
                f"a budget of {self.budget} soft labels uploads nothing; give at least 1"
            )
        if not self.temperature > 0:
            raise UserError(f"temperature must be above 0, not {self.temperature}")
        students.check_ema(self.ema)
        stateful = isinstance(self.down, SoftLabelCodec) or self.up.keeps_reference
        judges = isinstance(self.aggregate, JudgesClients)
        if self.pool is not None and (
            stateful or judges or isinstance(self.aggregate, LabelMemory)
        ):
            raise UserError(
                "a pool changes every round: it needs weights down, a codec that is not delta and"
                " an aggregator that is not memory or trust"
            )
        if self.audits.size and not judges:
            raise UserError(
                f"audit={self.audits.size} needs an aggregator that judges clients; set"
                " aggregator=trust, or audit=0"
            )
        for kind, name, known in (("teach", self.teach, TEACH), ("absent", self.absent, ABSENT)):
            registry.lookup(dict.fromkeys(known), kind, name, " or ".join(known))

    @property
    def clients_keep_models(self) -> bool:
        return isinstance(self.down, SoftLabelCodec)

    def start(self, r: Round) -> Server:
        if self.pool is not None and not self.budget <= self.pool <= len(r.public):
            known = f"the budget ({self.budget}) to the public set ({len(r.public)} samples)"
            raise UserError(f"a pool of {self.pool} samples does not fit; give {known}")
        if self.budget > len(r.public):
            raise UserError(
                f"budget {self.budget} is larger than the public set ({len(r.public)} samples)"
            )
        check_replay_fits(self.replay, self._with_pool(r))
        self._place_rule(r)
        new = students.initial_students(r)
        sends_first = r.start is not None and isinstance(self.down, SoftLabelCodec)
        first = FirstWeights(new if sends_first else {})
        secret = derive_secret(r.seed) if self.audits.size else None
        return Server(new, ServerMemory(first=first, secret=secret))

    def set_secret(self, server: Server, secret: bytes) -> Server:
        """The server with another secret, where it needs one."""
        if not self.audits.size:
            return server
        return replace(server, memory=replace(server.memory, secret=secret))

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        rows = self.audits.choose_rows(self.aggregate, server, r)
        asked = self.audits.encode_rows(rows, r)
        downloads = self._prepare_lessons(server, cohort, r)
        return {id: asked + lesson for id, lesson in downloads.items()} if asked else downloads

    def _prepare_lessons(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        """Weights or soft labels."""
        if not isinstance(self.down, SoftLabelCodec):
            return WeightDownlink(self.down).encode(server.memory.weights, server, cohort, r)
        downlink, memory = SoftLabelDownlink(self.down, self.absent), server.memory
        first = memory.first.encode_for(cohort := list(cohort), r)
        lessons = downlink.encode(memory.downlink, (c.id for c in cohort), r)
        return {id: first[id] + lesson for id, lesson in lessons.items()}

    def client_turn(
        self, client: Client, memory: ClientMemory, download: bytes, r: Round
    ) -> Turn[tuple[ClientMemory, bytes]]:
        answer = yield from self.answer_turn(client, memory, download, r)
        return self.encode_answer(client, answer, r)

    def answer_type(self, r: Round) -> type[LabelAnswer]:
        return LabelAnswer

    def answer_turn(
        self, client: Client, memory: ClientMemory, download: bytes, r: Round
    ) -> Turn[LabelAnswer]:
        r = self._with_pool(r)
        asked, download = self.audits.split_download(download, r)
        start = yield from self._download(client, memory, download, r)
        keeps = isinstance(self.down, SoftLabelCodec)
        lessons = self._weigh(start.lessons, r)
        weights = yield from train_locally(
            client, start.weights, self.local, r, self.replay, lessons, keeps
        )
        logits = yield Predict(client.model, weights, r.public)
        probs = softmax(logits, self.temperature)  # [N, C]
        probs.setflags(write=False)  # a sampler may look at them, not change them
        own = weights if keeps else None
        so_far = ClientMemory(own, memory.sent, start.received, start.held, start.lessons)
        return LabelAnswer(
            probs,
            probs,
            self.budget,
            self.max_bytes,
            chooses=self.sampler not in DERIVED,
            received=start.weights,
            memory=so_far,
            asked=asked,
        )

    def encode_answer(
        self, client: Client, answer: LabelAnswer, r: Round
    ) -> tuple[ClientMemory, bytes]:
        r, before = self._with_pool(r), answer.memory.sent
        upload, sent = self._uplink.encode(client, answer, before, r)
        return replace(answer.memory, sent=sent), upload

    def student_turn(self, client: Client, answer: LabelAnswer, r: Round) -> Turn[Array]:
        public = self._with_pool(r).public
        logits = yield Predict(client.model, answer.received or {}, public)
        return softmax(logits, self.temperature)

    def overhear(self, upload: Upload, r: Round) -> SoftLabels:
        return upload.labels

    def check_upload(self, server: Server, client: int, upload: bytes, r: Round) -> Upload:
        r = self._with_pool(r)
        asked = self.audits.choose_rows(self.aggregate, server, r)
        return self._uplink.decode(client, upload, server.memory.sent.get(client), asked, r)

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, Upload]], r: Round
    ) -> Turn[Server]:
        whole, r, memory = r, self._with_pool(r), server.memory
        references: dict[int, SoftLabels | None] = {}  # of all who were heard
        answers: dict[int, AuditAnswers] = {}
        stream = _labels_of(uploads, references, answers)
        seen = Seen((yield from self._look(server, r)), answers)
        rule, over = self._place_rule(r)
        labels, aggregated, verdicts = run_and_judge(rule, stream, memory.aggregator, r, seen)
        for _ in stream:  # an aggregator may stop early; every client has been heard all the same
            pass
        new = yield from self._teach_students(server, labels, r)
        memory = yield from self._post_lesson(server, new, labels, references, r)
        sent = memory.sent | {c: labels for c, labels in references.items() if labels is not None}
        after = replace(memory, sent=sent, aggregator=aggregated)
        distilled = self._on_whole_public(labels, whole)
        return Server(new, after, distilled=distilled, verdicts=verdicts, edge_up=over.sent)

    def uploaded_labels(self, upload: Upload, r: Round) -> SoftLabels:
        return self._on_whole_public(upload.labels, r)

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Any], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return students.models_to_evaluate(server, r)

    def explain_unused(self, r: Round) -> dict[str, str]:
        """Parameters without effect, and why."""
        unused = {}
        if self.votes.kind != "expertise":
            unused["vote_bits"] = f"votes={self.votes.kind} sends no votes; set votes=expertise"
        if not isinstance(self.down, SoftLabelCodec):
            down = "weights travel down; set download=soft-labels"
            unused |= {"teach": down, "absent": down, "public_weight": down}
        elif not r.others:
            unused["public_weight"] = "all clients have networks"
        return unused

    def forget(self, server: Server, client: int) -> Server:
        """As if this client had never taken part: references of delta codecs and votes are gone."""
        old = server.memory
        received = students.drop(old.downlink.received, client)
        memory = replace(
            old,
            sent=students.drop(old.sent, client),
            downlink=replace(old.downlink, received=received),
            aggregator=aggregators.forget_client(self.aggregate, old.aggregator, client),
            first=old.first.forget(client),
            weights=weight_downlink.forget(old.weights, client),
        )
        return Server(server.students, memory)

    @property
    def _uplink(self) -> SoftLabelUplink:
        return SoftLabelUplink(self.sampler, self.budget, self.max_bytes, self.up, self.votes)

    def over_edges(self, edges: Edges) -> SoftLabelFD:
        return replace(self, edges=edges)

    def _place_rule(self, r: Round) -> tuple[Aggregator | StatefulAggregator, MeanOverEdges]:
        """The aggregator of this round and, where there are edge servers, the mean over them."""
        stateful = isinstance(self.aggregate, StatefulAggregator)
        over = MeanOverEdges(self.edges or Edges(1), r, stateful)
        if self.edges is None:
            return self.aggregate, over
        self.edges.check_fits(r)
        return replace_mean(self.aggregate, over), over

    def _with_pool(self, r: Round) -> Round:
        """The round with its part of the public set. Both ends draw the same: nothing is sent."""
        return r if self.pool is None else replace(r, public=r.public[self._pool_rows(r)])

    def _pool_rows(self, r: Round) -> Array:
        return seeding.subset(r.rng("pool"), len(r.public), self.pool or len(r.public))

    def _on_whole_public(self, labels: SoftLabels, r: Round) -> SoftLabels:
        """With indexes into the whole public set, not into the pool."""
        if self.pool is None:
            return labels
        return replace(labels, index=self._pool_rows(r)[labels.index])

    def _download(
        self, client: Client, memory: ClientMemory, download: bytes, r: Round
    ) -> Turn[Start]:
        """Weights down: take them. Soft labels down: distil them into the client's own model, or
        keep them as lessons for a model that is trained anew.
        """
        if not isinstance(self.down, SoftLabelCodec):
            downlink = WeightDownlink(self.down)
            weights, held = downlink.decode(memory.held, client.model, download, r)
            return Start(weights, memory.received, held)
        weights = memory.model or initial_state(client.model, r.seed)
        if memory.model is None and r.start is not None and client.model.is_network:
            weights, download = first_weights.split_download(client.model, download, r)
        labels_down = SoftLabelDownlink(self.down, self.absent)
        found, received = labels_down.decode(memory.received, download, r)
        if not client.model.is_network:
            lessons = merge_labels([memory.lessons, *found.values()])
            return Start(weights, received, memory.held, lessons)
        for number, labels in found.items():  # none in round 0, one, or all that were missed
            weights = yield self._distil(client.model, weights, labels, r, client.id, number)
            students.check_distilled(weights)
        return Start(weights, received, memory.held)

    def _weigh(self, lessons: SoftLabels | None, r: Round) -> Labelled | None:
        """Public rows for a training set; their weight is in their targets."""
        if lessons is None or not len(lessons) or not self.public_weight:
            return None
        labelled = lessons.on(r.public)
        return replace(labelled, targets=self.public_weight * labelled.targets)

    def _teach_students(
        self, server: Server, labels: SoftLabels, r: Round
    ) -> Turn[dict[str, Weights]]:
        """One student per architecture, side by side."""
        taught = yield [
            self._distil(model, server.students[model.name], labels, r, "server", r.number)
            for model in r.models
        ]
        new = {m.name: weights for m, weights in zip(r.models, taught, strict=True)}
        return students.apply_ema_to_all(server.students, new, self.ema)

    def _post_lesson(
        self,
        server: Server,
        new: dict[str, Weights],
        labels: SoftLabels,
        heard: Iterable[int],
        r: Round,
    ) -> Turn[ServerMemory]:
        """What travels down in the next round is checked and noted; who was heard has the last."""
        memory: ServerMemory = server.memory
        if not isinstance(self.down, SoftLabelCodec):
            downlink = WeightDownlink(self.down)
            downlink.check_students(new)
            return replace(memory, weights=downlink.record(memory.weights, server, heard, r))
        for weights in new.values():
            students.check_distilled(weights)
        own = self.teach == "predictions"
        posted = (yield from self._predict(new, r)) if own else labels
        board = SoftLabelDownlink(self.down, self.absent)
        return replace(
            memory,
            first=memory.first.add_receivers(heard, r),
            downlink=board.record(memory.downlink, posted, heard, r),
        )

    def _look(self, server: Server, r: Round) -> Turn[Array | None]:
        """The students' predictions, for an aggregator that judges clients. Before they have been
        taught they know nothing that a client could agree with but by luck."""
        if not isinstance(self.aggregate, JudgesClients) or r.number == 0:
            return None
        before = yield from self._predict(server.students, r)
        return before.probs

    def _predict(self, taught: Mapping[str, Weights], r: Round) -> Turn[SoftLabels]:
        """The students' soft labels on the whole public set, averaged over the architectures."""
        answers = yield [Predict(model, taught[model.name], r.public) for model in r.models]
        probs = np.mean([softmax(logits, self.temperature) for logits in answers], axis=0)
        return SoftLabels(np.arange(len(r.public)), probs)

    def _distil(
        self, model: Model, weights: Weights, labels: SoftLabels, r: Round, who: int | str, of: int
    ) -> Fit:
        """Train on the soft labels of round `of`."""
        key, epoch = (r.seed, of, "distill", who, model.name), self.distill.epochs * of
        data = labels.on(r.public)
        return Fit(model, weights, data, self.distill, key, epoch, self.temperature)


def _labels_of(
    uploads: Iterable[tuple[int, Upload]],
    references: dict[int, SoftLabels | None],
    answers: dict[int, AuditAnswers],
) -> Iterator[tuple[int, SoftLabels]]:
    """One upload at a time; what else is in it is noted on the way: the references for the clients'
    next messages, and answers to an audit."""
    for client, upload in uploads:
        references[client] = upload.reference
        if upload.answers is not None:
            answers[client] = upload.answers
        yield client, upload.labels
