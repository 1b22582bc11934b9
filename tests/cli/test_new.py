"""`fedsift new`: a preset as a file to edit."""

from pathlib import Path

import pytest

from fedsift import config, runs
from tests.helpers.cli import complaint, done, everything


def test_new_writes_a_file_that_means_the_preset_and_runs_under_its_own_name():
    result = done("new", "digits-fas-low-entropy", "mine.toml")
    assert result.stdout == "wrote mine.toml; edit it, then: fedsift run mine.toml\n"
    preset = config.read_experiment("digits-fas-low-entropy")
    assert config.differences(preset, config.read_experiment("mine.toml")) == {
        "name": ("digits-fas-low-entropy", "mine")
    }
    text = Path("mine.toml").read_text()
    assert text.count("count = 20 ") == text.count("rounds = 15 ") == 1
    Path("mine.toml").write_text(
        text.replace("count = 20 ", "count = 9 ").replace("rounds = 15 ", "rounds = 1 ")
    )
    done("run", "mine.toml", "model=mlp", "local.epochs=1", "--out", "mine")
    history = runs.load_run(Path("mine"))
    assert (history.experiment.name, len(history.clients), len(history.metrics)) == ("mine", 9, 1)
    assert history.experiment.algorithm.sampler == "low-entropy"


@pytest.mark.parametrize(
    "preset, uses", [("digits-fas", True), ("digits-sift", False), ("digits-fedavg", False)]
)
def test_a_budget_that_the_algorithm_does_not_use_is_a_comment(preset, uses):
    done("new", preset, "mine.toml")
    lines = Path("mine.toml").read_text().splitlines()
    (line,) = [line for line in lines if line.lstrip("# ").startswith("budget =")]
    assert line.startswith("budget = 60" if uses else "# budget = 60")
    mine, own = config.read_experiment("mine.toml"), config.read_experiment(preset)
    assert set(config.differences(own, mine)) == {"name"}


def test_a_value_that_was_set_is_written_whether_it_is_used_or_not():
    e = config.read_experiment("digits-sift", ["budget=7"])
    assert "\nbudget = 7 " in config.to_toml(e)


@pytest.mark.parametrize("name", ["größe", "\N{GRINNING FACE}"])
def test_new_writes_a_file_that_can_be_read_whatever_its_name(name):
    done("new", "digits-fas", f"{name}.toml")
    assert config.read_experiment(f"{name}.toml").name == name


def test_new_overwrites_nothing():
    Path("mine.toml").write_text("rounds = 3\n")
    assert (
        complaint("new", "digits-fas", "mine.toml")
        == "error: mine.toml exists; choose another name\n"
    )
    assert everything() == {"mine.toml": b"rounds = 3\n"}


def test_new_wants_a_toml_ending():
    assert ".toml" in complaint("new", "digits-fas", "mine.txt")
    assert everything() == {}


def test_new_of_an_unknown_preset_names_the_nearest():
    assert "unknown preset 'digits-faz'; did you mean 'digits-fas'?" in complaint(
        "new", "digits-faz", "mine.toml"
    )
    assert everything() == {}


def test_new_in_a_folder_that_is_not_there_names_it():
    assert "/nowhere/" in complaint("new", "digits-fas", "nowhere/mine.toml", code=1)
    assert everything() == {}
