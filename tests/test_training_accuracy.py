"""Small real trainings that must reach a stated accuracy, on the embedded digits. Seeds are fixed,
so is the result.
"""

import numpy as np
import pytest
from torch import nn

import fedsift
from fedsift import config, evaluation
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import federate

ENGINE = SequentialEngine("cpu")


def accuracy(preset, *overrides):
    """The mean over the last five rounds of an experiment."""
    experiment = config.read_experiment(preset, list(overrides))
    f = config.build_federation(experiment)
    records = federate(
        f.algorithm,
        f.clients,
        f.task,
        rounds=experiment.rounds,
        cohort=f.cohort,
        seed=f.seed,
        engine=ENGINE,
    )
    return evaluation.average_last([record.accuracy for record in records])


@pytest.mark.slow
def test_at_strong_skew_active_sampling_beats_no_sampling_and_fedavg():
    fas, fd, fedavg = (
        accuracy(f"digits-{name}", "alpha=0.1", "rounds=8") for name in ("fas", "fd", "fedavg")
    )
    assert fas > 0.55
    assert fas > fd + 0.2 and fas > fedavg + 0.2


@pytest.mark.slow
def test_on_nearly_iid_data_all_of_them_learn():
    assert accuracy("digits-fedavg", "alpha=100", "rounds=8") > 0.80
    assert accuracy("digits-fas", "alpha=100", "rounds=8") > 0.80


@pytest.mark.slow
def test_without_any_weights_on_the_wire_the_servers_student_and_the_clients_learn():
    experiment = config.read_experiment("digits-fas-soft-down", ["rounds=5"])
    f = config.build_federation(experiment)
    *_, last = federate(
        f.algorithm, f.clients, f.task, rounds=5, cohort=f.cohort, seed=f.seed, engine=ENGINE
    )
    assert last.accuracy > 0.6
    assert last.client_accuracy is not None and 0.3 < last.client_accuracy < last.accuracy
    assert last.disagreement is not None and 0 < last.disagreement < 0.7


@pytest.mark.slow
def test_a_federation_of_a_million_learns():
    assert accuracy("digits-fas", "partition.kind=views", "clients=1000000", "rounds=6") > 0.7


@pytest.mark.slow
def test_clients_with_different_models_learn_together():
    assert accuracy("digits-fas-mixed-models", "rounds=6") > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["float16"])
def test_half_the_bytes_cost_no_accuracy(codec):
    full, half = (accuracy("digits-fas", "rounds=6", f"codec={c}") for c in ("float32", codec))
    assert half > full - 0.05


@pytest.mark.slow
def test_your_own_sampler_model_and_data():
    """As in the README: a sampler and a model are functions, data are arrays."""

    def surest_half_at_random(probs, label_counts, budget, draws):
        surest = np.argsort(fedsift.entropy(probs))[: 2 * budget]
        return draws.own.choice(surest, budget, replace=False)

    def small(shape, classes):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Dropout(0.1), nn.Linear(48, classes)
        )

    digits = fedsift.load_dataset("digits")
    task = fedsift.split(fedsift.make_dataset(digits.x, digits.y), private=800, public=500, seed=0)
    clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(1.0), small, seed=0)
    fas = fedsift.fas(60, sampler=surest_half_at_random)
    records = list(fedsift.federate(fas, clients, task, rounds=5, cohort=8, seed=0, engine=ENGINE))
    assert records[-1].accuracy > 0.6
