"""One exchange of a round: calls go out, answers come back, and each is checked or its client is
missing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan, prod
from typing import Any

import torch

from fedsift.codecs import WireError
from fedsift.federation import Federation, FederationState
from fedsift.flower import messages
from fedsift.flower.logs import warn
from fedsift.flower.membership import Membership
from fedsift.flower.messages import NEVER, Answer, Call
from fedsift.flower.rests import Rests
from fedsift.flower.run_names import RunNames
from fedsift.flower.settings import Settings
from fedsift.flower.transport import GREETING, Limits, Outcomes, Transport
from fedsift.types import Client, Forgets, Model, Round, Server, UserError


@dataclass
class Replies:
    """What came of sending a round's messages."""

    server: Server  # without what was forgotten
    last_rounds: dict[int, int]  # of clients that remember: the last round the server built on
    downloads: dict[int, bytes] = field(default_factory=dict)
    sent: dict[int, bytes] = field(default_factory=dict)  # uploads as they came
    uploads: dict[int, Any] = field(default_factory=dict)  # decoded and checked
    accuracies: dict[int, float] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    seconds: dict[int, float] = field(default_factory=dict)


@dataclass
class Checks:
    """The answers of one exchange; each is checked once, when somebody first wants to know."""

    federation: Federation
    server: Server
    clients: dict[int, int]  # node -> client
    r: Round
    uploads: dict[int, Any] = field(default_factory=dict)  # node -> decoded and checked
    objections: dict[int, str] = field(default_factory=dict)

    def is_good(self, node: int, answer: Answer) -> bool:
        if node not in self.uploads and node not in self.objections:
            self._check(node, answer)
        return node in self.uploads

    def _check(self, node: int, answer: Answer) -> None:
        if answer.round != self.r.number:
            self.objections[node] = f"its reply is to round {answer.round}"
            return
        algorithm, client = self.federation.algorithm, self.clients[node]
        try:
            upload = algorithm.check_upload(self.server, client, answer.payload, self.r)
        except Exception as error:  # a bad message costs its sender the round, and nobody else
            self.objections[node] = f"its message is refused: {describe_error(error)}"
        else:
            self.uploads[node] = upload


@dataclass
class Exchange:
    """With the clients of a run that are there."""

    transport: Transport
    membership: Membership
    rests: Rests
    names: RunNames
    how: Settings

    def ask_all(
        self, federation: Federation, state: FederationState, cohort: list[Client], r: Round
    ) -> Replies:
        """A round's messages, and what came back. Who has lost its memory is asked again."""
        until = time.monotonic() + self.how.deadline
        missing = {client.id: self.membership.why_absent(client.id) for client in cohort}
        replies = Replies(state.server, dict(state.last_rounds), missing=missing)
        there = [client for client in cohort if client.id in self.membership.nodes]
        resting = self.rests.find((client.id for client in there), r.number, self.how.minimum)
        replies.missing |= resting
        there = [client for client in there if client.id not in resting]
        lost = self._ask(federation, replies, there, r, self.how.deadline)
        for client in lost:
            warn(f"client {client.id} has lost its memory and starts over", client=client.id)
            del replies.last_rounds[client.id]
            if isinstance(federation.algorithm, Forgets):
                replies.server = federation.algorithm.forget(replies.server, client.id)
        if lost:
            self._ask(federation, replies, lost, r, max(1.0, until - time.monotonic()))
        return replies

    def _ask(
        self,
        federation: Federation,
        replies: Replies,
        clients: list[Client],
        r: Round,
        deadline: float,
    ) -> list[Client]:
        """One exchange; the outcome goes into `replies`. Returns clients that lost their memory."""
        downloads = federation.algorithm.prepare_downloads(replies.server, clients, r)
        last = {client.id: replies.last_rounds.get(client.id, NEVER) for client in clients}
        out = {
            self.membership.nodes[id]: Call(
                self.names.of_client(id), r.number, last[id], downloads[id]
            )
            for id in last
        }
        largest, heard = largest_reply(federation, self.how), len(replies.uploads)
        limits = Limits(deadline, self.how.enough, self.how.patience, largest, heard)
        nodes = {self.membership.nodes[id]: id for id in last}
        checks = Checks(federation, replies.server, nodes, r)
        outcomes = self.transport.exchange(
            messages.TURN, out, Answer, limits, str(r.number), checks.is_good
        )
        lost = []
        for client in clients:
            node = self.membership.nodes[client.id]
            replies.asked.add(client.id)
            replies.downloads[client.id] = downloads[client.id]
            if node in outcomes.seconds:
                replies.seconds[client.id] = outcomes.seconds[node]
            self._accept(replies, client.id, outcomes, checks)
            refusal = outcomes.refusals.get(node)
            if refusal and refusal.lost and last[client.id] != NEVER:
                lost.append(client)
            if node in outcomes.too_large:
                self.membership.refuse(node, outcomes.too_large[node], client.id)
        return lost

    def _accept(self, replies: Replies, client: int, outcomes: Outcomes, checks: Checks) -> None:
        """Take one client's answer, or note why it is missing."""
        node = self.membership.nodes[client]
        answer = outcomes.messages.get(node)
        if answer is None:
            refusal = outcomes.refusals.get(node)
            silent = outcomes.silent | outcomes.too_large
            replies.missing[client] = refusal.why if refusal else silent[node]
            return
        if not checks.is_good(node, answer):
            replies.missing[client] = checks.objections[node]
            return
        del replies.missing[client]
        replies.uploads[client], replies.sent[client] = checks.uploads[node], answer.payload
        replies.last_rounds.pop(client, None)
        if answer.remembers:
            replies.last_rounds[client] = answer.round
        if not isnan(answer.accuracy):
            replies.accuracies[client] = answer.accuracy


def largest_reply(federation: Federation, how: Settings) -> int:
    """Bytes of a reply, as Flower serialises it, that no honest client goes beyond.

    What is right to the byte only the codec knows, once it has the message. This is several times
    that: 16 bytes for each number of all models, of soft labels for all public samples, and of
    samples that are sent.
    """
    if how.largest_reply:
        return int(how.largest_reply * 1e6)
    public, classes = federation.task.public, federation.task.private.classes
    weights = sum(count_weights(model) for model in federation.clients.students)
    samples = getattr(federation.algorithm, "mixtures", 0) * prod(public.shape)
    return GREETING + 16 * (weights + len(public) * (classes + 4) + samples)


@lru_cache(maxsize=64)
def count_weights(model: Model) -> int:
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, and not wanted
        return sum(value.numel() for value in model.build().state_dict().values())


def describe_error(error: Exception) -> str:
    """In one line of bounded length: it may quote what a client has sent."""
    kind = "" if isinstance(error, WireError | UserError) else f"{type(error).__name__}: "
    return messages.one_line(f"{kind}{error}")
