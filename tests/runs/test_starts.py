"""Runs that start from self-supervised weights: stopped, killed, shared and resumed."""

import shutil

import pytest
from safetensors.torch import save_file

from fedsift import config, models, runs, starts
from fedsift.codecs import WEIGHT_CODECS
from fedsift.engines import choose_engine
from fedsift.engines.batched import BatchedEngine
from fedsift.runs import CONFIG, TIMING
from fedsift.types import Pretrain
from tests.helpers.runs import (
    KINDS,
    PROGRAM,
    bits,
    cli,
    killed,
    lines,
    play,
    refusal,
    resumed,
    rounds_in,
    straight,
    tiny,
)

START = "start=simclr(epochs=3)"


@pytest.fixture(autouse=True)
def _short_stages(own_data_folder, monkeypatch):
    monkeypatch.setattr(starts, "STAGE", 1)


@pytest.fixture
def trained(monkeypatch):
    """The epochs of all jobs that engines are given, in order."""
    found: list[int] = []
    run = BatchedEngine.run

    def watch(self, jobs, stop=None):
        found.extend(job.epoch for job in jobs if isinstance(job, Pretrain))
        return run(self, jobs, stop)

    monkeypatch.setattr(BatchedEngine, "run", watch)
    return found


def stop_after(monkeypatch, stages):
    """Ctrl-C during the stage that follows."""
    keep, left = starts.Shelf.keep_stage, [stages]

    def stopping(self, *args):
        keep(self, *args)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(starts.Shelf, "keep_stage", stopping)


def a_straight_run(tmp_path, monkeypatch, experiment):
    """One that nothing stops, and that finds nothing kept."""
    with monkeypatch.context() as aside:
        aside.setenv("FEDSIFT_DATA", str(tmp_path / "data aside"))
        return bits(straight(tmp_path / "straight", experiment))


@pytest.mark.parametrize("preset", ["digits-fas", "digits-fas-soft-down", "digits-fedavg"])
def test_a_run_stopped_during_its_start_ends_with_the_bits_of_one_that_was_not(
    preset, tmp_path, monkeypatch, trained
):
    experiment = tiny(preset, START)
    whole = a_straight_run(tmp_path, monkeypatch, experiment)
    trained.clear()
    with monkeypatch.context() as aside:
        stop_after(aside, 2)
        with pytest.raises(KeyboardInterrupt):
            straight(tmp_path / "run", experiment)
    assert trained == [0, 1] and rounds_in(tmp_path / "run") == 0
    assert bits(resumed(tmp_path / "run")) == whole
    assert trained == [0, 1, 2]


@pytest.mark.parametrize("preset", ["digits-fas", "digits-fas-soft-down"])
def test_a_run_stopped_after_any_round_needs_its_start_no_more(
    preset, tmp_path, own_data_folder, trained
):
    experiment = tiny(preset, START)
    whole = bits(straight(tmp_path / "whole", experiment))
    for stop in (1, 2):
        stopped = straight(tmp_path / str(stop), experiment, stop)
        shutil.rmtree(own_data_folder)
        trained.clear()
        assert bits(resumed(stopped)) == whole
        assert trained == []


def test_runs_of_one_seed_share_a_start_and_the_next_command_reads_it(tmp_path, trained):
    cells = {
        tmp_path / f"{budget}-{seed}": tiny("digits-fas", START, f"budget={budget}", f"seed={seed}")
        for budget in (4, 6)
        for seed in (0, 1)
    }
    group = runs.Group(cells)
    group.begin()
    assert len(list(group.run_or_raise(choose_engine()[0]))) == 4 * 3
    assert trained == [0, 0, 1, 1, 2, 2]  # two seeds, side by side
    alone = bits(straight(tmp_path / "alone", tiny("digits-fas", START, "budget=6", "seed=1")))
    assert trained == [0, 0, 1, 1, 2, 2] and alone == bits(tmp_path / "6-1")


def test_the_first_round_says_how_long_the_start_took(tmp_path):
    first, *others = lines(straight(tmp_path / "run", tiny("digits-fas", START)) / TIMING)
    assert 0 < first["start_seconds"] < first["seconds"]
    assert not any("start_seconds" in row for row in others)


def test_a_start_changes_accuracies(tmp_path):
    plain = straight(tmp_path / "plain", tiny("digits-fas"))
    started = straight(tmp_path / "started", tiny("digits-fas", START))
    assert bits(plain)[runs.METRICS] != bits(started)[runs.METRICS]


def test_where_soft_labels_travel_down_a_client_gets_the_weights_once(tmp_path):
    """Its first download has them, after a length of four bytes, and the ledger counts them."""
    overrides = ("digits-fas-soft-down", "sampler=none")  # as many labels in both
    plain, started = (
        runs.load_run(straight(tmp_path / name, tiny(*overrides, *more, rounds=5))).ledger
        for name, more in (("plain", ()), ("started", (START,)))
    )
    state = models.initial_state(models.make_model("mlp", (1, 8, 8), 10), 0)
    weights = 4 + len(WEIGHT_CODECS["float32"].encode(state, 0))
    seen: set[int] = set()
    for before, after in zip(plain, started, strict=True):
        extra = {client: after.down[client] - before.down[client] for client in after.down}
        assert extra == {client: 0 if client in seen else weights for client in extra}
        seen |= extra.keys()
    assert len(seen) == 4


# --- files ---


@pytest.fixture
def a_file(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(models.initial_state(models.make_model("mlp", (1, 8, 8), 10), 7), path)
    return path


def test_a_run_starts_from_a_file_and_then_needs_it_no_more(a_file, tmp_path):
    experiment = tiny("digits-fas", f"start={a_file}")
    whole = bits(straight(tmp_path / "whole", experiment))
    stopped = straight(tmp_path / "stopped", experiment, 1)
    a_file.unlink()
    assert bits(resumed(stopped)) == whole
    assert bits(straight(tmp_path / "plain", tiny()))[runs.METRICS] != whole[runs.METRICS]


def test_a_file_that_is_not_there_is_refused_before_a_folder_is_made(tmp_path):
    experiment = tiny("digits-fas", "start=nowhere.safetensors")
    assert "no such file: nowhere.safetensors" in refusal(tmp_path / "run", experiment, False)
    assert not (tmp_path / "run").exists()


def test_a_start_that_fails_stops_its_runs_alone(a_file, tmp_path):
    group = runs.Group(
        {tmp_path / "a": tiny(), tmp_path / "b": tiny("digits-fas", f"start={a_file}")}
    )
    group.begin()
    a_file.unlink()
    outcomes = [(run.folder.name, outcome) for run, outcome in group.run(choose_engine()[0])]
    assert [name for name, _ in outcomes] == ["b", "a", "a", "a"]
    assert "no such file" in group.failed[tmp_path / "b"]
    assert (tmp_path / "b" / runs.FAILED).is_file()


# --- the command line ---


def test_the_program_tells_the_epochs_of_a_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*KINDS["digits-fas"], "rounds=2", START, "sweep.seed=[0,1]", "--out", "run"]
    told = cli("run", "digits-fas", *words).stderr
    assert [line for line in told.splitlines() if line.startswith("start")] == [
        f"start: epoch {epoch} of 6" for epoch in (2, 4, 6)
    ]


def test_a_start_can_be_swept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        *KINDS["digits-fas"],
        "rounds=2",
        "sweep.start=[none,rotation(epochs=2),simclr(epochs=2)]",
    ]
    assert cli("run", "digits-fas", *words, "--out", "run").exit_code == 0
    cells = sorted(path.parent.name for path in (tmp_path / "run").glob(f"*/{CONFIG}"))
    assert cells == ["start-none", "start-rotation-epochs-2", "start-simclr-epochs-2"]
    assert len({bits(tmp_path / "run" / cell)[runs.METRICS] for cell in cells}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["digits-fas", "digits-fas-soft-down"])
def test_a_program_killed_during_its_start_ends_with_the_same_bits(
    preset, tmp_path, monkeypatch, own_data_folder
):
    """kill -9 when the first of forty stages is on the disk."""
    experiment = tiny(preset, "start=simclr(epochs=400)")
    monkeypatch.setattr(starts, "STAGE", 10)
    whole = a_straight_run(tmp_path, monkeypatch, experiment)
    folder, kept = tmp_path / "run", own_data_folder / "starts"
    words = [*KINDS[preset], "rounds=3", "start=simclr(epochs=400)"]
    command = [*PROGRAM, "run", preset, *words, "--out", str(folder)]
    killed(command, lambda: kept.is_dir() and any(kept.glob("*.part.safetensors")), 0.2)
    assert rounds_in(folder) == 0 and len(list(kept.glob("*.part.safetensors"))) == 1
    play(runs.begin_run(folder, experiment, resume=True))
    assert bits(folder) == whole


@pytest.mark.slow
def test_sift_killed_during_its_start_and_its_rounds_ends_with_the_same_bits(
    tmp_path, monkeypatch, own_data_folder
):
    """kill -9 twice in the start and three times in the rounds, with a memory of four rounds."""
    rounds, start = 30, "start=simclr(epochs=400)"
    words = [*KINDS["digits-fas"], "algorithm=sift", "algorithm.bytes=40", "local.epochs=2", start]
    experiment = config.read_experiment("digits-fas", [*words, f"rounds={rounds}"])
    monkeypatch.setattr(starts, "STAGE", 10)
    whole = a_straight_run(tmp_path, monkeypatch, experiment)
    folder, kept = tmp_path / "run", own_data_folder / "starts"
    begin = [*PROGRAM, "run", "digits-fas", *words, f"rounds={rounds}", "--out", str(folder)]
    go_on = [*PROGRAM, "run", "--resume", "--out", str(folder)]
    stages: list[int] = []

    def is_further() -> bool:
        """Whether a stage is on the disk that was not there when the last process was killed."""
        found = [path.stat().st_mtime_ns for path in kept.glob("*.part.safetensors")]
        return bool(found) and found != stages

    for command in (begin, go_on):
        killed(command, is_further, 0.1)
        stages = [path.stat().st_mtime_ns for path in kept.glob("*.part.safetensors")]
        assert len(stages) == 1 and rounds_in(folder) == 0
    for target, delay in ((1, 0.0), (5, 0.01), (12, 0.02)):
        killed(go_on, lambda target=target: rounds_in(folder) >= target, delay)
        assert target <= rounds_in(folder) < rounds
    assert bits(resumed(folder)) == whole
