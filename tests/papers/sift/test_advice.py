"""Advice from a frontier made by hand, with the answers worked out by hand."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from fedsift import config
from fedsift.papers.sift import PAPER, advice, measured
from fedsift.papers.sift.advice import Question
from fedsift.papers.sift.measured import Setting, read_measured
from fedsift.reproduction.plans import Cell, Plan
from fedsift.types import UserError
from tests.helpers.frontier import BOTH, DIGITS, IMAGES, make_point


def ask(question: Question, measured: list[Setting] = BOTH) -> advice.Advice:
    return advice.advise(question, measured, PAPER)


def shown(found: advice.Advice) -> list[tuple[str, float, str, str]]:
    return [(case.setting, case.alpha, case.advised.label, case.best.label) for case in found.cases]


def test_what_all_data_sets_agree_on_is_advised():
    """100 bytes: on both there is only sift."""
    found = ask(Question(100, 20, 10, 0.1))
    assert found.method == "sift" and found.agree
    assert shown(found) == [
        ("cifar10", 0.1, "sift, 100 B", "sift, 100 B"),
        ("digits", 0.1, "sift, 100 B", "sift, 100 B"),
    ]
    assert found.beyond == []


def test_where_they_disagree_the_smallest_largest_loss_decides():
    """1,500 bytes, alpha = 0.1: sift loses 0 on the images and .03 on the digits, 4 bits lose .03
    and .01, FedPAQ fits on the digits alone. So sift and 4 bits are level; sift's mean is higher:
    (.68 + .93) / 2 = .805 against (.65 + .95) / 2 = .8.
    """
    found = ask(Question(1500, 20, 10, 0.1))
    assert found.method == "sift" and not found.agree
    assert shown(found) == [
        ("cifar10", 0.1, "sift, 1,500 B", "sift, 1,500 B"),
        ("digits", 0.1, "sift, 150 B", "FedPAQ with parts, 4 bits"),
    ]
    assert [case.fedavg and case.fedavg.accuracy for case in found.cases] == [0.58, 0.62]


def test_more_bytes_change_the_answer():
    """7 kB: FedPAQ loses .02 on the images and nothing on the digits; sift loses 0 and .03."""
    assert ask(Question(7000, 20, 10, 0.1)).method == "FedPAQ with parts, 4 bits"


def test_new_measurements_change_the_answer_and_no_code():
    better = make_point("labels+bytes-600", "sift, 600 B", 0.1, 0.97, 600, "labels")
    digits = replace(DIGITS, points=(*DIGITS.points, better))
    found = ask(Question(7000, 20, 10, 0.1), [IMAGES, digits])
    assert found.method == "sift" and found.agree
    assert found.cases[1].advised == better


def test_what_is_slow_loses_half_way():
    """FedPAQ has .96 at the end and .90 half-way, 4 bits .95 at both: they lose .05 and .01."""
    slow = make_point(
        "fedpaq-4-parts", "FedPAQ with parts, 4 bits", 0.1, 0.96, 590, "weights", 0.06
    )
    digits = replace(DIGITS, points=(*DIGITS.points[:3], slow))
    found = ask(Question(7000, 20, 10, 0.1), [digits])
    assert found.method == "sift in 4 bits"
    assert found.cases[0].loss == pytest.approx(0.01)
    assert found.cases[0].best == slow


def test_of_methods_that_are_level_the_one_with_the_smallest_uploads_is_advised():
    """sift loses .002 in 150 bytes, 4 bits nothing in 300: level, and sift is smaller."""
    close = make_point("sift-150", "sift, 150 B", 0.1, 0.948, 150, "labels")
    digits = replace(DIGITS, points=(close, DIGITS.points[2]))
    assert ask(Question(300, 20, 10, 0.1), [digits]).method == "sift"
    farther = replace(close, accuracy=0.945)
    digits = replace(DIGITS, points=(farther, DIGITS.points[2]))
    assert ask(Question(300, 20, 10, 0.1), [digits]).method == "sift in 4 bits"


def test_where_the_size_of_the_model_is_known_the_nearest_data_set_decides():
    """7 kB: both have FedPAQ; for 6,000 weights the digits decide, for 60,000 the images."""
    near = ask(Question(7000, 20, 10, 0.1, weights=6000))
    assert [case.setting for case in near.cases] == ["digits"]
    assert near.method == "FedPAQ with parts, 4 bits"
    far = ask(Question(7000, 20, 10, 0.1, weights=60_000))
    assert [case.setting for case in far.cases] == ["cifar10"] and far.method == "sift"


def test_methods_are_ranked_by_the_best_of_each_that_fits():
    """400 bytes on the digits: FedPAQ does not fit, with a model of half the size it does."""
    labels = ["sift in 4 bits, 300 B", "sift, 150 B"]
    ranked = advice.rank_methods(Question(400, 20, 10), DIGITS, 0.1)
    assert [point.label for point in ranked] == labels
    small = advice.rank_methods(Question(400, 20, 10, weights=3100), DIGITS, 0.1)
    assert [point.label for point in small] == ["FedPAQ with parts, 4 bits", *labels]


def test_models_that_differ_leave_labels_only():
    found = ask(Question(7000, 20, 10, 0.1, mixed=True))
    assert found.method == "sift"
    assert {case.best.uploads for case in found.cases} == {"labels"}


def test_a_skew_that_is_not_known_counts_every_measured_one():
    """7 kB: sift loses .09 at alpha = 100 on the images, FedPAQ .02 at 0.1."""
    found = ask(Question(7000, 20, 10))
    assert found.method == "FedPAQ with parts, 4 bits"
    assert [(case.setting, case.alpha) for case in found.cases] == [
        ("cifar10", 0.1),
        ("cifar10", 100.0),
        ("digits", 0.1),
    ]


def test_without_a_skew_one_number_of_bytes_serves_all_of_them_and_is_the_one_written():
    """150 B have .967 and .90, 300 B .965 and .95: their means are .9335 and .9575."""
    points = [
        make_point(curve, f"sift, {size} B", alpha, accuracy, size, "labels")
        for curve, size, accuracies in (
            ("sift-150", 150, (0.967, 0.90)),
            ("labels+bytes-300", 300, (0.965, 0.95)),
        )
        for alpha, accuracy in zip((0.1, 100.0), accuracies, strict=True)
    ]
    digits = replace(DIGITS, points=tuple(points))
    found = ask(Question(300, 20, 10), [digits])
    assert [case.advised.curve for case in found.cases] == ["labels+bytes-300"] * 2
    assert found.settings["algorithm"]["bytes"] == 300
    assert found.cases[0].loss == pytest.approx(0.002)
    named = ask(Question(300, 20, 10, 0.1), [digits])
    assert named.settings["algorithm"]["bytes"] == 150


@pytest.mark.parametrize("size", [60, 150, 300, 600, 1500, 3000])
def test_what_is_written_is_what_the_table_shows(size):
    found = ask(Question(size, 20, 10, weights=6198), read_measured())
    shown = {case.advised.curve for case in found.cases if case.setting == "digits"}
    curve = shown.pop()
    made = Plan(PAPER, "digits", "main").values(Cell(curve, 0.1))
    assert not shown and found.settings["algorithm"].items() == made["algorithm"].items()


def test_the_bytes_of_weights_follow_the_size_of_the_model():
    """4 bits: 590 bytes for 6,200 weights are 59 for 620, and 6,600 for 80,000 are 51.15."""
    assert advice.estimate_bytes(DIGITS.points[3], DIGITS, 620) == pytest.approx(59)
    assert advice.estimate_bytes(DIGITS.points[0], DIGITS, 620) == 150  # labels do not shrink
    found = ask(Question(60, 20, 10, 0.1, weights=620))
    assert found.method == "FedPAQ with parts, 4 bits"
    assert found.settings["data"]["name"] == "digits"  # the nearest size
    assert found.beyond == [
        "Only models of 6,200 and 80,000 weights were measured; bytes of weights are scaled to"
        " yours."
    ]


def test_a_cap_on_weights_follows_the_size_of_the_model():
    """600 bytes for 6,200 weights are 300 for 3,100; labels keep their bytes."""
    weights = make_point("sift-600", "sift weights, 600 B", 0.1, 0.97, 590, "weights")
    digits = replace(DIGITS, points=(*DIGITS.points, weights))
    found = ask(Question(5000, 20, 10, 0.1, weights=3100), [digits])
    assert found.method == "sift weights" and found.settings["algorithm"]["bytes"] == 300
    labels = ask(Question(200, 20, 10, 0.1, weights=3100), [DIGITS])
    assert labels.settings["algorithm"]["bytes"] == 150


def test_what_was_not_measured_is_said():
    found = ask(Question(200, 50, 100, 0.3, weights=None), [DIGITS])
    assert found.beyond == [
        "No frontier has been committed for cifar10.",
        "Only 20 clients were measured, not 50.",
        "Only 10 classes were measured, not 100.",
        "Only alpha = 0.1 were measured; the nearest one is used.",
        "The setting was measured with bytes = 150; you may try up to yours.",
    ]
    far = ask(Question(400_000, 20, 10, 0.1))
    assert "No upload was larger than 320,000 bytes: more are not used." in far.beyond
    poor = ask(Question(100, 20, 10, 100.0))
    assert "Nothing that was measured on cifar10 fits 100 bytes." in poor.beyond
    assert [(case.setting, case.alpha) for case in poor.cases] == [("digits", 0.1)]


def test_a_method_that_was_measured_at_other_skews_only_is_named():
    """FedPAQ fits at 0.1; at 100 there is sift alone."""
    images = replace(IMAGES, points=(*IMAGES.points[:4], IMAGES.points[5]))
    found = ask(Question(7000, 20, 10, 100.0, weights=80_000), [images, DIGITS])
    assert found.method == "sift" and found.agree
    assert (
        "On cifar10 these fit and were not measured at alpha = 100, where they may be better:"
        " sift in 4 bits; FedPAQ with parts, 4 bits."
    ) in found.beyond
    strong = ask(Question(7000, 20, 10, 0.1, weights=80_000), [images, DIGITS])
    assert not any("where they may be better" in said for said in strong.beyond)


def test_the_mode_that_sift_would_take_with_all_the_bytes_is_told():
    """80,000 weights at 0.6 bits are 6,000 bytes, and 24 beside them."""
    weights = make_point("sift-9000", "sift weights, 9,000 B", 0.1, 0.74, 8990, "weights")
    images = replace(IMAGES, points=(*IMAGES.points[:3], weights))
    told = {size: ask(Question(size, 20, 10, 0.1), [images]).beyond[1:] for size in (6023, 6024)}
    yours = "The setting was measured with bytes = 1500; you may try up to yours."
    assert told[6023] == [yours]
    assert told[6024] == [
        yours,
        "With bytes = 6024 sift sends weights by itself; mode=labels keeps labels."
        " Its weights were measured on cifar10 in 8,990 bytes and more only.",
    ]
    alone = ask(Question(6024, 20, 10, 0.1), [replace(IMAGES, points=IMAGES.points[:3])])
    assert alone.beyond[-1].endswith("Its weights were not measured on cifar10.")
    mixed = ask(Question(6024, 20, 10, 0.1, mixed=True), [images])
    assert mixed.beyond[1:] == [yours]


def test_a_setting_that_has_changed_since_it_was_measured_is_told(monkeypatch):
    monkeypatch.setattr(measured, "CHANGED", {("digits", "abc"): {"sift-150": {"local.lr": 0.5}}})
    (said,) = ask(Question(150, 20, 10, 0.1), [DIGITS]).beyond[1:]
    assert said == (
        "sift, 150 B on digits was measured with local.lr = 0.5; the setting has 0.01, and has not"
        " been measured to the end."
    )
    assert ask(Question(100, 20, 10, 0.1), [DIGITS]).beyond[1:] == []
    assert ask(Question(150, 20, 10, 0.1), [replace(DIGITS, commit="def")]).beyond[1:] == []


def test_what_is_said_to_have_changed_has():
    known = {(setting.name, setting.commit) for setting in read_measured()}
    assert measured.CHANGED.keys() <= known  # made again: the entry goes
    for (name, _), curves in measured.CHANGED.items():
        for curve, changes in curves.items():
            values = Plan(PAPER, name, "main").values(Cell(curve, 0.1))
            for key, value in changes.items():
                section, _, option = key.partition(".")
                assert values[section][option] != value


def test_fewer_bytes_than_anything_measured_is_an_error_that_names_the_smallest():
    with pytest.raises(UserError, match=r"fits 99 bytes; .* of sift, 100 B on cifar10: 100 bytes"):
        ask(Question(99, 20, 10, 0.1))


def test_without_any_measurement_there_is_no_advice():
    with pytest.raises(UserError, match="no frontier has been measured yet"):
        ask(Question(1500, 20, 10), [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bytes": 0}, "bytes must be at least 1, not 0"),
        ({"clients": 0}, "clients must be at least 1"),
        ({"classes": 1}, "classes must be at least 2"),
        ({"alpha": 0.0}, "alpha must be a number above 0, not 0"),
        ({"alpha": float("nan")}, "alpha must be a number above 0, not nan"),
        ({"weights": 0}, "weights must be at least 1"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(change: dict[str, Any], said):
    with pytest.raises(UserError, match=said):
        ask(replace(Question(1500, 20, 10), **change))


@pytest.mark.parametrize("clients", [20, 5])
def test_the_setting_is_the_measured_one_and_can_be_run(clients, tmp_path):
    found = ask(Question(150, clients, 10, 0.1), [DIGITS])
    file = tmp_path / "mine.toml"
    file.write_text(advice.format_toml(found.settings))
    made = config.read_experiment(str(file))
    assert tomllib.loads(file.read_text()) == found.settings
    assert (made.algorithm.name, made.algorithm.bytes) == ("sift", 150)
    assert (made.clients.count, made.clients.cohort) == (clients, min(8, clients))
    assert (made.partition.alpha, made.data.normalise, made.rounds) == (0.1, "standard", 15)
    config.build_federation(made)
