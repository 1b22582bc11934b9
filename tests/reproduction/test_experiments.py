"""The experiments that the items of a paper need, and which of them have not been run."""

from fedsift import runs
from fedsift.reproduction.experiments import (
    find_missing,
    list_cells,
    list_folders,
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
    assert {cell: [e.seed for e in found] for cell, found in experiments.items()} == {
        PLAIN: [0, 1],
        SURE: [0, 1],
    }
    assert {e.algorithm.sampler for e in experiments[SURE]} != {
        e.algorithm.sampler for e in experiments[PLAIN]
    }


def test_there_is_one_folder_per_seed(tmp_path):
    folders = list_folders(SURE, PLAN, tmp_path)
    assert folders == [run_folder(tmp_path, SURE, seed) for seed in range(2)]
    assert len(set(folders)) == 2


def test_what_is_not_run_or_failed_is_missing_with_the_reason(tmp_path):
    assert find_missing(["fig1"], PLAN, tmp_path) == {PLAIN: "not run", SURE: "not run"}
    for seed in range(2):
        write_run(tmp_path, PLAN, PLAIN, seed, [0.2])
    write_run(tmp_path, PLAN, SURE, 0, [0.2])
    assert find_missing(["fig1"], PLAN, tmp_path) == {SURE: "1 of 2 seeds run"}
    (run_folder(tmp_path, PLAIN, 1) / runs.FAILED).write_text("{}")
    missing = find_missing(["fig1"], PLAN, tmp_path)
    assert missing.keys() == {PLAIN, SURE} and "says why" in missing[PLAIN]
