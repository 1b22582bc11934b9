"""`aggregator=trust` in federations: small trainings, resume, metrics."""

import json
from typing import Any

import pytest

import fedsift
from fedsift.checkpoints import from_bytes, restore_state, to_bytes
from fedsift.federation import Federation
from tests.helpers.cli import FAS, done

RECIPE = fedsift.Recipe(epochs=1)


def run_digits(aggregator, attackers, rounds=6, **options):
    """Five clients with 40 samples each, all of them in every round."""
    task = fedsift.split(fedsift.load_dataset("digits"), private=200, public=500, seed=1)
    clients = fedsift.make_clients(task.private, 5, fedsift.Dirichlet(1.0), model="cnn", seed=1)
    algorithm = fedsift.fas(60, aggregator=aggregator, **options)
    attack: Any = {"attack": "wrong", "attackers": attackers}
    found = fedsift.federate(algorithm, clients, task, rounds=rounds, cohort=5, seed=1, **attack)
    return list(found)


def test_one_hostile_client_of_five_is_found_and_has_no_vote():
    mean, trust = (run_digits(rule, 0.2) for rule in ("mean", "trust"))
    assert trust[-1].accuracy > 0.70
    assert trust[-1].accuracy > mean[-1].accuracy + 0.08
    for record in trust[-3:]:
        voteless = {id for id, verdict in record.verdicts.items() if verdict.voteless}
        assert voteless == set(record.hostile)
    assert not mean[-1].verdicts


def test_everybody_honest_has_a_vote():
    records = run_digits("trust", 0.0, rounds=4)
    assert all(len(record.verdicts) == 5 for record in records)
    assert not any(one.voteless for record in records for one in record.verdicts.values())


@pytest.mark.parametrize("options", [{}, {"download": "soft-labels"}])
def test_trust_survives_a_resume_bit_for_bit(options):
    task = fedsift.split(fedsift.load_dataset("digits"), private=80, public=30, test=50)
    clients = fedsift.make_clients(task.private, 4, model="mlp")
    recipes: Any = {"local": RECIPE, "distill": RECIPE}
    algorithm = fedsift.fas(10, aggregator="trust(memory(era(0.1)))", **recipes, **options)
    federation = Federation(algorithm, clients, task, cohort=3, seed=0)
    straight = run_toys(federation, 3)
    stored = restore_state(from_bytes(to_bytes(straight[0].state)), federation)
    resumed = run_toys(federation, 3, stored)
    assert to_bytes(resumed[-1].state) == to_bytes(straight[-1].state)
    assert resumed[-1].verdicts == straight[-1].verdicts
    memory = straight[-1].state.server.memory.aggregator
    assert set(memory["by_client"]) >= {str(id) for id in straight[-1].verdicts}


def run_toys(federation: Federation, count: int, state=None):
    return list(
        fedsift.federate(
            federation.algorithm,
            federation.clients,
            federation.task,
            rounds=count,
            cohort=federation.cohort,
            state=state,
        )
    )


def test_metrics_and_show_say_who_is_trusted(tmp_path):
    folder = tmp_path / "run"
    hostile = ["aggregator=trust", "attack=wrong", "attackers=0.5"]
    done("run", *FAS, *hostile, "--out", str(folder), "--quiet")
    for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        assert row["trust"].keys() == row["steps"].keys()
        assert all(0 <= value <= 1 for value in row["trust"].values())
        assert row["false_alarms"] == len(set(row["voteless"]) - set(row["hostile"]))
    assert "without a vote: " in done("show", str(folder)).stdout
