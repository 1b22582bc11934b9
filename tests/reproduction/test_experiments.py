"""The experiments that the items of a paper need, and which of them have not been run."""

from dataclasses import replace
from pathlib import Path

from fedsift import runs
from fedsift.reproduction.experiments import (
    find_missing,
    is_selected,
    list_cells,
    make_experiments,
)
from fedsift.reproduction.plans import Plan, run_folder
from tests.helpers import tiny_paper
from tests.helpers.reproduction import DIGITS, write_run
from tests.helpers.tiny_paper import PLAIN, SURE

PLAN = Plan(tiny_paper.PAPER, "digits", "ours", 2)


def test_cells_that_items_share_are_listed_once():
    assert list_cells(["fig1", "fig1"], PLAN) == [PLAIN, SURE]
    items = list(DIGITS.paper.items)
    cells = list_cells(items, DIGITS)
    assert len(cells) == len(set(cells)) > len(list_cells(items[:1], DIGITS)) > 0
    assert set(list_cells(items[:1], DIGITS)) <= set(cells)


def test_there_is_one_experiment_per_cell_and_seed():
    experiments, impossible = make_experiments(["fig1"], PLAN)
    assert impossible == {}
    assert {cell: [e.seed for e in found.values()] for cell, found in experiments.items()} == {
        PLAIN: [0, 1],
        SURE: [0, 1],
    }
    assert {e.algorithm.sampler for e in experiments[SURE].values()} != {
        e.algorithm.sampler for e in experiments[PLAIN].values()
    }


def test_a_run_is_selected_by_its_curve_or_by_the_name_of_its_folder():
    folder = run_folder(Path("out"), SURE, 1)  # sure-alpha-1-seed-1
    assert is_selected(folder, SURE, [])
    assert is_selected(folder, SURE, ["plain", "su*"])
    assert is_selected(folder, SURE, ["*-seed-1"])
    assert not is_selected(folder, SURE, ["sur", "*-seed-0"])  # a pattern is of the whole name


def test_an_item_may_have_seeds_of_its_own_and_a_cell_has_those_of_all_its_items():
    own = replace(tiny_paper.PAPER.items["fig1"], seeds={"digits": range(10, 12)})
    paper = replace(tiny_paper.PAPER, items={**tiny_paper.PAPER.items, "choice": own})
    plan = Plan(paper, "digits", "ours")
    assert (plan.seeds_of(paper.items["fig1"]), plan.seeds_of(own)) == (range(3), range(10, 12))
    assert replace(plan, seeds=4).seeds_of(own) == range(10, 14)
    experiments, _ = make_experiments(["fig1", "choice"], plan)
    assert list(experiments[SURE]) == [0, 1, 2, 10, 11]
    assert [e.seed for e in experiments[SURE].values()] == [0, 1, 2, 10, 11]


def test_what_is_not_run_or_failed_is_missing_with_the_reason(tmp_path):
    assert find_missing("fig1", PLAN, tmp_path) == {PLAIN: "not run", SURE: "not run"}
    for seed in range(2):
        write_run(tmp_path, PLAN, PLAIN, seed, [0.2])
    write_run(tmp_path, PLAN, SURE, 0, [0.2])
    assert find_missing("fig1", PLAN, tmp_path) == {SURE: "1 of 2 seeds run"}
    (run_folder(tmp_path, PLAIN, 1) / runs.FAILED).write_text("{}")
    missing = find_missing("fig1", PLAN, tmp_path)
    assert missing.keys() == {PLAIN, SURE} and "says why" in missing[PLAIN]


def test_a_run_short_of_rounds_is_missing_where_finished_ones_are_asked_for(tmp_path):
    for seed in range(2):
        write_run(tmp_path, PLAN, PLAIN, seed, [0.2, 0.4])  # all of its two rounds
        runs.drop_model(run_folder(tmp_path, PLAIN, seed))
        write_run(tmp_path, PLAN, SURE, seed, [0.2])
    assert find_missing("fig1", PLAN, tmp_path) == {}
    assert find_missing("fig1", PLAN, tmp_path, finished=True) == {SURE: "not finished"}
