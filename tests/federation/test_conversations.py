"""What a listener keeps of a round."""

import numpy as np

from fedsift.codecs.parts import Parts
from fedsift.federation.conversations import (
    CLIENTS,
    LISTED,
    PICKS,
    WATCHED,
    Conversation,
    Listener,
    count_parts,
    watched_samples,
)
from fedsift.ledger import RoundBytes
from fedsift.types import Server, SoftLabels
from tests.helpers import toys


def soft(rows: dict[int, list[float]]) -> SoftLabels:
    return SoftLabels(np.array(list(rows)), np.array(list(rows.values())))


def hear(listener: Listener, server: Server | None = None) -> Conversation:
    """The end of a round of a server without students: it asks for no work."""
    turn = listener.finish_turn(server or Server({}), [], Conversation(Parts(), Parts()))
    try:
        next(turn)
    except StopIteration as end:
        found: Conversation = end.value
        return found
    raise AssertionError("it asked for work")


def test_a_round_by_hand():
    # Six public samples. Client 2 labels 0 and 1, client 5 labels 1 and 3: 1 is contested, and
    # nobody labels 2, 4 and 5.
    r = toys.a_round(public=np.zeros((6, 2)))
    listener = Listener(r, [2, 5])
    listener.add(2, soft({0: [0.9, 0.1], 1: [0.8, 0.2]}))
    listener.add(5, soft({1: [0.3, 0.7], 3: [0.6, 0.4]}))
    taught = soft({0: [0.9, 0.1], 1: [0.55, 0.45], 3: [0.6, 0.4], 4: [0.5, 0.5]})
    told = hear(listener, Server({}, distilled=taught))
    assert told.rows == {2: 2, 5: 2}
    assert told.said[5].index.tolist() == [1, 3]
    assert (told.labelled, told.contested) == (3, 1)
    assert (told.unlabelled, told.disputed) == ((2, 4, 5), (1,))
    assert told.aggregate is not None and told.aggregate.index.tolist() == [0, 1, 3]
    assert told.student is None


def test_what_is_read_again_is_heard_once():
    listener = Listener(toys.a_round(public=np.zeros((6, 2))), [2, 5])
    listener.add(2, soft({0: [0.9, 0.1]}))
    listener.clear()
    listener.add(2, soft({0: [0.9, 0.1]}))
    assert (hear(listener).labelled, hear(listener).contested) == (1, 0)


def test_nothing_is_kept_without_soft_labels():
    told = hear(Listener(toys.a_round(public=np.zeros((6, 2))), [2]))
    assert (told.rows, told.said, told.labelled, told.unlabelled) == ({}, {}, 0, ())


def test_little_is_kept_of_much():
    r = toys.a_round(public=np.zeros((3000, 2)))
    listener, everything = Listener(r, range(100)), np.full((3000, 2), 0.5)
    everything[:, 0] = 0.6
    for client in range(100):
        probs = everything if client else everything[:, ::-1]
        listener.add(client, SoftLabels(np.arange(3000), probs))
    told, watched = hear(listener), set(watched_samples(r.seed, 3000).tolist())
    assert len(watched) == WATCHED and len(told.said) == CLIENTS
    assert {len(labels) for labels in told.said.values()} == {PICKS}
    assert set(told.rows.values()) == {3000}
    assert all(set(labels.index.tolist()) <= watched for labels in told.said.values())
    assert (told.labelled, told.contested, len(told.disputed)) == (3000, 3000, LISTED)
    assert told.unlabelled == ()


def test_the_parts_of_a_round_are_the_bytes_of_the_ledger():
    uploads, downloads = {0: b"abc", 1: b"de"}, {0: b"xyz", 1: b"xyz"}
    sent = RoundBytes.count(0, uploads, downloads)
    told = count_parts(0, uploads, downloads, sent)
    assert (told.up.values, told.down.values) == (5, 6)
    uploads |= {2: b"f"}
    between = RoundBytes.count(0, uploads, {}, {0: [1, 2], 1: [0], 2: [0]})
    told = count_parts(0, uploads, {}, between)  # 3 bytes to two neighbours, 2 and 1 to one
    assert (told.up.values, told.down.values) == (9, 9) == (between.uplink, between.downlink)
