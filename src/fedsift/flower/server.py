"""The server's side: the loop of `Federation.round_turn` with a network, not a simulated cohort."""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsift import files, runs
from fedsift.codecs import WireError
from fedsift.engines import choose_engine
from fedsift.federation import Federation, FederationState, Record, start_federations
from fedsift.flower import messages
from fedsift.flower.membership import Membership
from fedsift.flower.messages import NEVER, Answer, Call
from fedsift.flower.seats import Seats
from fedsift.flower.settings import Settings, settings
from fedsift.flower.site import Site, make_site
from fedsift.flower.transport import Answers, Traffic, Transport
from fedsift.ledger import RoundBytes
from fedsift.runs import Run
from fedsift.turns import run_turn
from fedsift.types import Client, Engine, Forgets, Round, Server, UserError

LOG = logging.getLogger("flwr")
TOKEN = "flower.json"  # in the run folder: the name under which clients remember this run


class TooFew(RuntimeError):
    """The run cannot continue: too few clients have answered, too often."""


def server_app(task: Any) -> ServerApp:
    """The ServerApp of a project whose `task` says what data there are."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(task, grid, settings(context.run_config), context.node_config)

    return app


def serve(task: Any, grid: Grid, how: Settings, node: Any) -> Run:
    """Begin the run, or resume the one in its folder, and run it to the end."""
    here = make_site(task, how, node)
    federation = here.federation(here.held_out())
    if not 1 <= how.minimum <= federation.cohort:
        raise UserError(
            f"a minimum of {how.minimum} replies in a cohort of {federation.cohort}; set it "
            "to 1 .. cohort"
        )
    engine, why = choose_engine(*here.experiment.where)
    folder = Path(how.folder or Path("runs", here.experiment.name)).resolve()
    run = runs.begin_run(
        folder,
        here.experiment,
        resume=True,
        note=f"Flower; server: {why}",
        built=(federation, federation.start()),
    )
    try:
        if run.finished:
            raise UserError(f"the run in {folder} is finished; set folder to another for a new one")
        LOG.info(
            "fedsift: run folder %s, round %s of %s",
            folder,
            run.state.round,
            here.experiment.rounds,
        )
        if run.waits:
            (state,) = start_federations([federation], engine, _log_start)
            if isinstance(state, Exception):
                raise state
            run.state = state
        Host(grid, run, here, how, engine).run_all()
    finally:
        run.lock.release()
    return run


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


class Host:
    """The server of one run: round after round with the clients that are there."""

    def __init__(self, grid: Grid, run: Run, here: Site, how: Settings, engine: Engine) -> None:
        self.run, self.here, self.how, self.engine = run, here, how, engine
        self.transport = Transport(grid, how.poll)
        self.membership = Membership(self.transport, here, Seats.open(how.seats))
        self.token = _token(run.folder)

    def run_all(self) -> None:
        """Run rounds until the run is finished."""
        self.membership.wait_for(set(range(len(self.here.models))), self.how.wait)
        while not self.run.finished:
            begun = time.perf_counter()
            record = self._run_round()
            self.run.save(record, time.perf_counter() - begun, **self._measure(record))
            self.transport.traffic = Traffic()
            LOG.info("fedsift: round %s done, accuracy %.4f", record.round, record.accuracy)

    def _run_round(self) -> Record:
        """Repeated while fewer than the minimum answer; clients then give the same answer again."""
        state = self.run.state
        for attempt in range(self.how.tries):
            federation = self._federation()
            r = federation.round(state.round)
            cohort = federation.draw_cohort(r)
            if attempt:
                self.membership.wait_for({client.id for client in cohort}, self.how.wait)
            replies = self._exchange(federation, state, cohort, r)
            for client, why in replies.missing.items():
                LOG.warning("fedsift: round %s is without client %s: %s", r.number, client, why)
            usable = len(replies.uploads)
            if usable >= self.how.minimum:
                record = self._finish(federation, state, cohort, replies)
                usable = len(record.bytes.up)
                if usable >= self.how.minimum:
                    return record
            LOG.warning(
                "fedsift: round %s has %s replies, the minimum is %s",
                r.number,
                usable,
                self.how.minimum,
            )
        reasons = "; ".join(f"client {client}: {why}" for client, why in replies.missing.items())
        raise TooFew(
            f"round {state.round} had fewer than {self.how.minimum} replies"
            f" in {self.how.tries} tries; the last time: {reasons}"
        )

    def _finish(
        self,
        federation: Federation,
        state: FederationState,
        cohort: list[Client],
        replies: Replies,
    ) -> Record:
        before = state.last_rounds
        state = replace(state, server=replies.server, last_rounds=replies.last_rounds)
        answered = [client.id for client in cohort if client.id in replies.uploads]
        uploads = {id: replies.sent[id] for id in answered}
        sent = RoundBytes.count(
            state.round,
            uploads,
            replies.downloads,
            missing=replies.missing,
        )
        turn = federation.finish_round(
            state, uploads, {}, sent, replies.accuracies, replies.uploads
        )
        record: Record = run_turn(turn, self.engine)
        left_out = {id: why for id, why in record.bytes.missing.items() if id in uploads}
        if not left_out:
            return record
        for id, why in left_out.items():
            LOG.warning("fedsift: round %s is without client %s: %s", record.round, id, why)
        replies.missing.update(left_out)
        last = {id: number for id, number in replies.last_rounds.items() if id not in left_out}
        last |= {id: number for id, number in before.items() if id in left_out}
        return replace(record, state=replace(record.state, last_rounds=last))

    def _federation(self) -> Federation:
        """With the models that clients have named; for the others, those of the experiment."""
        self.membership.refresh(self.how.wait)
        models = [
            self.membership.models.get(id, model) for id, model in enumerate(self.here.models)
        ]
        return self.here.federation(self.run.federation.task.held_out, models)

    def _exchange(
        self, federation: Federation, state: FederationState, cohort: list[Client], r: Round
    ) -> Replies:
        until = time.monotonic() + self.how.deadline
        missing = {client.id: "no node of this client is there" for client in cohort}
        replies = Replies(state.server, dict(state.last_rounds), missing=missing)
        there = [client for client in cohort if client.id in self.membership.nodes]
        lost = self._ask(federation, replies, there, r, self.how.deadline)
        for client in lost:
            LOG.warning("fedsift: client %s has lost its memory and starts over", client.id)
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
            self.membership.nodes[id]: Call(self.token, r.number, last[id], downloads[id])
            for id in last
        }
        answers = self.transport.exchange(messages.TURN, out, Answer, deadline, str(r.number))
        lost = []
        for client in clients:
            replies.downloads[client.id] = downloads[client.id]
            self._accept(federation, replies, client.id, answers, r)
            refusal = answers.refusals.get(self.membership.nodes[client.id])
            if refusal and refusal.lost and last[client.id] != NEVER:
                lost.append(client)
        return lost

    def _accept(
        self, federation: Federation, replies: Replies, client: int, answers: Answers, r: Round
    ) -> None:
        """Take one client's answer, or note why it is missing."""
        node = self.membership.nodes[client]
        answer = answers.messages.get(node)
        if answer is None:
            refusal = answers.refusals.get(node)
            replies.missing[client] = refusal.why if refusal else answers.silent[node]
            return
        if answer.round != r.number:
            replies.missing[client] = f"its reply is to round {answer.round}"
            return
        try:
            upload = federation.algorithm.check_upload(replies.server, client, answer.payload, r)
        except Exception as error:  # a bad message costs its sender the round, and nobody else
            replies.missing[client] = f"its message is refused: {_one_line(error)}"
            return
        del replies.missing[client]
        replies.uploads[client], replies.sent[client] = upload, answer.payload
        replies.last_rounds.pop(client, None)
        if answer.remembers:
            replies.last_rounds[client] = answer.round
        if not isnan(answer.accuracy):
            replies.accuracies[client] = answer.accuracy

    def _measure(self, record: Record) -> dict[str, int]:
        """What Flower adds to ledger payloads: envelopes, greetings, repeats, unused replies."""
        traffic, counted = self.transport.traffic, record.bytes
        overhead = {
            "overhead_down": traffic.sent - counted.downlink,
            "overhead_up": traffic.received - counted.uplink,
        }
        return overhead | {"ignored_replies": traffic.ignored}


def _log_start(done: int, epochs: int) -> None:
    LOG.info("fedsift: start, epoch %s of %s", done, epochs)


def _one_line(error: Exception) -> str:
    if isinstance(error, WireError | UserError):
        return str(error)
    return f"{type(error).__name__}: {error}"[:200]


def _token(folder: Path) -> str:
    path = folder / TOKEN
    if not path.is_file():
        files.write_atomic(path, json.dumps({"run": uuid.uuid4().hex}).encode())
    return str(json.loads(path.read_text())["run"])
