"""Gaps between methods, seed by seed, worked out by hand from made-up runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedsift import config, report
from fedsift.ledger import RoundBytes
from fedsift.report import gaps
from fedsift.runs import History
from fedsift.types import UserError


def run(accuracy, *settings, preset="digits-fas", data=None):
    rows = [{"round": 0, "accuracy": accuracy, "accuracies": {"cnn": accuracy}}]
    sent = [RoundBytes(0, {0: 1}, {0: 1}, 1)]
    experiment = config.read_experiment(preset, settings)
    return History(Path("made-up"), experiment, rows, sent, 1.0, [], {}, data or {})


def by_seed(*accuracies, preset="digits-fas", settings=()):
    return [
        run(accuracy, f"seed={seed}", *settings, preset=preset)
        for seed, accuracy in enumerate(accuracies)
    ]


def two(ours, theirs):
    """The baseline's runs come first."""
    baseline, method = report.methods([*theirs, *ours])
    return method, baseline


def test_a_gap_is_worked_out_by_hand():
    """Gaps .1, .2 and 0: mean .1, deviation sqrt((0 + .01 + .01) / 2) = .1, error .1 / sqrt(3).
    Two of three are above 0. The accuracies alone have deviations of .3 and more."""
    ours = by_seed(0.3, 0.8, 0.9)
    gap = gaps.pair(*two(ours, by_seed(0.2, 0.6, 0.9, preset="digits-fd")))
    assert gap.row() == {
        "against": "digits-fd",
        "seeds": [0, 1, 2],
        "mean": 0.1,
        "sd": 0.1,
        "standard_error": 0.057735,
        "interval": [-0.148417, 0.348417],  # .1 -+ 4.3027 * .0577350
        "confidence": 0.95,
        "ahead": 2,
        "by_seed": [0.1, 0.2, 0.0],
    }


def test_one_seed_has_no_deviation():
    gap = gaps.pair(*two(by_seed(0.3), by_seed(0.5, preset="digits-fd")))
    assert gap.mean == pytest.approx(-0.2)
    assert (gap.sd, gap.ahead) == (None, 0)
    assert gap.row()["standard_error"] is None
    assert gap.interval is None and gap.row()["interval"] is None


def test_student_t_beyond_the_table_continues_it():
    # quantiles of a textbook: 40 -> 2.021, 60 -> 2.000, 120 -> 1.980
    found = [gaps.find_student_t(freedom) for freedom in (1, 5, 30, 31, 40, 60, 120)]
    expected = [12.706, 2.571, 2.042, 2.040, 2.021, 2.000, 1.980]
    assert found == pytest.approx(expected, abs=6e-4)
    assert found == sorted(found, reverse=True)


def test_only_seeds_that_both_have_are_paired():
    ours = [run(0.9, "seed=5"), run(0.4, "seed=1"), run(0.6, "seed=2")]
    gap = gaps.pair(*two(ours, by_seed(0.1, 0.2, 0.3, preset="digits-fd")))
    assert gap.seeds == (1, 2)
    assert gap.by_seed == pytest.approx((0.2, 0.3))


def refusal(ours, theirs):
    with pytest.raises(UserError) as caught:
        gaps.pair(*two(ours, theirs))
    return str(caught.value)


def test_without_a_common_seed_there_is_no_gap():
    assert refusal([run(0.5, "seed=1")], [run(0.5, "seed=2", preset="digits-fd")]) == (
        "digits-fas is not paired with digits-fd: they have no seed in common"
    )


@pytest.mark.parametrize(
    ("setting", "why"),
    {
        "data.public=400": "data.public is 400, not 500",
        "data.validation=100": "data.validation is 100, not None",
        "data.normalise=standard": "data.normalise is 'standard', not 'scale'",
        "alpha=0.1": "partition.alpha is 0.1, not 1.0",
        "clients=10": "clients.count is 10, not 20",
        "cohort=4": "clients.cohort is 4, not 8",
    }.items(),
)
def test_other_data_clients_or_cohorts_are_refused_in_words(setting, why):
    said = refusal([run(0.5, setting)], [run(0.5, preset="digits-fd")])
    assert said.partition(": ")[2] == why


@pytest.mark.parametrize("setting", ["rounds=30", "budget=7", "model=mlp", "local.lr=0.5"])
def test_what_makes_a_method_does_not_hinder_a_pair(setting):
    assert gaps.pair(*two([run(0.5, setting)], [run(0.25, preset="digits-fd")])).mean == 0.25


def test_a_file_that_has_changed_is_other_data():
    old, new = {"private": 800, "sha256": "a"}, {"private": 800, "sha256": "b"}
    other = run(0.5, preset="digits-fd", data=new)
    assert refusal([run(0.5, data=old)], [other]).endswith(": the data of seed 0 are others")
    assert gaps.pair(*two([run(0.5, data=new)], [other])).mean == 0
    elsewhere = replace(other, data={"private": 0, "sha256": "c"})  # a server without its clients
    assert gaps.pair(*two([run(0.5, data=old)], [elsewhere])).mean == 0


def test_the_baseline_is_the_first_method_or_the_one_named():
    compared = report.methods(
        [run(0.1), run(0.2, "budget=7"), run(0.4, preset="digits-fd"), run(0.4, "seed=1")]
    )
    first = gaps.pair_methods(compared)
    assert first.baselines == ["digits-fas budget=60"]
    assert {label: gap.mean for label, gap in first.gaps.items()} == {
        "digits-fas budget=7": pytest.approx(0.1),
        "digits-fd": pytest.approx(0.3),
    }
    third = gaps.pair_methods(compared, "digits-fd")
    assert {label: gap.mean for label, gap in third.gaps.items()} == {
        "digits-fas budget=60": pytest.approx(-0.3),
        "digits-fas budget=7": pytest.approx(-0.2),
    }
    assert third.refusals == first.refusals == {}
    with pytest.raises(UserError) as caught:
        gaps.pair_methods(compared, "digits-fedavg")
    assert str(caught.value).startswith("unknown method 'digits-fedavg'; ")
    assert "(there are digits-fas budget=60, digits-fas budget=7, digits-fd)" in str(caught.value)


def test_each_skew_of_a_sweep_has_its_baseline():
    """Two methods at two skews, and one that stands alone."""
    cells = [
        run(accuracy, f"alpha={alpha:g}", f"name={name} alpha={alpha:g}", preset=name)
        for name, both in (("digits-fd", (0.2, 0.5)), ("digits-fas", (0.6, 0.7)))
        for alpha, accuracy in zip((0.1, 1.0), both, strict=True)
    ]
    lonely = run(0.9, "clients=10", "name=lonely")
    compared = report.methods([*cells, lonely])
    for paired in (gaps.pair_methods(compared), gaps.pair_methods(compared, "digits-fd")):
        assert {label: (gap.against, round(gap.mean, 6)) for label, gap in paired.gaps.items()} == {
            "digits-fas alpha=0.1": ("digits-fd alpha=0.1", 0.4),
            "digits-fas alpha=1": ("digits-fd alpha=1", 0.2),
        }
        assert paired.refusals == {
            "lonely": "lonely is not paired with digits-fd alpha=0.1: "
            "partition.alpha is 1.0, not 0.1, clients.count is 10, not 20"
        }
