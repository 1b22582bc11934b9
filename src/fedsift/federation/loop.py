"""From the first weights to the last round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType

from fedsift.algorithms.edges import Edges, place_algorithm
from fedsift.attacks import Attack, read_threat
from fedsift.checks import check_type, check_whole, warn_user
from fedsift.data import Task
from fedsift.engines import choose_engine
from fedsift.federation.clients import Clients
from fedsift.federation.records import FederationState, Record
from fedsift.federation.rounds import Federation
from fedsift.starts import Tell, Wanted, make_starts, read_start
from fedsift.turns import run_turn
from fedsift.types import Algorithm, Engine, Pretext, Weights


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
    topology: str | Edges = "flat",
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
    topology: "flat", or "edges(50)": so many edge servers join uploads on their way
    """
    check_whole("rounds", rounds)
    cure = "pass the state of a record, record.state"
    check_type(state, (FederationState, NoneType), "state", cure)
    threat = read_threat(attack, attackers)
    algorithm = place_algorithm(algorithm, topology)
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
        for model in federation.clients.students
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
