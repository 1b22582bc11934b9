"""What `auto` does: small networks move to worker processes when enough steps were trained."""

import pytest

from fedsift import bench
from fedsift.engines import auto
from fedsift.engines.auto import AutoEngine
from fedsift.engines.batched import BatchedEngine
from fedsift.models import make_model
from fedsift.types import Predict
from tests.helpers.parity import same

SMALL = bench.Case("mlp", (1, 4, 4), clients=4, samples=8, batch=8, epochs=3)  # 12 steps in all
LARGE = bench.Case("resnet8", (3, 32, 32), clients=2, samples=8, batch=8)


@pytest.fixture
def engine(monkeypatch):
    """Workers come after 30 steps, however many cores there are."""
    monkeypatch.setattr(auto, "STEPS_HERE", 30)
    monkeypatch.setattr(auto, "count_cores", lambda: 2)
    made = AutoEngine("cpu")
    yield made
    if made._others is not None:
        made._others.close()


def has_workers(engine) -> bool:
    return any(engine._others.crew._places)


def test_small_networks_move_when_so_many_steps_were_trained_and_no_bit_changes(engine):
    jobs = SMALL.cohort()
    expected = BatchedEngine("cpu").run(jobs)
    for steps, moved in ((12, False), (24, False), (36, True), (48, True)):
        found = engine.run(jobs)
        assert all(same(one, other) for one, other in zip(found, expected, strict=True))
        assert (engine._steps, has_workers(engine)) == (steps, moved)


def test_large_networks_questions_and_mixed_lists_stay_here(engine):
    small, large = SMALL.cohort(), LARGE.cohort()
    asked = [Predict(job.model, job.state, job.data.samples) for job in small]
    engine.run(small * 3)
    engine._others.close()
    for jobs in (large, asked, [*small, *large], [*small, *asked], small[:1]):
        engine.run(jobs)
        assert not has_workers(engine)


def test_a_network_that_no_other_process_knows_stays_here(engine):
    def own(shape, classes):
        return make_model("mlp", shape, classes).build()

    model = make_model(own, (1, 4, 4), 10)
    assert engine._is_small(SMALL.cohort()[0].model) and not engine._is_small(model)


def test_one_core_has_no_workers(monkeypatch):
    monkeypatch.setattr(auto, "count_cores", lambda: 1)
    assert AutoEngine("cpu")._others is None
