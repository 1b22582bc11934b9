"""Votes on the wire: sent where a row does not stand for exactly one, and never believed
blindly.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.aggregators import mean
from fedsift.codecs import CODECS, SoftLabelCodec, WireError, soft_label_codec, wire
from fedsift.types import Link, SoftLabels, UserError

CLIENT, EDGE = Link(3, 10, 2), Link(3, 10, 2, votes=8.0)
F32 = CODECS["float32"]


def labels(weight=None) -> SoftLabels:
    probs = np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]], np.float32)
    return SoftLabels(np.array([1, 4, 9]), probs, weight)


def test_one_vote_per_row_costs_nothing():
    plain = F32.encode(labels(), CLIENT)
    assert F32.encode(labels(np.ones(3)), CLIENT) == plain
    assert F32.decode(plain, CLIENT).weight is None


@pytest.mark.parametrize("name", ["float32", "float16", "hard", "quantized(4)", "topk(1)"])
def test_votes_cost_four_bytes_per_row_and_come_back(name):
    codec = soft_label_codec(name)
    votes = np.array([2.0, 0.5, 8.0])
    message = codec.encode(labels(votes), EDGE)
    assert len(message) == len(codec.encode(labels(), EDGE)) + 3 * 4
    found = codec.decode(message, EDGE)
    assert found.weight is not None and found.weight.tolist() == [2.0, 0.5, 8.0]
    assert found.index.tolist() == [1, 4, 9]


@pytest.mark.parametrize("votes", [[2.0, 1, 1], [0.0, 1, 1], [-1.0, 1, 1], [np.nan, 1, 1]])
def test_a_client_cannot_claim_more_than_one_vote_per_row(votes):
    with pytest.raises(UserError, match="at most 1 votes"):
        F32.encode(labels(np.array(votes)), CLIENT)
    # an enemy writes the bytes itself: the header and the checksum are right
    honest = F32.encode(labels(np.array([0.5, 0.5, 0.5])), CLIENT)
    payload = bytearray(honest[wire.HEADER_BYTES :])
    start = payload.index(np.float32(0.5).tobytes() * 3)
    payload[start : start + 12] = np.array(votes, "<f4").tobytes()
    from fedsift.codecs.soft_labels import _implied

    implied = _implied(labels().index, CLIENT, None)
    forged = wire.seal(wire.SOFT_LABELS, F32.values.id, 3, bytes(payload), implied)
    with pytest.raises(WireError, match="a row that claims no vote, or more than 1"):
        F32.decode(forged, CLIENT)


def test_votes_that_are_cut_short_are_refused():
    from fedsift.codecs.soft_labels import _WEIGHTED, _implied

    message = F32.encode(labels(), CLIENT)
    payload = bytearray(message[wire.HEADER_BYTES :])
    payload[1:5] = (3 | _WEIGHTED).to_bytes(4, "little")
    cut = bytes(payload[: -3 * 2 * 4 + 8])  # eight bytes where three votes and all values should be
    forged = wire.seal(wire.SOFT_LABELS, 1, 3, cut, _implied(labels().index, CLIENT, None))
    with pytest.raises(WireError, match="the votes are cut short"):
        F32.decode(forged, CLIENT)


@given(st.lists(st.integers(1, 8), min_size=3, max_size=3))
def test_a_mean_of_partial_means_sent_over_the_wire_is_the_mean_of_all(counts):
    """Two edge servers send the mean of their own clients, with votes, as one upload each."""
    generator = np.random.default_rng(sum(counts))
    uploads = []
    for client in range(2 * max(counts)):
        picks = np.array([i for i, count in enumerate(counts) if client % max(counts) < count])
        probs = generator.dirichlet([1.0, 1.0], len(picks)).astype(np.float32)
        uploads.append((client, SoftLabels(picks, probs)))
    link = Link(0, 3, 2, votes=len(uploads))
    half = len(uploads) // 2
    edges = [mean(uploads[:half], 3, 2), mean(uploads[half:], 3, 2)]
    sent = [(i, F32.decode(F32.encode(edge, link), link)) for i, edge in enumerate(edges)]
    joint, direct = mean(sent, 3, 2), mean(uploads, 3, 2)
    assert joint.index.tolist() == direct.index.tolist()
    assert np.allclose(joint.probs, direct.probs, atol=1e-6)
    assert joint.weight is not None and direct.weight is not None
    assert np.array_equal(joint.weight, direct.weight)


def test_a_codec_without_a_reference_encodes_once(monkeypatch):
    """The sender does not decode its own message where nothing is kept of it."""
    monkeypatch.setattr(SoftLabelCodec, "decode", lambda *_: pytest.fail("decoded"))
    message, reference = F32.encode_stateful(labels(), CLIENT, None)
    assert reference is None and message == F32.encode(labels(), CLIENT)


@pytest.mark.parametrize("index", [[4, 1, 9], [1, 1, 9]])
def test_indexes_that_do_not_ascend_are_refused_by_the_sender(index):
    unsorted = SoftLabels(np.array(index), labels().probs)
    with pytest.raises(UserError, match="must ascend, each once; sort them"):
        F32.encode(unsorted, CLIENT)


def test_a_code_of_values_that_cannot_be_called_is_named():
    class Tiny:
        id = 33

        def pack(self, probs, known): ...

        def unpack(self, code, rows, classes): ...

        def max_bytes(self, rows, classes): ...

    with pytest.raises(UserError, match=r"codec: unpack takes \(code, rows, classes\), but it is"):
        soft_label_codec(Tiny())  # type: ignore[arg-type]
