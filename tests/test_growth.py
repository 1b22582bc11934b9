"""How cost grows: exponents by hand, and what is measured for them."""

from math import e

import pytest

from fedsift import growth
from fedsift.growth import AXES, Sizes, fit_exponent
from fedsift.models import initial_state, make_model
from fedsift.report import growth_plot
from fedsift.report.palette import PALETTE
from fedsift.types import UserError
from tests.helpers.cli import complaint, done, rows
from tests.helpers.json_shapes import read_printed


def test_exponents_by_hand():
    assert fit_exponent([1, 10, 100], [3, 30, 300]) == 1
    assert fit_exponent([1, 10, 100], [2, 200, 20_000]) == 2
    assert fit_exponent([5, 50], [7, 7]) == 0
    # logs of the sizes -1, 0, 1 from their mean, of the values 0, 1, 1: 2/3 + 1/3 over 2.
    assert fit_exponent([1, e, e**2], [1, e, e]) == 0.5


def test_one_point_has_no_exponent_and_neither_has_nothing():
    assert fit_exponent([10], [3]) is None
    assert fit_exponent([], []) is None
    assert fit_exponent([1, 2], [0, 3]) is None


@pytest.mark.parametrize("parameters", [10_000, 1_000_000])
@pytest.mark.parametrize("classes", [10, 316])
def test_a_network_has_the_parameters_that_are_asked_for(parameters, classes, tmp_path):
    """F inputs, h hidden units, C classes: (F + 1) h + C (h + 1) parameters."""
    sizes = Sizes(parameters=parameters, classes=classes)
    settings = dict(one.split("=", 1) for one in growth._settings(sizes, tmp_path))
    assert sizes.features**2 == parameters
    weights = initial_state(make_model(settings["model"], (sizes.features,), classes), 0)
    assert sum(value.numel() for value in weights.values()) == pytest.approx(parameters, rel=0.05)


def test_a_point_is_a_run_of_its_sizes():
    """Four rounds, of which three count; bytes are those of one round, weights down among them."""
    found = growth.run_point({"cohort": 3, "classes": 12})
    weights = initial_state(make_model("mlp(width=1.382743)", (100,), 12), 0)
    down = 3 * 4 * sum(value.numel() for value in weights.values())
    assert down < found["bytes"] < 1.2 * down + 3 * 100 * 4 * 12
    assert found["round_s"] > 0 and found["round_cpu_s"] > 0 and found["peak_mib"] > 50


def play(cost):
    """Instead of a run: what it costs, by the sizes."""

    def played(sizes):
        figures = {"setup_s": 1.0, "round_s": 1.0, "peak_mib": 300.0, "bytes": 1000.0}
        return figures | {"round_cpu_s": cost(sizes)}

    return played


def test_axes_are_measured_from_small_to_large(monkeypatch):
    monkeypatch.setattr(
        growth, "_run_in_new_process", play(lambda sizes: sizes.cohort * sizes.public**2)
    )
    told = list[str]()
    result = growth.grow(["cohort", "public"], report=told.append)
    assert told == [f"cohort = {n:,}" for n in AXES["cohort"]] + [
        f"public = {n:,}" for n in AXES["public"]
    ]
    cohort, public = (result["axes"][axis] for axis in ("cohort", "public"))
    assert cohort["exponents"] == {"round_cpu_s": 1, "peak_mib": 0, "bytes": 0}
    assert public["exponents"]["round_cpu_s"] == public["last_exponents"]["round_cpu_s"] == 2
    assert growth.list_steep(result) == ["CPU seconds per round with public (2.00)"]


def test_a_point_without_time_is_left_out_and_one_that_fails_ends_its_axis(monkeypatch):
    def fail(sizes):
        raise UserError("the run ended with code -9: it was killed; is there enough memory?")

    monkeypatch.setattr(growth, "_run_in_new_process", fail)
    found = growth.grow(["classes"])["axes"]["classes"]
    assert found["points"] == [] and "killed" in found["left_out"]["10"]
    assert list(found["left_out"]) == ["10", "32", "100", "316", "1000"]
    assert found["left_out"]["1000"] == "not begun, as classes = 10 has failed"
    monkeypatch.setattr(growth, "_run_in_new_process", play(lambda sizes: 1.0))
    hurried = growth.grow(["classes"], seconds=0.0)["axes"]["classes"]
    assert [point["classes"] for point in hurried["points"]] == [10]
    assert list(hurried["left_out"]) == ["32", "100", "316", "1000"]


def test_the_command_prints_exponents_and_draws_them(monkeypatch, tmp_path):
    monkeypatch.setattr(growth, "_run_in_new_process", play(lambda sizes: sizes.rounds**2))
    file = tmp_path / "growth.svg"
    text = done("bench", "scale", "--over", "rounds", "-o", str(file)).stdout
    assert rows(text)[0] == ["rounds", "10", "100", "2.00 (2.00)", "0.00 (0.00)", "0.00 (0.00)"]
    assert "grows faster than linearly: CPU seconds per round with rounds (2.00)" in text
    assert file.read_text().startswith("<?xml")
    told = read_printed("bench scale", done("bench", "scale", "--over", "rounds", "--json").stdout)
    assert told["axes"]["rounds"]["exponents"]["round_cpu_s"] == 2
    assert f"stroke: {PALETTE[0]}" in file.read_text()  # the colour of our pictures


def test_the_command_says_what_failed_and_what_it_left_out_for_that(monkeypatch):
    def fail(sizes):
        if sizes.rounds > Sizes.rounds:
            raise UserError("the run ended with code -9: it was killed; is there enough memory?")
        return play(lambda sizes: 1.0)(sizes)

    monkeypatch.setattr(growth, "_run_in_new_process", fail)
    text = done("bench", "scale", "--over", "rounds,cohort").stdout
    assert [row[0] for row in rows(text)] == ["cohort"]
    assert "rounds = 10 is left out: the run ended with code -9" in text
    for size in ("32", "100"):
        assert f"rounds = {size} is left out: not begun, as rounds = 10 has failed" in text
    alone = done("bench", "scale", "--over", "rounds").stdout
    assert "rounds = 10 is left out" in alone and "exponents" not in alone


def test_the_command_complains_in_words(tmp_path):
    assert "unknown axis 'cohorts'" in complaint("bench", "scale", "--over", "cohorts")
    assert "name the axes with --over" in complaint("bench", "scale", "-o", "growth.svg")
    with pytest.raises(UserError, match="no axis has two points"):
        growth_plot.draw({"axes": {}}, tmp_path / "growth.svg")


def test_a_run_that_fails_is_one_sentence(monkeypatch):
    monkeypatch.setattr(growth, "ALONE", "import sys; sys.exit('no room')")
    with pytest.raises(UserError, match=r"^the run ended with code 1: no room$"):
        growth._run_in_new_process(Sizes())
