"""Real worker processes: the bits of one process, kill -9, errors, and nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedsift import bench, engines
from fedsift.engines.auto import AutoEngine
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.spread import processes
from fedsift.engines.spread.processes import GIB, ProcessCrew, WorkerEngine
from fedsift.engines.spread.station import Setting
from fedsift.engines.threads import count_cores
from fedsift.types import Predict, UserError
from tests.helpers.parity import same
from tests.helpers.runs import PROGRAM

CNN = bench.Case("cnn", (1, 8, 8), clients=4, samples=20, batch=8, epochs=2)


@pytest.fixture(scope="module")
def engine():
    made = WorkerEngine("cpu", 2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected():
    return BatchedEngine("cpu", 2).run(CNN.cohort())


def pids(engine):
    return [worker.pid for worker in engine.crew._places if worker is not None]


def is_running(pid):
    """Not gone, and no zombie that waits for whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(what, seconds=30.0):
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    assert what()


def all_same(found, expected):
    return all(same(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("module", "system"), [("sys", {"platform": "darwin"}), ("os", {"name": "nt"})]
)
def test_other_systems_are_told_and_auto_stays_in_one_process(monkeypatch, module, system):
    assert AutoEngine("cpu")._others is not None or count_cores() == 1
    monkeypatch.setattr(processes, module, SimpleNamespace(**system))
    with pytest.raises(UserError, match="need Linux; use --engine batched"):
        engines.choose_engine(workers=2)
    assert AutoEngine("cpu")._others is None


def test_weights_and_logits_are_those_of_one_process_bit_for_bit(engine, expected):
    jobs = CNN.cohort()
    assert all_same(engine.run(jobs), expected)
    asked = [Predict(job.model, job.state, job.data.samples) for job in jobs]
    found, known = engine.run(asked), BatchedEngine("cpu", 2).run(asked)
    assert all(np.array_equal(a, b) for a, b in zip(found, known, strict=True))
    assert len(set(pids(engine))) == 2 and os.getpid() not in pids(engine)


def test_an_answer_is_not_overwritten_by_the_next(engine, expected):
    first = engine.run(CNN.cohort())
    engine.run(bench.Case("mlp", (1, 8, 8), clients=4, samples=20, batch=8).cohort())
    assert all_same(first, expected)


def test_a_worker_killed_with_9_is_replaced_and_its_jobs_are_done_again(engine, expected):
    engine.run(CNN.cohort())
    before = pids(engine)
    os.kill(before[0], signal.SIGKILL)
    assert all_same(engine.run(CNN.cohort()), expected)
    assert pids(engine)[0] != before[0] and pids(engine)[1] == before[1]


def test_a_job_that_fails_is_told_and_the_engine_goes_on(engine, expected):
    jobs = CNN.cohort()
    broken = type(jobs[0])(jobs[0].model, {}, jobs[0].data, jobs[0].recipe, (1,))
    with pytest.raises(RuntimeError, match="missing or unexpected keys"):
        engine.run([*jobs, broken])
    assert all_same(engine.run(jobs), expected)


def test_workers_end_with_their_engine():
    engine = WorkerEngine("cpu", 2)
    engine.run(bench.Case("mlp", (1, 4, 4), clients=2, samples=8, batch=8).cohort())
    started = pids(engine)
    assert len(started) == 2 and all(map(is_running, started))
    engine.close()
    assert not any(map(is_running, started))


def test_workers_are_chosen_by_name_or_number_and_refused_where_there_are_none():
    router, why = engines.choose_engine("auto", "cpu", workers=3)
    assert isinstance(router.networks, WorkerEngine) and router.networks.crew.count() == 3
    assert why == "batched engine in 3 worker process(es) on cpu, float32 (asked for)"
    assert isinstance(engines.choose_engine("workers", "cpu")[0].networks, WorkerEngine)
    with pytest.raises(UserError, match="engine sequential has no workers"):
        engines.choose_engine("sequential", "cpu", workers=2)
    with pytest.raises(UserError, match="a number from 1 on, not 0"):
        engines.choose_engine("workers", "cpu", workers=0)


SCRIPT = """
import sys, torch
from fedsift import bench
from fedsift.engines.spread.processes import WorkerEngine
engine = WorkerEngine("cpu", 2)
engine.run(bench.Case("mlp", (1, 4, 4), clients=2, samples=8, batch=8).cohort())
print(*[worker.pid for worker in engine.crew._places], flush=True)
engine.run(bench.Case("mlp", (1, 4, 4), clients=2, samples=8, batch=8, epochs=10**5).cohort())
"""


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_worker_and_no_shared_memory_outlives_its_process(sign):
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=-1, stderr=-1, text=True) as boss:
        assert boss.stdout is not None
        started = [int(word) for word in boss.stdout.readline().split()]
        assert len(started) == 2 and all(map(is_running, started))
        for _ in range(3):  # Python drops an interrupt that meets it in a destructor
            boss.send_signal(getattr(signal, sign))
            with contextlib.suppress(subprocess.TimeoutExpired):
                boss.wait(15)
                break
        assert boss.poll() is not None
    wait_until(lambda: not any(map(is_running, started)))
    assert not list(Path("/dev/shm").glob("*fedsift*"))


def outcome(folder):
    """What must not depend on the engine: metrics and ledger, byte for byte."""
    return (folder / "metrics.jsonl").read_bytes(), (folder / "ledger.jsonl").read_bytes()


@pytest.mark.slow
def test_a_run_with_workers_gives_the_bytes_of_the_batched_engine(tmp_path):
    small = ["digits-fas", "rounds=2", "clients=6", "cohort=4", "seed=1"]
    for name, how in (("batched", ["--engine", "batched"]), ("workers", ["--workers", "2"])):
        done = subprocess.run(
            [*PROGRAM, "run", *small, *how, "--quiet", "--out", str(tmp_path / name)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    metrics, ledger = outcome(tmp_path / "batched")
    assert len(metrics.splitlines()) == 2 and ledger
    assert outcome(tmp_path / "workers") == (metrics, ledger)


def test_workers_take_the_gpus_in_turn_and_share_what_is_free_there(monkeypatch):
    """Three on two GPUs are two on one of them: half of 8 GiB is 2 GiB each."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GIB, 16 * GIB))
    crew = ProcessCrew(Setting("cuda"), 3)
    assert [crew._settle(place) for place in range(3)] == [
        Setting(device, memory=2.0) for device in ("cuda:0", "cuda:1", "cuda:0")
    ]
