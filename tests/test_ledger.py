"""Bytes are counted, not estimated: by client, by direction, and once per distinct message for a
broadcast.
"""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.ledger import RoundBytes, Totals, download_sizes, per_client, total, upload_sizes

# Clients 0 and 1 hear the same 100 bytes, client 2 other 70 bytes: 270 bytes down one by one, 170
# bytes as broadcasts.
SAID = {0: bytes(10), 1: bytes(20), 2: bytes(30)}
HEARD = {0: b"a" * 100, 1: b"a" * 100, 2: b"b" * 70}
FIRST = RoundBytes.count(0, SAID, HEARD)
# Only client 1 answers; clients 1 and 2 hear different messages of the same length, 5 bytes each.
SECOND = RoundBytes.count(1, {1: bytes(7)}, {1: b"aaaaa", 2: b"bbbbb"})


def test_a_round_of_three_clients_by_hand():
    assert FIRST.up == {0: 10, 1: 20, 2: 30}
    assert FIRST.down == {0: 100, 1: 100, 2: 70}
    assert (FIRST.round, FIRST.broadcast) == (0, 170)
    assert FIRST.uplink == 60
    assert FIRST.downlink == 270


def test_different_messages_of_one_length_are_two_broadcasts():
    assert SECOND.broadcast == 10


def test_a_round_in_which_nothing_is_announced_costs_nothing_down():
    quiet = RoundBytes.count(0, SAID, {0: b"", 1: b"", 2: b""})
    assert (quiet.uplink, quiet.downlink, quiet.broadcast) == (60, 0, 0)


def test_two_edge_servers_by_hand():
    # Edge 0 has clients 0 and 1, which hear the same 100 bytes; edge 1 has client 2.
    both = FIRST.over_edges({0: 44, 1: 33}, HEARD, {0: 0, 1: 0, 2: 1})
    assert (both.edge_up, both.edge_down) == ({0: 44, 1: 33}, {0: 100, 1: 70})
    assert total([both, both]) == Totals(120, 540, 340, edge_up=154, edge_down=340)
    assert RoundBytes.from_json(json.loads(json.dumps(both.to_json()))) == both
    assert both.without({2: "gone"}).edge_up == both.edge_up
    assert "edge_up" not in FIRST.to_json()


def test_totals_by_hand():
    assert total([FIRST, SECOND]) == Totals(uplink=60 + 7, downlink=270 + 10, broadcast=170 + 10)
    assert total([]) == Totals(0, 0, 0)


def test_sizes_of_single_messages_by_hand():
    assert upload_sizes([FIRST, SECOND]) == [10, 20, 30, 7]
    assert download_sizes([FIRST, SECOND]) == [100, 100, 70, 5, 5]


def test_per_client_by_hand():
    # Client 1: 20 + 7 up, 100 + 5 down. Client 2 hears in the second round but says nothing.
    assert per_client([FIRST, SECOND]) == {0: (10, 100), 1: (27, 105), 2: (30, 75)}
    assert per_client([]) == {}


def test_clients_are_listed_in_order_of_their_ids():
    late = RoundBytes.count(1, {10: b"x"}, {2: b"y"})
    early = RoundBytes.count(0, {9: b"x"}, {})
    assert list(per_client([early, late])) == [2, 9, 10]


def test_a_round_as_json():
    assert json.loads(json.dumps(SECOND.to_json())) == {
        "round": 1,
        "up": {"1": 7},
        "down": {"1": 5, "2": 5},
        "broadcast": 10,
    }


messages = st.dictionaries(st.integers(0, 20), st.binary(max_size=4), max_size=6)
rounds = st.builds(RoundBytes.count, st.integers(0, 1000), messages, messages)


@given(rounds)
@settings(deadline=None)
def test_a_round_survives_json(row):
    assert RoundBytes.from_json(json.loads(json.dumps(row.to_json()))) == row


@given(st.lists(rounds, max_size=5))
@settings(deadline=None)
def test_what_clients_count_is_what_the_rounds_count(rows):
    totals, clients = total(rows), per_client(rows).values()
    assert totals.uplink == sum(row.uplink for row in rows) == sum(up for up, _ in clients)
    assert totals.downlink == sum(row.downlink for row in rows) == sum(down for _, down in clients)


@given(messages, messages)
@settings(deadline=None)
def test_a_broadcast_costs_the_longest_message_at_least_and_all_of_them_at_most(said, heard):
    row = RoundBytes.count(0, said, heard)
    assert max(map(len, heard.values()), default=0) <= row.broadcast <= row.downlink
