"""A deployment on loopback and the SuperLink it drives: what crosses, what is stopped, what is said
when something is gone. Without Flower's processes.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from fedsift import runs
from fedsift.flower import local_deployment, processes, project, superlink
from tests.helpers.cli import fedsift

MODELS = 'clients.models={"task:network"=1,"mlp"=1}'
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text() | st.integers() | st.booleans()))
def test_what_is_submitted_reaches_flower_as_it_is(tmp_path_factory, values):
    file = superlink.write_toml(tmp_path_factory.mktemp("submit") / "run-config.toml", values)
    assert parse_config_args([str(file)]) == values


def test_overrides_with_quotes_are_submitted_whole(tmp_path, monkeypatch):
    asked = []

    def answer(*words):
        asked.append(words)
        return {"run-id": 7}

    link = superlink.SuperLink("127.0.0.1:1", tmp_path)
    monkeypatch.setattr(link, "flwr", answer)
    assert link.submit(Path("app"), {"overrides": MODELS, "deadline": 20.0, "minimum": 2}) == "7"
    (words,) = asked
    config = words[words.index("--run-config") + 1]
    assert parse_config_args([config]) == {"overrides": MODELS, "deadline": 20.0, "minimum": 2}


def wait_for(happened):
    end = time.monotonic() + 60
    while not (found := happened()):
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.02)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no child")
def test_what_was_started_ends_with_a_parent_that_was_killed(tmp_path):
    parent = (
        "import sys, time; from pathlib import Path; "
        "from fedsift.flower.local_deployment import Deployment; "
        "from fedsift.flower.processes import start_guard; "
        f"here = Deployment(Path({str(tmp_path)!r})); here.guard = start_guard(here.mark); "
        f"print(here._start('one', *{SLEEP!r}).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        wait_for(lambda: b"time.sleep" in Path(f"/proc/{child}/cmdline").read_bytes())
        process.kill()
    wait_for(lambda: child not in processes.processes())


class DeadDeployment(local_deployment.Deployment):
    """Its SuperLink runs until a run has begun."""

    def _start_link(self):
        self._start("superlink", *SLEEP)

    def node(self, settings, key=None, trust=True, retries=None):
        pass

    def submit(self, app, run_config, nodes=None):
        Path(run_config["folder"]).mkdir(parents=True)
        self.running["superlink"].kill()
        self.running["superlink"].wait()
        return "1"


def test_up_says_how_to_resume_after_the_superlink_has_died(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_deployment, "Deployment", DeadDeployment)
    project.create(Path("app"))
    done = fedsift("flower", "up", "app", "--out", "mine")
    first, hint = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    log = tmp_path / "mine-flower" / "superlink.log"
    assert first == (
        f"error: the SuperLink ended (exit code -9); see {log}; no round is finished yet. "
        "Once that is fixed, resume with:"
    )
    assert hint.split() == f"fedsift flower up app --resume --out {tmp_path / 'mine'}".split()


def test_a_run_that_ended_early_is_told_apart_from_rounds(tmp_path, monkeypatch):
    """Two of three rounds are saved when the run fails."""
    link = superlink.SuperLink("127.0.0.1:1", tmp_path)
    saved = iter([1, 2, 2, 2])
    monkeypatch.setattr(superlink, "rounds_played", lambda folder: next(saved))
    monkeypatch.setattr(link, "status", lambda run: "finished:failed")
    monkeypatch.setattr(link, "log", lambda run: "x\nfedsift.types.basics.UserError: wrong\ny\n")
    rounds = superlink.follow(link, "1", tmp_path, 0, 3, look=0.0)
    assert [next(rounds), next(rounds)] == [1, 2]
    with pytest.raises(superlink.RunEnded, match=r"\(finished:failed\): .*\.UserError: wrong"):
        next(rounds)
    assert (tmp_path / "server.log").read_text().startswith("x\n")


def test_rays_folder_goes_with_the_deployment(tmp_path, monkeypatch):
    monkeypatch.setattr(local_deployment.Deployment, "_start_link", lambda self: None)
    with local_deployment.Deployment(tmp_path, simulation=True) as deployment:
        scratch = Path(deployment.environment["RAY_TMPDIR"])
        (scratch / "ray" / "session").mkdir(parents=True)
        assert len(str(scratch / "ray")) < 40 or scratch.parent != Path("/tmp")  # sockets: 107
    assert not scratch.exists()


def test_logs_have_no_colours_once_all_has_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(local_deployment.Deployment, "_start_link", lambda self: None)
    with local_deployment.Deployment(tmp_path):
        (tmp_path / "node-0.log").write_bytes(
            b"\x1b[92mINFO \x1b[0m: r\xc3\xa9ady\n\xff\x1b[1;91m!\n"
        )
    assert (tmp_path / "node-0.log").read_text() == "INFO : réady\n\ufffd!\n"
    assert superlink.remove_colours("\x1b[93mWARNING\x1b[0m [3m") == "WARNING [3m"


def test_a_closed_terminal_stops_a_run_as_ctrl_c_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rounds = Path("mine") / runs.CHECKPOINT
    words = ["run", "digits-fas", "rounds=200", "clients=2", "cohort=2", "--out", "mine"]
    command = [sys.executable, "-m", "fedsift", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: rounds.exists() or process.poll() is not None)
        os.kill(process.pid, signal.SIGHUP)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 129
    assert "terminal closed; every finished round is saved. Resume with:" in said
