"""The curves, items and claims of fedsift's own study, and a tiny run of it."""

import json
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsift import config
from fedsift.algorithms.weights import FedAvg
from fedsift.models import make_model
from fedsift.papers.sift import PAPER
from fedsift.papers.sift.items import ITEMS, NAMES, TRIALS, WITH_PARTS
from fedsift.reproduction.plans import Cell, Plan
from fedsift.reproduction.verdicts import FAILS, HOLDS, judge_claim
from tests.helpers.cli import done

IMAGES, DIGITS = (Plan(PAPER, setting, "main") for setting in PAPER.settings)
PLANS = pytest.mark.parametrize("plan", [IMAGES, DIGITS], ids=lambda plan: plan.setting)
TINY = [
    *("rounds=2", "local.epochs=1", "distill.epochs=1", "clients=4", "cohort=2", "model=mlp"),
    *("data.private=160", "data.public=60", "budget=6", "device=cpu"),
]

CHOOSING = {"choose", "refine"}  # on samples set aside


@PLANS
def test_every_cell_is_an_experiment_with_parts_that_exist_and_no_file_is_in_vain(plan):
    used = {cell for item in ITEMS.values() for cell in item.cells(plan)}
    assert {cell.curve.split("+")[0] for cell in used} == set(plan.curves("*"))
    for cell in used:
        made = plan.experiment(cell, 1)
        config.build_algorithm(made)
        unused = [key for key in config.list_unused(made) if key.startswith("algorithm.")]
        assert (cell, set(unused) - {"algorithm.budget"}) == (cell, set())
        data = "fashion-mnist" if cell.curve.endswith("+fashion") else plan.setting
        assert (made.seed, made.partition.alpha, made.data.name) == (1, cell.alpha, data)


@PLANS
def test_every_variant_is_used_and_changes_the_curve_it_is_put_on(plan):
    used = {cell.curve for item in ITEMS.values() for cell in item.cells(plan)}
    parts = {curve: curve.rpartition("+") for curve in used}
    changed = {
        curve: whole
        for curve, (whole, _, last) in parts.items()
        if whole and last != "bytes-1500"  # sift's own default
    }
    assert len(changed) > 20
    for curve, whole in changed.items():
        made, bare = (plan.experiment(Cell(name, 0.1), 0) for name in (curve, whole))
        assert set(config.differences(bare, made)) - {"name"}, curve


@PLANS
def test_claims_speak_of_cells_that_are_run(plan):
    for item in ITEMS.values():
        cells = set(item.cells(plan))
        assert len(cells) == len(item.cells(plan))
        for claim in item.claims(plan):
            assert {cell for comparison in claim.comparisons for cell in comparison.cells} <= cells


@PLANS
def test_opponents_with_parts_have_all_that_they_can_use(plan):
    for curve in WITH_PARTS:
        made = plan.experiment(Cell(curve, 0.1), 0)
        assert made.local.prior == 1.0
        assert made.algorithm.replay == made.data.private // made.clients.count
        assert made.start == ("simclr(epochs=120)" if plan is IMAGES else None)
    for plain in ("fedavg", "fas"):
        made = plan.experiment(Cell(plain, 0.1), 0)
        assert (made.local.prior, made.algorithm.replay, made.start) == (0, None, None)


@PLANS
def test_systems_are_given_the_same_data_clients_and_local_epochs(plan):
    free = (
        *("name", "algorithm.", "partition.alpha", "distill.", "start", "data.public"),
        *("local.prior", "local.prox", "local.ntd", "local.lr", "local.milestones"),
    )
    first, *others = (plan.experiment(cell, 0) for cell in ITEMS["main"].cells(plan))
    changed = {key for other in others for key in config.differences(first, other)}
    assert {key for key in changed if not key.startswith(free)} == set()


@PLANS
def test_every_system_gets_as_many_trials_on_samples_and_seeds_that_are_used_for_nothing_else(plan):
    item = ITEMS["choose"]
    cells = [cell for cell in item.cells(plan) if cell.alpha == 0.1]
    counts = {
        system: len(list(of)) for system, of in groupby(cells, lambda c: c.curve.split("+")[0])
    }
    assert set(counts.values()) == {5}
    assert set(counts) >= {*TRIALS, *WITH_PARTS} and len(counts) == len(TRIALS) + 2
    others = [set(plan.seeds_of(ITEMS[name])) for name in ITEMS.keys() - CHOOSING]
    assert not set(plan.seeds_of(item)) & set().union(*others)
    for name, other in ITEMS.items():
        made = {plan.experiment(cell, 0).data.validation for cell in other.cells(plan)}
        assert (made != {None} and None not in made) if name in CHOOSING else made == {None}


def test_step_sizes_that_decay_are_among_the_trials_of_every_system():
    trials: dict[str, list[tuple[int, ...]]] = {}
    for cell in ITEMS["choose"].cells(IMAGES):
        made = IMAGES.experiment(cell, 0)
        trials.setdefault(cell.curve.split("+")[0], []).append(made.local.milestones)
    assert len(trials) == len(TRIALS) + 2
    assert all(set(found) == {(), (180, 300)} for found in trials.values())


def test_every_trial_of_sift_changes_what_its_mode_uses():
    cells = [cell for cell in ITEMS["choose"].cells(DIGITS) if cell.alpha == 0.1]
    for system in ("sift-150", "sift-600"):
        first, *others = (
            DIGITS.experiment(cell, 0) for cell in cells if cell.curve.startswith(system)
        )
        for other in others:
            changed = config.differences(first, other).keys() - {"name"}
            assert changed and not changed & config.explain_unused(other).keys()


def test_seeds_are_those_that_were_promised():
    assert {name: len(IMAGES.seeds_of(item)) for name, item in ITEMS.items()} == {
        "main": 5,
        "ablation": 3,
        "more-rounds": 3,
        "equal-steps": 3,
        "frontier": 3,
        "classes": 3,
        "fashion": 3,
        "elsewhere": 3,
        "choose": 2,
        "refine": 2,
        "down": 3,
    }
    assert {len(DIGITS.seeds_of(ITEMS[name])) for name in PAPER.main} == {10}


def test_more_rounds_scale_the_decays_and_equal_steps_halve_the_epochs():
    long = IMAGES.experiment(Cell("fedavg+long", 0.1), 0)
    assert (long.rounds, long.local.milestones) == (36, (360, 600))
    ours = IMAGES.experiment(Cell("sift-1500+long-labels", 0.1), 0)
    assert (ours.rounds, ours.local.milestones, ours.distill.milestones) == (36, (), ())
    assert DIGITS.experiment(Cell("fedavg+long", 0.1), 0).rounds == 45
    half = IMAGES.experiment(Cell("fedavg-parts+half", 0.1), 0)
    assert (half.local.epochs, half.local.milestones) == (10, (90, 150))
    ours = IMAGES.experiment(Cell("sift-1500+half-labels", 0.1), 0)
    assert (ours.local.epochs, ours.local.milestones) == (10, ())


@pytest.mark.parametrize(
    ("figures", "mean", "largest", "said"),
    [
        ([0.66, 0.68], 1500, 2000, HOLDS),  # the mean is exactly .67, and the bytes are all used
        ([0.66, 0.67], 1400, 1500, FAILS),
        ([0.69, 0.70], 1501, 1600, FAILS),
        ([0.69, 0.70], 1400, 2001, FAILS),
    ],
)
def test_what_sift_must_show_is_a_mean_accuracy_within_mean_and_largest_bytes(
    figures, mean, largest, said
):
    claim = ITEMS["main"].claims(IMAGES)[0]
    assert claim.text == "Must: .67 in 1.5 kB at alpha = 0.1"
    cell = Cell("sift-1500", 0.1)
    sizes = {"mean": {cell: [mean] * 2}, "largest": {cell: [largest] * 2}}
    assert judge_claim(claim, {cell: figures}, {}, sizes)["verdict"] == said


def test_a_tiny_run_is_reported_with_gaps_costs_and_claims(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    only = [word for c in ("sift-150", "fedavg", "fedavg-parts") for word in ("--only", c)]
    words = ["reproduce", "sift", "main", "--quick", "--seeds", "2", *TINY, *only, "--out", "here"]
    result = done(*words)
    report = json.loads(Path("here/main.json").read_text())
    assert len(report["cells"]) == 9 and len(report["left_out"]) == 30
    cells = {(cell["curve"], cell["alpha"]): cell for cell in report["cells"]}
    plain, parts = cells["fedavg", 0.1], cells["fedavg-parts", 0.1]
    assert "gap" not in plain
    assert parts["gap"]["by_seed"] == pytest.approx(
        [a - b for a, b in zip(parts["by_seed"], plain["by_seed"], strict=True)], abs=2e-6
    )
    # 40 own samples are 3 batches of 16; 40 replayed ones make them 5 in the second of two rounds
    assert (plain["client_steps_per_round"], parts["client_steps_per_round"]) == (3, 4)
    assert plain["total_bytes"] > 2 * 2 * 2 * 2000 > cells["sift-150", 0.1]["uplink_bytes_largest"]
    assert cells["sift-150", 0.1]["uplink_bytes_largest"] <= 150
    text = Path("here/main.md").read_text()
    assert "| against its reference, seeds ahead |" in text and "| bytes per download |" in text
    assert "Must: .92 in at most 150 bytes at alpha = 0.1" in result.stdout


@pytest.mark.parametrize(
    ("preset", "curve", "unused"),
    [("cifar10-sift", "sift-1500", ()), ("cifar10-sift-weights", "sift-9000", ("distill.",))],
)
def test_the_presets_of_cifar10_are_what_the_study_runs(preset, curve, unused):
    made = config.read_experiment(preset)
    ours = IMAGES.experiment(Cell(curve, 0.1), 0)
    changed = config.differences(ours, made).keys() - {"name", "algorithm.mode"}
    assert {key for key in changed if not key.startswith(unused)} == set()


SHAPES = {"cifar10": (3, 32, 32), "digits": (1, 8, 8)}


@PLANS
def test_the_frontier_names_what_sift_chooses_by_itself(plan):
    """So a run of the method stands for the mode that it has taken, and is not made twice."""
    found = [(c.curve, NAMES[c.curve]) for c in ITEMS["frontier"].cells(plan) if c.curve in NAMES]
    assert len(found) == 6  # two, at three skews
    for curve, label in found:
        made = plan.experiment(Cell(curve, 0.1), 0)
        sift: Any = config.build_algorithm(made)
        model = make_model(made.clients.model, SHAPES[plan.setting], 10)
        public = range(made.data.public)
        r = SimpleNamespace(models=(model,), others=(), public=public, classes=10)
        chosen = sift._system(r)
        words = "sift weights" if isinstance(chosen, FedAvg) else "sift labels"
        assert label == f"{words}, {made.algorithm.bytes:,} B"


@pytest.mark.parametrize(
    ("item", "key", "value"),
    [
        ("classes", "partition.kind", "shards"),
        ("fashion", "data.name", "fashion-mnist"),
        ("elsewhere", "data.public_from", "sheet:public_cifar100_10k.jpg"),
    ],
)
def test_other_data_change_the_data_and_nothing_else(item, key, value):
    for cell in ITEMS[item].cells(IMAGES):
        known = Cell(cell.curve.rpartition("+")[0], cell.alpha)
        plain, other = (IMAGES.experiment(one, 0) for one in (known, cell))
        changed = config.differences(plain, other)
        assert set(changed) - {"data.public"} == {"name", key}
        assert changed[key][1] == value
