"""fedsift on Flower is the same turns: the same messages and the same accuracy, whoever is late, lost, wrong or gone."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsift import config, runs
from fedsift.codecs import WireError
from fedsift.engines.sequential import Sequential
from fedsift.federation import Federation, State, drive
from fedsift.flower import letters
from fedsift.flower.letters import Answer, Call, Hello, Refusal
from fedsift.flower.memories import InRun, Memories
from fedsift.flower.party import party
from fedsift.flower.server import TooFew
from fedsift.flower.settings import Settings, settings
from fedsift.types import Mistake
from tests.fake_flower import a_task, federation, play

TINY = "clients=4 cohort=3 data.private=60 data.public=30 local.epochs=1 distill.epochs=1 device=cpu model=mlp budget=6"
SYSTEMS = {
    "fd": "algorithm=fd",
    "fas": "algorithm=fas sampler=low-entropy codec=quantized(2)",
    "soft labels down": "algorithm=fas algorithm.download=soft-labels",
    "ds-fl": "algorithm=ds-fl",
    "cfd": "algorithm=cfd budget=20",
    "cfd, all that was missed": "algorithm=cfd budget=20 algorithm.absent=missed",
    "delta up, weights down": "algorithm=fd sampler=low-entropy codec=delta(quantized(2)) budget=20",
    "mixed models": 'algorithm=fas clients.models={"mlp"=2,"cnn"=2}',
    "fedavg": "algorithm=fedavg",
    "fedpaq": "algorithm=fedpaq",
    "feddf": "algorithm=feddf",
    "fd-jeong": "algorithm=fd-jeong",
    "mix2fld": "algorithm=mix2fld",
}
WITH_MEMORY = [
    "soft labels down",
    "ds-fl",
    "cfd",
    "cfd, all that was missed",
    "delta up, weights down",
    "fd-jeong",
    "mix2fld",
]
ROUNDS = 4


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return a_task(tmp_path_factory.mktemp("project") / "app")


@pytest.fixture
def spoken(monkeypatch):
    """Every upload the server takes up, in order: (round, {client: message})."""
    heard = []
    original = Federation.conclude

    def conclude(self, state, heard_by, said, learnt, missing=None):
        heard.append((state.round, dict(said)))
        return original(self, state, heard_by, said, learnt, missing)

    monkeypatch.setattr(Federation, "conclude", conclude)
    return heard


def overrides(system, rounds=ROUNDS):
    """Quoted as a shell would need it: values may hold quotes."""
    return " ".join(f"'{word}'" for word in f"{TINY} rounds={rounds} {SYSTEMS[system]}".split())


def experiment(task, system, rounds=ROUNDS):
    return party(task, Settings(overrides=overrides(system, rounds)), {}).experiment


def simulated(task, system, folder, rounds=ROUNDS):
    run = runs.begin(folder, experiment(task, system, rounds))
    for _ in runs.play([run], Sequential()):
        pass
    return run


def rows(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def same_server(one: State, other: State):
    """Students and notes, bit for bit."""
    return runs.to_bytes(State(0, one.server)) == runs.to_bytes(State(0, other.server))


# --- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_on_flower_is_the_simulated_run(system, task, spoken, tmp_path):
    simulated_run = simulated(task, system, tmp_path / "simulated")
    messages = spoken[:]
    spoken.clear()
    grid, how = federation(task, overrides(system), 4, tmp_path / "flower")
    run = play(task, grid, how)
    assert spoken == messages and len(messages) == ROUNDS
    assert same_server(run.state, simulated_run.state)
    assert (tmp_path / "flower" / runs.LEDGER).read_bytes() == (tmp_path / "simulated" / runs.LEDGER).read_bytes()
    for here, there in zip(*(rows(tmp_path / n, runs.METRICS) for n in ("flower", "simulated")), strict=True):
        there.pop("disagreement", None)  # needs all client models in one place
        assert here == there


def test_memory_is_kept_where_it_should_be(task, tmp_path):
    """Else the tests of recovery would test nothing."""
    for system in SYSTEMS:
        grid, how = federation(task, overrides(system, 2), 4, tmp_path / system)
        play(task, grid, how)
        held = [len(record) for node in grid.nodes.values() for record in node.context.state.config_records.values()]
        assert (max(held) > 0) == (system in WITH_MEMORY)
        assert max(held) <= 2


# --- messages that are lost, late and repeated -------------------------------------------------------------------------


def without(task, system, lost):
    """The reference: a simulation in which the turns in `lost`, {(round, client)}, never happened."""
    federation = config.build(experiment(task, system))
    state, engine = federation.start(), Sequential()
    for number in range(ROUNDS):
        r = federation.round(number)
        cohort = federation.drawn(r)
        heard = federation.algorithm.announce(state.server, cohort, r)
        said, learnt = {}, {}
        for client in cohort:
            if (number, client.id) not in lost:
                turn = federation.algorithm.client_turn(client, state.memories.get(client.id, {}), heard[client.id], r)
                learnt[client.id], said[client.id] = drive(turn, engine)
        state = drive(federation.conclude(state, heard, said, learnt), engine).state
    return state


@pytest.mark.parametrize("system", [*WITH_MEMORY, "fas"])
def test_a_reply_that_never_came_is_a_turn_that_never_happened(system, task, tmp_path):
    """The client has taken its turn and remembers it; the server has not heard of it. Both go on together."""
    grid, how = federation(task, overrides(system), 4, tmp_path / "run", deadline=0.05)
    drawn = config.build(experiment(task, system))
    cohorts = [[client.id for client in drawn.drawn(drawn.round(r))] for r in range(ROUNDS)]
    lost = {(0, cohorts[0][0]), (1, cohorts[1][1]), (2, cohorts[2][0])}
    for node in grid.nodes.values():
        node.meddle = swallow(node.config["partition-id"], lost)
    run = play(task, grid, how)
    assert same_server(run.state, without(task, system, lost))
    for row, sent in zip(*(rows(tmp_path / "run", name) for name in (runs.METRICS, runs.LEDGER)), strict=True):
        gone = {str(client): "no reply within 0.05 s" for number, client in lost if number == row["round"]}
        assert row.get("missing", {}) == sent.get("missing", {}) == gone
        assert sent["up"].keys() == sent["down"].keys() - gone.keys()


def swallow(client, lost):
    def meddle(message, reply):
        return None if message.metadata.group_id and (int(message.metadata.group_id), client) in lost else reply

    return meddle


@pytest.mark.parametrize("system", WITH_MEMORY)
def test_late_and_repeated_messages_change_nothing(system, task, tmp_path):
    """Every node hears each message twice, and all its old ones again and again."""
    grid, how = federation(task, overrides(system), 4, tmp_path / "run")
    for number, node in grid.nodes.items():
        grid.nodes[number] = Stutterer(node)
    run = play(task, grid, how)
    assert same_server(run.state, without(task, system, set()))


class Stutterer:
    def __init__(self, node):
        self.node, self.old = node, []

    def __call__(self, message):
        for old in self.old:
            self.node(old)
        self.old.append(message)
        first, second = self.node(message), self.node(message)
        if message.metadata.message_type == letters.TURN:
            assert letters.read(first.content, Answer).payload == letters.read(second.content, Answer).payload
        return second


def test_duplicate_and_foreign_replies_are_ignored_and_counted(task, tmp_path):
    grid, how = federation(task, overrides("cfd"), 4, tmp_path / "run")

    def twice(message, reply):
        grid.extra += [reply, Message(RecordDict(), reply_to=reply)] if message.metadata.group_id == "1" else []
        return reply

    for node in grid.nodes.values():
        node.meddle = twice
    run = play(task, grid, how)
    assert same_server(run.state, without(task, "cfd", set()))
    assert [row["ignored_replies"] for row in rows(run.folder, runs.TIMING)] == [0, 6, 0, 0]


# --- restarts ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def killed_after(grid, turns):
    """The server dies once it has sent this many turns."""
    push = grid.push_messages

    def pushing(messages):
        if len(grid.uplinks()) == turns:
            raise Killed
        return push(messages)

    grid.push_messages = pushing


@pytest.mark.parametrize(("system", "turns"), [*((system, 4) for system in SYSTEMS), ("cfd", 0), ("cfd", 9)])
def test_a_server_killed_and_resumed_ends_as_one_that_was_not(system, turns, task, tmp_path):
    """A new Flower run starts with empty state at every node; what clients remember is on their disks."""
    straight = simulated(task, system, tmp_path / "straight")
    disk = {"memory": str(tmp_path / "memory")} if system in WITH_MEMORY else {}
    for attempt in range(2):
        grid, how = federation(task, overrides(system), 4, tmp_path / "run")
        for node in grid.nodes.values():
            node.config |= disk
        if attempt == 0:
            killed_after(grid, turns)
            with pytest.raises(Killed):
                play(task, grid, how)
        else:
            run = play(task, grid, how)
    assert same_server(run.state, straight.state)
    assert (tmp_path / "run" / runs.LEDGER).read_bytes() == (tmp_path / "straight" / runs.LEDGER).read_bytes()


@pytest.mark.parametrize("system", WITH_MEMORY)
def test_a_client_that_lost_its_memory_starts_anew(system, task, tmp_path, caplog):
    """As if it were in the federation for the first time; the others do not notice."""
    grid, how = federation(task, overrides(system), 4, tmp_path / "run")
    for node in grid.nodes.values():
        node.meddle = forgetful(node)
    run = play(task, grid, how)
    assert run.finished and "start anew" in caplog.text
    assert not any("missing" in row for row in rows(run.folder, runs.METRICS))
    again = [at for at in set(grid.uplinks()) if grid.uplinks().count(at) == 2]
    assert {number for number, _ in again} <= {2, 3} and again


def forgetful(node):
    def meddle(message, reply):
        if message.metadata.group_id == "1":
            node.restart()
        return reply

    return meddle


def test_a_damaged_memory_is_a_lost_one():
    memories = Memories(InRun(RecordDict(), "a" * 32))
    memories.keep(3, -1, {"model": {"w": torch.ones(2)}, "sent": {"index": np.arange(3)}})
    recalled = memories.recall(3) or {}
    assert recalled["model"]["w"].tolist() == [1, 1] and recalled["sent"]["index"].tolist() == [0, 1, 2]
    assert memories.recall(-1) == {} and memories.recall(2) is None
    memories.keeper.put(3, (memories.keeper.get(3) or b"")[:-3])
    assert memories.recall(3) is None


def test_two_memories_are_kept_and_an_old_message_adds_none():
    memories = Memories(InRun(RecordDict(), "a" * 32))
    for round, last in ((0, -1), (2, 0), (1, 0), (4, 0), (5, 4), (3, 0)):
        memories.keep(round, last, {"n": np.array(round)})
    assert sorted(memories.keeper.rounds()) == [4, 5]


def test_a_finished_run_is_not_played_again(task, tmp_path):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    play(task, grid, how)
    with pytest.raises(Mistake, match="is finished; set folder"):
        play(task, grid, how)


# --- nodes that cannot take part ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": "0.0.1"}, "it has fedsift 0.0.1, the server"),
        ({"experiment": "0" * 64}, "its experiment is not the server's"),
        ({"public": "0" * 64}, "its public set is not the server's"),
        ({"client": 4}, "there is no client 4; partition-id goes from 0 to 3"),
        ({"client": -1}, "there is no client -1"),
        ({"client": 0}, "client 0 is already here, on node 7"),
        ({"model": "resnet8"}, "its model is not in the experiment"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_the_reason_and_the_others_go_on(change, why, task, tmp_path, caplog):
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run")

    def lie(message, reply):
        if message.metadata.message_type != letters.HELLO:
            return reply
        hello = letters.read(reply.content, Hello)
        return Message(letters.write(Hello(**(vars(hello) | change))), reply_to=message)

    grid.nodes[37].meddle = lie
    run = play(task, grid, how)
    assert f"node 37 is refused: {why}" in caplog.text
    assert 37 not in {node for _, node in grid.uplinks()}
    gone = {client for row in rows(run.folder, runs.LEDGER) for client in row.get("missing", {})}
    assert gone == {"3"}


def test_a_public_set_in_another_order_is_another_public_set(task, tmp_path, caplog, monkeypatch):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    original = task.public
    backwards = np.arange(30)[::-1].copy()
    monkeypatch.setattr(task, "public", lambda e, n: original(e, n)[backwards] if n.get("odd") else original(e, n))
    grid.nodes[17].config["odd"] = True
    play(task, grid, how)
    assert "node 17 is refused: its public set is not the server's" in caplog.text


@pytest.mark.parametrize("partition", [None, 4, -1, "0", 1.0, True])
def test_a_node_without_a_partition_of_its_own_is_told_what_to_do(partition, task, tmp_path, caplog):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    grid.nodes[37].config["partition-id"] = partition
    play(task, grid, how)
    assert "node 37 is refused: start this SuperNode with --node-config 'partition-id=N', N from 0 to 3" in caplog.text


def test_a_node_that_says_nothing_or_nonsense_at_first_does_not_stop_the_others(task, tmp_path, caplog):
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run", wait=0.05)
    grid.nodes[7].meddle = lambda message, reply: None
    grid.nodes[17].meddle = lambda message, reply: Message(RecordDict({"x": ConfigRecord({"y": 1})}), reply_to=message)
    assert play(task, grid, how).finished
    assert "node 7 has not said who it is: no reply within 0.05 s" in caplog.text
    assert "node 17 is refused: foreign message" in caplog.text


# --- clients that fail in a round --------------------------------------------------------------------------------------


def answer(payload=b"", accuracy=float("nan"), off=0):
    def meddle(message, reply):
        said = Answer(int(message.metadata.group_id) + off, False, payload, accuracy)
        return Message(letters.write(said), reply_to=message)

    return meddle


@pytest.mark.parametrize(
    ("misbehave", "why"),
    [
        (lambda message, reply: Message(Error(8, "crashed"), reply_to=message), "Flower error 8: crashed"),
        (lambda message, reply: Message(Error(5), reply_to=message), "Flower error 5: None"),
        (lambda message, reply: None, "no reply within 0.1 s"),
        (lambda message, reply: Message(RecordDict(), reply_to=message), "foreign message: it is not the letter"),
        (lambda message, reply: Message(letters.write(Refusal("no time")), reply_to=message), "no time"),
        (answer(off=9), "its reply is to round "),
        (answer(payload=b""), "its message is refused: truncated message: 0 bytes"),
        (answer(payload=b"x" * 99), "its message is refused: foreign message"),
        (answer(payload=b"x" * 10**6), "its message is refused: message of 1000000 bytes"),
        (answer(accuracy=7.0), "malformed message: an impossible accuracy"),
    ],
)
def test_a_client_that_fails_is_named_and_the_round_completes_with_the_others(misbehave, why, task, tmp_path, caplog):
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run", deadline=0.1)
    node = grid.nodes[17]
    node.meddle = lambda message, reply: misbehave(message, reply) if message.metadata.group_id else reply
    run = play(task, grid, how)
    cohorts = [set(row["down"]) for row in rows(run.folder, runs.LEDGER)]
    for row, cohort in zip(rows(run.folder, runs.LEDGER), cohorts, strict=True):
        assert row["up"].keys() == cohort - {"1"}
        assert row["missing"]["1"].startswith(why) if "1" in cohort else "missing" not in row
    assert any("1" in cohort for cohort in cohorts)
    assert f"is without client 1: {why}" in caplog.text


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_system_stumbles_over_a_message_it_cannot_read(system, task, tmp_path):
    grid, how = federation(task, overrides(system, 2), 4, tmp_path / "run")
    broken = {}

    def damage(message, reply):
        if not message.metadata.group_id:
            return reply
        said = letters.read(reply.content, Answer)
        half = said.payload[: len(said.payload) // 2]
        broken[message.metadata.group_id] = len(half)
        return Message(letters.write(Answer(said.round, said.remembers, half)), reply_to=message)

    grid.nodes[17].meddle = damage
    run = play(task, grid, how)
    assert broken
    for row in rows(run.folder, runs.LEDGER):
        assert ("1" in row.get("missing", {})) == (str(row["round"]) in broken)


def test_an_error_in_the_users_code_is_named_but_not_quoted(task, tmp_path, caplog, monkeypatch):
    """Its text may hold private data; it goes into the log of the node alone."""
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    original, asked = task.private, []

    def private(e, node):
        asked.append(node["partition-id"])
        if node["partition-id"] == 2 and asked.count(2) > 1:  # not when it says hello
            raise KeyError("patient 17")
        return original(e, node)

    monkeypatch.setattr(task, "private", private)
    run = play(task, grid, how)
    (row,) = rows(run.folder, runs.LEDGER)
    assert row["missing"] == {"2": "KeyError on the node; its log has the details"}
    assert "patient 17" not in (run.folder / runs.METRICS).read_text()


def test_a_round_with_too_few_replies_is_played_again_and_then_the_run_fails_loudly(task, tmp_path, caplog):
    grid, how = federation(task, overrides("fas"), 4, tmp_path / "run", minimum=3, tries=2, wait=0.05)
    for node in (7, 17, 27):
        grid.nodes[node].meddle = lambda m, reply: (
            Message(Error(2, "ouch"), reply_to=m) if m.metadata.group_id else reply
        )
    with pytest.raises(TooFew, match=r"round 0 had fewer than 3 replies in 2 tries; the last time: client .*ouch"):
        play(task, grid, how)
    assert len(grid.uplinks()) == 2 * 3
    assert rows(tmp_path / "run", runs.METRICS) == [] if (tmp_path / "run" / runs.METRICS).exists() else True


def test_a_round_that_succeeds_when_played_again_is_the_same_round(task, tmp_path):
    grid, how = federation(task, overrides("cfd"), 4, tmp_path / "run", minimum=3, wait=0.05)
    sulking = set()

    def once(message, reply):
        """The first message of every node is answered with an error, after the turn has been taken."""
        if not message.metadata.group_id or message.metadata.dst_node_id in sulking:
            return reply
        sulking.add(message.metadata.dst_node_id)
        return Message(Error(2, "ouch"), reply_to=message)

    for node in grid.nodes.values():
        node.meddle = once
    run = play(task, grid, how)
    assert same_server(run.state, without(task, "cfd", set()))
    assert not any("missing" in row for row in rows(run.folder, runs.LEDGER))


def test_nodes_may_come_late_and_come_back_under_another_number(task, tmp_path):
    grid, how = federation(task, overrides("cfd"), 4, tmp_path / "run", minimum=3, wait=5.0)
    late = {node: grid.nodes.pop(node) for node in (7, 37)}
    looks = []

    def node_ids():
        looks.append(1)
        if len(looks) == 3:
            grid.nodes.update(late)
        if len(looks) == 5 and 17 in grid.nodes:
            grid.nodes[99] = grid.nodes.pop(17)
        return list(grid.nodes)

    grid.get_node_ids = node_ids
    run = play(task, grid, how)
    assert 99 in {node for _, node in grid.uplinks()}
    assert same_server(run.state, without(task, "cfd", set()))


def test_flower_that_does_not_take_a_message(task, tmp_path):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    push = grid.push_messages
    grid.push_messages = lambda ms: [None] if ms[0].metadata.group_id and ms[0].metadata.dst_node_id == 27 else push(ms)
    (row,) = rows(play(task, grid, how).folder, runs.LEDGER)
    assert row["missing"] == {"2": "Flower did not take the message"}


# --- the user's side ---------------------------------------------------------------------------------------------------


def test_plain_arrays_are_enough(task, tmp_path, monkeypatch):
    """The same numbers as arrays and as fedsift's own types: they are normalised by the public set alike."""
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "types")
    typed = play(task, grid, how)

    def raw(samples):
        return samples.store.values[torch.from_numpy(samples.rows)].numpy()

    def pair(labelled):
        return raw(labelled.samples), labelled.labels

    public, test, private = task.public, task.test, task.private
    monkeypatch.setattr(task, "public", lambda e, n: raw(public(e, n)))
    monkeypatch.setattr(task, "test", lambda e, n: pair(test(e, n)))
    monkeypatch.setattr(task, "private", lambda e, n: pair(private(e, n)))
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "arrays")
    assert same_server(play(task, grid, how).state, typed.state)


def test_a_node_may_choose_its_model_among_those_of_the_experiment(task, tmp_path, caplog):
    grid, how = federation(task, overrides("mixed models", 2), 4, tmp_path / "run")
    grid.nodes[7].config["model"] = "cnn"  # the experiment gives it mlp
    play(task, grid, how)
    assert "node 7 is client 0 with model cnn" in caplog.text
    grid, how = federation(task, overrides("mixed models", 2), 4, tmp_path / "alone")
    for node in grid.nodes.values():
        node.config["model"] = "mlp"
    run = play(task, grid, how)
    assert set(run.state.server.students) == {"mlp", "cnn"}  # nobody has a cnn; its student learns all the same


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("CLASSES", None, r"must say how many classes there are, e.g. CLASSES = 10"),
        (
            "private",
            lambda e, n: (np.zeros((5, 9, 9), np.uint8), np.zeros(5, int)),
            r"private gives 5 samples of shape",
        ),
        ("private", lambda e, n: (np.zeros((5, 8, 8), np.uint8), np.full(5, 11)), r"at least 12 classes, not 10"),
    ],
)
def test_mistakes_in_a_task_are_said_plainly(name, value, complaint, task, monkeypatch):
    monkeypatch.setattr(task, name, value)
    with pytest.raises(Mistake, match=complaint):
        party(task, Settings(overrides=TINY), {"partition-id": 0}).client()


def test_gossip_has_no_server(task, tmp_path):
    grid, how = federation(task, f"{TINY} cohort=4 algorithm=gossip", 4, tmp_path / "run")
    with pytest.raises(Mistake, match="gossip has no server, so it cannot run on Flower; use `fedsift run`"):
        play(task, grid, how)


def test_a_minimum_above_the_cohort_is_a_mistake(task, tmp_path):
    grid, how = federation(task, TINY, 4, tmp_path / "run", minimum=4)
    with pytest.raises(Mistake, match=r"a minimum of 4 replies in a cohort of 3"):
        play(task, grid, how)


@pytest.mark.parametrize(
    ("given_", "complaint"),
    [
        ({"deadlin": 3.0}, "unknown setting 'deadlin'; did you mean 'deadline'"),
        ({"minimum": 1.5}, "setting minimum must be of type int, not 1.5"),
        ({"minimum": True}, "setting minimum must be of type int, not True"),
        ({"poll": 0.0}, "must be above 0: poll = 0.0"),
        ({"deadline": float("nan")}, "must be above 0: deadline = nan"),
    ],
)
def test_settings_are_checked(given_, complaint):
    with pytest.raises(Mistake, match=complaint):
        settings(given_)
    assert settings({"deadline": 30}) == Settings(deadline=30.0)


def test_flowers_own_overhead_stands_beside_the_ledger(task, tmp_path):
    """All bytes as Flower serialises them = payload + overhead; a hand count of one message."""
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run")
    run = play(task, grid, how)
    timing, ledger = rows(run.folder, runs.TIMING), rows(run.folder, runs.LEDGER)
    down = [server_size(m) for m in grid.sent if m.metadata.group_id == "1"]
    assert timing[1]["overhead_down"] == sum(down) - sum(ledger[1]["down"].values())
    assert 0 < timing[1]["overhead_up"] < 5000
    assert timing[0]["overhead_down"] > timing[1]["overhead_down"]  # greetings


def server_size(message):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(thing.deflate()) for thing in get_all_nested_objects(message).values())


# --- letters -----------------------------------------------------------------------------------------------------------


@given(st.integers(-1, 2**31), st.integers(0, 2**31), st.binary(max_size=300))
def test_letters_arrive_as_they_were_sent(last, more, payload):
    call = Call("ab" * 16, last + 1 + more, last, payload)
    assert letters.read(letters.write(call), Call) == call
    assert letters.read(letters.write(Refusal("no", True)), Answer, Refusal) == Refusal("no", True)


values = st.one_of(st.integers(-9, 9), st.floats(), st.text(max_size=5), st.binary(max_size=5), st.booleans())


@given(
    st.dictionaries(st.sampled_from(["kind", "run", "round", "last", "remembers", "accuracy", "x"]), values),
    st.sampled_from(["Call", "Answer", "Hello", "Refusal"]),
    st.booleans(),
)
def test_whatever_arrives_is_a_letter_or_a_wire_error(values, kind, payload):
    records = RecordDict({"fedsift": ConfigRecord({"kind": kind} | values)})
    if payload:
        records["payload"] = ArrayRecord({"bytes": Array("uint8", (3,), "bytes", b"abc")})
    try:
        found = letters.read(records, Call, Answer, Hello, Refusal)
    except WireError:
        return
    assert type(found).__name__ == kind


@pytest.mark.parametrize("run", ["../../etc", "AB" * 16, "ab" * 15, "ab" * 16 + "\n", ""])
def test_a_run_is_named_so_that_its_name_can_be_a_folder(run):
    """It becomes one on the node's disk."""
    with pytest.raises(WireError, match="impossible run or round"):
        letters.read(letters.write(Call(run, 1, 0, b"")), Call)


def test_a_call_for_a_round_beyond_the_end_is_refused(task, tmp_path):
    grid, _ = federation(task, overrides("fas", 2), 1, tmp_path)
    (node,) = grid.nodes.values()
    message = Message(letters.write(Call("ab" * 16, 2, -1, b"")), dst_node_id=7, message_type=letters.TURN)
    assert letters.read(node(message).content, Refusal).why == "round 2 of an experiment of 2"


def test_without_flower_the_mistake_names_the_extra():
    script = "import sys; sys.modules['flwr'] = None; import fedsift.flower"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "install it with: pip install 'fedsift[flower]'" in done.stderr


def test_the_apps_are_there():
    from fedsift import flower

    assert callable(flower.client_app) and callable(flower.server_app)
    with pytest.raises(AttributeError, match="no attribute 'app'"):
        _ = flower.app
