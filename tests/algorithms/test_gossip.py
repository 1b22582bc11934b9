"""Decentralised distillation: estimates that keep the network's mean, whatever the graph."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift import evaluation
from fedsift.algorithms import fedavg
from fedsift.algorithms.gossip import GossipMemory, gossip, on_simplex
from fedsift.codecs import WireError
from fedsift.codecs.estimates import ESTIMATE_CODECS
from fedsift.engines.sequential import SequentialEngine
from fedsift.ledger import RoundBytes
from fedsift.models import initial_state
from fedsift.types import Fit, Predict, Recipe, UserError
from tests.helpers import toys
from tests.helpers.federations import RECIPE, a_federation, equal, run_rounds, same_when_stored
from tests.helpers.toys import weights
from tests.helpers.turns import finish

LOCAL, DISTILL = Recipe(epochs=2, batch=2), Recipe(epochs=3, batch=2)
E32 = ESTIMATE_CODECS["float32"]
GRAPHS = [
    "ring",
    "grid",
    "complete",
    "regular(3)",
    "erdos-renyi(0.5)",
    "edges(0-1 1-2 2-3 3-4 4-5)",
]
ENGINE = SequentialEngine("cpu", threads=2)


def a_network(graph="ring", codec="float32", **options):
    system = gossip(10, graph=graph, codec=codec, local=RECIPE, distill=RECIPE)
    return a_federation(system, cohort=6, **options)


def three_on_a_path():
    """0 - 1 - 2: the ends keep 2/3 and take 1/3 of the middle, the middle takes a third of each."""
    return gossip(4, graph="edges(0-1 1-2)", local=LOCAL, distill=DISTILL)


def a_round(number):
    return replace(toys.a_round(number), population=3)


def table(a, b):
    return np.array([[a, b]] * 4)


def remembered():
    """A client whose estimate is its own soft labels."""
    return GossipMemory(weights(3), table(0.9, 0.1), table(0.9, 0.1))


# --- a turn by hand ---


def test_in_the_first_round_a_client_trains_and_sends_its_own_soft_labels():
    system, r, client = three_on_a_path(), a_round(0), toys.client(0)
    assert system.prepare_downloads(system.start(r), [toys.client(i) for i in range(3)], r) == {
        0: b"",
        1: b"",
        2: b"",
    }
    turn = system.client_turn(client, GossipMemory(), b"", r)
    fit = next(turn)
    assert isinstance(fit, Fit) and fit.data is client.data and fit.recipe == LOCAL
    assert equal(fit.state, initial_state(client.model, r.seed))
    predict = turn.send(weights(2))
    assert isinstance(predict, Predict) and predict.samples.rows.tolist() == [0, 1, 2, 3]
    memory, message = finish(turn, np.array([[0.0, np.log(3)]] * 4, np.float32))
    assert np.allclose(E32.decode(message, 0, 4, 2), table(0.25, 0.75))
    assert np.allclose(memory.own, table(0.25, 0.75)) and equal(memory.model, weights(2))


def test_a_client_mixes_learns_and_accounts_for_what_it_learnt():
    """u_0 = s_0 = (.9, .1), u_1 = (.3, .7): the mixture is 2/3 (.9, .1) + 1/3 (.3, .7) = (.7, .3).
    Having learnt it predicts (.5, .5): the new estimate is (.7, .3) + (.5, .5) - (.9, .1) = (.3,
    .7)."""
    system, r, client = three_on_a_path(), a_round(2), toys.client(0)
    turn = system.client_turn(client, remembered(), E32.encode(table(0.3, 0.7), 1), r)
    distil = next(turn)
    assert torch.allclose(distil.data.targets, torch.tensor([[0.7, 0.3]] * 4), atol=1e-6)
    assert distil.recipe == DISTILL and distil.epoch == 3 and equal(distil.state, weights(3))
    local = turn.send(weights(4))
    assert local.data is client.data and local.epoch == 4 and equal(local.state, weights(4))
    turn.send(weights(5))
    memory, message = finish(turn, np.zeros((4, 2), np.float32))
    assert np.allclose(memory.estimate, table(0.3, 0.7), atol=1e-6)
    assert np.allclose(memory.own, table(0.5, 0.5))
    # what it keeps is what the others have
    assert np.array_equal(E32.decode(message, 2, 4, 2), memory.estimate)


def test_each_client_downloads_the_messages_of_its_neighbours_in_order():
    system, r = three_on_a_path(), a_round(0)
    uploads = [(0, b"zero"), (1, b"one!"), (2, b"two.")]
    server = finish(system.server_turn(system.start(r), uploads, r), None)
    clients = [toys.client(i) for i in range(3)]
    assert system.prepare_downloads(server, clients, a_round(1)) == {
        0: b"one!",
        1: b"zerotwo.",
        2: b"one!",
    }
    assert server.students == {}


def test_estimates_outside_the_simplex_are_cut_and_rescaled_to_learn_from():
    rows, expected = ([-0.1, 1.1], [0.2, 0.6], [0.7, 0.3]), ([0.0, 1.0], [0.25, 0.75], [0.7, 0.3])
    assert np.allclose(on_simplex(np.array(rows)), np.array(expected), atol=2e-6)
    assert (on_simplex(np.array([[-5.0, -5.0]])) == 0.5).all()


# --- what holds in every round ---


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_mean_of_the_estimates_is_the_mean_of_the_soft_labels_after_every_round(graph):
    moved = False
    for record in run_rounds(a_network(graph), 4, ENGINE):
        memories = record.state.memories.values()
        estimates, own = (
            np.array([getattr(memory, what) for memory in memories]) for what in ("estimate", "own")
        )
        assert np.allclose(estimates.mean(0), own.mean(0), atol=1e-5)
        moved |= not np.allclose(estimates, own, atol=1e-2)
    assert moved  # the estimates are not just everyone's own


def test_float16_keeps_the_mean_up_to_its_rounding():
    record = run_rounds(a_network(codec="float16"), 4, ENGINE)[-1]
    estimates, own = (
        np.mean([getattr(m, what) for m in record.state.memories.values()], 0)
        for what in ("estimate", "own")
    )
    assert np.allclose(estimates, own, atol=4 * 2**-10)


def mixed_targets(federation, state):
    """What each client is about to learn."""
    r, clients = federation.round(state.round), list(federation.clients)
    downloads = federation.algorithm.prepare_downloads(state.server, clients, r)
    turns = [
        federation.algorithm.client_turn(c, state.memories[c.id], downloads[c.id], r)
        for c in clients
    ]
    return torch.stack([next(turn).data.targets for turn in turns])


@pytest.mark.parametrize(("graph", "agree"), [("complete", True), ("ring", False)])
def test_on_the_complete_graph_all_learn_the_same_in_one_step(graph, agree):
    federation = a_network(graph)
    state = run_rounds(federation, 1, ENGINE)[0].state
    mixtures = mixed_targets(federation, state)
    assert torch.allclose(mixtures, mixtures[:1].expand_as(mixtures), atol=1e-5) == agree
    mean = np.mean([memory.own for memory in state.memories.values()], 0)
    assert np.allclose(mixtures.mean(0).numpy(), mean, atol=1e-5)


@pytest.mark.parametrize("graph", ["ring", "complete", "edges(0-1 1-2)"])
def test_while_nobody_changes_all_estimates_go_to_the_mean(graph):
    """Models that always answer the same: client i sends (p_i, 1 - p_i)."""
    system, logits = (
        gossip(4, graph=graph),
        {i: np.array([[z, 0.0]] * 4, np.float32) for i, z in enumerate((3, 0, -1))},
    )
    memories = {id: GossipMemory() for id in range(3)}
    server = system.start(a_round(0))
    for number in range(60):
        r, uploads = a_round(number), {}
        downloads = system.prepare_downloads(server, [toys.client(i) for i in range(3)], r)
        for id in range(3):
            turn = system.client_turn(toys.client(id), memories[id], downloads[id], r)
            work = next(turn)
            while isinstance(work, Fit):
                work = turn.send(weights(0))
            memories[id], uploads[id] = finish(turn, logits[id])
        server = finish(toys.serve(system, server, uploads, r), None)
    own: list[Any] = [memory.own for memory in memories.values()]
    estimates: list[Any] = [memory.estimate for memory in memories.values()]
    target = np.mean(own, 0)
    assert all(np.allclose(estimate, target, atol=1e-5) for estimate in estimates)


def test_all_clients_estimate_the_same_samples_in_every_round():
    federation = a_network()
    rows = [federation.algorithm._subset(federation.round(number)) for number in (0, 1, 5)]
    assert all(np.array_equal(rows[0], other) for other in rows) and len(rows[0]) == 10


def test_going_on_from_a_record_equals_going_straight_through():
    federation = a_network("regular(3)")
    straight = run_rounds(federation, 4, ENGINE)
    assert same_when_stored(
        straight[2:], run_rounds(federation, 4, ENGINE, state=straight[1].state)
    )


def test_the_graph_is_drawn_from_the_seed_and_stays():
    federations = [a_network("erdos-renyi(0.4)", seed=seed) for seed in range(4)]
    drawn = [
        [sorted(run_rounds(f, 1, ENGINE)[0].bytes.edges) for _ in range(2)] for f in federations
    ]
    assert (
        all(first == second for first, second in drawn)
        and len({str(first) for first, _ in drawn}) > 1
    )
    edges = [set(record.bytes.edges) for record in run_rounds(federations[0], 3, ENGINE)]
    assert edges[0] == edges[1] == edges[2]


# --- bytes ---


def test_every_message_is_counted_once_for_each_neighbour_by_hand():
    """On the path 0 - 1 - 2 messages of 5, 7 and 9 bytes: 1 sends two of 7, and gets 5 + 9."""
    row = RoundBytes.count(
        4, {0: b"x" * 5, 1: b"x" * 7, 2: b"x" * 9}, {}, {0: [1], 1: [0, 2], 2: [1]}
    )
    assert row.edges == {"0>1": 5, "1>0": 7, "1>2": 7, "2>1": 9}
    assert row.up == {0: 5, 1: 14, 2: 9} and row.down == {0: 7, 1: 14, 2: 7}
    assert row.broadcast == 21 and row.uplink == row.downlink == 28
    assert RoundBytes.from_json(json.loads(json.dumps(row.to_json()))) == row


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_client_sends_a_message_to_each_neighbour(graph):
    """A message: 13 bytes of header and 10 x 3 float32."""
    federation = a_network(graph)
    for record in run_rounds(federation, 2, ENGINE):
        degree = {i: len(federation.algorithm.receivers(i, federation.round(0))) for i in range(6)}
        assert (
            record.bytes.up == record.bytes.down == {i: d * (13 + 120) for i, d in degree.items()}
        )
        assert record.bytes.edges is not None and set(record.bytes.edges.values()) == {133}
        assert len(record.bytes.edges) == sum(degree.values())
        assert RoundBytes.from_json(json.loads(json.dumps(record.bytes.to_json()))) == record.bytes


# --- disagreement ---


def test_disagreement_by_hand():
    """Three models, two samples: classes 0 0 1 on the first (one of three pairs agrees), 1 1 1 on
    the second (all do): 1 - (1/3 + 1) / 2 = 1/3."""
    answers = [np.array([0, 1]), np.array([0, 1]), np.array([1, 1])]
    assert evaluation.disagreement(answers, 2) == pytest.approx(1 / 3)


def test_one_model_or_none_does_not_disagree():
    assert evaluation.disagreement([np.array([0, 1])], 2) is None
    assert evaluation.disagreement([], 2) is None
    assert run_rounds(a_federation(fedavg(local=RECIPE)), 1, ENGINE)[0].disagreement is None


@given(st.integers(2, 5), st.integers(1, 6), st.integers(0, 50))
def test_disagreement_is_the_share_of_pairs_that_differ(models, samples, seed):
    answers = list(np.random.default_rng(seed).integers(0, 3, (models, samples)))
    pairs = [np.mean(answers[i] != answers[j]) for i in range(models) for j in range(i)]
    assert evaluation.disagreement(answers, 3) == pytest.approx(np.mean(pairs))


def test_the_record_of_a_network_reports_every_client_and_their_disagreement():
    record = run_rounds(a_network(), 1, ENGINE)[0]
    assert list(record.accuracies) == [f"client {i}" for i in range(6)]
    assert record.disagreement is not None and 0 <= record.disagreement <= 1


# --- errors and bad messages ---


def test_everyone_takes_part():
    federation = a_federation(gossip(10, local=RECIPE, distill=RECIPE), cohort=3)
    with pytest.raises(UserError, match="all 6 clients take part; set cohort=6"):
        run_rounds(federation, 1, ENGINE)


@pytest.mark.parametrize("budget", [0, -1, 5])
def test_a_budget_must_fit_the_public_set(budget):
    with pytest.raises(
        UserError, match=rf"budget {budget} does not fit the public set \(4 samples\)"
    ):
        gossip(budget).start(a_round(0))


def test_a_graph_that_does_not_fit_is_refused_before_anything_is_trained():
    with pytest.raises(UserError, match="not connected"):
        gossip(4, graph="edges(0-1)").start(a_round(0))
    with pytest.raises(UserError, match="of degree 4"):
        gossip(4, graph="regular(4)").start(a_round(0))


def test_only_codecs_for_real_numbers_are_known_here():
    with pytest.raises(UserError, match="gossip: float32 or float16"):
        gossip(4, codec="hard")


@pytest.mark.parametrize(
    "download", [b"", E32.encode(table(0.5, 0.5), 1)[:-1], E32.encode(table(0.5, 0.5), 1) * 2]
)
def test_mail_of_the_wrong_size_is_refused(download):
    with pytest.raises(WireError, match="bytes from 1 neighbours"):
        next(three_on_a_path().client_turn(toys.client(0), remembered(), download, a_round(2)))


def test_a_message_of_another_round_is_refused():
    system, old = three_on_a_path(), E32.encode(table(0.5, 0.5), 0)
    with pytest.raises(WireError, match="round 0 where round 1 was expected"):
        next(system.client_turn(toys.client(0), remembered(), old, a_round(2)))
    with pytest.raises(WireError, match="round 0 where round 1 was expected"):
        system.check_upload(system.start(a_round(0)), 0, old, a_round(1))
