"""Cells of an earlier report in a new one, from runs written by hand."""

import pytest

from fedsift.reproduction import reports
from fedsift.reproduction.verdicts import HOLDS
from fedsift.types import UserError
from tests.helpers.reproduction import LEVEL, MIXED, NONE, an_item, make_plan, write_run

ROUNDS = {NONE: [0.2, 0.3], MIXED: [0.4, 0.6]}


@pytest.fixture
def parts(tmp_path):
    """One report on each cell, as if from two machines, and the second with the first in it."""
    plan, item = make_plan("digits", "ours", 1), an_item(LEVEL)
    for cell, rounds in ROUNDS.items():
        write_run(tmp_path / cell.curve, plan, cell, 0, rounds)
    first = reports.gather_report("two", item, plan, tmp_path / NONE.curve, {MIXED: "not run"})
    both = reports.gather_report(
        "two", item, plan, tmp_path / MIXED.curve, {NONE: "not run"}, first
    )
    return plan, item, first, both


def test_cells_of_two_machines_are_one_report(parts, tmp_path):
    plan, item, _, both = parts
    for cell, rounds in ROUNDS.items():
        write_run(tmp_path / "together", plan, cell, 0, rounds)
    together = reports.gather_report("two", item, plan, tmp_path / "together", {})
    assert both["cells"] == together["cells"]
    assert both["claims"] == together["claims"] and both["claims"][0]["verdict"] == HOLDS
    assert both["left_out"] == {}


def test_the_report_says_what_came_from_where(parts):
    *_, both = parts
    (source,) = both["merged"]
    assert source["cells"] == ["table1-none at alpha = 0.1"]
    where = f"commit {source['commit']}, {source['gpu'] or source['processor']}"
    said = f"From an earlier run ({where}): table1-none at alpha = 0.1."
    assert reports.markdown(both).splitlines()[-1] == said


def test_what_was_run_again_is_not_taken_from_the_earlier_report(parts, tmp_path):
    plan, item, _, both = parts
    write_run(tmp_path / "again", plan, NONE, 0, [0.1, 0.1])
    told = reports.gather_report("two", item, plan, tmp_path / "again", {MIXED: "not run"}, both)
    assert [cell["accuracy"] for cell in told["cells"]] == [0.1, 0.5]
    assert [one["cells"] for one in told["merged"]] == [["table1-mixed at alpha = 0.1"]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": 3}, "on 3 seeds from 0 on and 2 rounds, this one on 1 from 0 on and 2"),
        ({"first_seed": 4}, "on 1 seeds from 4 on"),
        ({"rounds": 9}, "and 9 rounds"),
        ({"cells": [{"curve": "table1-none", "alpha": 0.1}]}, "lacks by_seed, by_round"),
    ],
)
def test_a_report_on_other_seeds_or_rounds_is_refused(parts, tmp_path, change, said):
    plan, item, first, _ = parts
    with pytest.raises(UserError, match=said):
        reports.gather_report(
            "two", item, plan, tmp_path / MIXED.curve, {NONE: "not run"}, {**first, **change}
        )
