"""Votes by expertise: what is claimed, what it costs, and that a claim is never worth more."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsift
from fedsift.algorithms import cfd, fas, fd
from fedsift.algorithms.votes import LEAST, MOST, Votes, find_expertise
from fedsift.codecs import WireError, entropy, soft_labels, wire
from fedsift.engines.sequential import SequentialEngine
from fedsift.turns import run_turn
from fedsift.types import Recipe, Round, SoftLabels, UserError
from tests.helpers.federations import a_federation, run_rounds, same_records

RECIPE = Recipe(epochs=2, batch=4, lr=0.01)
PROBS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
COUNTS = np.array([9, 16, 0])


def labels(probs=PROBS):
    return SoftLabels(np.arange(len(probs)), probs.astype(np.float32))


def received(votes, probs=PROBS, counts=COUNTS):
    """The votes that the server counts."""
    claims, message = votes.split(votes.encode(probs, counts) + b"rest", probs.shape[1], len(probs))
    assert message == b"rest"
    return votes.decode(claims, labels(probs)).weight


# --- by hand ---


def test_expertise_by_hand():
    """Shares 9/25, 16/25 and 0: roots .6, .8 and 0."""
    assert np.allclose(find_expertise(PROBS, COUNTS), [0.6, 0.8, 0.0, 0.7])


def test_votes_by_hand():
    """In 4 bits .6, .8, 0 and .7 are 12, 16, 1 and 14 sixteenths of the largest; their mean is
    43 / 4, so they count 12, 16, 1, 14 x 4 / 43."""
    weight = received(Votes("expertise", 4))
    assert weight is not None and np.allclose(weight, np.array([12, 16, 1, 14]) * 4 / 43)


def test_votes_from_a_histogram_by_hand():
    """9 and 16 samples are 144 and 255 of 255; the roots of 144/399 and 255/399 are .601 and .799;
    a class it has no samples of counts the least."""
    assert Votes("histogram").encode(PROBS, COUNTS) == bytes([144, 255, 0])
    found = np.array([np.sqrt(144 / 399), np.sqrt(255 / 399), LEAST, 0.0])
    found[3] = (found[0] + found[1]) / 2
    weight = received(Votes("histogram"))
    assert weight is not None and np.allclose(weight, found / found.mean())


def test_equal_votes_take_no_bytes():
    assert Votes().encode(PROBS, COUNTS) == b""
    assert received(Votes()) is None


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_expertise_takes_its_bits_or_less(bits):
    probs = np.random.default_rng(0).dirichlet(np.full(10, 0.3), 1000)
    code = Votes("expertise", bits).encode(probs, np.arange(10))
    assert len(code) <= 3 + 1 + 1000 * bits / 8
    assert len(Votes("histogram").encode(probs, np.arange(10))) == 10


# --- claims are not believed ---


@given(st.lists(st.integers(0, 15), min_size=1, max_size=60), st.sampled_from([4, 8]))
@settings(max_examples=100)
def test_whatever_is_claimed_no_client_gains_votes(claimed, bits):
    code = entropy.encode(np.array(claimed), 2**bits)
    votes = Votes("expertise", bits)
    claims, _ = votes.split(len(code).to_bytes(3, "little") + code, 10, 2000)
    probs = np.full((len(claimed), 10), 0.1)
    weight = votes.decode(claims, labels(probs)).weight
    assert weight is not None and (weight > 0).all() and (weight <= MOST).all()
    assert weight.sum() <= len(claimed) * (1 + 1e-9)


@given(st.binary(min_size=3, max_size=3), st.integers(1, 20))
@settings(max_examples=100)
def test_whatever_histogram_is_claimed_no_client_gains_votes(claims, rows):
    probs = np.random.default_rng(rows).dirichlet(np.ones(3), rows)
    if not any(claims):
        with pytest.raises(WireError, match="without samples"):
            Votes("histogram").decode(claims, labels(probs))
        return
    weight = Votes("histogram").decode(claims, labels(probs)).weight
    assert weight is not None and (weight > 0).all() and weight.max() <= MOST
    assert weight.sum() <= rows * (1 + 1e-6)


def test_the_same_claim_for_all_rows_is_one_vote_each():
    loud = received(Votes("expertise"), np.tile(PROBS[1], (5, 1)))
    assert loud is not None and loud.tolist() == [1.0] * 5


def an_upload(algorithm):
    """A real upload of client 2 in round 0, with its round and the server before it."""
    federation = a_federation(algorithm)
    state, r = federation.start(), federation.round(0)
    client = federation.clients[2]
    download = algorithm.prepare_downloads(state.server, [client], r)[2]
    turn = algorithm.client_turn(client, algorithm.client_memory(), download, r)
    return state.server, run_turn(turn, SequentialEngine())[1], r


@pytest.mark.parametrize("votes", ["expertise", "histogram"])
@pytest.mark.parametrize("codec", ["float16", "hard", "delta(quantized(2))"])
def test_claims_are_under_the_checksum(votes, codec):
    algorithm = fas(10, votes=votes, codec=codec, local=RECIPE, distill=RECIPE)
    server, upload, r = an_upload(algorithm)
    weight = algorithm.check_upload(server, 2, upload, r).labels.weight
    assert weight is not None and len(weight) == 10 and weight.mean() <= 1 + 1e-9
    place = 0 if votes == "histogram" else 4
    damaged = bytearray(upload)
    damaged[place] ^= 1
    with pytest.raises(WireError):
        algorithm.check_upload(server, 2, bytes(damaged), r)


@pytest.mark.parametrize("votes", ["expertise", "histogram"])
def test_hostile_uploads_are_refused_or_give_valid_votes(votes):
    """Damaged claims before a message that somebody has sealed again."""
    algorithm = fas(10, votes=votes, codec="hard", local=RECIPE, distill=RECIPE)
    server, upload, r = an_upload(algorithm)
    claims, message = algorithm.votes.split(upload, r.classes, algorithm.budget)
    index = algorithm.up.decode(message, _link(r, claims)).index
    generator, taken = np.random.default_rng(0), 0
    for _ in range(3000):
        forged = bytearray(claims)
        for _ in range(generator.integers(1, 4)):
            forged[generator.integers(len(forged))] = generator.integers(256)
        sealed = _seal(algorithm, bytes(forged), message, index, r)
        try:
            weight = algorithm.check_upload(server, 2, sealed, r).labels.weight
        except WireError:
            continue
        taken += 1
        assert weight is not None and (weight > 0).all() and weight.max() <= MOST
        assert weight.sum() <= len(weight) * (1 + 1e-9)
    assert taken > 0
    for cut in range(len(upload)):
        with pytest.raises(WireError):
            algorithm.check_upload(server, 2, upload[:cut], r)


def _link(r: Round, claims: bytes):
    return replace(r.link(2), before=claims)


def _seal(algorithm, claims, message, index, r):
    unsaid = soft_labels._implied(index, _link(r, claims), None)
    payload = message[wire.HEADER_BYTES :]
    return claims + wire.seal(wire.SOFT_LABELS, algorithm.up.values.id, 0, payload, unsaid)


# --- names ---


def test_wrong_votes_are_an_error():
    with pytest.raises(UserError, match="expertise"):
        fas(10, votes="expertese")
    for bits in (3, 9, 4.5):
        with pytest.raises(UserError, match="vote_bits must be"):
            fas(10, votes="expertise", vote_bits=bits)  # type: ignore[arg-type]


# --- whole rounds ---


@pytest.mark.parametrize("aggregator", ["mean", "era(0.1)", "certainty", "memory(era(0.1))"])
def test_votes_reach_every_aggregator(aggregator):
    equal, expert = (
        run_rounds(
            a_federation(
                fd(30, votes=votes, aggregator=aggregator, local=RECIPE, distill=RECIPE),
                alpha=0.1,
            ),
            2,
            SequentialEngine(),
        )
        for votes in ("equal", "expertise")
    )
    assert expert[0].bytes.uplink > equal[0].bytes.uplink
    one, other = (records[0].state.server.students["mlp"] for records in (equal, expert))
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_expertise_with_delta_codes_resumes_bit_for_bit():
    algorithm = cfd(20, votes="expertise", local=RECIPE, distill=RECIPE)
    federation = a_federation(algorithm)
    straight = run_rounds(federation, 4, SequentialEngine())
    again = run_rounds(federation, 4, SequentialEngine(), straight[1].state)
    assert same_records(again, straight[2:])


def test_a_cap_on_bytes_holds_with_votes():
    algorithm = fas(40, votes="expertise", codec="hard", bytes=60, local=RECIPE, distill=RECIPE)
    for record in run_rounds(a_federation(algorithm), 2, SequentialEngine()):
        assert max(record.bytes.up.values()) <= 60


@pytest.mark.slow
def test_expertise_helps_where_everything_is_uploaded():
    """Digits, alpha 0.1, standardised, all 500 public samples labelled by all, local prior and
    replay: better in each of three seeds, and by more than a point in the mean."""
    data, gaps = fedsift.load_dataset("digits"), []
    for seed in range(3):
        task = fedsift.split(data, private=800, public=500, seed=seed, normalise="standard")
        clients = fedsift.make_clients(
            task.private, 20, fedsift.Dirichlet(0.1), seed=seed, model="mlp"
        )
        scores = []
        for votes in ("equal", "expertise"):
            algorithm = fd(
                500,
                votes=votes,
                codec="quantized(4)",
                aggregator="era(0.1)",
                replay=40,
                local=Recipe(prior=1.0),
            )
            records = [*fedsift.federate(algorithm, clients, task, rounds=8, cohort=8, seed=seed)]
            scores.append(np.mean([record.accuracy for record in records[-5:]]))
        gaps.append(scores[1] - scores[0])
    assert min(gaps) > 0 and np.mean(gaps) > 0.01


def test_claims_longer_than_the_rows_allow_are_refused_before_they_are_read():
    # 10 rows of 4 bits: 5 bytes and one that says how they are packed.
    code = (7).to_bytes(3, "little") + bytes(7)
    with pytest.raises(WireError, match="votes of 7 bytes for 10 rows at most"):
        Votes("expertise", 4).split(code + b"rest", 3, 10)
    assert Votes("expertise", 4).split((6).to_bytes(3, "little") + bytes(6) + b"rest", 3, 10) == (
        (6).to_bytes(3, "little") + bytes(6),
        b"rest",
    )
