"""Nodes that do not fit and clients that fail are named with the reason, and the others go on."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedsift import runs
from fedsift.flower import messages
from fedsift.flower.messages import Answer, Hello, Refusal
from fedsift.flower.server import TooFew
from tests.helpers.fake_flower import SYSTEMS, federation, overrides, play
from tests.helpers.runs import lines
from tests.helpers.tiers import slow_but


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": "0.0.1"}, "is refused: it has fedsift 0.0.1, the server"),
        (
            {"version": "1\nfedsift: node 7 is refused"},
            "is refused: it has fedsift 1 fedsift: node 7 is refused, the server",
        ),
        ({"experiment": "0" * 64}, "is refused: its experiment is not the server's"),
        ({"public": "0" * 64}, "is refused: its public set is not the server's"),
        ({"client": 4}, "is refused: there is no client 4; partition-id goes from 0 to 3"),
        ({"client": -1}, "is refused: there is no client -1"),
        ({"client": 0}, "says it is client 0, who is here already"),
        ({"model": "resnet8"}, "is refused: its model is not in the experiment"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_the_reason_and_the_others_go_on(
    change, why, task, tmp_path, caplog
):
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run")

    def lie(message, reply):
        if message.metadata.message_type != messages.HELLO:
            return reply
        hello = messages.read(reply.content, Hello)
        return Message(messages.write(Hello(**(vars(hello) | change))), reply_to=message)

    grid.nodes[37].meddle = lie
    run = play(task, grid, how)
    assert f"node 37 {why}" in caplog.text
    assert 37 not in {node for _, node in grid.uplinks()}
    gone = {client for row in lines(run.folder / runs.LEDGER) for client in row.get("missing", {})}
    assert gone == {"3"}


def test_a_public_set_in_another_order_is_another_public_set(task, tmp_path, caplog, monkeypatch):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    original = task.public
    backwards = np.arange(30)[::-1].copy()
    monkeypatch.setattr(
        task, "public", lambda e, n: original(e, n)[backwards] if n.get("odd") else original(e, n)
    )
    grid.nodes[17].config["odd"] = True
    play(task, grid, how)
    assert "node 17 is refused: its public set is not the server's" in caplog.text


@pytest.mark.parametrize("partition", [None, 4, -1, "0", 1.0, True])
def test_a_node_without_a_partition_of_its_own_is_told_what_to_do(
    partition, task, tmp_path, caplog
):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    grid.nodes[37].config["partition-id"] = partition
    play(task, grid, how)
    assert (
        "node 37 is refused: start this SuperNode with --node-config 'partition-id=N', N "
        "from 0 to 3" in caplog.text
    )


def test_a_node_that_says_nothing_or_nonsense_at_first_does_not_stop_the_others(
    task, tmp_path, caplog
):
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run", wait=0.05)
    grid.nodes[7].meddle = lambda message, reply: None
    grid.nodes[17].meddle = lambda message, reply: Message(
        RecordDict({"x": ConfigRecord({"y": 1})}), reply_to=message
    )
    assert play(task, grid, how).finished
    assert "node 7 has not said who it is: no reply within 0.05 s" in caplog.text
    assert "node 17 is refused: foreign message" in caplog.text


# --- clients that fail in a round ---


def answer(payload=b"", accuracy=float("nan"), off=0):
    def meddle(message, reply):
        changed = Answer(int(message.metadata.group_id) + off, False, payload, accuracy)
        return Message(messages.write(changed), reply_to=message)

    return meddle


@pytest.mark.parametrize(
    ("misbehave", "why"),
    [
        (
            lambda message, reply: Message(Error(8, "crashed"), reply_to=message),
            "Flower error 8: crashed",
        ),
        (lambda message, reply: Message(Error(5), reply_to=message), "Flower error 5: None"),
        (lambda message, reply: None, "no reply within 0.1 s"),
        (
            lambda message, reply: Message(RecordDict(), reply_to=message),
            "foreign message: it is not the message that was expected",
        ),
        (
            lambda message, reply: Message(messages.write(Refusal("no time")), reply_to=message),
            "no time",
        ),
        (answer(off=9), "its reply is to round "),
        (answer(payload=b""), "its message is refused: truncated message: 0 bytes"),
        (answer(payload=b"x" * 99), "its message is refused: foreign message"),
        (answer(payload=b"x" * 10**6), "its message is refused: message of 1000000 bytes"),
        (answer(accuracy=7.0), "malformed message: an impossible accuracy"),
    ],
)
def test_a_client_that_fails_is_named_and_the_round_completes_with_the_others(
    misbehave, why, task, tmp_path, caplog
):
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run", deadline=0.1)
    node = grid.nodes[17]
    node.meddle = lambda message, reply: (
        misbehave(message, reply) if message.metadata.group_id else reply
    )
    run = play(task, grid, how)
    cohorts = [set(row["down"]) for row in lines(run.folder / runs.LEDGER)]
    for row, cohort in zip(lines(run.folder / runs.LEDGER), cohorts, strict=True):
        assert row["up"].keys() == cohort - {"1"}
        assert row["missing"]["1"].startswith(why) if "1" in cohort else "missing" not in row
    assert any("1" in cohort for cohort in cohorts)
    assert f"is without client 1: {why}" in caplog.text


@pytest.mark.parametrize("system", slow_but(SYSTEMS, "fas", "cfd", "fedavg"))
def test_no_system_stumbles_over_a_message_it_cannot_read(system, task, tmp_path):
    grid, how = federation(task, overrides(system, 2), 4, tmp_path / "run")
    broken = {}

    def damage(message, reply):
        if not message.metadata.group_id:
            return reply
        full = messages.read(reply.content, Answer)
        half = full.payload[: len(full.payload) // 2]
        broken[message.metadata.group_id] = len(half)
        return Message(messages.write(Answer(full.round, full.remembers, half)), reply_to=message)

    grid.nodes[17].meddle = damage
    run = play(task, grid, how)
    assert broken
    for row in lines(run.folder / runs.LEDGER):
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
    (row,) = lines(run.folder / runs.LEDGER)
    assert row["missing"] == {"2": "KeyError on the node; its log has the details"}
    assert "patient 17" not in (run.folder / runs.METRICS).read_text()


def test_a_round_with_too_few_replies_is_played_again_and_then_the_run_fails_loudly(
    task, tmp_path, caplog
):
    grid, how = federation(
        task, overrides("fas"), 4, tmp_path / "run", minimum=3, tries=2, wait=0.05
    )
    for node in (7, 17, 27):
        grid.nodes[node].meddle = lambda m, reply: (
            Message(Error(2, "ouch"), reply_to=m) if m.metadata.group_id else reply
        )
    with pytest.raises(
        TooFew, match=r"round 0 had fewer than 3 replies in 2 tries; the last time: client .*ouch"
    ):
        play(task, grid, how)
    assert len(grid.uplinks()) == 2 * 3
    assert (
        lines(tmp_path / "run" / runs.METRICS) == []
        if (tmp_path / "run" / runs.METRICS).exists()
        else True
    )


def test_flower_that_does_not_take_a_message(task, tmp_path):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    push = grid.push_messages
    grid.push_messages = lambda ms: (
        [None] if ms[0].metadata.group_id and ms[0].metadata.dst_node_id == 27 else push(ms)
    )
    (row,) = lines(play(task, grid, how).folder / runs.LEDGER)
    assert row["missing"] == {"2": "Flower did not take the message"}
