"""Which runs a list of folders stands for."""

from pathlib import Path

import pytest

from fedsift.report.folders import load_runs
from fedsift.reproduction.plans import run_folder
from fedsift.types import UserError
from tests.helpers.reproduction import DIGITS, MIXED, NONE, write_run
from tests.helpers.runs import straight, tiny


def loaded(*folders: Path) -> tuple[list[str], list[str]]:
    """The names of the runs found, and what was noted."""
    notes: list[str] = []
    return [history.folder.name for history in load_runs(list(folders), notes.append)], notes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two methods of two seeds each."""
    for cell in (NONE, MIXED):
        for seed in range(2):
            write_run(tmp_path, DIGITS, cell, seed, [0.2, 0.4])
    return run_folder(tmp_path, NONE, 0).parent


def test_a_folder_of_runs_stands_for_them_and_each_counts_once(home):
    every = sorted(home.iterdir())
    names = [path.name for path in every]
    assert loaded(home) == (names, [])
    assert loaded(*every) == (names, [])
    assert loaded(every[1], home, every[1]) == ([names[1], names[0], *names[2:]], [])


def test_the_folder_of_a_reproduction_stands_for_its_runs(tmp_path, home):
    """They are in its folder `runs`, beside reports and pictures."""
    (tmp_path / "table1.md").write_text("")
    names = [path.name for path in sorted(home.iterdir())]
    assert home.parent == tmp_path
    assert loaded(tmp_path) == loaded(home) == loaded(*tmp_path.iterdir()) == (names, [])


def test_files_beside_runs_are_passed_over_and_a_file_alone_is_not(home):
    (home / "sweep.toml").write_text("")
    every = sorted(home.iterdir())
    assert len(loaded(*every)[0]) == 4
    with pytest.raises(UserError):
        loaded(home / "sweep.toml")


def test_a_run_without_a_round_is_noted_and_left_out(tmp_path):
    straight(tmp_path / "whole", tiny(rounds=1))
    straight(tmp_path / "begun", tiny(rounds=1), 0)
    names, notes = loaded(tmp_path)
    assert names == ["whole"]
    assert notes == [f"{tmp_path / 'begun'} has no finished round and is left out"]


def test_the_same_run_in_two_folders_is_noted_and_counts_once(tmp_path):
    for name in ("first", "second"):
        straight(tmp_path / name, tiny(rounds=1))
    names, notes = loaded(tmp_path)
    assert names == ["first"]
    assert notes == [
        f"{tmp_path / 'second'} is left out: it has the settings and the seed of "
        f"{tmp_path / 'first'}"
    ]
