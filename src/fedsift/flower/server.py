"""The server's side: the loop of `Federation.play`, with a real network in the place of the cohort
side by side.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsift import files, runs
from fedsift.codecs import WireError
from fedsift.engines import choose_engine
from fedsift.federation import Federation, FederationState, Record, run_turn
from fedsift.flower import messages
from fedsift.flower.membership import Membership
from fedsift.flower.messages import NEVER, Answer, Call
from fedsift.flower.settings import Settings, settings
from fedsift.flower.site import Site, make_site
from fedsift.flower.transport import Replies, Traffic, Transport
from fedsift.runs import Run
from fedsift.types import Client, Engine, Forgets, Round, Server, Tree, UserError

LOG = logging.getLogger("flwr")
TOKEN = "flower.json"  # in the run folder: the name under which clients remember this run


class TooFew(RuntimeError):
    """The run cannot go on: too few clients have answered, too often."""


def server_app(task: Any) -> ServerApp:
    """The ServerApp of a project whose `task` says what data there are."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(task, grid, settings(context.run_config), context.node_config)

    return app


def serve(task: Any, grid: Grid, how: Settings, node: Any) -> Run:
    """Begin the run, or go on with the one in its folder, and play it to the end."""
    here = make_site(task, how, node)
    federation = here.federation(here.test())
    if not 1 <= how.minimum <= federation.cohort:
        raise UserError(
            f"a minimum of {how.minimum} replies in a cohort of {federation.cohort}; set it to 1 .. cohort"
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
        Host(grid, run, here, how, engine).play()
    finally:
        run.lock.release()
    return run


@dataclass
class Talk:
    """What came of sending a round's messages."""

    server: Server  # less what was forgotten
    heard: dict[int, bytes] = field(default_factory=dict)
    said: dict[int, bytes] = field(default_factory=dict)
    learnt: dict[int, Tree] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)


class Host:
    """The server of one run: plays round after round with whoever is there."""

    def __init__(self, grid: Grid, run: Run, here: Site, how: Settings, engine: Engine) -> None:
        self.run, self.here, self.how, self.engine = run, here, how, engine
        self.transport = Transport(grid, how.poll)
        self.membership = Membership(self.transport, here)
        self.token = _token(run.folder)

    def play(self) -> None:
        self.membership.wait_for(set(range(len(self.here.models))), self.how.wait)
        while not self.run.finished:
            begun = time.perf_counter()
            record = self._round()
            self.run.save(record, time.perf_counter() - begun, **self._measured(record))
            self.transport.traffic = Traffic()
            LOG.info("fedsift: round %s done, accuracy %.4f", record.round, record.accuracy)

    def _round(self) -> Record:
        """Played again while fewer than the minimum answer; clients answer a repeated round
        alike.
        """
        state = self.run.state
        for attempt in range(self.how.tries):
            federation = self._federation()
            r = federation.round(state.round)
            cohort = federation.draw_cohort(r)
            if attempt:
                self.membership.wait_for({client.id for client in cohort}, self.how.wait)
            talk = self._talk(federation, state, cohort, r)
            for client, why in talk.missing.items():
                LOG.warning("fedsift: round %s is without client %s: %s", r.number, client, why)
            if len(talk.said) >= self.how.minimum:
                state = FederationState(state.round, talk.server, state.memories)
                return run_turn(
                    federation.finish_round(
                        state, talk.heard, talk.said, talk.learnt, talk.missing
                    ),
                    self.engine,
                )
            LOG.warning(
                "fedsift: round %s has %s replies of %s", r.number, len(talk.said), self.how.minimum
            )
        raise TooFew(
            f"round {state.round} had fewer than {self.how.minimum} replies in {self.how.tries} tries; the last time: "
            f"{'; '.join(f'client {client}: {why}' for client, why in talk.missing.items())}"
        )

    def _federation(self) -> Federation:
        """With the models clients say they have; the experiment's for those not heard of yet."""
        self.membership.refresh(self.how.wait)
        models = [
            self.membership.models.get(id, model) for id, model in enumerate(self.here.models)
        ]
        return self.here.federation(self.run.federation.task.test, models)

    def _talk(
        self, federation: Federation, state: FederationState, cohort: list[Client], r: Round
    ) -> Talk:
        until = time.monotonic() + self.how.deadline
        talk = Talk(state.server, missing={c.id: "no node of this client is there" for c in cohort})
        there = [client for client in cohort if client.id in self.membership.nodes]
        last = {
            id: int(memory["last"]) for id, memory in state.memories.items() if "last" in memory
        }
        lost = self._ask(federation, talk, there, last, r, self.how.deadline)
        for client in lost:
            LOG.warning("fedsift: client %s has lost its memory and starts anew", client.id)
            talk.learnt[client.id] = {}
            if isinstance(federation.algorithm, Forgets):
                talk.server = federation.algorithm.forget(talk.server, client.id)
        if lost:
            self._ask(federation, talk, lost, {}, r, max(1.0, until - time.monotonic()))
        order = {id: talk.said[id] for id in (client.id for client in cohort) if id in talk.said}
        return Talk(talk.server, talk.heard, order, talk.learnt, talk.missing)

    def _ask(
        self,
        federation: Federation,
        talk: Talk,
        clients: list[Client],
        last: dict[int, int],
        r: Round,
        deadline: float,
    ) -> list[Client]:
        """One exchange; the outcome goes into `talk`. Returns the clients that have lost their
        memory.
        """
        announced = federation.algorithm.prepare_downloads(talk.server, clients, r)
        calls = {
            c.id: Call(self.token, r.number, last.get(c.id, NEVER), announced[c.id])
            for c in clients
        }
        out = {self.membership.nodes[id]: call for id, call in calls.items()}
        replies = self.transport.exchange(messages.TURN, out, Answer, deadline, str(r.number))
        for client in clients:
            talk.heard[client.id] = announced[client.id]
            self._take_up(federation, talk, client.id, replies, r)
        return [
            c
            for c in clients
            if (no := replies.refusals.get(self.membership.nodes[c.id]))
            and no.lost
            and c.id in last
        ]

    def _take_up(
        self, federation: Federation, talk: Talk, client: int, replies: Replies, r: Round
    ) -> None:
        node = self.membership.nodes[client]
        answer = replies.letters.get(node)
        if answer is None:
            refusal = replies.refusals.get(node)
            talk.missing[client] = refusal.why if refusal else replies.silent[node]
        elif answer.round != r.number:
            talk.missing[client] = f"its reply is to round {answer.round}"
        elif why := objection(federation, talk.server, client, answer.payload, r):
            talk.missing[client] = f"its message is refused: {why}"
        else:
            del talk.missing[client]
            talk.said[client] = answer.payload
            talk.learnt[client] = _noted(answer)

    def _measured(self, record: Record) -> dict[str, int]:
        """What Flower adds to the payloads in the ledger: envelopes, greetings, repeats, replies
        not taken up.
        """
        traffic, counted = self.transport.traffic, record.bytes
        overhead = {
            "overhead_down": traffic.sent - counted.downlink,
            "overhead_up": traffic.received - counted.uplink,
        }
        return overhead | {"ignored_replies": traffic.ignored}


def objection(
    federation: Federation, server: Server, client: int, message: bytes, r: Round
) -> str | None:
    """Why the server cannot read this message. The first step of its turn reads all of them: it is
    tried with one alone.
    """
    turn = federation.algorithm.server_turn(server, {client: message}, r)
    try:
        next(turn)
    except StopIteration:
        return None
    except (WireError, UserError) as error:
        return str(error)
    # whatever a message does to a decoder, it costs its sender the round and nobody else
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    turn.close()
    return None


def _noted(answer: Answer) -> Tree:
    """All the server keeps of a client: the round to go on from, and how good the model is that it
    keeps to itself.
    """
    last = {"last": np.array(answer.round)} if answer.remembers else {}
    return last | ({} if isnan(answer.accuracy) else {"accuracy": np.array(answer.accuracy)})


def _token(folder: Path) -> str:
    path = folder / TOKEN
    if not path.is_file():
        files.write_atomic(path, json.dumps({"run": uuid.uuid4().hex}).encode())
    return str(json.loads(path.read_text())["run"])
