"""Aggregators that know their clients and remember them from round to round."""

from dataclasses import dataclass, field

import numpy as np
import pytest

import fedsift
from fedsift.aggregators import Era, forget_client, mean, run_aggregator
from fedsift.algorithms.soft_labels import ServerMemory
from fedsift.checkpoints import from_bytes, restore_state, to_bytes
from fedsift.federation import Federation
from fedsift.types import SoftLabels, UserError
from tests.helpers import toys

RECIPE = fedsift.Recipe(epochs=1, batch=16)


@dataclass(frozen=True, eq=False)
class Seen:
    rounds: dict[int, int] = field(default_factory=dict)  # how often each client took part


class Loyalty:
    """A vote counts as often as its client has taken part."""

    memory_type = Seen

    def aggregate(self, uploads, memory, r):
        rounds = dict(memory.rounds)

        def weighted():
            for client, labels in uploads:
                rounds[client] = rounds.get(client, 0) + 1
                votes = np.full(len(labels), float(rounds[client]))
                yield client, SoftLabels(labels.index, labels.probs, votes)

        return mean(weighted(), len(r.public), r.classes), Seen(rounds)

    def forget(self, memory, client):
        return Seen({id: count for id, count in memory.rounds.items() if id != client})


def one(value):
    return SoftLabels(np.array([0]), np.array([[value, 1 - value]]))


def test_votes_follow_the_clients_history_by_hand():
    """Client 3 is there twice: (0.5 + 2 x 0.8) / 3 = 0.7 in round 1."""
    r, rule = toys.a_round(), Loyalty()
    _, memory = run_aggregator(rule, [(3, one(0.2))], {}, r)
    labels, memory = run_aggregator(rule, [(5, one(0.5)), (3, one(0.8))], memory, r)
    assert labels.weight is not None and labels.weight.tolist() == [3.0]
    assert labels.probs[0, 0] == pytest.approx(0.7)
    assert {key: value.item() for key, value in memory["rounds"].items()} == {"3": 2, "5": 1}
    assert forget_client(rule, memory, 3)["rounds"].keys() == {"5"}
    assert forget_client(mean, {}, 3) == {}


class Plain:
    """A memory without a dataclass: keys are strings from the second round on."""

    def aggregate(self, uploads, memory, r):
        pairs = list(uploads)
        count = int(memory.get("count", 0)) + len(pairs)
        last = {client: labels.probs for client, labels in pairs}
        return mean(pairs, len(r.public), r.classes), {"count": count, "last": last}

    def forget(self, memory, client):
        return memory


def test_a_plain_memory_is_the_same_with_and_without_a_resume():
    r = toys.a_round()
    _, memory = run_aggregator(Plain(), [(3, one(0.2))], {}, r)
    assert memory["last"].keys() == {"3"} and memory["count"].item() == 1
    _, memory = run_aggregator(Plain(), [(3, one(0.2)), (4, one(0.1))], memory, r)
    assert memory["count"].item() == 3


def a_federation(aggregator):
    task = fedsift.split(fedsift.load_dataset("digits"), private=80, public=30, test=50)
    clients = fedsift.make_clients(task.private, 4, model="mlp")
    algorithm = fedsift.fas(10, aggregator=aggregator, local=RECIPE, distill=RECIPE)
    return Federation(algorithm, clients, task, cohort=3, seed=0)


def rounds(federation, count, state=None):
    return list(
        fedsift.federate(
            federation.algorithm,
            federation.clients,
            federation.task,
            rounds=count,
            cohort=3,
            state=state,
        )
    )


@pytest.mark.parametrize("aggregator", [Loyalty(), Plain()])
def test_the_memory_survives_a_resume_bit_for_bit(aggregator):
    federation = a_federation(aggregator)
    straight = rounds(federation, 3)
    stored = from_bytes(to_bytes(straight[0].state))
    resumed = rounds(federation, 3, restore_state(stored, federation))
    assert to_bytes(resumed[-1].state) == to_bytes(straight[-1].state)
    seen = straight[-1].state.server.memory.aggregator
    taken = [client for n in range(3) for client in federation.cohort_ids(n)]
    if isinstance(aggregator, Loyalty):
        assert {int(id): int(n) for id, n in seen["rounds"].items()} == {
            client: taken.count(client) for client in set(taken)
        }
    else:
        assert int(seen["count"]) == 9


def test_a_client_that_starts_over_is_forgotten_by_the_aggregator_too():
    federation = a_federation(Loyalty())
    server = rounds(federation, 1)[0].state.server
    client = int(federation.cohort_ids(0)[0])
    assert isinstance(server.memory, ServerMemory)
    forgotten = federation.algorithm.forget(server, client)
    assert str(client) in server.memory.aggregator["rounds"]
    assert str(client) not in forgotten.memory.aggregator["rounds"]


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (np.zeros((4, 2)), "returned ndarray; it must return a fedsift.SoftLabels"),
        (None, "returned NoneType"),
        (SoftLabels(np.array([0]), np.array([[np.nan, 1]])), "not finite or below 0"),
        (SoftLabels(np.array([0]), np.array([[-0.5, 1.5]])), "not finite or below 0"),
        (SoftLabels(np.array([0, 1]), np.ones((1, 2))), r"shape \(1, 2\) for 2 samples"),
        (SoftLabels(np.array([0]), np.ones((1, 3))), r"must return \(1, 2\)"),
        (SoftLabels(np.array([1, 0]), np.ones((2, 2))), "not ascending, distinct and below 4"),
        (SoftLabels(np.array([4]), np.ones((1, 2))), "below 4"),
    ],
)
def test_what_an_aggregator_returns_is_checked(result, complaint):
    with pytest.raises(UserError, match=complaint):
        run_aggregator(lambda *_: result, [], {}, toys.a_round())


def test_a_stateful_aggregator_that_returns_no_pair_is_told_so():
    class Half(Plain):
        def aggregate(self, uploads, memory, r):
            return one(0.5)

    with pytest.raises(UserError, match=r"must return \(SoftLabels, memory\)"):
        run_aggregator(Half(), [], {}, toys.a_round())


def test_a_rule_without_state_leaves_the_memory_alone():
    labels, memory = run_aggregator(Era(0.5), [(0, one(0.9))], {"a": np.ones(1)}, toys.a_round())
    assert labels.probs[0, 0] == pytest.approx(1 / (1 + np.exp(-1.6)))
    assert memory == {"a": np.ones(1)}
