"""The live page: what it serves, to whom, and when it says that there is something new."""

import contextlib
import http.client
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsift import files, runs
from fedsift.report import live
from fedsift.report.live import Board, Server, find_newest
from fedsift.report.page_data import describe_page
from tests.helpers.cli import complaint, done
from tests.helpers.runs import resumed, straight, tiny
from tests.helpers.sockets import ask_raw, reset


@pytest.fixture
def folder(tmp_path) -> Path:
    """A run after one of three rounds."""
    return straight(tmp_path / "runs" / "one", tiny(), 1)


@pytest.fixture
def server(folder):
    with serving(Server(Board([folder.parent]), "127.0.0.1", 0, None)) as with_server:
        yield with_server


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(10)


def ask(server: Server, path: str, host: str | None = None, method: str = "GET"):
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    link.request(method, path, headers={"Host": host or f"127.0.0.1:{server.port}"})
    answer = link.getresponse()
    body = answer.read()
    link.close()
    return answer, body


def listen(server: Server, path: str = "/events"):
    """The stream of news, and the connection it comes through."""
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    link.request("GET", path)
    return link, link.getresponse()


def test_it_serves_the_page_and_its_data(server):
    answer, page = ask(server, "/")
    assert answer.status == 200 and b'data-live="true"' in page
    assert b"connect-src 'self'" in page
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    data = json.loads(ask(server, "/data.json")[1])
    assert [run["rounds"] for run in data["runs"]] == [1]
    assert data["runs"][0]["state"]["name"] == "stopped"


def test_no_address_names_a_file(server, folder):
    for path in ("/config.toml", "/../one/config.toml", "/..%2f..%2fetc/passwd", "//etc/passwd"):
        assert ask(server, path)[0].status == 404, path
    assert ask(server, "/", method="POST")[0].status == 501


def test_another_host_is_refused(server):
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", "127.0.0.1:1"):
        assert ask(server, "/", host)[0].status == 403, host
    assert ask(server, "/", f"localhost:{server.port}")[0].status == 200


def test_the_port_that_browsers_leave_out_may_be_left_out(server):
    assert not server.allows("localhost", "")
    server.port = 80
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1"):
        assert server.allows(host, ""), host
    assert not server.allows("evil.example", "") and not server.allows("localhost:8033", "")


def test_odd_clients_are_answered_and_write_nothing_to_the_terminal(server, capfd):
    host = f"Host: 127.0.0.1:{server.port}\r\n\r\n".encode()
    assert ask_raw(server.port, b"GET http://[ HTTP/1.1\r\n" + host).startswith(b"HTTP/1.1 400 ")
    reset(server.port, b"GET / HT")
    assert ask(server, "/")[0].status == 200
    assert capfd.readouterr() == ("", "")


def test_elsewhere_a_token_is_needed(folder):
    with serving(Server(Board([folder]), "0.0.0.0", 0, "secret")) as server:
        assert server.address == f"http://0.0.0.0:{server.port}/?token=secret"
        for query in ("", "?token=", "?token=Secret", "?token=secret2", "?x=secret"):
            for path in ("/", "/data.json", "/events"):
                assert ask(server, path + query)[0].status == 403, path + query
        page, data = (ask(server, f"{path}?token=secret") for path in ("/", "/data.json"))
        assert page[0].status == data[0].status == 200
        assert b'data-live="true"' in page[1] and len(json.loads(data[1])["runs"]) == 1
        link, stream = listen(server, "/events?token=secret")
        assert stream.status == 200
        assert [stream.readline() for _ in range(3)][1:] == [b"event: news\n", b"data: 1\n"]
        link.close()


def test_addresses_that_cannot_be_served_are_refused_in_a_line(folder):
    for host, why in {
        "::1": "error: ::1 is an IPv6 address, and the page is served on IPv4 alone\n",
        "::": "error: :: is an IPv6 address, and the page is served on IPv4 alone\n",
        "a..b": "choose another --host or --port\n",
    }.items():
        assert complaint("watch", str(folder), "--host", host).endswith(why)


def test_a_round_is_told_and_shown(server, folder):
    link, stream = listen(server)
    first = [stream.readline() for _ in range(4)]
    assert first[1:3] == [b"event: news\n", b"data: 1\n"]
    resumed(folder)
    seen = -1
    while seen < 3:  # every change is told; the last one has all rounds
        assert stream.readline() == b"event: news\n"
        stream.readline(), stream.readline()
        seen = json.loads(ask(server, "/data.json")[1])["runs"][0]["rounds"]
    (run,) = json.loads(ask(server, "/data.json")[1])["runs"]
    assert run["state"]["resumed"] == 1 and len(run["said"]["rounds"]) == 3
    link.close()


def test_states_of_a_run_are_seen(folder):
    board = Board([folder])
    assert not board.refresh()
    going = runs.begin_run(folder, runs.read_config(folder), resume=True)
    assert board.refresh() and b'"name":"running"' in board.data
    going.lock.release()  # as the system does when a process is killed
    assert board.refresh() and b'"name":"stopped"' in board.data
    (folder / runs.FAILED).write_text('{"error": "<b>no disk"}')
    assert board.refresh() and b'"name":"failed"' in board.data


@pytest.fixture
def files_read(monkeypatch) -> list[Path]:
    """Which files have been read since."""
    read, seen = files.read_bounded, []

    def spy(path: Path, most: int) -> bytes:
        seen.append(path)
        return read(path, most)

    monkeypatch.setattr(files, "read_bounded", spy)
    return seen


def test_only_the_run_that_changed_is_read_and_each_file_of_it_once(folder, files_read):
    other = straight(folder.parent / "two", tiny("digits-fas", "seed=1"), 1)
    board = Board([folder.parent])
    resumed(folder)
    files_read.clear()
    assert board.refresh()
    assert {path.parent for path in files_read} == {folder}
    names = [path.name for path in files_read]
    assert len(set(names)) == len(names) and {runs.METRICS, runs.RECORDING} <= set(names)
    shown = [(run["rounds"], run["state"]["resumed"]) for run in json.loads(board.data)["runs"]]
    assert shown == [(3, 1), (1, 0)]
    files_read.clear()
    assert not board.refresh()
    shutil.rmtree(other)
    assert board.refresh() and files_read == []
    (run,) = json.loads(board.data)["runs"]
    assert run["folder"] == str(folder) and len(run["said"]["rounds"]) == 3


def test_of_many_runs_the_newest_are_shown_each_once(folder, tmp_path, monkeypatch):
    sweep = tmp_path / "runs" / "sweep"
    for seed, age in enumerate((30, 10, 20)):
        (sweep / f"seed-{seed}").mkdir(parents=True)
        (sweep / f"seed-{seed}" / runs.CONFIG).touch()
        os.utime(sweep / f"seed-{seed}" / runs.CONFIG, (age, age))
    assert find_newest([folder, folder.parent]) == [folder, *sorted(sweep.iterdir())]
    monkeypatch.setattr(live, "MOST_RUNS", 2)
    assert find_newest([folder, folder.parent]) == [folder, sweep / "seed-0"]


def test_a_damaged_or_empty_run_is_listed_and_the_others_are_shown(folder, tmp_path):
    straight(tmp_path / "runs" / "new", tiny(), 0)
    bad = straight(tmp_path / "runs" / "bad", tiny("digits-fas", "seed=5"), 1)
    (bad / runs.METRICS).write_text("[]\n")
    data = json.loads(Board([tmp_path / "runs"]).data)
    assert len(data["runs"]) == 1
    told = {Path(one["name"]).name: one["state"] for one in data["waiting"]}
    assert told.keys() == {"new", "bad"} and "metrics.jsonl" in told["bad"]


def test_a_damaged_reason_of_a_failure_hides_no_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    straight(Path("runs/two"), tiny("digits-fas", "seed=5"), 1)
    board = Board([Path("runs")])
    (folder / runs.FAILED).write_text("[]")
    for told in (board, Board([Path("runs")])):  # while it serves, and at the start
        told.refresh()
        states = [run["state"] for run in json.loads(told.data)["runs"]]
        assert [state["name"] for state in states] == ["failed", "stopped"]
        assert states[0]["why"] == "cannot read runs/one/failed.json: it must be a JSON object"
    done("report", "runs", "-o", "page.html")


def test_a_run_that_cannot_be_shown_hides_no_other(folder, monkeypatch):
    straight(folder.parent / "two", tiny("digits-fas", "seed=5"), 1)

    def stumble(histories, *others):
        if any(run.folder == folder for run in histories):
            raise TypeError("unhashable")
        return describe_page(histories, *others)

    monkeypatch.setattr(live, "describe_page", stumble)
    data = json.loads(Board([folder.parent]).data)
    assert [Path(run["folder"]).name for run in data["runs"]] == ["two"]
    assert data["waiting"] == [{"name": str(folder), "state": "TypeError: unhashable"}]


def test_runs_that_cannot_be_shown_together_are_all_listed(folder, monkeypatch):
    straight(folder.parent / "two", tiny("digits-fas", "seed=5"), 1)

    def stumble(histories, *others):
        if len(histories) > 1:
            raise ValueError("two")
        return describe_page(histories, *others)

    monkeypatch.setattr(live, "describe_page", stumble)
    data = json.loads(Board([folder.parent]).data)
    assert (
        data["runs"] == [] and [one["state"] for one in data["waiting"]] == ["ValueError: two"] * 2
    )


def test_a_look_that_fails_is_shown_until_one_succeeds(folder, monkeypatch):
    board, find = Board([folder]), live.find_newest

    def fail(folders):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(live, "find_newest", fail)
    versions = []
    for _ in range(2):
        board.look_again()
        versions.append(board.version)
        data = json.loads(board.data)
        (told,) = data["waiting"]
        assert told["state"] == "cannot be read: PermissionError: [Errno 13] Permission denied"
        assert len(data["runs"]) == 1
    assert versions == [2, 2]  # it is told once
    monkeypatch.setattr(live, "find_newest", find)
    board.look_again()
    assert board.version == 3 and json.loads(board.data)["waiting"] == []


def test_nothing_to_watch_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "runs is not a folder" in complaint("watch")
