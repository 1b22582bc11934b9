"""fedsift on Flower is the same turns: the same messages and the same accuracy, whatever is late,
lost or killed.
"""

import json
import os
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, RecordDict

from fedsift import config, runs
from fedsift.algorithms import FedAvg
from fedsift.algorithms.audits import derive_secret
from fedsift.algorithms.per_label import MixtureSent
from fedsift.algorithms.soft_labels import ClientMemory
from fedsift.codecs import SoftLabelCodec
from fedsift.engines import choose_engine
from fedsift.federation import ClientResults, Federation, FederationState, start_federations
from fedsift.flower import messages, server
from fedsift.flower.client_state import ClientState, DiskStore, RunStore
from fedsift.flower.messages import Answer
from fedsift.flower.run_names import FILE, RunNames
from fedsift.flower.server import TooFew
from fedsift.flower.settings import Settings
from fedsift.flower.site import make_site
from fedsift.ledger import RoundBytes
from fedsift.memory import is_empty
from fedsift.turns import run_turn
from fedsift.types import Forgets, SoftLabels, UserError
from tests.helpers import toys
from tests.helpers.fake_flower import (
    ROUNDS,
    SYSTEMS,
    WITH_MEMORY,
    federation,
    overrides,
    play,
    same_server,
)
from tests.helpers.runs import lines
from tests.helpers.tiers import slow_but

DRAW_SECRET = server.draw_secret  # conftest.py puts another in its place
# Needs all client models in one place, the truth about public samples, or a look at the clients.
SIMULATED = ("disagreement", "uploaded_labels", "distilled_labels", "steps", "local_loss")
QUALITY = ("class_accuracy", "confusion", "macro_f1", "calibration_error", "auc", "distill_loss")


def drop_simulated(row: dict[str, Any], like: dict[str, Any]) -> None:
    """What only a simulation knows: where models stay at the nodes, also how good they are."""
    for name in (*SIMULATED, *(name for name in QUALITY if name not in like)):
        row.pop(name, None)


@pytest.fixture
def taken(monkeypatch):
    """Every upload the server takes, in order: (round, [(client, message)])."""
    found, came = [], {}
    count, finish = RoundBytes.count, Federation.finish_round

    def count_messages(round, uploads, *args, **kwargs):
        came[round] = dict(uploads)
        return count(round, uploads, *args, **kwargs)

    def finish_round(self, state, results):
        messages = came[state.round]
        assert list(results.uploads) == list(messages)
        found.append((state.round, list(messages.items())))
        return finish(self, state, results)

    monkeypatch.setattr(RoundBytes, "count", count_messages)
    monkeypatch.setattr(Federation, "finish_round", finish_round)
    return found


def experiment(task, system, rounds=ROUNDS):
    return make_site(task, Settings(overrides=overrides(system, rounds)), {}).experiment


def simulated(task, system, folder, rounds=ROUNDS):
    run = runs.begin_run(folder, experiment(task, system, rounds))
    for _ in runs.Group.of([run]).run_or_raise(choose_engine()[0]):
        pass
    return run


# --- parity ---


@pytest.mark.parametrize("system", slow_but(SYSTEMS, "fas", "cfd", "fedavg", "trust, audits"))
def test_a_run_on_flower_is_the_simulated_run(system, task, taken, tmp_path):
    simulated_run = simulated(task, system, tmp_path / "simulated")
    messages = taken[:]
    taken.clear()
    grid, how = federation(task, overrides(system), 4, tmp_path / "flower")
    run = play(task, grid, how)
    assert taken == messages and len(messages) == ROUNDS
    assert same_server(run.state, simulated_run.state)
    recorded = lines(run.folder / runs.RECORDING)
    assert recorded == lines(simulated_run.folder / runs.RECORDING) and len(recorded) == ROUNDS
    assert (tmp_path / "flower" / runs.LEDGER).read_bytes() == (
        tmp_path / "simulated" / runs.LEDGER
    ).read_bytes()
    for here, there in zip(
        *(lines(tmp_path / n / runs.METRICS) for n in ("flower", "simulated")), strict=True
    ):
        drop_simulated(there, here)
        assert here.pop("reported_by_clients", None) or "macro_f1" in here
        assert here == there


def test_the_secret_of_a_server_on_flower_is_not_that_of_the_seed(task, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "draw_secret", DRAW_SECRET)
    found = set()
    for name in ("one", "two"):
        grid, how = federation(task, overrides("trust, audits", 2), 4, tmp_path / name)
        found.add(play(task, grid, how).state.server.memory.secret)
    assert len(found) == 2 and derive_secret(0) not in found


def test_validation_samples_are_measured_on_at_every_machine(task, tmp_path):
    """Where clients keep their models, each node measures its own; the metrics are the same."""
    wanted = f"{overrides('soft labels down', 1)} 'data.validation=40'"
    grid, how = federation(task, wanted, 4, tmp_path / "flower")
    play(task, grid, how)
    run = runs.begin_run(tmp_path / "simulated", runs.read_config(tmp_path / "flower"))
    for _ in runs.Group.of([run]).run_or_raise(choose_engine()[0]):
        pass
    (here,), (there,) = (lines(tmp_path / n / runs.METRICS) for n in ("flower", "simulated"))
    drop_simulated(there, here)
    assert here.pop("reported_by_clients") == ["client_accuracy"]
    assert here == there and here["measured_on"] == "validation"
    data = json.loads((tmp_path / "flower" / runs.DATA).read_text())
    assert (data["validation"], "test" in data) == (40, False)


def test_each_upload_is_encoded_once_and_decoded_once(task, tmp_path, monkeypatch):
    calls = {"encode": 0, "decode": 0}
    for name in calls:
        original = getattr(SoftLabelCodec, name)

        def counting(self, *args, name=name, original=original):
            calls[name] += 1
            return original(self, *args)

        monkeypatch.setattr(SoftLabelCodec, name, counting)
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run")
    run = play(task, grid, how)
    ledger = runs.load_run(run.folder).ledger
    uploads = sum(len(row.up) for row in ledger)
    assert uploads > 0 and calls == {"encode": uploads, "decode": uploads}


@pytest.mark.slow
def test_memory_is_kept_where_it_should_be(task, tmp_path):
    """Else the tests of recovery would test nothing."""
    for system in SYSTEMS:
        grid, how = federation(task, overrides(system, 2), 4, tmp_path / system)
        play(task, grid, how)
        held = [
            len(record)
            for node in grid.nodes.values()
            for record in node.context.state.config_records.values()
        ]
        assert (max(held) > 0) == (system in WITH_MEMORY)
        assert max(held) <= 2


# --- messages that are lost, late and repeated ---


def without(task, system, lost, amnesia=ROUNDS):
    """The reference: a simulation in which the turns in `lost`, {(round, client)}, never happened.

    After the round `amnesia` all clients forget everything; the server forgets each when it learns
    of it.
    """
    federation = config.build_federation(experiment(task, system))
    algorithm, engine = federation.algorithm, choose_engine()[0]
    (state,) = start_federations([federation], engine)
    assert isinstance(state, FederationState)
    forgot: set[int] = set()
    for number in range(ROUNDS):
        r = federation.round(number)
        cohort = federation.draw_cohort(r)
        server, memories = state.server, dict(state.memories)
        for client in cohort:
            if client.id in forgot:
                forgot.remove(client.id)
                memories.pop(client.id)
                if isinstance(algorithm, Forgets):
                    server = algorithm.forget(server, client.id)
        downloads = algorithm.prepare_downloads(server, cohort, r)
        uploads, client_memories = {}, {}
        for client in cohort:
            if (number, client.id) not in lost:
                memory = memories.get(client.id, toys.no_memory(algorithm))
                turn = algorithm.client_turn(client, memory, downloads[client.id], r)
                client_memories[client.id], uploads[client.id] = run_turn(turn, engine)
        sent = RoundBytes.count(number, uploads, downloads)
        before = FederationState(number, server, memories)
        results = ClientResults(uploads, client_memories, sent)
        rest = federation.finish_round(before, results)
        state = run_turn(rest, engine).state
        forgot |= set(state.memories) if number == amnesia else set()
    return state


@pytest.mark.parametrize("system", slow_but([*WITH_MEMORY, "fas"], "cfd", "fas"))
def test_a_reply_that_never_came_is_a_turn_that_never_happened(system, task, tmp_path):
    """The client has taken its turn and remembers it; the server knows nothing of it. Both go on
    together.
    """
    grid, how = federation(task, overrides(system), 4, tmp_path / "run", deadline=0.05)
    drawn = config.build_federation(experiment(task, system))
    cohorts = [[client.id for client in drawn.draw_cohort(drawn.round(r))] for r in range(ROUNDS)]
    lost = {(0, cohorts[0][0]), (1, cohorts[1][1]), (2, cohorts[2][0])}
    for node in grid.nodes.values():
        node.meddle = swallow(node.config["partition-id"], lost)
    run = play(task, grid, how)
    assert same_server(run.state, without(task, system, lost))
    for row, sent in zip(
        *(lines(tmp_path / "run" / name) for name in (runs.METRICS, runs.LEDGER)), strict=True
    ):
        gone = {
            str(client): "no reply within 0.05 s"
            for number, client in lost
            if number == row["round"]
        }
        assert row.get("missing", {}) == sent.get("missing", {}) == gone
        assert sent["up"].keys() == sent["down"].keys() - gone.keys()


def test_an_upload_that_spoils_a_round_is_a_turn_that_never_happened(
    task, tmp_path, monkeypatch, caplog
):
    """Its sender is told to go on from the round before, and so does the server."""
    system, honest, spoiled = "fedpaq, updates down", FedAvg.check_upload, set()

    def check_upload(self, server, client, upload, r):
        weights, samples = honest(self, server, client, upload, r)
        if client == 1 and r.number < 2:
            spoiled.add((r.number, client))
            weights = {name: value + 1e20 for name, value in weights.items()}
        return weights, samples

    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "check_upload", check_upload)
        grid, how = federation(task, overrides(system), 4, tmp_path / "run")
        run = play(task, grid, how)
    assert spoiled and same_server(run.state, without(task, system, spoiled))
    for row in lines(run.folder / runs.LEDGER):
        gone = {str(client) for number, client in spoiled if number == row["round"]}
        assert row.get("missing", {}).keys() == gone == row["down"].keys() - row["up"].keys()
    assert "is without client 1: its upload is left out: with it the " in caplog.text


def test_a_round_that_most_uploads_spoil_keeps_the_state_and_can_be_played_again(
    task, tmp_path, monkeypatch
):
    """It is no mistake in the experiment: a supervisor submits it again."""
    honest = FedAvg.check_upload

    def check_upload(self, server, client, upload, r):
        weights, samples = honest(self, server, client, upload, r)
        huge = {name: value + 1e20 for name, value in weights.items()}
        return (huge if r.number == 1 else weights), samples

    grid, how = federation(task, overrides("fedavg"), 4, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "check_upload", check_upload)
        with pytest.raises(TooFew, match=r"in 3 tries.*leaving out uploads does not help"):
            play(task, grid, how)
    assert runs.rounds_played(tmp_path / "run") == 1
    resumed = play(task, grid, how)
    assert same_server(resumed.state, simulated(task, "fedavg", tmp_path / "there").state)


def spoiling(monkeypatch, client):
    """Weights that no network with them can predict, from one client, which no check finds."""
    honest = FedAvg.check_upload

    def check_upload(self, server, sender, upload, r):
        weights, samples = honest(self, server, sender, upload, r)
        huge = {name: value + 1e20 for name, value in weights.items()}
        return (huge if sender == client else weights), samples

    monkeypatch.setattr(FedAvg, "check_upload", check_upload)


def silent_once():
    """A node that never answers the first message of a round, however often it is pulled."""
    first = []

    def meddle(message, reply):
        if message.metadata.group_id:
            first.append(message.metadata.message_id)
        return None if first and message.metadata.message_id == first[0] else reply

    return meddle


def test_the_only_upload_that_came_and_spoils_the_round_is_named_and_the_others_asked_again(
    task, tmp_path, monkeypatch, caplog
):
    spoiling(monkeypatch, 0)
    words = overrides("fedavg", 1).replace("cohort=3", "cohort=4")
    grid, how = federation(task, words, 4, tmp_path / "run", deadline=0.5)
    for number in (17, 27, 37):
        grid.nodes[number].meddle = silent_once()
    run = play(task, grid, how)
    assert "round 0 is without client 0: with its upload the " in caplog.text
    (row,) = lines(run.folder / runs.LEDGER)
    assert row["up"].keys() == {"1", "2", "3"} and row["missing"].keys() == {"0"}


def test_a_client_that_is_heard_alone_and_spoils_every_round_ends_the_run_by_name(
    task, tmp_path, monkeypatch
):
    spoiling(monkeypatch, 0)
    words = overrides("fedavg", 1).replace("cohort=3", "cohort=4")
    grid, how = federation(task, words, 4, tmp_path / "run", deadline=0.5)
    for number in (17, 27, 37):
        grid.nodes[number].meddle = lambda m, reply: None if m.metadata.group_id else reply
    with pytest.raises(TooFew, match=r"in 3 tries; .*client 0: with its upload the outputs of"):
        play(task, grid, how)
    assert sum(node == 7 for _, node in grid.uplinks()) == 3


def swallow(client, lost):
    def meddle(message, reply):
        return (
            None
            if message.metadata.group_id and (int(message.metadata.group_id), client) in lost
            else reply
        )

    return meddle


@pytest.mark.parametrize("system", slow_but(WITH_MEMORY, "ds-fl"))
def test_late_and_repeated_messages_change_nothing(system, task, tmp_path):
    """Every node receives each message twice, and all its old ones again and again."""
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
        if message.metadata.message_type == messages.TURN:
            assert (
                messages.read(first.content, Answer).payload
                == messages.read(second.content, Answer).payload
            )
        return second


def test_duplicate_and_foreign_replies_are_ignored_and_counted(task, tmp_path):
    grid, how = federation(task, overrides("cfd"), 4, tmp_path / "run")

    def twice(message, reply):
        grid.extra += (
            [reply, Message(RecordDict(), reply_to=reply)]
            if message.metadata.group_id == "1"
            else []
        )
        return reply

    for node in grid.nodes.values():
        node.meddle = twice
    run = play(task, grid, how)
    assert same_server(run.state, without(task, "cfd", set()))
    assert [row["ignored_replies"] for row in lines(run.folder / runs.TIMING)] == [0, 6, 0, 0]


def test_a_round_that_succeeds_when_played_again_is_the_same_round(task, tmp_path):
    grid, how = federation(task, overrides("cfd"), 4, tmp_path / "run", minimum=3, wait=0.05)
    sulking = set()

    def once(message, reply):
        """The first message of every node is answered with an error, after the turn has been
        taken.
        """
        if not message.metadata.group_id or message.metadata.dst_node_id in sulking:
            return reply
        sulking.add(message.metadata.dst_node_id)
        return Message(Error(2, "ouch"), reply_to=message)

    for node in grid.nodes.values():
        node.meddle = once
    run = play(task, grid, how)
    assert same_server(run.state, without(task, "cfd", set()))
    assert not any("missing" in row for row in lines(run.folder / runs.LEDGER))


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


# --- restarts ---


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


@pytest.mark.parametrize(
    ("system", "turns"),
    [
        *(pytest.param(system, 4, marks=pytest.mark.slow) for system in SYSTEMS if system != "fas"),
        ("fas", 4),
        ("cfd", 0),
        pytest.param("cfd", 9, marks=pytest.mark.slow),
    ],
)
def test_a_server_killed_and_resumed_ends_as_one_that_was_not(system, turns, task, tmp_path):
    """A new Flower run starts with empty state at every node; what clients remember is on their
    disks.
    """
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
    assert (tmp_path / "run" / runs.LEDGER).read_bytes() == (
        tmp_path / "straight" / runs.LEDGER
    ).read_bytes()


@pytest.mark.parametrize("system", slow_but(WITH_MEMORY, "cfd", "mix2fld"))
def test_a_client_that_lost_its_memory_starts_over(system, task, tmp_path, caplog):
    """Server and client both go on as if they met for the first time, in the same round."""
    grid, how = federation(task, overrides(system), 4, tmp_path / "run")
    push = grid.push_messages

    def restart(messages):
        """All nodes, when the first message of round 2 is sent."""
        if messages[0].metadata.group_id == "2" and not any(
            number == 2 for number, _ in grid.uplinks()
        ):
            for node in grid.nodes.values():
                node.restart()
        return push(messages)

    grid.push_messages = restart
    run = play(task, grid, how)
    assert "has lost its memory and starts over" in caplog.text
    assert not any("missing" in row for row in lines(run.folder / runs.METRICS))
    assert same_server(run.state, without(task, system, set(), amnesia=1))


def test_a_damaged_memory_is_a_lost_one():
    client_state = ClientState(RunStore(RecordDict(), "a" * 32))
    sent = SoftLabels(np.arange(3), np.full((3, 2), 0.5))
    client_state.save(3, -1, ClientMemory({"w": torch.ones(2)}, sent))
    recalled = client_state.load(3, ClientMemory)
    assert isinstance(recalled, ClientMemory) and recalled.model and recalled.sent
    assert recalled.model["w"].tolist() == [1, 1] and recalled.sent.index.tolist() == [0, 1, 2]
    first = client_state.load(-1, ClientMemory)
    assert isinstance(first, ClientMemory) and is_empty(first)
    assert client_state.load(2, ClientMemory) is None
    assert client_state.load(3, MixtureSent) is None  # of another algorithm
    client_state.store.put(3, (client_state.store.get(3) or b"")[:-3])
    assert client_state.load(3, ClientMemory) is None


def test_two_memories_are_kept_and_an_old_message_adds_none():
    client_state = ClientState(RunStore(RecordDict(), "a" * 32))
    for round, last in ((0, -1), (2, 0), (1, 0), (4, 0), (5, 4), (3, 0)):
        client_state.save(round, last, {"n": np.array(round)})
    assert sorted(client_state.store.rounds()) == [4, 5]


def test_a_finished_run_is_not_played_again(task, tmp_path):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    play(task, grid, how)
    with pytest.raises(UserError, match="is finished; set folder"):
        play(task, grid, how)


@pytest.mark.parametrize("odd", ["folder", "pipe", "device", "tensors"])
def test_a_memory_on_the_disk_of_a_node_that_cannot_be_read_is_a_lost_one(odd, tmp_path):
    file = tmp_path / "3.safetensors"
    if odd == "folder":
        file.mkdir()
    elif odd == "pipe":
        os.mkfifo(file)
    elif odd == "device":
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes(b"\0" * 100)
    assert ClientState(DiskStore(tmp_path)).load(3, ClientMemory) is None


@pytest.mark.parametrize("content", ["", "null", "{}", '{"run": 3}', '{"run": "../../x"}', "\xff"])
def test_a_damaged_name_of_a_run_is_one_sentence(content, tmp_path):
    (tmp_path / FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=f"cannot read .*{FILE}: "):
        RunNames.of(tmp_path)


def test_a_run_has_another_name_for_every_client_and_keeps_it(tmp_path):
    names = RunNames.of(tmp_path)
    assert names == RunNames.of(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    told = [names.of_client(id) for id in range(50)]
    assert len({*told, names.secret}) == 51 and all(map(messages.is_token, told))
