"""Aggregators that know their clients and remember them from round to round."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift.aggregators import (
    Era,
    LabelMemory,
    forget_client,
    mean,
    run_aggregator,
)
from fedsift.aggregators.memory import LastUploads
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


# --- label memory ---


def test_a_vote_fades_by_its_age_by_hand():
    """Round 0: client 3 says 1, client 5 says 0. Round 1: client 5 says 0.5. With decay 0.5 the
    mean is (0.5 x 1 + 1 x 0.5) / 1.5 = 2/3: the old vote of client 5 is replaced, not added.
    """
    rule = LabelMemory("mean", rounds=2, decay=0.5)
    _, memory = run_aggregator(rule, [(3, one(1.0)), (5, one(0.0))], {}, toys.a_round(0))
    labels, memory = run_aggregator(rule, [(5, one(0.5))], memory, toys.a_round(1))
    assert labels.weight is not None and labels.weight.tolist() == [1.5]
    assert labels.probs[0, 0] == pytest.approx(2 / 3)
    labels, memory = run_aggregator(rule, [(7, one(0.0))], memory, toys.a_round(2))
    assert labels.probs[0, 0] == pytest.approx(0.25 / 1.5)  # client 3 is too old
    assert memory["by_client"].keys() == {"5", "7"}
    labels, _ = run_aggregator(rule, [], forget_client(rule, memory, 7), toys.a_round(2))
    assert labels.probs.tolist() == [[0.5, 0.5]]


def test_several_uploads_of_a_client_count_if_asked():
    """Client 3 says 1.0, then 0.0, then 0.5; a vote halves every round."""
    every, two = LabelMemory(decay=0.5, last=None), LabelMemory(decay=0.5, last=2)
    said: dict[LabelMemory, Any] = {rule: {} for rule in (every, two)}
    for number, value in enumerate((1.0, 0.0)):
        for rule, memory in said.items():
            labels, said[rule] = run_aggregator(
                rule, [(3, one(value))], memory, toys.a_round(number)
            )
            assert labels.probs[0, 0] == pytest.approx((1.0, 1 / 3)[number])
    labels, _ = run_aggregator(every, [(3, one(0.5))], said[every], toys.a_round(2))
    assert labels.weight is not None and labels.weight.tolist() == [1.75]
    assert labels.probs[0, 0] == pytest.approx(0.75 / 1.75)
    labels, memory = run_aggregator(two, [(3, one(0.5))], said[two], toys.a_round(2))
    assert labels.probs[0, 0] == pytest.approx(1 / 3)
    assert memory["by_client"]["3"].keys() == {"1", "2"}
    assert forget_client(two, memory, 3) == {}


def test_without_fading_memory_for_ever_is_the_rule_over_all_last_uploads():
    rule = LabelMemory("era(0.5)", rounds=None, decay=1)
    memory: Any = {}
    r = toys.a_round()
    for number, (client, value) in enumerate(((3, 0.2), (5, 0.9), (3, 0.4), (8, 0.1))):
        labels, memory = run_aggregator(
            rule, [(client, one(value))], memory, toys.a_round(10 * number)
        )
    expected = Era(0.5)([(3, one(0.4)), (5, one(0.9)), (8, one(0.1))], len(r.public), r.classes)
    assert labels.probs.tolist() == expected.probs.tolist()


def test_votes_that_an_upload_carries_fade_too():
    rule = LabelMemory("mean", rounds=3, decay=0.5)
    votes = SoftLabels(np.array([0]), np.array([[1.0, 0.0]]), np.array([0.5]))
    _, memory = run_aggregator(rule, [(3, votes)], {}, toys.a_round(0))
    labels, _ = run_aggregator(rule, [(5, one(0.0))], memory, toys.a_round(1))
    assert labels.weight is not None and labels.weight.tolist() == [1.25]
    assert labels.probs[0, 0] == pytest.approx(0.25 / 1.25)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory(rounds=0)", "at least 1 round"),
        ("memory(decay=0)", "a decay above 0"),
        ("memory(memory(era))", "without a memory of its own"),
        ("memory(era(0))", "temperature above 0"),
    ],
)
def test_a_memory_refuses_what_makes_no_sense(text, said):
    with pytest.raises(UserError, match=said):
        fedsift.fas(4, aggregator=text)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 2},
        {"round": -1},
        {"index": np.array([0, 4])},
        {"index": np.array([-1, 0])},
        {"index": np.array([0.0, 1.0])},
        {"probs": np.full((2, 3), 1 / 3)},
        {"probs": np.full((2, 2), np.nan)},
        {"probs": np.array([[2.0, -1.0], [0.5, 0.5]])},
        {"weight": np.ones(3)},
        {"weight": np.array([1.0, np.inf])},
        {"weight": np.array([1.0, -1.0])},
    ],
)
def test_a_damaged_memory_is_refused_in_words(change):
    """Of a run folder: two of four samples, two classes, kept in round 1 and read in round 2."""
    good = {"index": np.array([0, 3]), "probs": np.full((2, 2), 0.5), "weight": np.ones(2)}
    r, memory = toys.a_round(2), LabelMemory()

    def kept(round=1, **changed):
        return LastUploads({7: {round: SoftLabels(**(good | changed))}})

    assert len(memory.aggregate([], kept(), r)[0]) == 2
    with pytest.raises(UserError, match="the memory of client 7's upload does not fit this run"):
        memory.aggregate([], kept(**change), r)
