"""The lockstep driver and the round loop."""

import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import fedsift
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import ClientModels, Federation
from fedsift.turns import batch_turns, run_turn, watch_turn
from fedsift.types import Algorithm, UserError
from tests.helpers import toys
from tests.helpers.federations import (
    RECIPE,
    OneByOne,
    a_federation,
    a_task,
    run_rounds,
    same_records,
)
from tests.helpers.turns import Doubling, counting


def test_turns_advance_in_lockstep_and_their_work_is_asked_for_at_once():
    engine = Doubling()
    assert run_turn(batch_turns([counting(1, 1), counting(10, 3), counting(100, 2)]), engine) == [
        2,
        66,
        402,
    ]
    assert engine.lists == [[1, 10, 100], [11, 101], [12]]


def test_a_turn_may_ask_for_several_things_at_once():
    def pair():
        a, b = yield [1, 2]
        c = yield 3
        return a, b, c

    engine = Doubling()
    assert run_turn(batch_turns([pair(), counting(10, 1)]), engine) == [(2, 4, 6), 20]
    assert engine.lists == [[1, 2, 10], [3]]


def test_lockstep_nests():
    engine = Doubling()
    cells = [batch_turns([counting(1, 2), counting(5, 1)]), batch_turns([counting(50, 2)])]
    assert run_turn(batch_turns(cells), engine) == [[6, 10], [202]]
    assert engine.lists == [[1, 5, 50], [2, 51]]


def test_a_watched_turn_is_the_same_turn():
    engine = Doubling()
    seen: list[int] = []

    def pair():
        a, b = yield [1, 2]
        return a + b + (yield 3)

    assert run_turn(watch_turn(pair(), seen.append), engine) == 12
    assert (seen, engine.lists) == ([1, 2, 3], [[1, 2], [3]])


def test_a_watched_turn_gets_the_error_of_its_work():
    def careful():
        try:
            yield 1
        except ValueError:
            return (yield 2)

    watched = watch_turn(careful(), lambda _: None)
    assert next(watched) == 1 and watched.throw(ValueError("no")) == 2
    with pytest.raises(StopIteration) as end:
        watched.send(20)
    assert end.value.value == 20


def test_training_steps_are_counted_by_hand():
    """60 samples of six clients, ten each; replay adds 7 from the second round on. Batches of 4: 3
    steps an epoch, then 4 for 17 samples, whose last batch of one is left out. Two epochs. The
    server distils the ten samples that all have labelled, in batches of 4 and one epoch."""
    recipe = fedsift.Recipe(epochs=2, batch=4, lr=0.05)
    federation = a_federation(fedsift.fd(10, local=recipe, distill=RECIPE, replay=7))
    records = run_rounds(federation, 2, SequentialEngine("cpu", threads=1))
    assert [set(record.steps.values()) for record in records] == [{6}, {8}]
    assert [sorted(record.steps) for record in records] == [sorted(r.bytes.up) for r in records]
    assert [record.server_steps for record in records] == [3, 3]


def test_a_turn_that_asks_for_nothing_returns_at_once():
    engine = Doubling()
    assert run_turn(counting(1, 0), engine) == 0
    assert run_turn(batch_turns([]), engine) == []
    assert engine.lists == []


# --- federations ---


ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: fedsift.fedavg(local=RECIPE),
    "fd": lambda: fedsift.fd(10, local=RECIPE, distill=RECIPE),
    "fas": lambda: fedsift.fas(10, local=RECIPE, distill=RECIPE),
    "fas, soft labels down": lambda: fedsift.fas(
        10, download="soft-labels", local=RECIPE, distill=RECIPE
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("model", ["mlp", "tests.helpers.toys:with_batch_norm"])
def test_one_client_at_a_time_equals_lockstep(name, model):
    engine = SequentialEngine("cpu", threads=2)
    lockstep = run_rounds(a_federation(ALGORITHMS[name](), model), 3, engine)
    one_by_one = run_rounds(
        a_federation(ALGORITHMS[name](), model), 3, OneByOne(SequentialEngine("cpu", threads=1))
    )
    assert same_records(lockstep, one_by_one)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_cells_of_a_sweep_side_by_side_equal_each_alone(name):
    engine = SequentialEngine("cpu", threads=2)
    cells = [a_federation(ALGORITHMS[name](), seed=seed) for seed in (0, 1)]
    starts = [cell.start() for cell in cells]
    both = run_turn(
        batch_turns([cell.round_turn(start) for cell, start in zip(cells, starts, strict=True)]),
        engine,
    )
    assert all(same_records([both[i]], run_rounds(cells[i], 1, engine)) for i in (0, 1))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_going_on_from_a_record_equals_going_straight_through(name):
    engine = SequentialEngine("cpu", threads=2)
    federation = a_federation(ALGORITHMS[name]())
    straight = run_rounds(federation, 4, engine)
    resumed = run_rounds(federation, 4, engine, state=straight[1].state)
    assert same_records(straight[2:], resumed)


def test_compared_methods_share_split_partition_and_cohorts():
    federations = [a_federation(make(), seed=5) for make in ALGORITHMS.values()]
    runs = [run_rounds(f, 3, SequentialEngine("cpu", threads=2)) for f in federations]
    assert len({str([sorted(record.bytes.up) for record in records]) for records in runs}) == 1
    assert len({str([c.data.samples.rows.tolist() for c in f.clients]) for f in federations}) == 1
    assert len({str(f.task.public.rows.tolist()) for f in federations}) == 1


def test_cohorts_are_distinct_clients_and_change_from_round_to_round():
    records = run_rounds(
        a_federation(ALGORITHMS["fedavg"]()), 5, SequentialEngine("cpu", threads=2)
    )
    cohorts = [tuple(record.bytes.up) for record in records]
    assert all(len(set(cohort)) == 3 for cohort in cohorts) and len(set(cohorts)) > 1


def test_the_record_counts_the_bytes_of_the_messages():
    """FedAvg on the mlp (4 x 64 + 64 + 64 x 3 + 3 = 515 float32): every message is one such model
    and its headers.
    """
    (record,) = run_rounds(
        a_federation(ALGORITHMS["fedavg"]()), 1, SequentialEngine("cpu", threads=2)
    )
    (size,) = set(record.bytes.up.values())
    assert 515 * 4 < size < 515 * 4 + 500
    assert record.uplink_bytes == record.downlink_bytes == 3 * size
    assert record.bytes.broadcast == size


def test_federate_yields_records_and_goes_on_from_a_state():
    task = a_task()
    clients = fedsift.make_clients(task.private, 6, fedsift.Dirichlet(1.0), "mlp")
    everything = list(fedsift.federate(ALGORITHMS["fas"](), clients, task, rounds=3, cohort=3))
    first = next(fedsift.federate(ALGORITHMS["fas"](), clients, task, rounds=3, cohort=3))
    rest = list(
        fedsift.federate(ALGORITHMS["fas"](), clients, task, rounds=3, cohort=3, state=first.state)
    )
    assert same_records(everything, [first, *rest])


def test_federate_takes_an_engine_or_its_name():
    task = a_task()
    clients = fedsift.make_clients(task.private, 6, fedsift.Dirichlet(1.0), "mlp")
    played = partial(fedsift.federate, ALGORITHMS["fas"](), clients, task, rounds=1, cohort=3)
    assert same_records(
        list(played(engine="sequential")),
        list(played(engine=fedsift.choose_engine("sequential")[0])),
    )
    with pytest.raises(UserError, match="unknown engine 'quick'"):
        next(played(engine="quick"))


def test_clients_are_views_of_one_store():
    federation = a_federation(ALGORITHMS["fd"]())
    store = federation.task.private.samples.store
    assert all(client.data.samples.store is store for client in federation.clients)


def test_models_are_dealt_as_asked():
    task = a_task()
    clients = fedsift.make_clients(task.private, 6, model={"mlp": 2, toys.linear: 4})
    assert [c.model.name for c in clients] == ["mlp"] * 2 + ["linear"] * 4
    with pytest.raises(UserError, match="given to 5 clients, but there are 6"):
        fedsift.make_clients(task.private, 6, model={"mlp": 5})


def test_a_million_clients_are_blocks_of_models_and_views():
    """2 + 999,997 + 1: the first two have an mlp, the last one too, and nothing is kept for those
    between.
    """
    task = a_task()
    mix = {"mlp": 2, toys.linear: 999_997, "mlp(width=2)": 1, "cnn": 0}
    clients = fedsift.make_clients(task.private, 10**6, fedsift.Views(1.0, 12), mix)
    assert [clients[id].model.name for id in (0, 1, 2, 999_998, 999_999, -1)] == [
        *("mlp", "mlp"),
        *("linear", "linear"),
        *("mlp(width=2)", "mlp(width=2)"),
    ]
    assert [model.name for model in clients.models] == ["mlp", "linear", "mlp(width=2)"]
    assert (clients[-1].id, len(clients[-1].data), len(clients)) == (999_999, 12, 10**6)
    with pytest.raises(IndexError):
        clients[10**6]


def test_models_given_one_by_one_stay_where_they_were_given():
    one, other = toys.model(), toys.model(toys.with_dropout)
    given = [one, other, other, one, other]
    mix = ClientModels.of(given)
    assert list(mix) == given and mix.distinct == (one, other) and ClientModels.of(mix) is mix


def test_a_model_for_fewer_than_no_clients_is_an_error():
    with pytest.raises(UserError, match="a model cannot be given to -1 clients"):
        fedsift.make_clients(a_task().private, 6, model={"mlp": -1, toys.linear: 7})


def test_what_a_federation_holds_does_not_grow_with_its_clients():
    def held(count):
        tracemalloc.start()
        task = a_task()
        federation = Federation(
            ALGORITHMS["fas"](),
            fedsift.make_clients(task.private, count, fedsift.Views(1.0, 12), "mlp"),
            task,
            5,
            0,
        )
        record = run_turn(
            federation.round_turn(federation.start()), SequentialEngine("cpu", threads=1)
        )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return len(record.bytes.up), peak

    held(100)  # what is loaded once
    (few, small), (many, large) = held(100), held(10**6)
    assert few == many == 5
    assert large < small + 100_000  # a tenth of a byte a client


def test_the_cohort_of_a_round_is_known_before_it_is_played():
    federation = a_federation(ALGORITHMS["fedavg"]())
    records = run_rounds(federation, 3, SequentialEngine("cpu", threads=2))
    assert [list(record.bytes.up) for record in records] == [
        federation.cohort_ids(n).tolist() for n in range(3)
    ]


@pytest.mark.parametrize("cohort", [0, 7])
def test_a_cohort_must_fit_the_federation(cohort):
    with pytest.raises(UserError, match=f"cohort of {cohort} cannot be drawn from 6 clients"):
        a_federation(ALGORITHMS["fd"](), cohort=cohort)


def test_a_client_with_a_single_class_takes_part_in_everything():
    x, y = toys.gaussians(120)
    task = fedsift.split(fedsift.make_dataset(x, y), private=60, public=30)
    parts = [np.flatnonzero(task.private.labels == label) for label in range(3)]
    model = fedsift.make_model("mlp", (4,), 3)
    clients = fedsift.Clients(task.private, parts, [model] * 3)
    assert [np.count_nonzero(client.label_counts) for client in clients] == [1, 1, 1]
    for sampler in fedsift.SAMPLERS:
        fas = fedsift.fas(9, sampler=sampler, local=RECIPE, distill=RECIPE)
        records = list(fedsift.federate(fas, clients, task, rounds=2, cohort=3))
        assert [len(record.bytes.up) for record in records] == [3, 3]


def test_a_record_gives_its_networks_by_name_or_by_what_makes_them():
    def mine(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    task = fedsift.split(fedsift.load_dataset("digits"), private=60, public=30, seed=0)
    clients = fedsift.make_clients(
        task.private, 3, fedsift.Dirichlet(1.0), model={"mlp": 1, mine: 2}, seed=0
    )
    (record,) = fedsift.federate(fedsift.fas(10), clients, task, rounds=1, cohort=3, seed=0)
    for asked in ("mine", mine):
        net = record.network(asked)
        assert isinstance(net, nn.Sequential) and not net.training
        assert torch.equal(net.state_dict()["1.weight"], record.models["mine"][1]["1.weight"])
    with pytest.raises(
        UserError, match=r"unknown model 'mlq'; did you mean 'mlp'.*this record has mlp, mine"
    ):
        record.network("mlq")
    with pytest.raises(UserError, match=r"^this record has mlp, mine; name one$"):
        record.network()


def test_a_record_with_one_network_gives_it_without_a_name():
    task = fedsift.split(fedsift.load_dataset("digits"), private=60, public=30, seed=0)
    clients = fedsift.make_clients(task.private, 3, model="mlp")
    (record,) = fedsift.federate(fedsift.fas(10), clients, task, rounds=1, cohort=3)
    outputs = record.network()(task.normalise(fedsift.load_dataset("digits").x[:5]))
    assert outputs.shape == (5, 10)
