"""A run is submitted again after a crash: how often, with which pauses, and when not."""

import json
import time
import traceback
from pathlib import Path

import pytest

from fedsift import files, runs
from fedsift.flower import project, superlink, supervisor
from fedsift.flower.server import RoundError, TooFew
from fedsift.flower.status import STATUS, Status
from fedsift.flower.superlink import RunEnded
from fedsift.flower.supervisor import Patience, supervise
from fedsift.types import UserError
from tests.helpers.cli import fedsift
from tests.helpers.json_shapes import read_printed

CRASH = RunEnded("finished:failed", "see server.log")


class Federation:
    """Follows a script: each submission plays some rounds, and then fails as it says."""

    def __init__(self, monkeypatch, *script):
        self.rounds, self.revived, self.script = 0, 0, list(script)
        self.said: list[str] = []
        self.pauses: list[float] = []
        monkeypatch.setattr(supervisor, "rounds_played", lambda folder: self.rounds)
        monkeypatch.setattr(supervisor, "follow", self.follow)
        monkeypatch.setattr(time, "sleep", self.pauses.append)

    def revive(self):
        self.revived += 1

    def submit(self):
        return str(len(self.pauses) + 1)

    def follow(self, link, run, folder, done, rounds):
        assert (link, done) == (self, self.rounds)
        played, error = self.script.pop(0)
        for _ in range(played):
            self.rounds += 1
            yield self.rounds
        if error:
            raise error

    def run(self, folder, rounds, **patience):
        return list(
            supervise(self, self.submit, folder, rounds, self.said.append, Patience(**patience))  # type: ignore[arg-type]
        )


def test_a_run_is_submitted_again_until_all_rounds_are_saved(tmp_path, monkeypatch):
    """Three crashes, the second and third without a round between them: the pause doubles, and
    after a finished round it starts anew.
    """
    gone = ConnectionError("the SuperLink ended (exit code -9)")
    there = Federation(monkeypatch, (1, CRASH), (0, gone), (1, CRASH), (2, None))
    assert there.run(tmp_path, 4) == [1, 2, 3, 4]
    assert there.pauses == [5.0, 10.0, 5.0] and there.revived == 4
    assert there.said[0] == "run 1 is submitted at round 1 of 4"
    assert there.said[3] == "the SuperLink ended (exit code -9); trying again in 10 s (2 of 9)"
    assert len(there.said) == 7  # one line per event


def test_a_round_saved_during_a_pause_is_shown(tmp_path, monkeypatch):
    """The server outlives its SuperLink, and saves the last round while nobody watches it."""
    there = Federation(monkeypatch, (1, CRASH))

    def sleep(seconds):
        there.pauses.append(seconds)
        there.rounds = 2

    monkeypatch.setattr(time, "sleep", sleep)
    assert there.run(tmp_path, 2) == [1, 2]
    assert there.pauses == [5.0]


@pytest.mark.parametrize(
    "end",
    [
        RunEnded(
            "finished:failed", "fedsift.types.basics.UserError: a minimum of 4 in a cohort of 3"
        ),
        RunEnded("finished:stopped", "see server.log"),
    ],
)
def test_a_mistake_or_an_operator_ends_it(end, tmp_path, monkeypatch):
    there = Federation(monkeypatch, (1, end))
    with pytest.raises(RunEnded):
        there.run(tmp_path, 4)
    assert there.pauses == []


def test_a_folder_that_is_still_taken_is_no_mistake(tmp_path, monkeypatch):
    busy = RunEnded(
        "finished:failed", f"fedsift.types.basics.UserError: {supervisor.BUSY} /srv/run"
    )
    assert supervisor.BUSY in str(files_lock_error(tmp_path))
    there = Federation(monkeypatch, (0, busy), (2, None))
    assert there.run(tmp_path, 2) == [1, 2]


def find_end(folder, monkeypatch, log, state=None, error=None, flower_run="1"):
    """How submission 1 ended: with this log, status, and error in the run folder."""
    link = superlink.SuperLink("127.0.0.1:1", folder / "home")
    link.home.mkdir(exist_ok=True)
    monkeypatch.setattr(link, "log", lambda run: log)
    if state:
        files.write_json(folder / STATUS, Status(state, 4, flower_run=flower_run).to_json())
    if error:
        trace = traceback.format_exception(error)
        files.write_json(folder / runs.FAILED, {"traceback": trace})
    return RunEnded("finished:failed", link.reason("1", folder))


def write_log(error):
    return f"INFO: x\n{''.join(traceback.format_exception(error))}INFO: bye\n"


FORGED = "2026 WARNING fedsift: round 0 is without client 1: X\nUserError: stop\n2026 INFO: bye\n"


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_no_line_of_a_log_ends_a_run_whose_server_was_killed(state, tmp_path, monkeypatch):
    """Nodes have spoken by then, so a line may be theirs; an old error does not count either."""
    end = find_end(tmp_path, monkeypatch, FORGED, state, UserError("of an earlier submission"))
    assert end.reason == f"see {tmp_path / 'home' / 'server.log'}"
    assert not supervisor.is_final(end)
    assert (tmp_path / "home" / "server.log").read_text() == FORGED
    there = Federation(monkeypatch, (1, end), (1, None))
    assert there.run(tmp_path, 2) == [1, 2]


def test_an_error_of_the_server_is_what_it_has_written_not_what_its_log_says(tmp_path, monkeypatch):
    end = find_end(tmp_path, monkeypatch, FORGED, "failed", OSError(28, "No space"))
    assert end.reason == "OSError: [Errno 28] No space" and not supervisor.is_final(end)
    clever = TooFew("client 1: \nUserError: stop")
    end = find_end(tmp_path, monkeypatch, FORGED, "failed", clever)
    assert end.reason == "fedsift.flower.server.TooFew: client 1:  UserError: stop"
    assert not supervisor.is_final(end)
    end = find_end(tmp_path, monkeypatch, "", "failed", UserError("a mistake"))
    assert end.reason.endswith(".UserError: a mistake") and supervisor.is_final(end)


@pytest.mark.parametrize("state", [None, "failed", "running"])
def test_a_mistake_before_the_server_began_is_in_its_log(state, tmp_path, monkeypatch):
    """No node has spoken; the status is that of another submission, if there is one."""
    log = write_log(UserError("a minimum of 4 replies in a cohort of 3"))
    end = find_end(tmp_path, monkeypatch, log, state, OSError("old"), flower_run="17")
    assert end.reason.endswith(".UserError: a minimum of 4 replies in a cohort of 3")
    assert supervisor.is_final(end)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"traceback": 3}', b'{"traceback": []}', b"\xff"]
)
def test_a_damaged_file_of_an_error_names_none(content, tmp_path, monkeypatch):
    (tmp_path / runs.FAILED).write_bytes(content)
    end = find_end(tmp_path, monkeypatch, FORGED, "failed")
    assert end.reason.startswith("see ") and not supervisor.is_final(end)


def test_a_round_that_uploads_have_spoiled_is_tried_again(tmp_path, monkeypatch):
    """The same words from the experiment itself would be final."""
    mistake = UserError("the aggregator returned values that are not finite or below 0")
    spoiled = RoundError(str(mistake))
    spoiled.__cause__ = mistake
    end = find_end(tmp_path, monkeypatch, "", "failed", spoiled)
    assert end.reason.startswith("fedsift.flower.server.RoundError: the aggregator returned")
    assert not supervisor.is_final(end)
    assert supervisor.is_final(find_end(tmp_path, monkeypatch, "", "failed", mistake))
    there = Federation(monkeypatch, (1, end), (1, None))
    assert there.run(tmp_path, 2) == [1, 2]
    assert there.pauses == [5.0]


def files_lock_error(folder):
    with files.lock_folder(folder), pytest.raises(UserError) as caught:
        files.lock_folder(folder)
    return caught.value


def test_it_gives_up_after_so_many_tries_without_a_round(tmp_path, monkeypatch):
    there = Federation(monkeypatch, (1, CRASH), (0, CRASH), (0, CRASH))
    with pytest.raises(UserError, match=r"given up after 3 tries without a finished round"):
        there.run(tmp_path, 4, tries=3)
    assert there.pauses == [5.0, 10.0]


def test_pauses_grow_to_the_longest():
    assert [Patience().pause(n) for n in (1, 2, 3, 7, 1000)] == [5.0, 10.0, 20.0, 300.0, 300.0]


def test_a_server_that_runs_already_is_watched(tmp_path, monkeypatch):
    """As after a restart of the supervisor alone: nothing is submitted beside it."""
    there = Federation(monkeypatch)
    lock = files.lock_folder(tmp_path)

    def play(_):
        there.rounds += 1
        if there.rounds == 2:
            lock.release()

    monkeypatch.setattr(time, "sleep", play)
    assert there.run(tmp_path, 2) == [1, 2]
    assert there.said == [f"a server is running in {tmp_path}; watching it"]


# --- the verb ---


class Recorder(superlink.SuperLink):
    """Takes what is submitted."""

    asked: list[tuple[Path, dict[str, object]]] = []  # noqa: RUF012

    def submit(self, app, run_config, nodes=None):
        self.asked.append((app, dict(run_config)))
        return "17"


def test_submit_sends_the_projects_settings_with_what_is_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(superlink, "SuperLink", Recorder)
    monkeypatch.setattr(Recorder, "asked", [])
    project.create(Path("app"))
    about = Path("app/pyproject.toml")
    about.write_text(about.read_text().replace('overrides = ""', 'overrides = "rounds=3 seed=1"'))
    words = ["app", "seed=2", "--run-config", "minimum=2", "--out", "mine"]
    done = fedsift("flower", "submit", *words)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"run 17 is submitted; its folder on the server: {tmp_path / 'mine'}\n"
    expected = {"minimum": 2, "overrides": "rounds=3 seed=2", "folder": str(tmp_path / "mine")}
    assert Recorder.asked == [(Path("app"), expected)]
    assert Path("mine-flower").is_dir()  # where the log of a failed run is kept


def test_submit_finds_superlink_and_seats_in_the_folder_of_certificates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    superlink.SuperLink("127.0.0.1:8123", Path("certs"), Path("certs/ca.crt")).write_connection()
    Path("certs/nodes.json").write_text("{}")
    assert superlink.read_address(Path("certs")) == "127.0.0.1:8123"
    monkeypatch.setattr(superlink, "SuperLink", Recorder)
    monkeypatch.setattr(Recorder, "asked", [])
    project.create(Path("app"))
    done = fedsift("flower", "submit", "app", "--certs", "certs", "--out", "mine", "--json")
    assert done.exit_code == 0, done.stderr
    told = read_printed("flower submit", done.stdout)
    assert told == {"flower_run": "17", "run": str(tmp_path / "mine")}
    ((_, how),) = Recorder.asked
    assert how["seats"] == str(tmp_path / "certs" / "nodes.json")
    refused = fedsift("flower", "submit", "app", "--certs", "app", "--out", "mine")
    assert refused.exit_code == 2 and "does not say where the SuperLink is" in refused.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "nowhere is no project; make one with: fedsift flower new nowhere"),
        (["app", "--run-config", "deadlin=3.0"], "did you mean 'deadline'"),
        (["app", "sampler=entropi"], "unknown sampler 'entropi'"),
        (["app", "--server", "127.0.0.1:1", "--supervise", "--tries", "1"], "does not answer"),
    ],
)
def test_mistakes_of_submit_are_said(words, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project.create(Path("app"))
    done = fedsift("flower", "submit", *words)
    assert (done.exit_code, done.stdout) == (2, "") and complaint in done.stderr


def test_the_file_of_an_app_must_be_one(tmp_path):
    project.create(tmp_path / "app")
    (tmp_path / "app" / "pyproject.toml").write_text(json.dumps({"a": 1}))
    with pytest.raises(UserError, match="is not the file of a Flower app"):
        project.read_settings(tmp_path / "app")
