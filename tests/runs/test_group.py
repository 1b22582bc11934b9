"""Runs side by side: none can tell it is not alone, and one that fails fails alone."""

import sys
import threading

import pytest

from fedsift import runs
from fedsift.engines import choose_engine
from fedsift.engines.router import Router
from fedsift.engines.spread.processes import WorkerEngine
from fedsift.runs import CHECKPOINT, rounds
from fedsift.turns import run_turns
from fedsift.types import Fit
from tests.helpers.runs import bits, rounds_in, straight, tiny
from tests.helpers.turns import Doubling, counting


@pytest.mark.slow
def test_runs_side_by_side_are_bit_for_bit_the_runs_alone(tmp_path):
    experiments = [
        tiny("digits-fas", rounds=2),
        tiny("digits-fas", "seed=1", rounds=4),
        tiny("digits-fas-soft-down", rounds=3),
        tiny("digits-fedavg", rounds=3),
        tiny("digits-fas", "clients.models={mlp = 2, 'cnn(width=0.5)' = 2}", rounds=2),
    ]
    beside = [runs.begin_run(tmp_path / f"beside{i}", e) for i, e in enumerate(experiments)]
    order = [beside.index(run) for run, _ in runs.Group.of(beside).run_or_raise(choose_engine()[0])]
    assert order == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 1, 2, 3, 1]
    for i, experiment in enumerate(experiments):
        assert bits(beside[i].folder) == bits(straight(tmp_path / f"alone{i}", experiment))


def test_a_round_is_on_disk_before_it_is_yielded(tmp_path):
    beside = [
        runs.begin_run(tmp_path / str(seed), tiny("digits-fas", f"seed={seed}", rounds=2))
        for seed in range(2)
    ]
    for run, record in runs.Group.of(beside).run_or_raise(choose_engine()[0]):
        assert rounds_in(run.folder) == record.round + 1
        assert (run.folder / CHECKPOINT).read_bytes() == runs.to_bytes(record.state)


def test_training_waits_until_every_turn_asks_for_some():
    """One turn begins with training, the other with a question: both train in the second step."""
    training, seen = object.__new__(Fit), []

    class Watching(Doubling):
        def run(self, jobs):
            seen.append(["train" if isinstance(job, Fit) else job for job in jobs])
            return jobs

    def early():
        yield [training]
        yield ["afterwards"]
        return "early"

    def late():
        yield ["before"]
        yield [training]
        return "late"

    assert run_turns([early(), late()], Watching()) == ["early", "late"]
    assert seen == [["before"], ["train", "train"], ["afterwards"]]


def test_finished_runs_are_not_played(tmp_path):
    done = runs.begin_run(straight(tmp_path / "run", tiny(rounds=1)), tiny(rounds=1), resume=True)
    assert list(runs.Group.of([done]).run_or_raise(choose_engine()[0])) == []


class Refusing(Doubling):
    """Refuses a list with any of these numbers in it."""

    def __init__(self, *refused: int):
        super().__init__()
        self.refused = set(refused)

    def run(self, jobs):
        answers = super().run(jobs)
        if bad := self.refused & set(jobs):
            raise ValueError(f"not {min(bad)}")
        return answers


def failing(after: int):
    yield from counting(1000, after)
    raise RuntimeError("on my own")


def test_without_failures_turns_apart_are_turns_together():
    engine = Doubling()
    assert run_turns([counting(1, 1), counting(10, 3), counting(100, 2)], engine) == [2, 66, 402]
    assert engine.lists == [[1, 10, 100], [11, 101], [12]]
    assert run_turns([], engine) == []


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_turn_that_fails_by_itself_fails_alone(after):
    one, error, other = run_turns([counting(1, 2), failing(after), counting(10, 3)], Doubling())
    assert (one, other) == (6, 66)
    assert isinstance(error, RuntimeError) and str(error) == "on my own"


def test_work_an_engine_refuses_is_done_turn_by_turn_and_only_the_guilty_fails():
    engine = Refusing(11)
    one, error, other = run_turns([counting(1, 3), counting(10, 3), counting(100, 2)], engine)
    assert (one, other) == (12, 402)
    assert isinstance(error, ValueError) and str(error) == "not 11"
    assert engine.lists == [[1, 10, 100], [2, 11, 101], [2], [11], [101], [3]]


def test_several_turns_may_fail_each_for_its_own_reason():
    errors = run_turns([counting(1, 2), counting(10, 2)], Refusing(2, 11))
    assert [str(error) for error in errors] == ["not 2", "not 11"]


def test_the_work_of_a_turn_alone_is_not_tried_twice():
    engine = Refusing(1)
    (error,) = run_turns([counting(1, 2)], engine)
    assert str(error) == "not 1"
    assert engine.lists == [[1]]


def test_an_interrupt_stops_all():
    class Interrupting(Doubling):
        def run(self, jobs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_turns([counting(1, 1), counting(2, 1)], Interrupting())


# --- two lanes ---


class TwoLanes(Router):
    """A CPU's engine that asks for two lanes, as one on a GPU does; it notes who called it."""

    lanes = 2

    def __init__(self, networks=None):
        super().__init__(networks or choose_engine()[0].networks)
        self.callers = set()

    def run(self, jobs):
        self.callers.add(threading.current_thread())
        return super().run(jobs)


def begin_all(folder, experiments):
    return [runs.begin_run(folder / str(i), e) for i, e in enumerate(experiments)]


MIXED = [
    ("digits-fas", "seed=1"),
    ("digits-fas-soft-down",),
    ("digits-fedavg", "model=mlp", "algorithm.codec=updates(1)"),
    ("digits-fas", "seed=2"),
]


def test_runs_in_two_lanes_are_those_in_one(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "FEWEST", 2)
    experiments = [tiny(*words, rounds=2) for words in MIXED]
    one, two = (begin_all(tmp_path / name, experiments) for name in ("one", "two"))
    engine = TwoLanes()
    order = [two.index(run) for run, _ in runs.Group.of(two).run_or_raise(engine)]
    list(runs.Group.of(one).run_or_raise(choose_engine()[0]))
    assert sorted(order) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(order[:2]) in ({0, 2}, {1, 3})  # the lanes hold every other run
    assert engine.callers == {threading.main_thread()}  # so that an interrupt stops it
    for mine, theirs in zip(one, two, strict=True):
        assert bits(mine.folder) == bits(theirs.folder)


@pytest.mark.slow
def test_worker_processes_serve_two_lanes_with_the_same_bits(tmp_path, monkeypatch):
    """As on GPUs: jobs are packed here while the other lane is on the host."""
    monkeypatch.setattr(rounds, "FEWEST", 2)
    experiments = [tiny(*words, rounds=2) for words in MIXED]
    one, two = (begin_all(tmp_path / name, experiments) for name in ("one", "two"))
    workers = WorkerEngine("cpu", 2)
    try:
        list(runs.Group.of(two).run_or_raise(TwoLanes(workers)))
    finally:
        workers.close()
    list(runs.Group.of(one).run_or_raise(choose_engine()[0]))
    assert all(bits(a.folder) == bits(b.folder) for a, b in zip(one, two, strict=True))


def test_in_two_lanes_a_round_is_on_disk_before_it_is_told_and_a_failure_stops_one_run(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(rounds, "FEWEST", 2)
    every = begin_all(tmp_path, [tiny("digits-fas", f"seed={i}", rounds=2) for i in range(4)])
    full = OSError("no space left")

    def write(record, seconds):
        raise full

    monkeypatch.setattr(every[2], "write", write)
    group, failures = runs.Group.of(every), []
    for run, outcome in group.run(TwoLanes()):
        if isinstance(outcome, Exception):
            failures.append((run, outcome))
        else:
            assert rounds_in(run.folder) == outcome.round + 1
    assert failures == [(every[2], full)] and (every[2].folder / runs.FAILED).is_file()
    assert [run.finished for run in every] == [True, True, False, True]


def test_an_interrupt_stops_both_lanes_and_opens_the_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "FEWEST", 1)

    class Interrupted(TwoLanes):
        def run(self, jobs):
            raise KeyboardInterrupt

    experiments, before = [tiny(), tiny("digits-fas", "seed=1")], sys.getswitchinterval()
    with pytest.raises(KeyboardInterrupt):
        list(runs.Group.of(begin_all(tmp_path, experiments)).run(Interrupted()))
    assert sys.getswitchinterval() == before
    for i, experiment in enumerate(experiments):
        runs.begin_run(tmp_path / str(i), experiment, resume=True).lock.release()
