"""`fedsift demo`: four methods, a table, a picture, and a resume after Ctrl-C."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from fedsift.cli.demo import METHODS
from tests.helpers.cli import (
    CHOSEN,
    MAGIC,
    by_shell,
    complaint,
    done,
    fedsift,
    interrupted,
    program,
    rows,
)
from tests.helpers.json_shapes import read_printed
from tests.helpers.pages import find_command, read_recipe, read_words
from tests.helpers.runs import bits, rounds_in


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """`make demo`, cut short, in an empty folder."""
    folder = tmp_path_factory.mktemp("demo")
    _, target = read_words(find_command("README.md", "make demo"))
    return folder, program(*read_recipe(target), "--seeds", "1", "--rounds", "2", cwd=folder)


@pytest.mark.slow
def test_the_demo_compares_four_methods(shown):
    _, result = shown
    assert result.returncode == 0, result.stderr
    table = {cells[0]: cells[1:] for cells in rows(result.stdout)}
    assert list(table) == list(METHODS)
    assert all(seeds == "1" for seeds, *_ in table.values())
    accuracies = {name: float(cells[1]) for name, cells in table.items()}
    assert all(0.1 < accuracy <= 1 for accuracy in accuracies.values())


@pytest.mark.slow
def test_the_demo_says_that_it_stacks_and_does(shown):
    folder, result = shown
    assert re.search(
        rf"^4 runs side by side: {CHOSEN}\.\n  cnn: stacked \(known layers\)$", result.stdout, re.M
    )
    (told,) = {
        json.loads(file.read_text())["engine"] for file in folder.glob("runs/*/*/environment.json")
    }
    assert re.fullmatch(CHOSEN, told)


@pytest.mark.slow
def test_the_demo_names_its_runs_and_its_picture(shown):
    folder, result = shown
    (runs_line,) = (line for line in result.stdout.splitlines() if line.startswith("runs "))
    (picture,) = (
        line.split()[1] for line in result.stdout.splitlines() if line.startswith("picture ")
    )
    home = folder / Path(picture).parent
    assert (folder / picture).read_bytes().startswith(MAGIC["png"])
    assert {path.name for path in home.iterdir() if path.is_dir()} == {
        f"{preset}-seed0" for preset in METHODS
    }
    assert runs_line.split()[1] == f"{Path(picture).parent}/digits-*"
    assert all(rounds_in(path) == 2 for path in home.iterdir() if path.is_dir())
    again = done("demo", "--seeds", "1", "--rounds", "2", "--out", str(home), "--json")
    told = read_printed("demo", again.stdout)
    assert (told["folder"], told["picture"]) == (str(home), str(folder / picture))
    table = {cells[0]: cells[2] for cells in rows(result.stdout)}
    assert {one["method"]: f"{one['accuracy']:.3f}" for one in told["methods"]} == table


@pytest.mark.slow
def test_the_run_the_demo_points_at_can_be_shown(shown, monkeypatch):
    folder, result = shown
    monkeypatch.chdir(folder)
    (pointer,) = re.findall(r"fedsift (show \S+[^)\s])", result.stdout)
    assert "digits-sift" in done(*pointer.split()).stdout


@pytest.mark.slow
def test_an_interrupted_demo_goes_on_with_the_command_it_prints(shown, tmp_path):
    home = shown[0] / "runs"
    straight_through = next(home.iterdir())
    command = ["demo", "--out", "half", "--seeds", "1", "--rounds", "2"]
    half = tmp_path / "half"
    stopped = interrupted(command, lambda: any(map(rounds_in, half.glob("digits-*"))))
    assert stopped.returncode == 130
    assert stopped.stderr.endswith("Resume with:\n  fedsift demo --out half --seeds 1 --rounds 2\n")
    assert by_shell(stopped.stderr.splitlines()[-1]).returncode == 0
    for run in (f"{preset}-seed0" for preset in METHODS):
        assert bits(half / run) == bits(straight_through / run)


@pytest.mark.slow
def test_a_demo_with_other_rounds_in_the_same_folder_is_refused(shown):
    home = next((shown[0] / "runs").iterdir())
    assert "rounds is 2 there, 3 here" in complaint(
        "demo", "--seeds", "1", "--rounds", "3", "--out", str(home)
    )


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--rounds", "0"], ["--rounds", "many"]])
def test_a_demo_of_nothing_is_refused(words):
    result = fedsift("demo", *words)
    assert result.exit_code == 2 and words[0] in result.stderr
    assert list(Path().iterdir()) == []
