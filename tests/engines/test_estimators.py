"""Jobs of models that are no networks: in threads or processes, mixed with networks."""

import numpy as np
import pytest
import torch

import fedsift
from fedsift.engines import Router, estimators
from fedsift.engines.estimators import EstimatorEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.estimators import state
from fedsift.models import initial_state, make_model
from fedsift.numerics import softmax
from fedsift.types import Fit, Labelled, ModelFailure, Predict, Recipe, Samples, Store
from tests.helpers.black_box import answer_evenly, serving

pytest.importorskip("sklearn")
FOREST = "sklearn:RandomForestClassifier(n_estimators=3)"
rng = np.random.default_rng(1)
STORE = Store(torch.from_numpy(rng.normal(size=(60, 4))).float(), torch.zeros(4), torch.ones(4))
SAMPLES = Samples(STORE, np.arange(60))
DATA = Labelled(SAMPLES, torch.eye(3)[(STORE.values[:, 0] > 0).long()])


def model(what=FOREST):
    return make_model(what, (4,), 3)


def fit(what=FOREST, key=("k",), kept=True, data=DATA):
    made = model(what)
    return Fit(made, initial_state(made, 0), data, Recipe(epochs=1), key, kept=kept)


def predict(weights, what=FOREST):
    return Predict(model(what), weights, SAMPLES)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_fit_gives_a_state_and_a_predict_what_a_softmax_turns_into_probabilities():
    engine = EstimatorEngine(1)
    (weights,) = engine.run([fit()])
    (logits,) = engine.run([predict(weights)])
    assert list(weights) == [state.NAME] and weights[state.NAME].dtype == torch.uint8
    probs = softmax(logits, 1.0)
    assert logits.dtype == np.float32 and np.allclose(probs.sum(1), 1)
    assert (probs[:, 2] == 0).all()  # never seen
    assert (probs.argmax(1) == DATA.labels).mean() > 0.9


def test_randomness_comes_from_the_key_alone():
    engine = EstimatorEngine(2)
    a, b, c = engine.run([fit(key=(0, "a")), fit(key=(0, "a")), fit(key=(0, "b"))])
    assert same(a, b) and not same(a, c)


@pytest.mark.slow
def test_threads_and_processes_give_the_same_bits(monkeypatch):
    jobs = [fit(key=(i,)) for i in range(6)]
    alone = EstimatorEngine(1).run(jobs)
    monkeypatch.setattr(estimators, "MANY", 4)
    engine = EstimatorEngine(2)
    spread = engine.run(jobs)
    assert all(same(a, b) for a, b in zip(alone, spread, strict=True))
    found = engine.run([predict(weights) for weights in spread])
    expected = EstimatorEngine(1).run([predict(weights) for weights in alone])
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_state_that_is_not_kept_lives_as_long_as_somebody_holds_it():
    engine = EstimatorEngine(1)
    (weights,) = engine.run([fit(kept=False)])
    (kept,) = engine.run([fit()])
    one, other = engine.run([predict(weights), predict(kept)])
    assert np.array_equal(one, other)
    (lost,) = EstimatorEngine(1).run([predict(weights)])
    assert isinstance(lost, ModelFailure) and "nobody was to remember it" in str(lost)
    assert len(engine._live) == 2
    del weights, kept
    assert not engine._live


def test_one_that_fails_fails_alone():
    class Broken:
        def fit(self, x, y):
            raise RuntimeError("no luck")

        def predict_proba(self, x):
            return x

    good, bad = EstimatorEngine(2).run([fit(), fit(Broken)])
    assert state.NAME in good and isinstance(bad, ModelFailure)
    assert str(bad) == "Broken.fit raised RuntimeError: no luck"


def test_a_model_without_a_state_has_no_opinion():
    (logits,) = EstimatorEngine(1).run([predict({})])
    assert logits.tolist() == [[0, 0, 0]] * 60


def test_a_router_sends_each_job_to_the_engine_of_its_kind():
    router, networks = Router(SequentialEngine("cpu", 1)), SequentialEngine("cpu", 1)
    jobs = [fit("mlp"), fit(), fit("mlp", key=("other",)), fit(key=("other",))]
    found = router.run(jobs)
    expected = networks.run([jobs[0], jobs[2]]), EstimatorEngine(1).run([jobs[1], jobs[3]])
    wanted = [expected[i % 2][i // 2] for i in range(4)]
    assert all(same(a, b) for a, b in zip(found, wanted, strict=True))
    assert "trained anew" in router.describe(model()) and "mlp" in router.describe(model("mlp"))


def test_a_black_box_is_asked_about_the_values_before_they_are_normalised():
    values = torch.tensor([[0, 128], [255, 1]], dtype=torch.uint8)
    store = Store(values, torch.ones(2), 9 * torch.ones(2))
    samples = Samples(store, np.array([1, 0]))
    with serving(answer_evenly(3)) as (address, asked):
        box = make_model(address, (2,), 3)
        data = Labelled(samples, torch.eye(3)[:2])
        (weights,) = EstimatorEngine(1).run([Fit(box, {}, data, Recipe(), ("k",))])
        (logits,) = EstimatorEngine(1).run([Predict(box, weights, samples)])
    assert weights == {} and asked == [[[255.0, 1.0], [0.0, 128.0]]]
    assert np.allclose(softmax(logits, 1.0), [[0.5, 0.25, 0.25]] * 2)


def test_images_are_laid_flat():
    task = fedsift.split(fedsift.load_dataset("digits"), private=60, public=20, test=20)
    forest = make_model(FOREST, task.private.samples.shape, 10)
    engine = EstimatorEngine(1)
    (weights,) = engine.run([Fit(forest, {}, task.private, Recipe(), ("k",), kept=True)])
    assert state.decode(state.from_weights(weights), forest).estimator.n_features_in_ == 64
