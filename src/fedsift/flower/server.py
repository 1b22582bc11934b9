"""The server's side: the loop of `Federation.round_turn` with a network, not a simulated cohort."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsift import ledger, runs
from fedsift.algorithms.audits import SECRET_BYTES
from fedsift.engines import choose_engine
from fedsift.federation import (
    ClientResults,
    Federation,
    FederationState,
    NothingUsable,
    Record,
    Useless,
    start_federations,
)
from fedsift.flower import logs
from fedsift.flower.exchange import Exchange, Replies, describe_error
from fedsift.flower.logs import complain, say, warn
from fedsift.flower.membership import Membership
from fedsift.flower.rests import Rests
from fedsift.flower.run_names import RunNames
from fedsift.flower.seats import Seats
from fedsift.flower.settings import Settings, settings
from fedsift.flower.site import Site, make_site
from fedsift.flower.status import Monitor, Status
from fedsift.flower.transport import Traffic, Transport
from fedsift.ledger import RoundBytes
from fedsift.runs import Run
from fedsift.turns import run_turn
from fedsift.types import Client, Engine, KeepsSecret, UserError


class RoundError(UserError):
    """A round came to nothing by what clients have sent; they may send something else next time."""


class TooFew(RuntimeError):
    """The run cannot continue: too few clients have answered, too often."""


def server_app(task: Any) -> ServerApp:
    """The ServerApp of a project whose `task` says what data there are."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        how = settings(context.run_config)
        serve(task, grid, how, context.node_config, str(context.run_id))

    return app


def serve(task: Any, grid: Grid, how: Settings, node: Any, flower_run: str = "") -> Run:
    """Begin the run, or resume the one in its folder, and run it to the end."""
    logs.start_logging(how.log)
    here = make_site(task, how, node)
    federation = here.federation(here.held_out())
    _check_replies(how, federation.cohort)
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
        with logs.logging_to(folder, how.log):
            _run(grid, run, here, how, engine, flower_run)
    finally:
        run.lock.release()
    return run


def _run(grid: Grid, run: Run, here: Site, how: Settings, engine: Engine, flower_run: str) -> None:
    """All rounds, with a status that also says how it ended."""
    monitor = Monitor(run.folder, replace(_past(run), flower_run=flower_run))
    with monitor.serving(how.metrics_port):
        try:
            monitor.update()
            say(f"run folder {run.folder}, round {run.state.round} of {run.experiment.rounds}")
            if run.waits:
                (state,) = start_federations([run.federation], engine, _say_start)
                if isinstance(state, Exception):
                    raise state
                run.state = state
            _renew_secret(run)
            Host(grid, run, here, how, engine, monitor).run_all()
        except Exception as error:
            complain(f"the run failed: {describe_error(error)}")
            run.fail(error)
            monitor.update(state="failed", error=describe_error(error))
            raise
        monitor.update(state="finished")


def draw_secret(run: Run) -> bytes:
    """From chance, not from the seed, which all clients know."""
    return secrets.token_bytes(SECRET_BYTES)


def _renew_secret(run: Run) -> None:
    """Before the first round, where the algorithm draws from a secret."""
    algorithm, state = run.federation.algorithm, run.state
    if isinstance(algorithm, KeepsSecret) and not state.round:
        run.state = replace(state, server=algorithm.set_secret(state.server, draw_secret(run)))


def _past(run: Run) -> Status:
    """What the rounds of an earlier run in this folder came to."""
    status = Status("waiting", run.experiment.rounds, run.state.round)
    if not run.state.round:
        return status
    history = runs.load_run(run.folder)
    sums = ledger.total(history.ledger)
    return replace(
        status,
        accuracy=history.accuracies[-1],
        uplink_bytes=sums.uplink,
        downlink_bytes=sums.downlink,
    )


def _check_replies(how: Settings, cohort: int) -> None:
    if not 1 <= how.minimum <= cohort:
        raise UserError(
            f"a minimum of {how.minimum} replies in a cohort of {cohort}; set it to 1 .. cohort"
        )
    if how.enough and not how.minimum <= how.enough <= cohort:
        raise UserError(
            f"{how.enough} replies are enough, but the minimum is {how.minimum} and the cohort "
            f"{cohort}; set enough between them, or to 0 for all"
        )


class Host:
    """The server of one run: round after round with the clients that are there."""

    def __init__(
        self, grid: Grid, run: Run, here: Site, how: Settings, engine: Engine, monitor: Monitor
    ) -> None:
        self.run, self.here, self.how, self.engine = run, here, how, engine
        self.monitor = monitor
        self.transport = Transport(grid, how.poll)
        seats = Seats.open(how.seats)
        self.membership = Membership(self.transport, here, seats, round=run.state.round)
        self.rests = Rests(how.rest_after, how.rest)
        names = RunNames.of(run.folder)
        self.exchange = Exchange(self.transport, self.membership, self.rests, names, how)

    def run_all(self) -> None:
        """Run rounds until the run is finished."""
        self.membership.wait_for(set(range(len(self.here.models))), self.how.wait)
        while not self.run.finished:
            self.membership.round = self.run.state.round
            begun = time.perf_counter()
            record, replies = self._run_round()
            seconds = time.perf_counter() - begun
            self.run.save(record, seconds, **self._measure(record))
            self.transport.traffic = Traffic()
            self._report(record, replies, seconds)

    def _report(self, record: Record, replies: Replies, seconds: float) -> None:
        """The round in the log and in the status."""
        missing, answered = record.bytes.missing, record.bytes.up
        failed = replies.asked & missing.keys()
        for client, why in self.rests.note(record.round, answered, failed).items():
            warn(f"client {client} {why}", client=client, round=record.round)
        say(
            f"round {record.round} done in {seconds:.1f} s, accuracy {record.accuracy:.4f}, "
            f"{len(answered)} of {len(answered) + len(missing)} clients, "
            f"{record.bytes.uplink} bytes up, {record.bytes.downlink} bytes down",
            round=record.round,
            seconds=round(seconds, 3),
            accuracy=record.accuracy,
            bytes_up=record.bytes.uplink,
            bytes_down=record.bytes.downlink,
            missing=sorted(missing),
        )
        was = self.monitor.status
        self.monitor.update(
            state="running",
            round=record.round + 1,
            accuracy=record.accuracy,
            uplink_bytes=was.uplink_bytes + record.bytes.uplink,
            downlink_bytes=was.downlink_bytes + record.bytes.downlink,
            missing=missing,
            seconds={id: round(found, 3) for id, found in replies.seconds.items()},
            round_seconds=round(seconds, 3),
            refused=self._refused(),
        )

    def _refused(self) -> dict[int, str]:
        return {node: refused.why for node, refused in self.membership.refused.items()}

    def _run_round(self) -> tuple[Record, Replies]:
        """Repeated while fewer than the minimum are of use. Who has answered then answers the same
        again."""
        number = self.run.state.round
        for attempt in range(self.how.tries):
            record, replies = self._try_round(attempt > 0)
            usable = 0 if record is None else len(record.bytes.up)
            if record is not None and usable >= self.how.minimum:
                return record, replies
            usable = usable or len(replies.uploads)
            warn(
                f"round {number} has {usable} replies, the minimum is {self.how.minimum}",
                round=number,
            )
            self.monitor.update(missing=replies.missing, refused=self._refused())
        reasons = "; ".join(f"client {client}: {why}" for client, why in replies.missing.items())
        raise TooFew(
            f"round {number} had fewer than {self.how.minimum} replies"
            f" in {self.how.tries} tries; the last time: {reasons}"
        )

    def _try_round(self, again: bool) -> tuple[Record | None, Replies]:
        """What came of asking a cohort; no record where too few replied or all they sent is of no
        use."""
        federation, state = self._federation(), self.run.state
        r = federation.round(state.round)
        cohort = federation.draw_cohort(r)
        if again:
            self.membership.wait_for({client.id for client in cohort}, self.how.wait)
        replies = self.exchange.ask_all(federation, state, cohort, r)
        for client, why in replies.missing.items():
            self._warn_without(r.number, client, why)
        if len(replies.uploads) < self.how.minimum:
            return None, replies
        try:
            return self._finish(federation, state, cohort, replies), replies
        except (Useless, NothingUsable) as error:  # what was sent is to blame
            why = f"with its upload {describe_error(error)}"
            self._leave_out(r.number, replies, dict.fromkeys(replies.uploads, why))
            self.rests.note(r.number, (), replies.uploads)
            replies.uploads.clear()
            return None, replies
        except UserError as error:
            raise RoundError(str(error)) from error

    def _leave_out(self, number: int, replies: Replies, reasons: dict[int, str]) -> None:
        """Clients that were heard are missing after all."""
        for client, why in reasons.items():
            self._warn_without(number, client, why)
        replies.missing.update(reasons)

    def _warn_without(self, round: int, client: int, why: str) -> None:
        warn(f"round {round} is without client {client}: {why}", round=round, client=client)

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
        results = ClientResults(
            uploads, {}, sent, replies.accuracies, replies.uploads, replies.downloads
        )
        record: Record = run_turn(federation.finish_round(state, results), self.engine)
        left_out = {id: why for id, why in record.bytes.missing.items() if id in uploads}
        if not left_out:
            return record
        self._leave_out(record.round, replies, left_out)
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

    def _measure(self, record: Record) -> dict[str, int]:
        """What Flower adds to ledger payloads: envelopes, greetings, repeats, unused replies."""
        traffic, counted = self.transport.traffic, record.bytes
        overhead = {
            "overhead_down": traffic.sent - counted.downlink,
            "overhead_up": traffic.received - counted.uplink,
        }
        return overhead | {"ignored_replies": traffic.ignored}


def _say_start(done: int, epochs: int) -> None:
    say(f"start, epoch {done} of {epochs}")
