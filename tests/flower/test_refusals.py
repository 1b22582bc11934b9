"""Nodes that do not fit and clients that fail are named with the reason, and the others go on."""

import dataclasses
import errno
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedsift import config, runs
from fedsift.cli.flower_log import LogReader, follow_log
from fedsift.cli.flower_runs import show_rounds
from fedsift.codecs import WireError, wire
from fedsift.flower import client as client_module
from fedsift.flower import messages
from fedsift.flower.client import find_place, name_error
from fedsift.flower.exchange import describe_error
from fedsift.flower.messages import Answer, Call, Hello, Objection, Refusal
from fedsift.flower.server import TooFew
from fedsift.types import UserError
from tests.helpers.fake_flower import SYSTEMS, Node, federation, overrides, play
from tests.helpers.hostile_headers import FORGED, make_message
from tests.helpers.runs import lines
from tests.helpers.tiers import slow_but


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"protocol": 1}, "(client 3) is refused: it has wire protocol 1 (fedsift "),
        (
            {"protocol": 1, "version": "1\nfedsift: node 7 is refused"},
            "(client 3) is refused: it has wire protocol 1 (fedsift 1 fedsift: node 7 is refused)",
        ),
        ({"experiment": "0" * 64}, "(client 3) is refused: its experiment is not the server's"),
        ({"public": "0" * 64}, "(client 3) is refused: its public set is not the server's"),
        ({"client": 4}, "is refused: there is no client 4; partition-id goes from 0 to 3"),
        ({"client": -1}, "is refused: there is no client -1"),
        ({"client": 0}, "says it is client 0, who is here already"),
        ({"model": "resnet8"}, "(client 3) is refused: its model is not in the experiment"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_the_reason_and_the_others_go_on(
    change, why, task, tmp_path, caplog
):
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run")

    grid.nodes[37].meddle = changing(**change)
    run = play(task, grid, how)
    assert f"node 37 {why}" in caplog.text
    assert 37 not in {node for _, node in grid.uplinks()}
    gone = {client: why for row in lines(run.folder / runs.LEDGER) for client, why in missing(row)}
    assert gone.keys() == {"3"}
    if change.keys() & {"client"}:
        assert gone["3"] == "no node of this client is there"
    else:
        assert gone["3"] in caplog.text and why.split(": ", 1)[1] in gone["3"]
    (told,) = [m for m in grid.sent if m.metadata.message_type == messages.REFUSED]
    assert told.metadata.dst_node_id == 37
    caplog.clear()
    grid.nodes[37](told)
    assert "the server refuses this node: " in caplog.text
    assert why.rsplit("refused: ", 1)[-1].split(";")[0] in caplog.text


def missing(row):
    return row.get("missing", {}).items()


def test_another_version_with_the_same_protocol_takes_part_and_the_log_says_so(
    task, tmp_path, caplog
):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    grid.nodes[37].meddle = changing(version="0.0.1\nfedsift: x")
    run = play(task, grid, how)
    assert "node 37 has fedsift 0.0.1 fedsift: x, the server" in caplog.text
    assert 37 in {node for _, node in grid.uplinks()}
    assert not any(missing(row) for row in lines(run.folder / runs.LEDGER))


def test_a_message_with_other_values_has_another_protocol():
    """Whoever changes what crosses must change PROTOCOL: update both here."""
    kinds: list[Any] = [Hello, Call, Answer, Refusal, Objection]
    fields = {kind.__name__: " ".join(f.name for f in dataclasses.fields(kind)) for kind in kinds}
    assert (messages.PROTOCOL, wire.VERSION, fields) == (
        2,
        1,
        {
            "Hello": "client protocol version experiment public model",
            "Call": "run round last payload",
            "Answer": "round remembers payload accuracy",
            "Refusal": "why lost client",
            "Objection": "why",
        },
    )


def changing(**change):
    def lie(message, reply):
        if message.metadata.message_type != messages.HELLO:
            return reply
        hello = messages.read(reply.content, Hello)
        return Message(messages.write(Hello(**(vars(hello) | change))), reply_to=message)

    return lie


# --- refusals are forgotten ---


def asked_in(grid, node):
    return [number for number, asked in grid.uplinks() if asked == node]


def at_round(grid, number, act):
    """Do something when the first message of a round is sent."""
    push, done = grid.push_messages, list[bool]()

    def watch(sent):
        if sent[0].metadata.group_id == str(number) and not done:
            done.append(True)
            act()
        return push(sent)

    grid.push_messages = watch


EVERYONE = f"{overrides('fas', 8)} 'cohort=4'"


def test_a_fixed_node_takes_part_again_some_rounds_later(task, tmp_path, caplog):
    """Its name at Flower is that of its key, so it comes back under the same one."""
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run")
    grid.nodes[37].meddle = changing(public="0" * 64)

    def fix():
        grid.nodes[37].meddle = lambda message, reply: reply

    at_round(grid, 1, fix)
    rows = lines(play(task, grid, how).folder / runs.LEDGER)
    assert asked_in(grid, 37) == [5, 6, 7]
    for row in rows[:5]:
        assert row["missing"]["3"].startswith("its public set is not the server's")
    assert not any("missing" in row for row in rows[5:])


def test_a_node_that_left_and_came_back_fixed_takes_part_at_once(task, tmp_path):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run")
    grid.nodes[37].meddle = changing(experiment="0" * 64)
    away = grid.nodes[37]

    def back():
        away.meddle = lambda message, reply: reply
        grid.nodes[37] = away

    at_round(grid, 1, lambda: grid.nodes.pop(37))
    at_round(grid, 2, back)
    rows = lines(play(task, grid, how).folder / runs.LEDGER)
    assert asked_in(grid, 37) == [3, 4, 5, 6, 7]
    assert rows[0]["missing"]["3"].startswith("its experiment is not")
    assert rows[2]["missing"]["3"] == "no node of this client is there"


def test_a_node_that_was_slow_to_say_hello_is_asked_again_later(task, tmp_path, caplog):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run", wait=0.05)
    grid.nodes[37].meddle = lambda message, reply: None

    def wake():
        grid.nodes[37].meddle = lambda message, reply: reply

    at_round(grid, 3, wake)
    play(task, grid, how)
    assert "asked 3 times, it has not said who it is" in caplog.text
    assert asked_in(grid, 37) and asked_in(grid, 37)[-1] == 7


def test_a_second_node_of_a_client_waits_until_the_first_is_gone(task, tmp_path, caplog):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run")
    grid.nodes[99] = Node(task, 3, {"overrides": EVERYONE})
    at_round(grid, 4, lambda: grid.nodes.pop(37))
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: pull(
        [id for id in ids if grid.mail[id].metadata.dst_node_id in grid.nodes]
    )
    rows = lines(play(task, grid, how).folder / runs.LEDGER)
    assert asked_in(grid, 37) == [0, 1, 2, 3, 4] and asked_in(grid, 99) == [5, 6, 7]
    assert [row["round"] for row in rows if "missing" in row] == [4]
    hellos = [m for m in grid.sent if m.metadata.message_type == messages.HELLO]
    assert [m.metadata.dst_node_id for m in hellos].count(99) == 1
    assert caplog.text.count("says it is client 3, who is here already") == 1


def test_an_error_at_hello_is_at_once_on_the_servers_console_and_nobody_waits(
    task, tmp_path, capfd, monkeypatch
):
    """With the kind and the place, not the text; and the run ends with the true reason.

    So it is on the stderr of the command that watches the run, before any round is saved.
    """

    def private(e, node):
        raise FileNotFoundError("/data/patient-17.npz")

    monkeypatch.setattr(task, "private", private)
    monkeypatch.setattr(client_module, "find_place", lambda error, task: "in private (task.py)")
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run", wait=300.0)
    said: list[str] = []
    refusal = "node 7 (client 0) is refused: FileNotFoundError in private (task.py)"

    def follow():
        with ThreadPoolExecutor(1) as pool:
            end = pool.submit(play, task, grid, how)
            until = time.monotonic() + 60
            while f"server.log: ERROR {refusal}" not in "".join(said) and time.monotonic() < until:
                time.sleep(0.1)
                said.append(capfd.readouterr().err)
        end.result()
        yield 1

    experiment = config.read_experiment("digits-fas", ["rounds=1"])
    with pytest.raises(TooFew, match=r"client \d: FileNotFoundError in private \(task.py\);"):
        show_rounds(follow(), tmp_path / "run", experiment, quiet=True)
    assert f"server.log: ERROR {refusal}" in "".join(said)
    told = "".join(said) + capfd.readouterr().err
    assert "server.log: WARNING round 0 is without client 1: FileNotFoundError in" in told
    assert refusal in (tmp_path / "run" / "server.log").read_text()
    assert not grid.uplinks()


def write_lines(path, *said):
    with path.open("a") as file:
        file.writelines(said)


def test_the_log_is_followed_line_by_line_in_both_forms(tmp_path):
    """What was there before is not told; a line counts once it is whole."""
    path, told = tmp_path / "server.log", list[str]()
    write_lines(path, "2026 ERROR fedsift: old\n")
    with follow_log(path, told.append):
        write_lines(path, "2026 WARNING fedsift: a\n", "2026 INFO fedsift: round 0 done\n")
        write_lines(path, '{"level": "error", "message": "b\\n\\u001b[31mc"}\n', '{"level": 3}\n')
        write_lines(path, "{\n", "[" * 10**5, "\n", "2026 ERROR fedsift: " + "x" * 9999, "\n")
        write_lines(path, "2026 ERROR fedsift: torn")
    head = "server.log: ERROR "
    assert told == ["server.log: WARNING a", f"{head}b  [31mc", (head + "x" * 9999)[:500]]


def test_a_log_that_begins_anew_is_followed_from_its_beginning(tmp_path):
    path = tmp_path / "server.log"
    reader = LogReader(path)
    assert reader.read() == []
    write_lines(path, "one\ntwo\nthr")
    assert reader.read() == ["one", "two"]
    path.rename(tmp_path / "server.log.1")
    write_lines(path, "four\n")
    assert reader.read() == ["four"]


def test_the_place_of_an_error_is_the_projects_line_not_its_text(task):
    spec = compile("def load():\n    open('/nowhere/patient-17')\n", task.__file__, "exec")
    space: dict[str, Any] = {}
    exec(spec, space)
    with pytest.raises(FileNotFoundError) as caught:
        space["load"]()
    assert find_place(caught.value, task) == "in load (task.py, line 2)"
    with pytest.raises(ValueError) as other:
        int("patient 17")
    assert "patient" not in find_place(other.value, task)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.ENOSPC, "patient 17"), "OSError (No space left on device)"),
        (OSError("patient 17"), "OSError"),
        (OSError("patient", 17), "OSError"),
        (FileNotFoundError(errno.ENOENT, "patient 17"), "FileNotFoundError"),
        (ValueError("patient 17"), "ValueError"),
    ],
)
def test_an_error_is_named_in_the_systems_words_and_never_in_its_own(error, named):
    assert name_error(error) == named


def test_a_public_set_in_another_order_is_another_public_set(task, tmp_path, caplog, monkeypatch):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    original = task.public
    backwards = np.arange(30)[::-1].copy()
    monkeypatch.setattr(
        task, "public", lambda e, n: original(e, n)[backwards] if n.get("odd") else original(e, n)
    )
    grid.nodes[17].config["odd"] = True
    play(task, grid, how)
    assert "node 17 (client 1) is refused: its public set is not the server's" in caplog.text


@pytest.mark.parametrize("partition", [None, 4, -1, "0", 1.0, True])
def test_a_node_without_a_partition_of_its_own_is_told_what_to_do(
    partition, task, tmp_path, caplog
):
    grid, how = federation(task, overrides("fas", 1), 4, tmp_path / "run")
    grid.nodes[37].config["partition-id"] = partition
    play(task, grid, how)
    assert re.search(
        r"node 37( \(client \d\))? is refused: start this SuperNode with --node-config "
        "'partition-id=N', N from 0 to 3",
        caplog.text,
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
        (answer(payload=b"x" * 10**5), "its message is refused: message of 100000 bytes"),
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


@pytest.mark.parametrize(
    "header", [{"w": "X" * 20_000}, {"float32": FORGED}], ids=["a page", "lines"]
)
def test_what_a_client_writes_into_its_message_is_no_line_of_the_log(header, task, tmp_path, capfd):
    grid, how = federation(task, overrides("fedavg", 1), 4, tmp_path / "run")
    payload = make_message(**header)[wire.HEADER_BYTES :]

    def lie(message, reply):
        if not message.metadata.group_id:
            return reply
        return answer(payload=wire.seal(wire.WEIGHTS, 1, 0, payload))(message, reply)

    for node in (7, 17, 27):
        grid.nodes[node].meddle = lie
    play(task, grid, how)
    log = (tmp_path / "run" / "server.log").read_text()
    (row,) = lines(tmp_path / "run" / runs.LEDGER)
    assert {"0", "1", "2"} & row["missing"].keys()
    for text in (log, capfd.readouterr().err):
        assert all(
            re.match(r"\d{4}-\d\d-\d\dT\S+ [A-Z]+ fedsift: ", line) for line in text.splitlines()
        )
        assert "round 7 done" not in text and "\x1b" not in text and len(text) < 10_000
    for why in row["missing"].values():
        assert why.isprintable() and len(why) <= 600


@pytest.mark.parametrize("error", [ValueError(FORGED), UserError(FORGED), WireError(FORGED)])
def test_an_error_is_described_in_one_line_whatever_it_quotes(error):
    told = describe_error(error)
    assert told.isprintable() and told.endswith("UserError: stop")
    told = describe_error(type(error)("x" * 10**6))
    assert len(told) == 500


def test_whoever_sends_far_too_much_is_refused_at_once(task, tmp_path):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run")
    grid.nodes[17].meddle = lambda message, reply: (
        answer(payload=b"x" * 10**6)(message, reply) if message.metadata.group_id else reply
    )
    rows = lines(play(task, grid, how).folder / runs.LEDGER)
    assert asked_in(grid, 17) == [0, 5]
    for row in rows:
        assert re.match(r"its reply has \d+ bytes, at most \d+ are right", row["missing"]["1"])


@pytest.mark.parametrize("place", ["record", "array", "greeting"])
def test_a_reply_with_more_in_it_than_its_kind_needs_is_refused(place, task, tmp_path):
    """1 MB that nobody asked for must not pass as overhead."""

    def add(message, reply):
        more = Array("uint8", (5,), "bytes", b"extra")
        if (place == "greeting") == bool(message.metadata.group_id):
            return reply
        if place == "array":
            reply.content["payload"]["more"] = more
        else:
            reply.content["more"] = ArrayRecord({"more": more})
        return reply

    grid, how = federation(task, EVERYONE.replace("rounds=8", "rounds=1"), 4, tmp_path / "run")
    grid.nodes[17].meddle = add
    (row,) = lines(play(task, grid, how).folder / runs.LEDGER)
    assert row["missing"].keys() == {"1"}
    if place != "greeting":  # a node that cannot say who it is has no client
        assert row["missing"]["1"].startswith("malformed message: it has")


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
    assert re.fullmatch(
        r"KeyError in private \(test_refusals.py, line \d+\); the node's log has the details",
        row["missing"]["2"],
    )
    for file in (runs.METRICS, "status.json"):
        assert "patient 17" not in (run.folder / file).read_text()


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


# --- what nodes say of their own models ---


def boast(message, reply):
    """The same answer, from a client that says its model makes no mistake."""
    if not message.metadata.group_id:
        return reply
    said = messages.read(reply.content, Answer)
    return Message(messages.write(replace(said, accuracy=1.0)), reply_to=message)


def test_an_accuracy_that_only_clients_know_is_called_reported(task, tmp_path):
    """It was the accuracy of the run, as if it had been measured (DEPLOYMENT, D15)."""
    grid, how = federation(task, overrides("fd-jeong", 2), 4, tmp_path / "run")
    for node in grid.nodes.values():
        node.meddle = boast
    for row in lines(play(task, grid, how).folder / runs.METRICS):
        assert row["accuracy"] == 1.0
        assert row["reported_by_clients"] == ["accuracy", "client_accuracy"]


@pytest.mark.parametrize("system", ["fas", "fedavg"])
def test_a_report_is_ignored_where_no_client_keeps_a_model(system, task, tmp_path):
    grid, how = federation(task, overrides(system, 1), 4, tmp_path / "run")
    grid.nodes[17].meddle = boast
    (row,) = lines(play(task, grid, how).folder / runs.METRICS)
    assert "client_accuracy" not in row and "reported_by_clients" not in row
