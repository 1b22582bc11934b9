"""A run can be stopped, killed or starved of disk at any moment, and goes on to the very same
bytes.
"""

import errno
import itertools
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedsift import config, runs
from fedsift import files as file_module
from fedsift.config import Experiment
from fedsift.engines import choose_engine
from fedsift.federation import FederationState
from fedsift.runs import (
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    ENVIRONMENT,
    FAILED,
    LEDGER,
    METRICS,
    OURS,
    TIMING,
)
from fedsift.runs import run as run_module
from fedsift.types import Server, UserError

with warnings.catch_warnings():  # typer uses names that click 8.5 is about to drop
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from fedsift.cli import app

TINY = [
    "clients=4",
    "cohort=2",
    "data.private=40",
    "data.public=30",
    "local.epochs=1",
    "distill.epochs=1",
    "device=cpu",
]
KINDS = {  # nothing remembered; clients that keep models of their own; batch norm with its counters
    "digits-fas": [*TINY, "model=mlp", "budget=6"],
    "digits-fas-soft-down": [*TINY, "model=mlp", "budget=6"],
    "digits-fedavg": [*TINY, "model=resnet8(width=0.25)"],
}
PROGRAM = [sys.executable, "-m", "fedsift"]


def tiny(preset: str = "digits-fas", *settings: str, rounds: int = 3) -> Experiment:
    return config.read_experiment(preset, [*KINDS[preset], f"rounds={rounds}", *settings])


def play(run: runs.Run, rounds: int | None = None) -> Path:
    """To the end, or for some rounds only."""
    for _ in itertools.islice(runs.Group.of([run]).run_or_raise(choose_engine()[0]), rounds):
        pass
    return run.folder


def straight(folder: Path, experiment: Experiment, rounds: int | None = None) -> Path:
    return play(runs.begin_run(folder, experiment), rounds)


def resumed(folder: Path) -> Path:
    return play(runs.begin_run(folder, runs.read_config(folder), resume=True))


def bits(folder: Path) -> dict[str, bytes]:
    """All files that must be equal between equal runs."""
    return {
        name: (folder / name).read_bytes()
        for name in (METRICS, LEDGER, CHECKPOINT, CLIENTS, CONFIG)
    }


def files(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def lines(path: Path) -> list[Any]:
    """The whole lines of a .jsonl file, which need not be there."""
    return (
        [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.is_file() else []
    )


def rounds_in(folder: Path) -> int:
    return len(lines(folder / METRICS))


# --- resume is going straight through ---


@pytest.mark.parametrize("preset", KINDS)
def test_a_run_stopped_after_any_round_ends_with_the_bits_of_one_played_straight_through(
    preset, tmp_path
):
    whole = bits(straight(tmp_path / "whole", tiny(preset, rounds=4)))
    for stop in range(4):
        stopped = straight(tmp_path / str(stop), tiny(preset, rounds=4), stop)
        assert rounds_in(stopped) == stop
        assert bits(resumed(stopped)) == whole


def test_a_run_stopped_after_every_single_round_ends_with_the_same_bits(tmp_path):
    whole = bits(straight(tmp_path / "whole", tiny("digits-fas-soft-down", rounds=4)))
    folder = tmp_path / "halting"
    for done in range(4):
        play(runs.begin_run(folder, tiny("digits-fas-soft-down", rounds=4), resume=True), 1)
        assert rounds_in(folder) == done + 1
    assert bits(folder) == whole


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


def test_a_finished_run_is_not_changed_by_resuming_it(tmp_path):
    folder = straight(tmp_path / "run", tiny())
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    summary = runs.load_run(folder).summary()
    resumed(folder)
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before
    assert runs.load_run(folder).summary() == summary


def test_the_same_process_can_go_on_with_a_run_it_has_finished(tmp_path):
    run = runs.begin_run(tmp_path / "run", tiny(rounds=1))
    assert len(list(runs.Group.of([run]).run_or_raise(choose_engine()[0]))) == 1
    again = runs.begin_run(tmp_path / "run", tiny(rounds=1), resume=True)
    assert again.finished


def test_a_run_folder_holds_what_the_module_says(tmp_path):
    assert files(straight(tmp_path / "run", tiny())) == OURS


# --- kill -9
#
#
# -------------------------------------------------------------------------------------------------------


def killed(command: list[str], moment: Any, delay: float) -> None:
    """Start the program, kill it `delay` seconds after `moment()` has come."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with process:
        until = time.monotonic() + 60
        while not moment() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(delay)
        process.kill()
        said = process.stderr.read().decode() if process.stderr else ""
    assert process.returncode == -signal.SIGKILL, said


@pytest.mark.parametrize("preset", KINDS)
def test_a_run_killed_again_and_again_ends_with_the_bits_of_one_played_straight_through(
    preset, tmp_path
):
    rounds, folder = 30, tmp_path / "run"
    dice = np.random.default_rng(len(preset))
    start = [*PROGRAM, "run", preset, *KINDS[preset], f"rounds={rounds}", "--out", str(folder)]
    go_on = [*PROGRAM, "run", "--resume", "--out", str(folder)]
    early = folder if preset == "digits-fas" else folder / CONFIG
    killed(start, early.exists, 0.0)
    assert rounds_in(folder) < rounds
    for target in (1, 8):
        command = go_on if (folder / CONFIG).exists() else start
        killed(command, lambda target=target: rounds_in(folder) >= target, dice.uniform(0, 0.03))
        assert target <= rounds_in(folder) < rounds
    assert bits(resumed(folder)) == bits(straight(tmp_path / "whole", tiny(preset, rounds=rounds)))


def test_what_a_kill_leaves_of_half_a_checkpoint_is_cleared_away_on_resume(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 2)
    (folder / ".k1ll3d.tmp").write_bytes(b"half a checkpoint")
    resumed(folder)
    assert files(folder) == OURS


def test_a_run_killed_while_it_was_set_up_can_be_started_again_with_the_same_command(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ENVIRONMENT).write_text("{}")
    (folder / ".k1ll3d.tmp").write_text("half a con")
    assert bits(straight(folder, tiny())) == bits(straight(tmp_path / "whole", tiny()))
    assert files(folder) == OURS


# --- a crash between any two writes ---


class Crash(Exception):
    pass


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The writes before the `number`-th reach the disk, that one and all later ones do not."""
    calls = itertools.count(1)

    def crashing(write):
        def maybe(*arguments):
            if next(calls) >= number:
                raise Crash
            write(*arguments)

        return maybe

    for name in ("append_row", "write_atomic"):
        monkeypatch.setattr(file_module, name, crashing(getattr(file_module, name)))


@pytest.mark.parametrize("preset", ["digits-fas-soft-down", "digits-fedavg"])
def test_a_crash_before_any_write_of_a_round_changes_nothing_in_the_end(
    preset, tmp_path, monkeypatch
):
    whole = bits(straight(tmp_path / "whole", tiny(preset, rounds=2)))
    for number in range(1, 9):  # metrics, ledger, timing, checkpoint; twice
        run = runs.begin_run(tmp_path / str(number), tiny(preset, rounds=2))
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, number)
            play(run)
        assert [len(lines(run.folder / name)) for name in (METRICS, LEDGER, TIMING)] == [
            (number + 2) // 4,
            (number + 1) // 4,
            number // 4,
        ]
        assert bits(resumed(run.folder)) == whole


def test_a_crash_before_any_write_of_a_resume_changes_nothing_in_the_end(tmp_path, monkeypatch):
    whole = bits(straight(tmp_path / "whole", tiny()))
    for number in range(1, 8):  # three files trimmed, then a round of four writes
        folder = straight(tmp_path / str(number), tiny(), 2)
        with open(folder / METRICS, "a") as file:
            file.write('{"round": 2, "accuracy": 0.9}\n')  # a round the checkpoint does not know
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, number)
            resumed(folder)
        assert bits(resumed(folder)) == whole


@pytest.mark.parametrize("name", [METRICS, LEDGER, TIMING])
@pytest.mark.parametrize("cut", [1, 12, -1])
def test_a_torn_last_line_is_played_again(name, cut, tmp_path):
    whole = straight(tmp_path / "whole", tiny())
    torn = straight(tmp_path / "torn", tiny(), 2)
    with open(torn / name, "ab") as file:
        file.write((whole / name).read_bytes().splitlines(keepends=True)[2][:cut])
    assert runs.load_run(torn).summary()["rounds"] == 2
    assert bits(resumed(torn)) == bits(whole)


# --- a full disk
#
#
# ---------------------------------------------------------------------------------------------------


def cli(*words: str) -> Any:
    """In this process, but as if in one of its own."""
    return CliRunner().invoke(app, list(words))


def fill_disk_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """From the `number`-th write on, a write ends five bytes short, with ENOSPC."""
    calls = itertools.count(1)

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            return  # a folder's name is brought to the disk: not a write
        if next(calls) >= number:
            os.ftruncate(handle, os.fstat(handle).st_size - 5)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


def no_temporaries(folder: Path) -> bool:
    return not any(name.endswith(".tmp") for name in files(folder))


def test_a_disk_full_at_any_write_of_a_new_run_ends_it_plainly_and_it_can_go_on(
    tmp_path, monkeypatch
):
    whole = bits(straight(tmp_path / "whole", tiny(rounds=2)))
    for number in range(1, 13):  # four files to set up, then two rounds of four
        folder = tmp_path / str(number)
        start = ["run", "digits-fas", *KINDS["digits-fas"], "rounds=2", "--out", str(folder)]
        with monkeypatch.context() as patch:
            fill_disk_at(patch, number)
            result = cli(*start)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert "\nerror: No space left on device" in f"\n{result.stderr}"
        assert no_temporaries(folder)
        assert (folder / CONFIG).exists() == (number > 4)
        if number > 4:
            assert result.stderr.endswith(f"go on with:\n  fedsift run --resume --out {folder}\n")
            start = ["run", "--resume", "--out", str(folder)]
        assert cli(*start).exit_code == 0
        assert bits(folder) == whole


def test_a_disk_full_at_any_write_of_a_resume_keeps_the_rounds_already_played(
    tmp_path, monkeypatch
):
    whole = bits(straight(tmp_path / "whole", tiny()))
    for number in range(1, 8):  # three files trimmed, then a round of four writes
        folder = straight(tmp_path / str(number), tiny(), 2)
        kept = [(folder / name).read_bytes() for name in (METRICS, LEDGER, TIMING)]
        checkpoint = (folder / CHECKPOINT).read_bytes()
        with monkeypatch.context() as patch:
            fill_disk_at(patch, number)
            result = cli("run", "--resume", "--out", str(folder))
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert "\nerror: No space left on device" in f"\n{result.stderr}"
        now = [(folder / name).read_bytes() for name in (METRICS, LEDGER, TIMING)]
        assert all(after.startswith(before) for before, after in zip(kept, now, strict=True))
        assert (folder / CHECKPOINT).read_bytes() == checkpoint
        assert no_temporaries(folder)
        assert bits(resumed(folder)) == whole


def test_a_real_limit_on_file_size_ends_a_run_plainly_and_it_can_go_on(tmp_path):
    """The checkpoint of 19.7 kB does not fit into 10,000; the lines of a round do."""
    folder = straight(tmp_path / "run", tiny(), 1)
    checkpoint = (folder / CHECKPOINT).read_bytes()
    limited = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (10_000, 10_000)); from fedsift.cli import main; main()"
    command = [sys.executable, "-c", limited, "run", "--resume", "--out", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "error: File too large; every finished round is saved" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert len(checkpoint) > 19_000 and (folder / CHECKPOINT).read_bytes() == checkpoint
    assert rounds_in(folder) == 2
    assert files(folder) == OURS | {FAILED}
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


# --- folders that cannot be gone on with ---


def complaint(folder: Path, experiment: Experiment, resume: bool = True) -> str:
    with pytest.raises(UserError) as caught:
        runs.begin_run(folder, experiment, resume=resume)
    return str(caught.value)


def test_a_run_folder_is_not_overwritten(tmp_path):
    folder = straight(tmp_path / "run", tiny())
    before = bits(folder)
    assert complaint(folder, tiny(), resume=False) == (
        f"run folder {folder} exists; add --resume to resume it, or choose another --out"
    )
    assert bits(folder) == before


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_with_other_things_in_it_is_left_alone(resume, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    assert (
        complaint(tmp_path, tiny(), resume)
        == f"{tmp_path} exists and is not a run folder; choose another --out"
    )
    assert files(tmp_path) == {"thesis.tex"}


def test_a_file_is_not_a_run_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    assert complaint(file, tiny()) == f"{file} exists and is not a run folder; choose another --out"
    assert file.read_text() == "mine"


def test_an_empty_folder_is_as_good_as_none(tmp_path):
    (tmp_path / "run").mkdir()
    assert bits(straight(tmp_path / "run", tiny())) == bits(straight(tmp_path / "whole", tiny()))


def test_another_config_is_refused_with_each_key_and_both_values(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 2)
    before = bits(folder)
    said = complaint(folder, tiny("digits-fas", "alpha=0.1", "seed=3"))
    assert said.startswith(f"{folder} was made with another config: ")
    assert "seed is 0 there, 3 here" in said
    assert "partition.alpha is 1.0 there, 0.1 here" in said
    assert said.count(" there, ") == 2
    assert bits(folder) == before


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-100], lambda b: b[:5], lambda b: b"", lambda b: b"\xff" * 50]
)
def test_a_damaged_checkpoint_is_named_and_nothing_is_lost(damage, tmp_path):
    folder = straight(tmp_path / "run", tiny(), 2)
    good = bits(folder)
    (folder / CHECKPOINT).write_bytes(damage(good[CHECKPOINT]))
    said = complaint(folder, tiny())
    assert said.startswith(f"cannot read {folder / CHECKPOINT}: ") and "\n" not in said
    assert (folder / METRICS).read_bytes() == good[METRICS]
    (folder / CHECKPOINT).write_bytes(good[CHECKPOINT])
    assert bits(resumed(folder)) == bits(straight(tmp_path / "whole", tiny()))


@pytest.mark.parametrize("name", [METRICS, LEDGER, TIMING])
def test_a_file_shortened_by_hand_is_named_with_both_counts(name, tmp_path):
    folder = straight(tmp_path / "run", tiny())
    first = (folder / name).read_bytes().splitlines(keepends=True)[0]
    (folder / name).write_bytes(first)
    said = complaint(folder, tiny())
    assert said.startswith(
        f"{folder / name} has 1 rounds, {CHECKPOINT} 3: the folder was changed by hand"
    )
    assert (folder / name).read_bytes() == first


@pytest.mark.parametrize("rounds", [2, 3])
def test_rounds_are_not_dropped_because_the_checkpoint_is_lost(rounds, tmp_path):
    folder = straight(tmp_path / "run", tiny(), rounds)
    (folder / CHECKPOINT).unlink()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    said = complaint(folder, tiny())
    assert said == (
        f"{folder / METRICS} has {rounds} rounds, {CHECKPOINT} 0: the folder was changed by hand; "
        f"put back what is missing, or delete {folder} to start again"
    )
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_first_round_that_was_not_yet_saved_for_good_is_played_again(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 1)
    (folder / CHECKPOINT).unlink()
    assert bits(resumed(folder)) == bits(straight(tmp_path / "whole", tiny()))


def test_a_line_that_is_not_json_is_reported(tmp_path):
    folder = straight(tmp_path / "run", tiny())
    (folder / METRICS).write_text("no json\n" * 3)
    assert complaint(folder, tiny()).startswith(f"cannot read {folder / METRICS}: ")


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


# --- several runs at once ---


def test_runs_side_by_side_are_bit_for_bit_the_runs_alone(tmp_path):
    experiments = [
        tiny("digits-fas", rounds=2),
        tiny("digits-fas", "seed=1", rounds=4),
        tiny("digits-fas-soft-down", rounds=3),
        tiny("digits-fedavg", rounds=3),
        tiny("digits-fas", "clients.models={mlp = 2, 'cnn(width=0.5)' = 2}", rounds=2),
    ]
    beside = [runs.begin_run(tmp_path / f"beside{i}", e) for i, e in enumerate(experiments)]
    order = [beside.index(run) for run, _ in runs.Group.of(beside).run_or_raise(choose_engine()[0])]
    assert order == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 1, 2, 3, 1]
    for i, experiment in enumerate(experiments):
        assert bits(beside[i].folder) == bits(straight(tmp_path / f"alone{i}", experiment))


def test_a_round_is_on_disk_before_it_is_yielded(tmp_path):
    beside = [
        runs.begin_run(tmp_path / str(seed), tiny("digits-fas", f"seed={seed}", rounds=2))
        for seed in range(2)
    ]
    for run, record in runs.Group.of(beside).run_or_raise(choose_engine()[0]):
        assert rounds_in(run.folder) == record.round + 1
        assert (run.folder / CHECKPOINT).read_bytes() == runs.to_bytes(record.state)


def test_finished_runs_are_not_played(tmp_path):
    done = runs.begin_run(straight(tmp_path / "run", tiny(rounds=1)), tiny(rounds=1), resume=True)
    assert list(runs.Group.of([done]).run_or_raise(choose_engine()[0])) == []


# --- files and checkpoints ---


@pytest.mark.parametrize("failing", ["fsync", "chmod", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_the_old_content_survives_a_failed_write_and_no_temporary_file_does(
    failing, error, tmp_path, monkeypatch
):
    path = tmp_path / "file"
    file_module.write_atomic(path, b"old")

    def fail(*_):
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(os, failing, fail)
        file_module.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert files(tmp_path) == {"file"}
    file_module.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert files(tmp_path) == {"file"}


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    """At the last moment before the new file takes its place, the old one is whole, and so is the
    new one.
    """
    path, seen = tmp_path / "file", []
    replace = os.replace

    def watched(new, old):
        seen.append((Path(old).read_bytes(), Path(new).read_bytes()))
        replace(new, old)

    monkeypatch.setattr(os, "replace", watched)
    path.write_bytes(b"old")
    file_module.write_atomic(path, b"new")
    assert seen == [(b"old", b"new")]
    assert path.read_bytes() == b"new"


def leaves() -> st.SearchStrategy[Any]:
    kinds = st.sampled_from([np.int64, np.float64, np.float32])
    shapes = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    values = st.builds(lambda k, s: arrays(k, s), kinds, shapes).flatmap(lambda strategy: strategy)
    return st.one_of(values.map(np.asarray), values.map(lambda a: torch.from_numpy(np.array(a))))


names = st.text(min_size=1, max_size=5)
trees = st.recursive(
    st.dictionaries(names, leaves(), min_size=1, max_size=3),
    lambda inner: st.dictionaries(names, inner, min_size=1, max_size=2),
    max_leaves=4,
)
states = st.builds(
    FederationState,
    st.integers(0, 10**6),
    st.builds(
        Server,
        st.dictionaries(
            names,
            st.dictionaries(names, leaves().map(torch.as_tensor), min_size=1, max_size=2),
            max_size=2,
        ),
        st.one_of(st.just({}), trees),
    ),
    st.dictionaries(st.integers(0, 10**6), trees, max_size=2),
)


def spelt_out(tree: Any) -> Any:
    """A tree as plain values: kind, type, shape and bytes of every leaf."""
    if isinstance(tree, dict):
        return {key: spelt_out(value) for key, value in tree.items()}
    array = tree.numpy() if isinstance(tree, torch.Tensor) else tree
    return type(tree).__name__, str(array.dtype), array.shape, array.tobytes()


def assert_survives(state: FederationState) -> None:
    back = runs.from_bytes(runs.to_bytes(state))
    assert back.round == state.round
    assert spelt_out(back.server.students) == spelt_out(state.server.students)
    assert spelt_out(back.server.notes) == spelt_out(state.server.notes)
    assert spelt_out(back.memories) == spelt_out(state.memories)


@settings(max_examples=60)
@given(states)
def test_a_state_survives_the_checkpoint_exactly(state):
    assert_survives(state)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (2, 3)])
@pytest.mark.parametrize("make", [np.ones, torch.ones])
def test_a_leaf_of_any_shape_survives_the_checkpoint(make, shape):
    assert_survives(
        FederationState(1, Server({}, {"a": {"b": make(shape)}}), {7: {"m": make(shape)}})
    )


def test_views_and_names_with_dots_slashes_and_quotes_survive_the_checkpoint():
    square = np.arange(9.0).reshape(3, 3)
    notes = {
        "a.b": square.T,
        "a": {"b": square[::2]},
        'a/"b"\n': torch.arange(9).view(3, 3).t(),
        "": square[0],
    }
    assert_survives(FederationState(3, Server({}, notes), {}))


def test_equal_states_give_equal_bytes():
    def state(names: str) -> FederationState:
        return FederationState(
            2, Server({"cnn": {name: torch.full((2,), float(ord(name))) for name in names}}), {}
        )

    assert runs.to_bytes(state("ab")) == runs.to_bytes(state("ab"))


def test_a_run_may_go_on_with_another_bound_of_memory_and_with_nothing_else_changed(tmp_path):
    experiment = tiny(rounds=2)
    play(runs.begin_run(tmp_path / "run", experiment), 1)
    with pytest.raises(UserError, match="precision is 'float32' there, 'bfloat16' here"):
        runs.begin_run(
            tmp_path / "run", experiment.model_copy(update={"precision": "bfloat16"}), resume=True
        )
    play(
        runs.begin_run(
            tmp_path / "run", experiment.model_copy(update={"memory": 0.001}), resume=True
        )
    )
    assert runs.is_finished(tmp_path / "run")
    play(runs.begin_run(tmp_path / "straight", experiment))
    metrics = [(tmp_path / name / runs.METRICS).read_text() for name in ("run", "straight")]
    assert metrics[0] == metrics[1]
