"""A run folder is set up, filled round by round, and never overwritten."""

import errno
import json
import subprocess
import sys

import pytest
import torch

from fedsift import runs
from fedsift.runs import (
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    FAILED,
    LEDGER,
    OURS,
)
from fedsift.runs import run as run_module
from tests.helpers.runs import (
    KINDS,
    PROGRAM,
    TINY,
    bits,
    cli,
    file_names,
    fill_disk_at,
    lines,
    no_temporaries,
    play,
    refusal,
    resumed,
    rounds_in,
    straight,
    tiny,
)


def test_of_too_many_clients_those_that_take_part_are_described(tmp_path, monkeypatch):
    """Two of four in each of two rounds; with room for three, the first three of them by number."""
    every = json.loads((straight(tmp_path / "all", tiny(rounds=2)) / CLIENTS).read_text())
    assert [client["client"] for client in every] == [0, 1, 2, 3]
    monkeypatch.setattr(run_module, "LISTED", 3)
    folder = straight(tmp_path / "some", tiny(rounds=2))
    taking_part = sorted({int(client) for row in lines(folder / LEDGER) for client in row["up"]})
    assert json.loads((folder / CLIENTS).read_text()) == [
        every[client] for client in taking_part[:3]
    ]


def test_a_run_of_a_million_clients_describes_its_cohorts(tmp_path):
    folder = straight(
        tmp_path / "run", tiny("digits-fas", "partition.kind=views", "clients=1000000", rounds=2)
    )
    described = json.loads((folder / CLIENTS).read_text())
    taking_part = sorted({int(client) for row in lines(folder / LEDGER) for client in row["up"]})
    assert [client["client"] for client in described] == taking_part and len(taking_part) == 4
    assert [sum(client["labels"]) for client in described] == [40] * 4


def test_client_memories_are_in_the_checkpoint(tmp_path):
    """Else the resume of soft labels down would test nothing."""
    folder = straight(tmp_path / "run", tiny("digits-fas-soft-down", rounds=3))
    state = runs.from_bytes((folder / CHECKPOINT).read_bytes())
    seen = {int(client) for row in lines(folder / LEDGER) for client in row["up"]}
    assert set(state.memories) == seen
    assert all(memory["model"]["1.weight"].shape == (64, 64) for memory in state.memories.values())


@pytest.mark.slow
def test_batch_norm_counters_are_in_the_checkpoint(tmp_path):
    """Ten samples a client, one batch an epoch: a step a round."""
    folder = straight(tmp_path / "run", tiny("digits-fedavg", rounds=3))
    (student,) = runs.from_bytes((folder / CHECKPOINT).read_bytes()).server.students.values()
    counters = {
        name: value for name, value in student.items() if name.endswith("num_batches_tracked")
    }
    assert len(counters) == 9
    assert all(
        value.dtype == torch.int64 and value.shape == () and value == 3
        for value in counters.values()
    )


def test_a_run_folder_holds_what_the_module_says(tmp_path):
    assert file_names(straight(tmp_path / "run", tiny())) == OURS


@pytest.mark.slow
def test_a_disk_full_at_any_write_of_a_new_run_ends_it_plainly_and_it_can_go_on(
    tmp_path, monkeypatch
):
    whole = bits(straight(tmp_path / "whole", tiny(rounds=2)))
    for number in range(1, 16):  # five files to set up, then two rounds of five
        folder = tmp_path / str(number)
        start = ["run", "digits-fas", *KINDS["digits-fas"], "rounds=2", "--out", str(folder)]
        with monkeypatch.context() as patch:
            fill_disk_at(patch, number)
            result = cli(*start)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert "\nerror: No space left on device" in f"\n{result.stderr}"
        assert no_temporaries(folder)
        assert (folder / CONFIG).exists() == (number > 5)
        if number > 5:
            saved = "every finished round is saved" if number > 10 else "no round is finished yet"
            assert result.stderr.endswith(
                f"{saved}. Once that is fixed, resume with:\n  fedsift run --resume --out "
                f"{folder}\n"
            )
            start = ["run", "--resume", "--out", str(folder)]
        assert cli(*start).exit_code == 0
        assert bits(folder) == whole


@pytest.mark.slow
def test_a_real_limit_on_file_size_ends_a_run_plainly_and_it_can_go_on(tmp_path):
    """The checkpoint of 19.7 kB does not fit into 10,000; the lines of a round do."""
    folder = straight(tmp_path / "run", tiny(), 1)
    checkpoint = (folder / CHECKPOINT).read_bytes()
    limited = (
        "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (10_000, 10_000)); from "
        "fedsift.cli import main; main()"
    )
    command = [sys.executable, "-c", limited, "run", "--resume", "--out", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "error: File too large; every finished round is saved" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert len(checkpoint) > 19_000 and (folder / CHECKPOINT).read_bytes() == checkpoint
    assert rounds_in(folder) == 2
    assert file_names(folder) == OURS | {FAILED}
    assert json.loads((folder / FAILED).read_text())["rounds"] == 1
    assert bits(resumed(folder)) == bits(straight(tmp_path / "whole", tiny()))


def test_a_folder_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("mine")
    result = cli("run", "digits-fas", *TINY, "budget=6", "--out", str(tmp_path / "file" / "run"))
    assert result.exit_code == 1
    assert result.stderr == f"error: cannot use {tmp_path}/file/run: Not a directory\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_write_permission_is_reported_and_can_go_on_later(tmp_path, monkeypatch):
    """The refusal is simulated, so that the test also holds for root, who may write everywhere."""
    folder = straight(tmp_path / "run", tiny(), 1)
    before = bits(folder)

    def refused(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkstemp", lambda **options: refused(options["dir"]))
        result = cli("run", "--resume", "--out", str(folder))
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "error: cannot use " in result.stderr and "Permission denied" in result.stderr
    assert bits(folder) == before
    assert bits(resumed(folder)) == bits(straight(tmp_path / "whole", tiny()))


def test_a_run_folder_is_not_overwritten(tmp_path):
    folder = straight(tmp_path / "run", tiny())
    before = bits(folder)
    assert refusal(folder, tiny(), resume=False) == (
        f"run folder {folder} exists; add --resume to resume it, or choose another --out"
    )
    assert bits(folder) == before


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_with_other_things_in_it_is_left_alone(resume, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    assert (
        refusal(tmp_path, tiny(), resume)
        == f"{tmp_path} exists and is not a run folder; choose another --out"
    )
    assert file_names(tmp_path) == {"thesis.tex"}


def test_a_file_is_not_a_run_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    assert refusal(file, tiny()) == f"{file} exists and is not a run folder; choose another --out"
    assert file.read_text() == "mine"


def test_an_empty_folder_is_as_good_as_none(tmp_path):
    (tmp_path / "run").mkdir()
    assert bits(straight(tmp_path / "run", tiny())) == bits(straight(tmp_path / "whole", tiny()))


def test_a_second_process_in_the_same_folder_is_refused(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 1)
    running = runs.begin_run(folder, tiny(), resume=True)
    before = bits(folder)
    result = subprocess.run(
        [*PROGRAM, "run", "--resume", "--out", str(folder)], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: another process is running in {folder}\n"
    assert bits(folder) == before
    assert bits(play(running)) == bits(straight(tmp_path / "whole", tiny()))
