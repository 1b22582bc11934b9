"""What a run folder tells, also where it is old or damaged."""

import shlex
from pathlib import Path

import pytest

from fedsift import runs
from fedsift.types import UserError
from tests.helpers.runs import straight, tiny


def test_a_folder_without_a_finished_round_says_how_to_go_on(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 0)
    with pytest.raises(
        UserError,
        match=f"no finished round yet; resume it with: fedsift run --resume --out {folder}",
    ):
        runs.load_run(folder)


@pytest.mark.parametrize("folder", ["runs/fas", "my runs/fas", "it's"])
def test_the_command_to_go_on_with_can_be_pasted_into_a_shell(folder):
    assert shlex.split(runs.resume_command(Path(folder))) == [
        "fedsift",
        "run",
        "--resume",
        "--out",
        folder,
    ]


@pytest.mark.parametrize(
    "name", ["plain", "größe", "日本", 'a "quoted" \\ name', "\N{GRINNING FACE}"]
)
def test_a_run_of_any_name_can_be_read_back(name, tmp_path):
    experiment = tiny(rounds=1).model_copy(update={"name": name})
    assert runs.load_run(straight(tmp_path / "run", experiment)).experiment == experiment
