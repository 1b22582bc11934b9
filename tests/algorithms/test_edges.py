"""Edge servers: the results of a flat federation bit for bit, the bytes of both hops, refusals."""

from dataclasses import replace

import numpy as np
import pytest

import fedsift
from fedsift.aggregators.means import certainty
from fedsift.aggregators.memory import LabelMemory, LastUploads
from fedsift.algorithms import SoftLabelFD
from fedsift.algorithms.edges import Edges, MeanOverEdges, place_algorithm, read_topology
from fedsift.codecs.wire import WireError
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import FederationState
from fedsift.runs import from_bytes, to_bytes
from fedsift.types import SoftLabels, UserError
from tests.helpers import federations, toys
from tests.helpers.federations import RECIPE

ENGINE = SequentialEngine("cpu", threads=1)


def play(algorithm, topology="flat", rounds=3, **sizes):
    federation = federations.a_federation(place_algorithm(algorithm, topology), **sizes)
    return federations.run_rounds(federation, rounds, ENGINE)


def without_hops(records):
    return [
        replace(record, bytes=replace(record.bytes, edge_up=None, edge_down=None))
        for record in records
    ]


def label(value):
    return SoftLabels(np.array([0]), np.array([[value, 1 - value]], np.float32))


# --- by hand ---


def test_neighbours_share_an_edge():
    # Seven clients, three edges: k 3 // 7 is 0 0 0 1 1 2 2.
    edges = Edges(3)
    assert [edges.edge_of(client, 7) for client in range(7)] == [0, 0, 0, 1, 1, 2, 2]
    assert [edges.count_clients(edge, 7) for edge in range(3)] == [3, 2, 2]


def test_a_mean_over_edges_by_hand():
    # Clients 0 and 1 of four have .5 and 1, client 3 has 0: 1.5 / 3. Two messages, no third one.
    over = MeanOverEdges(Edges(2), replace(toys.a_round(), population=4), remembers=False)
    found = over([(0, label(0.5)), (1, label(1.0)), (3, label(0.0))], 4, 2)
    assert found.probs.tolist() == [[0.5, 0.5]] and np.asarray(found.weight).tolist() == [3.0]
    assert over.sent.keys() == {0, 1}


def test_an_edge_without_an_answer_sends_nothing():
    over = MeanOverEdges(Edges(4), replace(toys.a_round(), population=4), remembers=False)
    assert over([(2, label(0.25))], 4, 2).probs.tolist() == [[0.25, 0.75]]
    assert list(over.sent) == [2]


def test_an_edge_cannot_claim_more_votes_than_its_clients_have():
    # One client with four votes at most; its edge claims five.
    over = MeanOverEdges(Edges(4), replace(toys.a_round(), population=4), remembers=False)
    five = replace(label(0.5), weight=np.array([5.0]))
    with pytest.raises(WireError, match="more than 4 votes"):
        over([(2, five)], 4, 2)


def test_means_lose_at_an_edge_what_their_codec_does_not_send():
    # .7 and .8 at one edge, .1 at the other. Hard: 2 x (1, 0) and 1 x (0, 1), hence 2/3.
    pairs = [(0, label(0.7)), (1, label(0.8)), (3, label(0.1))]
    r = replace(toys.a_round(), population=4)
    found = {
        codec: MeanOverEdges(Edges(2, codec), r, remembers=False)(pairs, 4, 2).probs[0, 0]
        for codec in ("exact", "float32", "quantized(4)", "hard")
    }
    assert found["exact"] == sum(float(np.float32(p)) for p in (0.7, 0.8, 0.1)) / 3
    assert found["float32"] == pytest.approx(1.6 / 3, abs=2.0**-24)
    # in fifteenths .75 is 11 and .1 is 2: of 1.5 and 13.5 the first is rounded up
    assert found["quantized(4)"] == pytest.approx((2 * 11 + 2) / 45)
    assert found["hard"] == pytest.approx(2 / 3)


# --- the same federation, flat and over edges ---


@pytest.mark.parametrize(
    "aggregator", ["mean", "certainty", "era(0.1)", "enhanced-era", "memory", "memory(era(0.1))"]
)
@pytest.mark.parametrize("codec", ["float32", "delta(quantized(4))"])
def test_a_federation_over_edges_is_the_flat_one_bit_for_bit(aggregator, codec):
    algorithm = fedsift.fas(
        10, aggregator=aggregator, codec=codec, local=RECIPE, distill=RECIPE, votes="expertise"
    )
    flat, over = play(algorithm), play(algorithm, "edges(3)")
    assert federations.same_records(flat, without_hops(over))


def test_an_old_even_row_weighs_next_to_nothing_and_is_still_that_of_a_flat_federation():
    """Certainty gives an even row 10^-6 of a vote, and memory 2^-40 of that."""
    r = replace(toys.a_round(number=9), classes=10, population=4)
    even = SoftLabels(np.array([0]), np.full((1, 10), 0.1, np.float32))
    old, flat = LastUploads({0: {5: even}}), LabelMemory(certainty, None, 2.0**-40)
    over = flat.with_mean(MeanOverEdges(Edges(2), r, remembers=True))
    (first, _), (second, _) = flat.aggregate([], old, r), over.aggregate([], old, r)
    assert first.probs.tobytes() == second.probs.tobytes()


@pytest.mark.parametrize("codec", ["float32", "float16", "topk(3)", "quantized(4)", "hard"])
@pytest.mark.parametrize("votes", [1.0, 0.06])
def test_an_old_even_row_gets_through_every_codec(codec, votes):
    """Its votes are 17 ticks or one, and its labels two each or none."""
    r = replace(toys.a_round(number=9), classes=10, population=4)
    even = SoftLabels(np.array([0]), np.full((1, 10), 0.1, np.float32), np.array([votes]))
    old, flat = LastUploads({0: {5: even}}), LabelMemory(certainty, None, 2.0**-40)
    over = flat.with_mean(MeanOverEdges(Edges(2, codec), r, remembers=True))
    (first, _), (second, _) = flat.aggregate([], old, r), over.aggregate([], old, r)
    assert second.index.tolist() == first.index.tolist() == [0]
    if codec.startswith("float"):  # they lose less than a tick
        assert second.probs.tolist() == first.probs.tolist()


def test_soft_labels_down_and_a_pool_are_the_same_too():
    down = fedsift.ds_fl(10, local=RECIPE, distill=RECIPE)
    pool = fedsift.fas(10, pool=20, local=RECIPE, distill=RECIPE)
    sift = fedsift.sift(bytes=60, mode="labels", local=RECIPE, distill=RECIPE)
    for algorithm in (down, pool, sift):
        over = play(algorithm, Edges(2), rounds=2)
        assert federations.same_records(play(algorithm, rounds=2), without_hops(over))


def test_a_memory_speaks_at_edges_nobody_of_whom_answered():
    # Six clients at six edges, three in a round: from the second round on more edges send.
    algorithm = fedsift.fas(10, aggregator="memory", local=RECIPE, distill=RECIPE)
    records = play(algorithm, "edges(6)", rounds=2)
    first, second = (record.bytes for record in records)
    assert first.edge_up.keys() == first.up.keys()
    assert second.edge_up.keys() == first.up.keys() | second.up.keys() > second.up.keys()


def test_the_ledger_has_both_hops():
    # Whole weights go down: the same message to every client, and once to each edge.
    algorithm = fedsift.fd(10, local=RECIPE, distill=RECIPE)
    (record,) = play(algorithm, "edges(2)", rounds=1)
    sent = record.bytes
    edges = {id: 0 if id < 3 else 1 for id in sent.up}
    assert sent.edge_down == dict.fromkeys(sorted(set(edges.values())), sent.broadcast)
    assert sent.edge_up.keys() == set(edges.values())
    # A header, 8 + k bytes for the rows (k: an index code), 2 + 2 for the widths, and numbers.
    assert all(size > 13 + 12 + 10 * 3 for size in sent.edge_up.values())


def test_a_client_whose_upload_is_refused_is_missing_at_its_edge(monkeypatch):
    algorithm = place_algorithm(fedsift.fas(10, local=RECIPE, distill=RECIPE), "edges(3)")
    federation = federations.a_federation(algorithm)
    bad, check = int(min(federation.cohort_ids(0))), SoftLabelFD.check_upload

    def refuse(self, server, client, upload, r):
        if client == bad:
            raise WireError("damaged")
        return check(self, server, client, upload, r)

    monkeypatch.setattr(SoftLabelFD, "check_upload", refuse)
    (record,) = federations.run_rounds(federation, 1, ENGINE)
    assert record.bytes.missing.keys() == {bad}
    assert record.bytes.edge_up.keys() == {client * 3 // 6 for client in record.bytes.up}


def test_a_run_over_edges_resumes_bit_for_bit():
    algorithm = fedsift.fas(10, aggregator="memory", local=RECIPE, distill=RECIPE)
    federation = federations.a_federation(place_algorithm(algorithm, "edges(3)"))
    whole = federations.run_rounds(federation, 3, ENGINE)
    state = from_bytes(to_bytes(whole[0].state))
    assert isinstance(state, FederationState) and state.server.edge_up == {}
    rest = federations.run_rounds(federation, 3, ENGINE, state=whole[0].state)
    assert federations.same_records(whole[1:], rest)
    assert [one.bytes for one in rest] == [one.bytes for one in whole[1:]]


# --- what does not go together ---


@pytest.mark.parametrize(
    "aggregator",
    [
        *("median", "trimmed-mean", "geometric-median", "cronus", "filter", "expguard", "trust"),
        *("era(0.1, inner=median)", "memory(median)"),
    ],
)
def test_rules_that_need_every_vote_say_so(aggregator):
    algorithm = fedsift.fas(10, aggregator=aggregator)
    with pytest.raises(UserError, match="needs every vote"):
        federations.a_federation(place_algorithm(algorithm, "edges(2)")).start()


@pytest.mark.parametrize("algorithm", [fedsift.fedavg(), fedsift.gossip(10), fedsift.fd_jeong()])
def test_algorithms_without_labels_on_public_samples_are_refused(algorithm):
    with pytest.raises(UserError, match="topology=flat"):
        place_algorithm(algorithm, "edges(2)")


def test_sift_with_weights_is_refused():
    sift = place_algorithm(fedsift.sift(bytes=100_000), "edges(2)")
    with pytest.raises(UserError, match="mode=labels"):
        federations.a_federation(sift).start()


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        ("ring", "flat or edges"),
        ("edges(0)", "at least 1"),
        ("edges(2, delta(hard))", "delta does not fit"),
        ("edges(2, loud)", "unknown codec"),
    ],
)
def test_topologies_that_cannot_be(topology, why):
    with pytest.raises(UserError, match=why):
        read_topology(topology)


def test_more_edges_than_clients_are_refused():
    with pytest.raises(UserError, match="7 edge servers for 6 clients"):
        federations.a_federation(place_algorithm(fedsift.fas(10), "edges(7)")).start()


def test_flat_is_the_algorithm_itself():
    algorithm = fedsift.fedavg()
    assert read_topology("flat") is None
    assert place_algorithm(algorithm, "flat") is algorithm
