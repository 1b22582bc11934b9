"""Each client alone and all data pooled, beside a federation."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedsift
from fedsift import baselines, runs, training
from fedsift.config import build_federation, read_experiment
from fedsift.engines import choose_engine
from fedsift.engines.sequential import SequentialEngine
from fedsift.evaluation import accuracy
from fedsift.federation import Clients, Federation
from fedsift.models import initial_state
from fedsift.turns import run_turn
from fedsift.types import Fit, Predict, Recipe

SMALL = ["rounds=2", "clients=4", "cohort=2", "data.private=80", "data.public=40", "budget=10"]
SMALL += ["data.test=100", "model=mlp", "local.epochs=2", "distill.epochs=1", "baselines=true"]


def make_federation(count=3, models=None):
    data = fedsift.load_dataset("digits")
    task = fedsift.split(data, private=60, public=30, test=100, seed=0)
    clients = fedsift.make_clients(task.private, count, "iid", models or "mlp", seed=0)
    return Federation(fedsift.fas(budget=5), clients, task, count, 0)


def test_alone_and_pooled_are_plain_trainings_of_the_whole_length():
    federation, recipe = make_federation(), Recipe(epochs=2, batch=10, milestones=(3,))
    engine, rounds = SequentialEngine(), 3
    found = run_turn(
        baselines.baselines_turn(federation, recipe, rounds, federation.start()), engine
    )
    model, task = federation.clients.models[0], federation.task
    parts = {"0": federation.clients[0].data, "mlp": task.private}
    for name, data in parts.items():
        key = (0, 0, "baseline", name)
        whole = replace(recipe, epochs=6)
        (weights,) = engine.run([Fit(model, initial_state(model, 0), data, whole, key)])
        (logits,) = engine.run([Predict(model, weights, task.test.samples)])
        right = accuracy(logits, task.test.labels)
        assert (found.alone | found.pooled)[name] == right
    assert set(found.alone) == {"0", "1", "2"} and set(found.pooled) == {"mlp"}
    assert training.count_steps(Fit(model, {}, task.private, replace(recipe, epochs=6), ())) == 36


def test_pooled_data_are_trained_once_for_each_kind_of_model():
    federation = make_federation(models={"mlp": 2, "mlp(width=0.5)": 1})
    turn = baselines.baselines_turn(federation, Recipe(epochs=1), 1, federation.start())
    jobs = next(turn)
    assert [len(job.data) for job in jobs] == [20, 20, 20, 60, 60]
    assert [job.model.name for job in jobs] == ["mlp"] * 2 + ["mlp(width=0.5)", "mlp"] + [
        "mlp(width=0.5)"
    ]


def test_a_client_without_samples_is_no_bar():
    federation = make_federation()
    private, model = federation.task.private, federation.clients.models[0]
    parts = [np.arange(60), np.arange(0)]
    clients = Clients(private, parts, [model, model])
    empty = Federation(federation.algorithm, clients, federation.task, 2, 0)
    turn = baselines.baselines_turn(empty, Recipe(epochs=1), 1, empty.start())
    assert [len(job.data) for job in next(turn)] == [60, 60]  # one client, and all data


def test_terms_that_follow_a_received_model_are_left_out():
    federation = make_federation()
    recipe = Recipe(epochs=1, prox=0.1, ntd=0.3, prior=1.0)
    turn = baselines.baselines_turn(federation, recipe, 1, federation.start())
    assert {(job.recipe.prox, job.recipe.ntd, job.recipe.prior) for job in next(turn)} == {
        (0.0, 0.0, 1.0)
    }


def test_summary_figures_by_hand():
    found = baselines.Baselines({"0": 0.5, "1": 0.75}, {"mlp": 0.875, "cnn": 0.8}, "test")
    assert (found.mean_alone, found.best_alone, found.best_pooled) == (0.625, 0.75, 0.875)
    assert baselines.read_baselines(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    "damage",
    [
        [],
        {},
        {"alone": {}, "pooled": {"mlp": 0.5}, "measured_on": "test"},
        {"alone": {"0": 2.0}, "pooled": {"mlp": 0.5}, "measured_on": "test"},
        {"alone": {"0": True}, "pooled": {"mlp": 0.5}, "measured_on": "test"},
        {"alone": {"0": float("nan")}, "pooled": {"mlp": 0.5}, "measured_on": "test"},
        {"alone": {"0": 0.5}, "pooled": {"mlp": 0.5}, "measured_on": "the moon"},
    ],
)
def test_a_damaged_file_is_refused(damage):
    with pytest.raises(ValueError, match="must"):
        baselines.read_baselines(damage)


def test_too_many_clients_are_refused(monkeypatch):
    monkeypatch.setattr(baselines, "MOST", 2)
    federation = make_federation()
    with pytest.raises(fedsift.UserError, match="there are 3; leave them out"):
        next(baselines.baselines_turn(federation, Recipe(epochs=1), 1, federation.start()))


def test_a_run_measures_them_once_and_keeps_them(tmp_path):
    experiment = read_experiment("digits-fas", SMALL)
    engine = SequentialEngine()
    for rounds in (0.0, None):  # stopped before the first round, then resumed
        group = runs.Group({tmp_path / "run": experiment})
        group.begin(resume=rounds is None)
        list(group.run(engine, seconds=rounds))
        kept = (tmp_path / "run" / "baselines.json").read_bytes()
        if rounds is not None:
            first = kept
    assert kept == first
    history = runs.load_run(tmp_path / "run")
    assert history.baselines is not None and len(history.baselines.alone) == 4
    assert history.summary()["baselines"] == json.loads(kept)
    plain = runs.Group({tmp_path / "plain": experiment.model_copy(update={"baselines": False})})
    plain.begin()
    list(plain.run(engine))
    other = runs.load_run(tmp_path / "plain")
    assert other.baselines is None and "baselines" not in other.summary()
    assert np.array_equal(other.accuracies, history.accuracies)


@pytest.mark.slow
def test_hospitals_gain_by_the_federation():
    """Ahead of the mean hospital and of the best one at this seed; pooled data are ahead of it."""
    pytest.importorskip("sklearn")
    experiment = read_experiment("hospitals", ["device=cpu", "seed=4", "rounds=6"])
    engine, _ = choose_engine(*experiment.where)
    federation = build_federation(experiment)
    bars = run_turn(
        baselines.baselines_turn(federation, experiment.local, 6, federation.start()), engine
    )
    assert [federation.clients.model_of(id).name for id in range(4)] == list(bars.pooled)
    records = fedsift.federate(
        federation.algorithm, federation.clients, federation.task, rounds=6, cohort=4, seed=4
    )
    reached = [record.accuracy for record in records][-1]
    assert bars.mean_alone + 0.05 < reached and bars.best_alone < reached
    assert reached > 0.9


@pytest.mark.slow
def test_the_example_of_the_hospitals_prints_the_same_bars(capsys):
    """Seed 0: of the four hospitals, and of all data; the federation is ahead of their mean."""
    pytest.importorskip("sklearn")
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "hospitals.py"))
    told = capsys.readouterr().out.splitlines()
    alone = [float(line.rpartition(": ")[2]) for line in told if " alone, " in line]
    (last,) = [line.split()[2].rstrip(",") for line in told if line.startswith("round 8")]
    assert len(alone) == 4
    assert sum(alone) / 4 + 0.05 < float(last)
    assert max(alone) < float(told[-1].rpartition(": ")[2])
