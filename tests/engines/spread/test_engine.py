"""The scheduler with workers that are no processes: who dies, what is done again, what is told."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedsift.engines import Router
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.spread import engine as spread
from fedsift.engines.spread.engine import SpreadEngine, WorkerDied
from fedsift.engines.spread.parcels import unpack
from fedsift.engines.spread.station import Answer, Setting, Station
from fedsift.engines.threads import Interrupted
from fedsift.models import initial_state
from fedsift.types import Fit, Predict, Recipe, UserError
from tests.helpers import toys
from tests.helpers.parity import same


class Here:
    """A worker in this process; it dies of the parts that `dies` says, by their number."""

    def __init__(self, crew):
        self.crew, self.stopped = crew, threading.Event()

    def do(self, parcel, stores):
        with self.crew.lock:
            number = self.crew.begun
            self.crew.begun += 1
        if self.crew.dies(number):
            raise WorkerDied("killed by signal 9")
        stored = {n: stores.tensor(n) for n in parcel.stores}
        found = self.crew.station.do(parcel.text, parcel.flat(), stored, threading.Event())
        return unpack(found.text, found.flat(), torch.zeros, copy=True)

    def stop(self):
        self.stopped.set()

    def kill(self):
        pass


class HereCrew:
    def __init__(self, many=2, dies=lambda number: False, room=10, setting=None, kind=Here):
        self.setting, self.many, self.dies, self.room = setting or Setting(), many, dies, room
        self.begun, self.lock, self.made = 0, threading.Lock(), many
        self.station, self.kind, self.busy = Station(Setting()), kind, threading.Event()

    def count(self):
        return self.many

    def workers(self, count):
        return [self.kind(self) for _ in range(count)]

    def replace(self, worker):
        self.room -= 1
        self.made += self.room >= 0
        return Here(self) if self.room >= 0 else None

    def summary(self):
        return f"{self.many} places"


def jobs(many=6, epochs=2, state=None):
    model = toys.model(toys.with_batch_norm)
    values, labels = toys.gaussians(12, classes=2, features=2)
    data, start = toys.labelled(values, labels), initial_state(model, 0)
    recipe = Recipe(epochs=epochs, batch=8)
    fits = [Fit(model, state or start, data, recipe, (0, "client", i)) for i in range(many)]
    return [*fits, *(Predict(model, start, data.samples) for _ in range(2))]


def check(crew, work):
    found, expected = SpreadEngine(crew).run(work), BatchedEngine("cpu", crew.many).run(work)
    assert all(same(a, b) for a, b in zip(found[:-2], expected[:-2], strict=True))
    assert all((a == b).all() for a, b in zip(found[-2:], expected[-2:], strict=True))


@pytest.mark.parametrize(("device", "lanes"), [("cpu", 1), ("cuda", 2), ("cuda:1", 2)])
def test_the_host_works_beside_gpus_and_keeps_its_memory(monkeypatch, device, lanes):
    """Workers on a CPU share its cores with the host; on GPUs they would wait for it."""
    asked = []
    monkeypatch.setattr(spread, "keep_memory", lambda: asked.append(True))
    engine = SpreadEngine(HereCrew(setting=Setting(device)))
    assert (Router(engine).lanes, asked) == (lanes, [True])


@pytest.mark.parametrize("many", [1, 2, 3])
def test_answers_come_in_the_order_of_the_jobs_with_the_bits_of_one_process(many):
    check(HereCrew(many), jobs())


def test_what_a_dead_worker_had_in_hand_is_done_again_by_another():
    crew = HereCrew(dies=lambda number: number in (0, 2))
    check(crew, jobs())
    assert crew.made == 4


def test_where_there_is_no_room_for_another_the_rest_do_the_work():
    crew = HereCrew(3, dies=lambda number: number < 2, room=0)
    check(crew, jobs())
    assert crew.made == 3


def test_jobs_that_kill_three_workers_are_named():
    engine = SpreadEngine(HereCrew(dies=lambda number: True))
    said = r"3 workers died one after another while training with_batch_norm \(0, 'client', \d\)"
    with pytest.raises(UserError, match=f"{said}.*killed by signal 9.*enough memory"):
        engine.run(jobs())


def test_no_worker_left_is_told():
    with pytest.raises(UserError, match="no worker is left"):
        SpreadEngine(HereCrew(dies=lambda number: True, room=0)).run(jobs())


def test_an_error_of_a_job_is_raised_with_the_lines_that_led_to_it():
    broken = jobs(state={"0.weight": torch.zeros(3)})
    with pytest.raises(RuntimeError, match="missing or unexpected keys") as caught:
        SpreadEngine(HereCrew()).run([*jobs(), *broken])
    assert "In a worker:" in caught.value.__notes__[0]


class Waiting(Here):
    """The first part goes on until it is stopped, the second fails."""

    def do(self, parcel, stores):
        with self.crew.lock:
            number = self.crew.begun
            self.crew.begun += 1
        if number:
            return Answer(None, ValueError("no"))
        assert self.stopped.wait(30)
        return Answer(None, Interrupted())


def test_an_error_stops_what_the_others_do():
    crew = HereCrew(kind=Waiting)
    with pytest.raises(ValueError, match="no"):
        SpreadEngine(crew).run(jobs())
    assert crew.begun == 2


class EndlessUntilStopped(Here):
    """Says that it has a part, and has it until it is stopped."""

    def do(self, parcel, stores):
        self.crew.busy.set()
        assert self.stopped.wait(60)
        raise Interrupted


def test_an_interrupt_while_the_threads_are_started_stops_who_has_begun(monkeypatch):
    crew = HereCrew(kind=EndlessUntilStopped)

    class InterruptedPool(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            super().submit(fn, *args, **kwargs)
            assert crew.busy.wait(60)
            raise KeyboardInterrupt

    monkeypatch.setattr(spread, "ThreadPoolExecutor", InterruptedPool)
    with pytest.raises(KeyboardInterrupt):
        SpreadEngine(crew).run(jobs())


def test_one_program_stays_at_home():
    crew = HereCrew(1)
    assert len(SpreadEngine(crew).run(jobs(1)[:1])) == 1
    assert crew.begun == 0 and SpreadEngine(crew).run([]) == []


def test_on_gpus_equal_networks_are_dealt_to_as_many_workers_and_few_stay_together():
    # 20 of one kind are three parts (8 at most would be 2.5), 3 of another stay together.
    work = [*jobs(20)[:20], *jobs(3, epochs=5)[:3]]
    engine = SpreadEngine(HereCrew(4, setting=Setting("cuda")))
    parts = engine.split(work)
    assert [len(part) for part in parts] == [7, 7, 6, 3]
    assert sorted(place for part in parts for place in part) == list(range(23))
    assert spread.TOGETHER_ON_CUDA == 8 and "GPUs" in engine.describe(work[0].model)
