"""Keys are made at the node, and the server's table says which key is which client."""

import json
import os
import stat
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import runs
from fedsift.flower import keys, messages, seats
from fedsift.flower.seats import Seat, Table
from fedsift.types import UserError
from tests.helpers.cli import fedsift
from tests.helpers.fake_flower import federation, overrides, play
from tests.helpers.runs import lines


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """Five public keys."""
    folder = tmp_path_factory.mktemp("keys")
    return [keys.create_key(folder / f"{number}.key") for number in range(5)]


def test_a_key_is_for_its_owner_alone_and_flower_can_read_both_halves(tmp_path):
    made = keys.create_key(tmp_path / "node.key")
    private = serialization.load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    assert keys.read_public_key(tmp_path / "node.key.pub") == made
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    assert public.decode() == made.text
    for name in ("node.key", "node.key.pub"):
        with pytest.raises(UserError, match="exists; choose another name"):
            keys.create_key(tmp_path / name.removesuffix(".pub"))
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match="there is no folder"):
        keys.create_key(tmp_path / "nowhere" / "node.key")


def test_the_fingerprint_is_that_of_ssh_keygen(tmp_path):
    made = keys.create_key(tmp_path / "node.key")
    try:
        words = ["ssh-keygen", "-l", "-f", str(tmp_path / "node.key.pub")]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    assert done.stdout.split()[:2] == ["384", made.fingerprint]


def test_only_a_public_key_of_flowers_kind_is_taken(tmp_path):
    file = tmp_path / "some.pub"
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    openssh = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    good = keys.create_key(tmp_path / "node.key").text
    for content in (
        b"",
        b"\xff\xfe",
        other.public_bytes(*openssh),
        good[:-8].encode(),
        f"{good}\n{good}\n".encode(),
        good.encode() + b" " * 5000,
    ):
        file.write_bytes(content)
        with pytest.raises(UserError, match="is not a public key of a node"):
            keys.read_public_key(file)
    with pytest.raises(UserError, match="is a private key, which must stay on its node"):
        keys.read_public_key(tmp_path / "node.key")
    with pytest.raises(UserError, match="Is a directory"):
        keys.read_public_key(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is not a plain file"):
        keys.read_public_key(tmp_path / "pipe")
    file.write_text(f"{good} hospital B\n")
    assert keys.read_public_key(file).text == good


def test_the_command_prints_the_public_half_and_where_the_private_one_is(tmp_path):
    done = fedsift("flower", "key", str(tmp_path / "node.key"))
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == (tmp_path / "node.key.pub").read_text().strip()
    assert "PRIVATE" not in done.stdout and "fingerprint" in done.stdout


# --- the table ---


def objection(table, node, client):
    return table.find_objection(node, client) or ""


def node_of(table, client):
    return {seat.client: seat.node for seat in table.seats}[client]


def test_a_seat_is_for_one_key_and_an_old_key_is_revoked(some):
    table = Table().seat(Seat(1, 71, some[0])).seat(Seat(0, 70, some[1]))
    assert [(seat.client, seat.node) for seat in table.seats] == [(0, 70), (1, 71)]
    assert table.find_objection(70, 0) is None and table.find_objection(71, 1) is None
    assert "belongs to client 1, but it says that it is client 0" in objection(table, 71, 0)
    assert "start it with partition-id=1" in objection(table, 71, 0)
    assert "has no seat in the server's table" in objection(table, 99, 0)
    renewed = table.seat(Seat(1, 81, some[2]))
    assert node_of(renewed, 1) == 81 and renewed.revoked == (some[0].fingerprint,)
    assert renewed.leaving == (71,)
    assert renewed.find_objection(71, 1)
    again = table.seat(Seat(1, 91, some[0]))  # the same key with another id: nothing is revoked
    assert node_of(again, 1) == 91 and again.revoked == ()
    empty = table.unseat(0).unseat(1).unseat(1)
    assert empty.seats == () and empty.revoked == (some[1].fingerprint, some[0].fingerprint)


def test_a_table_survives_its_file(tmp_path, some):
    table = Table((Seat(0, 2**64 - 1, some[0]), Seat(7, 1, some[1])), (some[2].fingerprint,))
    for each in (table, table.unseat(0)):
        seats.write_table(tmp_path / "nodes.json", each)
        assert seats.read_table(tmp_path / "nodes.json") == each


def change(row=(), **top):
    """The content of a good table with one key, and what is wrong with it."""
    return lambda key: (
        {
            "format": 1,
            "nodes": [{"client": 0, "node": "7", "key": key} | dict(row)],
            "revoked": [],
        }
        | top
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (change(format=2), "of another version"),
        (change(extra=1), "damaged"),
        (change(nodes=7), "damaged"),
        (change(nodes=[7]), "damaged"),
        (change(revoked="SHA256:x"), "damaged"),
        (change(revoked=[7]), "damaged"),
        (change([("client", -1)]), "a client that cannot be"),
        (change([("client", True)]), "a client that cannot be"),
        (change([("client", 1 << 40)]), "a client that cannot be"),
        (change([("node", 7)]), "a node that cannot be"),
        (change([("node", "0")]), "a node that cannot be"),
        (change([("node", "-7")]), "a node that cannot be"),
        (change([("node", "9" * 5000)]), "a node that cannot be"),
        (change([("node", str(2**64))]), "a node that cannot be"),
        (change([("node", "\u0663")]), "a node that cannot be"),
        (change([("key", "ssh-rsa AAAA")]), "not a public key"),
        (change([("key", 7)]), "a key that cannot be"),
        (change(leaving=7), "damaged"),
        (change(leaving=[7]), "a node that cannot be"),
        (change(leaving=["0"]), "a node that cannot be"),
        (change([("note", "x")]), "damaged"),
    ],
)
def test_a_damaged_table_is_one_sentence(content, why, tmp_path, some):
    (tmp_path / "nodes.json").write_text(json.dumps(content(some[0].text)))
    with pytest.raises(UserError, match=rf"nodes.json is not a table of nodes: .*{why}"):
        seats.read_table(tmp_path / "nodes.json")


def test_no_seat_no_key_and_no_node_stands_twice_in_a_table(tmp_path, some):
    path = tmp_path / "nodes.json"
    for what, one, other in (
        ("client", Seat(0, 1, some[0]), Seat(0, 2, some[1])),
        ("node", Seat(0, 1, some[0]), Seat(1, 1, some[1])),
        ("key", Seat(0, 1, some[0]), Seat(1, 2, some[0])),
    ):
        seats.write_table(path, Table((one, other)))
        with pytest.raises(UserError, match=f"it has a {what} twice"):
            seats.read_table(path)
    seats.write_table(path, Table((Seat(3, 1, some[0]),), (some[0].fingerprint,)))
    with pytest.raises(UserError, match="the key of client 3 is revoked"):
        seats.read_table(path)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.integers(1, 100_000).map(lambda n: b"[" * n))
def test_any_bytes_are_a_table_or_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not a table of nodes"):
        seats.read_table(path)


def test_a_huge_or_odd_file_is_not_read(tmp_path):
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("huge.json", "pipe.json", "nowhere.json"):
        with pytest.raises(UserError, match="is not a table of nodes"):
            seats.read_table(tmp_path / name)


# --- a run with a table; nodes have the ids 7, 17, 27, 37 ---


HELLO_TO_37 = (messages.HELLO, 37)


def take_part(grid):
    return {node for _, node in grid.uplinks()}


def test_a_node_cannot_sit_in_the_seat_of_another_though_it_is_there_first(
    task, tmp_path, caplog, some
):
    """Nodes 37 says that it is client 0, and node 7, whose seat that is, comes later."""
    table = Table(tuple(Seat(client, 10 * client + 7, some[client]) for client in range(4)))
    seats.write_table(tmp_path / "nodes.json", table)
    grid, how = federation(
        task, overrides("fas", 3), 4, tmp_path / "run", seats=str(tmp_path / "nodes.json")
    )
    grid.nodes[37].config["partition-id"] = 0
    real = grid.nodes.pop(7)
    ask = grid.get_node_ids

    def come_late():
        if any(round == 0 for round, _ in grid.uplinks()):
            grid.nodes[7] = real
        return ask()

    grid.get_node_ids = come_late
    run = play(task, grid, how)
    assert (
        "node 37 is refused: its key belongs to client 3, but it says that it is client 0"
        in caplog.text
    )
    assert 7 in take_part(grid) and 37 not in take_part(grid)
    assert all("0" not in row.get("missing", {}) for row in lines(run.folder / runs.LEDGER)[1:])


def test_a_silent_node_that_comes_and_goes_is_refused_all_the_same(task, tmp_path, caplog, some):
    """Node 37 is there in every second round, and never says who it is. It is asked at the
    start, in round 0 and in round 2, and refused for five; then in round 8, and refused at once.
    """
    table = Table(tuple(Seat(client, 10 * client + 7, some[client]) for client in range(4)))
    seats.write_table(tmp_path / "nodes.json", table)
    words = overrides("fas", 12).replace("cohort=3", "cohort=4")
    how = {"seats": str(tmp_path / "nodes.json"), "wait": 0.05}
    grid, settings = federation(task, words, 4, tmp_path / "run", **how)
    grid.nodes[37].meddle = lambda message, reply: None
    mute, ask = grid.nodes[37], grid.get_node_ids
    hellos: list[int] = []

    def now():
        return 1 + max((round for round, _ in grid.uplinks()), default=-1)

    def come_and_go():
        grid.nodes.pop(37, None)
        if now() % 2 == 0:
            grid.nodes[37] = mute
        return ask()

    push = grid.push_messages

    def note(out):
        hellos.extend(
            now() for m in out if (m.metadata.message_type, m.metadata.dst_node_id) == HELLO_TO_37
        )
        return push(out)

    grid.get_node_ids, grid.push_messages = come_and_go, note
    play(task, grid, settings)
    assert hellos == [0, 0, 2, 8]
    assert "asked 3 times, it has not said who it is" in caplog.text


def test_a_node_without_a_seat_is_out_until_it_is_admitted(task, tmp_path, caplog, some):
    path = tmp_path / "nodes.json"
    table = Table(tuple(Seat(client, 10 * client + 7, some[client]) for client in range(3)))
    seats.write_table(path, table)
    grid, how = federation(task, overrides("fas", 4), 4, tmp_path / "run", seats=str(path))
    push = grid.push_messages

    def admit_in_round_1(out):
        if any(m.metadata.group_id == "1" for m in out):
            seats.write_table(path, table.seat(Seat(3, 37, some[3])))
        return push(out)

    grid.push_messages = admit_in_round_1
    play(task, grid, how)
    assert "node 37 is refused: its key has no seat in the server's table" in caplog.text
    turns = [round for round, node in grid.uplinks() if node == 37]
    assert turns and min(turns) >= 2


def test_a_node_that_loses_its_seat_in_a_run_is_asked_no_more(task, tmp_path, some):
    path = tmp_path / "nodes.json"
    table = Table(tuple(Seat(client, 10 * client + 7, some[client]) for client in range(4)))
    seats.write_table(path, table)
    grid, how = federation(
        task, f"{overrides('fas', 4)} cohort=4", 4, tmp_path / "run", seats=str(path)
    )
    push = grid.push_messages

    def revoke_in_round_1(out):
        if any(m.metadata.group_id == "1" for m in out):
            seats.write_table(path, table.unseat(2))
        return push(out)

    grid.push_messages = revoke_in_round_1
    play(task, grid, how)
    assert {round for round, node in grid.uplinks() if node == 27} == {0, 1}
    assert {round for round, node in grid.uplinks() if node == 17} == {0, 1, 2, 3}


def test_a_run_does_not_begin_without_its_table_and_goes_on_with_the_last_good_one(
    task, tmp_path, caplog, some
):
    path = tmp_path / "nodes.json"
    grid, how = federation(task, overrides("fas", 3), 4, tmp_path / "run", seats=str(path))
    with pytest.raises(UserError, match=r"nodes.json is not a table of nodes: it cannot be read"):
        play(task, grid, how)
    seats.write_table(
        path, Table(tuple(Seat(client, 10 * client + 7, some[client]) for client in range(4)))
    )
    push = grid.push_messages

    def damage(out):
        path.write_text("{")
        return push(out)

    grid.push_messages = damage
    run = play(task, grid, how)
    assert run.finished and "the table read before still holds" in caplog.text
    assert not any(row.get("missing") for row in lines(run.folder / runs.LEDGER))
