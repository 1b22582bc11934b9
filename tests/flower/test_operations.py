"""What an operator sees and sets: logs, status, figures for Prometheus, closing and rests."""

import errno
import json
import logging
import os
import re
import socket
import stat
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Error, Message

from fedsift import files, runs
from fedsift.flower import logs, messages
from fedsift.flower.client_state import DiskStore, remove_old
from fedsift.flower.local_deployment import free_port
from fedsift.flower.rests import Rests
from fedsift.flower.server import TooFew
from fedsift.flower.status import STATUS, Monitor, Status
from fedsift.flower.superlink import find_error, read_traceback
from fedsift.types import UserError
from tests.helpers.fake_flower import federation, overrides, play, same_server
from tests.helpers.runs import lines
from tests.helpers.sockets import ask_raw, reset

EVERYONE = f"{overrides('fas', 4)} 'cohort=4'"


def read_status(folder):
    return json.loads((folder / STATUS).read_text())


def failing(message, reply):
    return Message(Error(8, "crashed"), reply_to=message) if message.metadata.group_id else reply


# --- rests, by hand ---


def test_three_failures_in_a_row_and_a_client_rests_for_two_rounds():
    rests = Rests(after=3, length=2)
    assert rests.note(0, {0, 1}, {2}) == {}
    assert rests.note(1, {0, 1}, {2}) == {}
    assert rests.find([0, 1, 2], 2, 1) == {}
    assert rests.note(2, {0, 1}, {2}) == {2: "failed 3 times in a row and rests until round 5"}
    expected = {2: "rested after 3 failures, until round 5"}
    assert rests.find([0, 1, 2], 3, 1) == rests.find([0, 1, 2], 4, 1) == expected
    assert rests.find([0, 1, 2], 5, 1) == {}
    # one more failure and it rests again; an answer, and everything is forgotten
    assert rests.note(5, {0, 1}, {2}) == {2: "failed 4 times in a row and rests until round 8"}
    assert rests.note(8, {0, 1, 2}, set()) == {}
    assert rests.note(9, {0, 1}, {2}) == {} and rests.find([2], 10, 0) == {}


def test_an_answer_between_failures_counts():
    rests = Rests(after=2, length=9)
    for round, failed in enumerate([True, False, True, False, True]):
        assert rests.note(round, set() if failed else {0}, {0} if failed else set()) == {}
    assert Rests(after=0, length=9).note(0, set(), {0}) == {}


def test_nobody_rests_where_too_few_would_be_left():
    rests = Rests(after=1, length=9)
    rests.note(0, {0}, {1, 2})
    assert rests.find([0, 1, 2], 1, 1).keys() == {1, 2}
    assert rests.find([0, 1, 2], 1, 2) == {}
    assert rests.find([1, 2], 1, 1) == {}


def test_a_client_that_fails_again_and_again_is_not_asked_for_some_rounds(task, tmp_path, caplog):
    grid, how = federation(
        task, EVERYONE.replace("rounds=4", "rounds=6"), 4, tmp_path / "run", rest_after=2, rest=3
    )
    grid.nodes[17].meddle = failing
    rows = lines(play(task, grid, how).folder / runs.LEDGER)
    assert [round for round, node in grid.uplinks() if node == 17] == [0, 1, 5]
    assert [row["missing"]["1"] for row in rows] == [
        *["Flower error 8: crashed"] * 2,
        *["rested after 2 failures, until round 5"] * 3,
        "Flower error 8: crashed",
    ]
    assert all("1" not in row["down"] for row in rows[2:5])
    assert "client 1 failed 2 times in a row and rests until round 5" in caplog.text


# --- closing a round ---


def late(seconds):
    """Replies come this many seconds after the message was first looked for."""
    first: dict[str, float] = {}

    def meddle(message, reply):
        if not message.metadata.group_id:
            return reply
        begun = first.setdefault(message.metadata.message_id, time.monotonic())
        return reply if time.monotonic() >= begun + seconds else None

    return meddle


def test_enough_replies_close_a_round_before_the_deadline(task, tmp_path):
    one_round = EVERYONE.replace("rounds=4", "rounds=1")
    grid, how = federation(
        task, one_round, 4, tmp_path / "run", deadline=600.0, enough=3, patience=0.05, minimum=2
    )
    grid.nodes[37].meddle = late(500)
    begun = time.monotonic()
    (row,) = lines(play(task, grid, how).folder / runs.LEDGER)
    assert time.monotonic() - begun < 300
    assert row["missing"] == {"3": "no reply within 0.05 s after 3 had answered"}


@pytest.mark.parametrize("round", [0, 99])
def test_replies_that_are_refused_close_no_round(round, task, tmp_path):
    """Nodes 7 and 17 answer at once what cannot be read, or is to another round: of 3 replies 1 is
    good, and client 3, which is late, is waited for.
    """
    one_round = EVERYONE.replace("rounds=4", "rounds=1")
    grid, how = federation(
        task, one_round, 4, tmp_path / "run", deadline=600.0, enough=2, patience=0.0, minimum=2
    )

    def spoil(message, reply):
        if not message.metadata.group_id:
            return reply
        return Message(messages.write(messages.Answer(round, False, b"x" * 99)), reply_to=message)

    grid.nodes[7].meddle = grid.nodes[17].meddle = spoil
    grid.nodes[37].meddle = late(1.0)
    (row,) = lines(play(task, grid, how).folder / runs.LEDGER)
    why = "its message is refused: foreign message" if round == 0 else "its reply is to round 99"
    assert row["missing"].keys() == {"0", "1"}
    assert all(said.startswith(why) for said in row["missing"].values())


def test_with_patience_nobody_who_is_there_is_lost(task, tmp_path):
    """And by default a round waits for all."""
    whole = play(task, *federation(task, EVERYONE, 4, tmp_path / "whole"))
    for name, settings in (("patient", {"enough": 1, "patience": 100.0}), ("all", {})):
        grid, how = federation(task, EVERYONE, 4, tmp_path / name, deadline=300.0, **settings)
        grid.nodes[37].meddle = late(0.1)
        run = play(task, grid, how)
        assert same_server(run.state, whole.state)
        assert not any("missing" in row for row in lines(run.folder / runs.LEDGER))


@pytest.mark.parametrize("enough", [2, 3])
def test_who_is_asked_again_holds_up_no_round_that_has_enough(enough, task, tmp_path):
    """In round 1 nodes 27 and 37 have lost their memory. The two others answer at once, and node
    27 too, when it is asked again; node 37 is then silent.
    """
    everyone = overrides("cfd", 2).replace("cohort=3", "cohort=4")
    folder = tmp_path / "run"
    grid, how = federation(task, everyone, 4, folder, deadline=60.0, enough=enough, minimum=2)
    push = grid.push_messages

    def restart(sent):
        if sent[0].metadata.group_id == "1" and (1, 7) not in grid.uplinks():
            grid.nodes[27].restart()
            grid.nodes[37].restart()
            grid.nodes[37].meddle = silent_when_asked_again()
        return push(sent)

    grid.push_messages = restart
    row = lines(play(task, grid, replace(how, patience=1.0)).folder / runs.LEDGER)[1]
    assert row["missing"] == {"3": f"no reply within 1 s after {enough} had answered"}


def silent_when_asked_again():
    left = ["the refusal"]

    def meddle(message, reply):
        return reply if not message.metadata.group_id or (left and left.pop()) else None

    return meddle


@pytest.mark.parametrize("enough", [1, 5])
def test_enough_lies_between_the_minimum_and_the_cohort(enough, task, tmp_path):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run", minimum=2, enough=enough)
    with pytest.raises(UserError, match="set enough between them, or to 0 for all"):
        play(task, grid, how)


# --- logs ---

LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 (INFO|WARNING|ERROR) fedsift: \S.*"


def test_both_sides_have_lines_with_times_and_without_colours(task, tmp_path, capfd):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run")
    play(task, grid, how)
    console = capfd.readouterr().err
    kept = (tmp_path / "run" / logs.SERVER_LOG).read_text()
    for line in [*console.splitlines(), *kept.splitlines()]:
        assert re.fullmatch(LINE, line), line
    assert re.search(r"client 1, round 2: \d+ bytes in, \d+ bytes out, [\d.]+ s", console)
    (up,) = {row["up"]["1"] for row in lines(tmp_path / "run" / runs.LEDGER) if row["round"] == 2}
    assert f"{up} bytes out" in console
    assert re.search(r"round 3 done in [\d.]+ s, accuracy 0\.\d+, 4 of 4 clients", kept)


def test_lines_are_json_on_request(task, tmp_path, capfd):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run", log="json")
    for node in grid.nodes.values():
        node.context.run_config["log"] = "json"
    play(task, grid, how)
    rows = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert all({"time", "level", "message"} <= row.keys() for row in rows)
    turns = [row for row in rows if "bytes_out" in row]
    assert {(row["client"], row["round"]) for row in turns} == {
        (client, round) for client in range(4) for round in range(4)
    }
    assert [row["round"] for row in rows if "accuracy" in row] == [0, 1, 2, 3]
    kept = (tmp_path / "run" / logs.SERVER_LOG).read_text().splitlines()
    assert all(json.loads(line)["level"] == "info" for line in kept)


def test_a_resumed_run_adds_to_its_log_and_counts_on_in_its_status(task, tmp_path):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run", tries=1)
    push = grid.push_messages

    def leave(sent):
        if sent[0].metadata.group_id == "2":
            grid.pull_messages = lambda ids: []
        return push(sent)

    grid.push_messages = leave
    with pytest.raises(TooFew):
        play(task, grid, how)
    first = (tmp_path / "run" / logs.SERVER_LOG).read_text()
    failed = read_status(tmp_path / "run")
    assert (failed["state"], failed["round"], failed["rounds"]) == ("failed", 2, 4)
    assert failed["error"].startswith("TooFew: round 2 had fewer than 1 replies in 1 tries")
    assert failed["missing"].keys() == {"0", "1", "2", "3"}
    assert (tmp_path / "run" / runs.FAILED).is_file()
    assert failed["flower_run"] == "1"
    trace = find_error(read_traceback(tmp_path / "run"))
    assert trace.startswith("fedsift.flower.server.TooFew: round 2 had fewer than 1 replies")
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run")
    play(task, grid, how, "2")
    assert read_status(tmp_path / "run")["flower_run"] == "2"
    assert (tmp_path / "run" / logs.SERVER_LOG).read_text().startswith(first)
    status, history = read_status(tmp_path / "run"), runs.load_run(tmp_path / "run")
    assert (status["state"], status["round"], status["error"]) == ("finished", 4, None)
    assert status["accuracy"] == history.accuracies[-1]
    assert status["uplink_bytes"] == history.summary()["uplink_bytes"]
    assert status["seconds"].keys() == {"0", "1", "2", "3"}
    assert not (tmp_path / "run" / runs.FAILED).exists()


def test_the_log_is_bounded_and_follows_no_link(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LARGEST", 1000)
    logs.start_logging("text")
    with logs.logging_to(tmp_path, "text"):
        for number in range(100):
            logs.say(f"line {number}")
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2000
    assert {file.name for file in tmp_path.iterdir()} == {"server.log", "server.log.1"}
    assert (tmp_path / "server.log").read_text().endswith("line 99\n")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "server.log").unlink()
    (tmp_path / "server.log").symlink_to(victim)
    with (
        pytest.raises(UserError, match=r"server.log is a link; remove it"),
        logs.logging_to(tmp_path, "text"),
    ):
        pass
    assert victim.read_text() == "mine"
    assert not [h for h in logs.LOG.handlers if isinstance(h, logs.FolderLog)]


def test_a_full_disk_costs_lines_of_the_log_and_not_the_run(tmp_path):
    logs.start_logging("text")
    with logs.logging_to(tmp_path, "text"):
        (handler,) = [h for h in logs.LOG.handlers if isinstance(h, logs.FolderLog)]
        assert handler.stream
        handler.stream.close()
        handler.stream = Path("/dev/full").open("a")
        logs.say("a line")


def test_a_full_disk_fails_the_run_and_once_there_is_room_it_ends_with_the_same_bits(
    task, tmp_path, monkeypatch
):
    """The disk is full when the third checkpoint is written, and stays so to the end."""
    straight = play(task, *federation(task, EVERYONE, 4, tmp_path / "straight"))
    write, written = files.write_atomic, list[Path]()

    def write_or_fail(path, *rest):
        written.append(path)
        if [file.name for file in written].count(runs.CHECKPOINT) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomic", write_or_fail)
        with pytest.raises(OSError, match="No space left"):
            play(task, *federation(task, EVERYONE, 4, tmp_path / "run"))
    log = (tmp_path / "run" / logs.SERVER_LOG).read_text()
    assert "the run failed: OSError: [Errno 28] No space left on device" in log
    assert read_status(tmp_path / "run")["round"] == 2  # the last that could be written
    run = play(task, *federation(task, EVERYONE, 4, tmp_path / "run"))
    assert same_server(run.state, straight.state)
    ledgers = [(tmp_path / name / runs.LEDGER).read_bytes() for name in ("run", "straight")]
    assert ledgers[0] == ledgers[1]


def test_a_message_is_one_line_and_a_traceback_cannot_look_like_one():
    form = logs.find_form("text")
    try:
        raise ValueError("a\n2026 INFO fedsift: b\x1b[31m")
    except ValueError:
        record = logging.LogRecord("", logging.ERROR, "", 0, "x\ny\x07\u2028z", (), sys.exc_info())
    first, *trace = form.format(record).split("\n")
    assert first.endswith(" ERROR fedsift: x\\ny\\x07\\u2028z")
    assert trace[0] == "  Traceback (most recent call last):"
    assert trace[-2:] == ["  ValueError: a", "  2026 INFO fedsift: b\\x1b[31m"]
    assert all(line.startswith("  ") for line in trace)


def test_an_unknown_form_of_log_is_an_error():
    with pytest.raises(UserError, match="unknown form of log lines 'jsn'; did you mean 'json'"):
        logs.start_logging("jsn")


# --- status and figures ---

EXAMPLE = Status(
    "running",
    rounds=9,
    round=3,
    accuracy=0.8125,
    uplink_bytes=1200,
    downlink_bytes=56000,
    missing={2: "no reply within 120 s"},
    seconds={0: 2.5, 1: 3.25},
    round_seconds=4.0,
    refused={77: 'its "public" set\nis not'},
)


def test_figures_for_prometheus_by_hand():
    assert EXAMPLE.to_prometheus() == (
        "# TYPE fedsift_state gauge\n"
        'fedsift_state{state="waiting"} 0\n'
        'fedsift_state{state="running"} 1\n'
        'fedsift_state{state="finished"} 0\n'
        'fedsift_state{state="failed"} 0\n'
        "# TYPE fedsift_rounds gauge\n"
        "fedsift_rounds 9\n"
        "# TYPE fedsift_rounds_done gauge\n"
        "fedsift_rounds_done 3\n"
        "# TYPE fedsift_accuracy gauge\n"
        "fedsift_accuracy 0.8125\n"
        "# TYPE fedsift_bytes_total counter\n"
        'fedsift_bytes_total{direction="up"} 1200\n'
        'fedsift_bytes_total{direction="down"} 56000\n'
        "# TYPE fedsift_missing_clients gauge\n"
        "fedsift_missing_clients 1\n"
        "# TYPE fedsift_client_missing gauge\n"
        'fedsift_client_missing{client="2"} 1\n'
        "# TYPE fedsift_client_seconds gauge\n"
        'fedsift_client_seconds{client="0"} 2.500\n'
        'fedsift_client_seconds{client="1"} 3.250\n'
        "# TYPE fedsift_round_seconds gauge\n"
        "fedsift_round_seconds 4.000\n"
        "# TYPE fedsift_refused_nodes gauge\n"
        "fedsift_refused_nodes 1\n"
    )


def test_the_endpoint_shows_the_run_while_it_lasts_and_only_that(task, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run", metrics_port=port)
    seen, push = [], grid.push_messages
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def look(sent):
        if sent[0].metadata.group_id == "2":
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
                seen.append(reply.read().decode())
            with pytest.raises(urllib.error.HTTPError, match="404"):
                opener.open(f"http://127.0.0.1:{port}/etc/passwd", timeout=10)
        return push(sent)

    grid.push_messages = look
    play(task, grid, how)
    assert 'fedsift_state{state="running"} 1\n' in seen[0] and "fedsift_rounds_done 2\n" in seen[0]
    with pytest.raises(urllib.error.URLError):
        opener.open(f"http://127.0.0.1:{port}/metrics", timeout=2)


def test_a_client_that_resets_its_connection_writes_no_traceback(tmp_path, capfd):
    with Monitor(tmp_path, EXAMPLE).serving(port := free_port()):
        reset(port, b"GET /met")
        answer = ask_raw(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert b"fedsift_rounds " in answer
    assert "Traceback" not in capfd.readouterr().err


def test_a_port_that_is_taken_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(UserError, match=f"metrics-port {port} cannot be used"),
            Monitor(tmp_path, EXAMPLE).serving(port),
        ):
            pass


def test_a_status_that_cannot_be_written_does_not_end_a_run(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    Monitor(tmp_path / "nowhere", EXAMPLE).update(state="finished")
    assert "cannot write" in caplog.text


def test_a_refused_node_is_in_the_status(task, tmp_path):
    grid, how = federation(task, EVERYONE, 4, tmp_path / "run")
    grid.nodes[17].config["partition-id"] = 9
    status = read_status(play(task, grid, how).folder)
    assert "partition-id=N" in status["refused"]["17"]
    assert status["missing"] == {"1": "no node of this client is there"}
    assert messages.REFUSED not in {m.metadata.message_type for m in grid.sent}  # it knows


# --- a node's memory folder, and its data ---


def test_old_memories_go_and_everything_else_stays(tmp_path):
    """Two runs of long ago, one of yesterday, the present one, and things that are not ours."""
    now, day = time.time(), 86400
    ages = {"a" * 32: 31, "b" * 32: 1, "c" * 32: 400, "d" * 32: 31, "e" * 32: 31}
    for run, age in ages.items():
        DiskStore(tmp_path / run / "0").put(3, b"memory")
        for path in [*(tmp_path / run).rglob("*"), tmp_path / run]:
            os.utime(path, (now - age * day,) * 2)
    (tmp_path / ("e" * 32) / "0" / "4.safetensors").write_bytes(b"a turn of today")
    (tmp_path / "notes").mkdir()
    outside = tmp_path.parent / "outside"
    DiskStore(outside / "0").put(1, b"of somebody")
    (tmp_path / ("f" * 32)).symlink_to(outside)
    os.utime(outside, (0, 0))
    remove_old(tmp_path, "d" * 32, days=30)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"b" * 32, "d" * 32, "e" * 32, "f" * 32, "notes"}
    assert (outside / "0" / "1.safetensors").is_file()


def test_what_is_not_ours_keeps_a_memory_folder(tmp_path):
    run = tmp_path / ("a" * 32)
    DiskStore(run / "0").put(3, b"memory")
    (run / "0" / "thesis.txt").write_text("mine")
    for path in [*run.rglob("*"), run]:
        os.utime(path, (0, 0))
    remove_old(tmp_path, "b" * 32, days=1)
    assert (run / "0" / "thesis.txt").read_text() == "mine"


def test_memories_are_for_the_nodes_user_alone(task, tmp_path):
    grid, how = federation(task, overrides("cfd", 1), 4, tmp_path / "run")
    for node in grid.nodes.values():
        node.config["memory"] = str(tmp_path / "deep" / "memory")
    play(task, grid, how)
    made = [tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
    assert len([path for path in made if path.suffix == ".safetensors"]) == 3
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("days", [0, -1, "many", True, float("nan")])
def test_a_number_of_days_that_cannot_be_is_said(days, task, tmp_path, caplog):
    grid, how = federation(task, overrides("cfd", 1), 4, tmp_path / "run")
    grid.nodes[17].config |= {"memory": str(tmp_path / "memory"), "memory-days": days}
    play(task, grid, how)
    assert "memory-days must be a number above 0" in caplog.text


def test_private_data_in_another_unit_are_said_on_the_node(
    task, tmp_path, capfd, caplog, monkeypatch
):
    original = task.private

    def private(e, node):
        labelled = original(e, node)
        store = labelled.samples.store
        scaled = replace(store, values=store.values.double() * 1e30)
        samples = replace(labelled.samples, store=scaled)
        return replace(labelled, samples=samples) if node["partition-id"] == 1 else labelled

    monkeypatch.setattr(task, "private", private)
    grid, how = federation(task, EVERYONE.replace("rounds=4", "rounds=1"), 4, tmp_path / "run")
    play(task, grid, how)
    assert "client 1: private inputs go from" in capfd.readouterr().err
    assert "client 0: private inputs" not in caplog.text
