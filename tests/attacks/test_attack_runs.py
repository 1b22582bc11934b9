"""Hostile clients from the command line: config, metrics, `show` and resume."""

import json

from fedsift import attacks, runs
from tests.helpers.cli import FAS, complaint, done

HOSTILE = ["attack=wrong", "attackers=0.5"]


def test_a_run_says_who_was_hostile(tmp_path):
    folder = tmp_path / "run"
    done("run", *FAS, *HOSTILE, "--out", str(folder), "--quiet")
    experiment = runs.read_config(folder)
    assert (experiment.attack, experiment.attackers) == ("wrong", 0.5)
    count = experiment.clients.count
    hostile = attacks.hostile_clients(experiment.seed, count, 0.5)
    for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        assert (row["attack"], row["attackers"]) == ("wrong", 0.5)
        assert set(row["hostile"]) == hostile & set(map(int, row["steps"]))
    text = done("show", str(folder)).stdout
    listed = ", ".join(map(str, sorted(hostile)))
    assert f"{len(hostile)} of {count} clients are hostile: {listed}" in text


def test_an_honest_run_says_nothing_of_it(tmp_path):
    folder = tmp_path / "run"
    done("run", *FAS, "--out", str(folder), "--quiet")
    assert "hostile" not in (folder / "metrics.jsonl").read_text()
    assert "hostile" not in done("show", str(folder)).stdout


def test_an_attack_without_a_share_is_refused():
    assert "attackers=0.2" in complaint("run", *FAS, "attack=wrong")
