"""Workers of Ray: room by hand, then a real cluster on this machine that loses and gains a node."""

import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedsift import engines
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.spread import cluster, on_ray
from fedsift.engines.spread.on_ray import _room_on
from fedsift.engines.spread.station import Setting
from fedsift.types import UserError
from tests.helpers import ray_cluster
from tests.helpers.pages import find_command, read_words
from tests.helpers.runs import PROGRAM


def test_room_on_a_node_by_hand():
    # 8 cores and 2 GPUs: 8 workers on cores, 2 with a GPU each, 4 with half, 6 with a third (3 fit
    # on one), 1 with two.
    node = {"CPU": 8.0, "GPU": 2.0}
    assert [_room_on(node, gpus) for gpus in (0, 1, 0.5, 0.3, 2)] == [8, 2, 4, 6, 1]
    assert _room_on({"CPU": 1.0, "GPU": 2.0}, 0.5) == 1 and _room_on({}, 0) == 0


def test_what_cannot_be_is_told_before_ray_is_started(monkeypatch):
    with pytest.raises(UserError, match="a number from 1 on, not 0"):
        engines.choose_engine("ray", "cpu", workers=0)
    with pytest.raises(UserError, match="gpus is a share of a GPU above 0, and needs --device"):
        engines.choose_engine("ray(gpus=0.5)", "cpu")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"engine ray needs Ray: pip install 'fedsift\[ray\]'"):
        engines.choose_engine("ray", "cpu")


class Hired:
    """An actor that is there at once."""

    def __init__(self, crew):
        self.started, self.node = object(), ""

    def kill(self):
        pass


def wait_a_little(started, **_):
    time.sleep(0.2)
    return started, []


class Meeting(list[Hired]):
    """A list that everybody who writes to it leaves at the same time, or after a moment alone."""

    def __init__(self, values):
        super().__init__(values)
        self._all = threading.Barrier(len(values))

    def __setitem__(self, where, value):
        super().__setitem__(where, value)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._all.wait(0.5)


def test_two_workers_lost_at_once_are_replaced_by_one(monkeypatch):
    """The last of them is waited for; the other's place is free until the next list of jobs."""
    ray = SimpleNamespace(wait=wait_a_little, get=lambda _: "node")
    monkeypatch.setattr(on_ray, "_ray", lambda: ray)
    monkeypatch.setattr(on_ray, "RayWorker", Hired)
    crew: Any = on_ray.RayCrew(Setting("cpu", "float32", None), 2, 0.0, started=False)
    lost = [Hired(crew), Hired(crew)]
    crew._ready = Meeting(lost)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(crew.replace, lost))
    (fresh,) = [worker for worker in found if worker is not None]
    assert list(crew._ready) == [fresh] and crew._starting == []


def test_no_note_of_a_cluster_is_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "home", lambda: tmp_path)
    assert cluster.find() is None and cluster.stop() is None
    (tmp_path / cluster.NOTE).write_text('{"address": "127.0.0.1:1", "pid": 1, "born": "0"}')
    assert cluster.find() is None and cluster.stop() is None  # pid 1 is another process
    (tmp_path / cluster.NOTE).write_text("no json")
    assert cluster.find() is None


def outcome(folder):
    """What must not depend on the engine: metrics and ledger, byte for byte."""
    return (folder / "metrics.jsonl").read_bytes(), (folder / "ledger.jsonl").read_bytes()


def run_program(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_node_killed_with_9_and_one_that_joins_change_nothing_but_the_time(tmp_path):
    """Three raylets with a core each; one dies after the first round, another comes after the
    second, and its worker trains in the last."""
    pytest.importorskip("ray")
    ray_cluster.play(tmp_path / "batched", BatchedEngine("cpu", 2), {})
    said = run_program(sys.executable, "-m", ray_cluster.__name__, str(tmp_path / "ray"))
    assert said.splitlines()[-1] == "used True lost True"
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "batched")


@pytest.mark.slow
def test_a_run_on_a_cluster_that_was_put_up_gives_the_bytes_of_the_batched_engine(tmp_path):
    """`fedsift cluster up`, a run with two workers there, and `fedsift cluster down`."""
    pytest.importorskip("ray")
    said = run_program(*PROGRAM, "cluster", "up", "--cores", "2", "--memory", "0.1")
    running = cluster.find()
    assert running is not None and running["address"] in said
    try:
        words = ["run", "digits-fas", *ray_cluster.TINY, "rounds=2", "--quiet"]
        run_program(*PROGRAM, *words, "--engine", "batched", "--out", str(tmp_path / "batched"))
        there = ["--address", running["address"], "--out", str(tmp_path / "ray")]
        command = read_words(find_command("docs/cluster.md", "fedsift run digits-fas --engine ray"))
        run_program(*PROGRAM, *command[1:], *words[2:], *there)
        assert outcome(tmp_path / "ray") == outcome(tmp_path / "batched")
        rows = [json.loads(line) for line in outcome(tmp_path / "ray")[0].splitlines()]
        assert len(rows) == 2 and np.isfinite(rows[-1]["accuracy"])
    finally:
        assert running["address"] in run_program(*PROGRAM, "cluster", "down")
    assert cluster.find() is None
