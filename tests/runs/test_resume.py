"""A run can be stopped, killed or starved of disk at any moment, and resumes to the same bytes."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsift import files as file_module
from fedsift import runs
from fedsift.data import load_dataset
from fedsift.engines import choose_engine
from fedsift.federation import FederationState
from fedsift.runs import (
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    DATA,
    ENVIRONMENT,
    LEDGER,
    LOCK,
    METRICS,
    OURS,
    TIMING,
)
from fedsift.types import Server, UserError
from tests.helpers.runs import (
    KINDS,
    PROGRAM,
    bits,
    cli,
    file_names,
    fill_disk_at,
    killed,
    lines,
    no_temporaries,
    play,
    refusal,
    resumed,
    rounds_in,
    straight,
    tiny,
)
from tests.helpers.tiers import slow_but


@pytest.mark.parametrize("preset", slow_but(KINDS, "digits-fas"))
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


TERMS = ("prior", "prox", "ntd", "mixup")


def test_a_run_with_every_term_of_the_loss_resumes_to_the_same_bits(tmp_path):
    strengths = [f"local.{term}=0.3" for term in TERMS] + ["distill.prior=0.5", "distill.mixup=0.2"]
    whole = bits(straight(tmp_path / "whole", tiny("digits-fas", *strengths)))
    stopped = straight(tmp_path / "stopped", tiny("digits-fas", *strengths), 1)
    assert bits(resumed(stopped)) == whole
    plain = bits(straight(tmp_path / "plain", tiny("digits-fas")))
    assert plain[METRICS] != whole[METRICS]


def test_a_folder_from_before_the_terms_of_the_loss_resumes_to_the_same_bits(tmp_path):
    """Without these keys in its config.toml: they are off."""
    whole = bits(straight(tmp_path / "whole", tiny("digits-fas")))
    folder = straight(tmp_path / "old", tiny("digits-fas"), 1)
    written = (folder / CONFIG).read_text().splitlines(keepends=True)
    kept = [line for line in written if line.partition(" ")[0] not in TERMS]
    assert len(written) - len(kept) == 2 * len(TERMS)  # in [local] and in [distill]
    (folder / CONFIG).write_text("".join(kept))
    assert runs.read_config(folder) == tiny("digits-fas")
    found = bits(resumed(folder))
    assert found | {CONFIG: whole[CONFIG]} == whole


def test_a_finished_run_is_not_changed_by_resuming_it(tmp_path):
    folder = straight(tmp_path / "run", tiny())
    before = {name: (folder / name).read_bytes() for name in file_names(folder)}
    summary = runs.load_run(folder).summary()
    resumed(folder)
    assert {name: (folder / name).read_bytes() for name in file_names(folder)} == before
    assert runs.load_run(folder).summary() == summary


def test_the_same_process_can_go_on_with_a_run_it_has_finished(tmp_path):
    run = runs.begin_run(tmp_path / "run", tiny(rounds=1))
    assert len(list(runs.Group.of([run]).run_or_raise(choose_engine()[0]))) == 1
    again = runs.begin_run(tmp_path / "run", tiny(rounds=1), resume=True)
    assert again.finished


@pytest.mark.slow
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
    assert file_names(folder) == OURS


def test_a_run_killed_while_it_was_set_up_can_be_started_again_with_the_same_command(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ENVIRONMENT).write_text("{}")
    (folder / ".k1ll3d.tmp").write_text("half a con")
    assert bits(straight(folder, tiny())) == bits(straight(tmp_path / "whole", tiny()))
    assert file_names(folder) == OURS


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


@pytest.mark.parametrize(
    "preset", slow_but(["digits-fas-soft-down", "digits-fedavg"], "digits-fas-soft-down")
)
def test_a_crash_before_any_write_of_a_round_changes_nothing_in_the_end(
    preset, tmp_path, monkeypatch
):
    whole = bits(straight(tmp_path / "whole", tiny(preset, rounds=2)))
    for number in range(1, 11):  # metrics, ledger, timing, recording, checkpoint; twice
        run = runs.begin_run(tmp_path / str(number), tiny(preset, rounds=2))
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, number)
            play(run)
        assert [len(lines(run.folder / name)) for name in (METRICS, LEDGER, TIMING)] == [
            (number + 3) // 5,
            (number + 2) // 5,
            (number + 1) // 5,
        ]
        assert bits(resumed(run.folder)) == whole


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_another_config_is_refused_with_each_key_and_both_values(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 2)
    before = bits(folder)
    said = refusal(folder, tiny("digits-fas", "alpha=0.1", "seed=3"))
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
    said = refusal(folder, tiny())
    assert said.startswith(f"cannot read {folder / CHECKPOINT}: ") and "\n" not in said
    assert (folder / METRICS).read_bytes() == good[METRICS]
    (folder / CHECKPOINT).write_bytes(good[CHECKPOINT])
    assert bits(resumed(folder)) == bits(straight(tmp_path / "whole", tiny()))


@pytest.mark.parametrize("name", [METRICS, LEDGER, TIMING])
def test_a_file_shortened_by_hand_is_named_with_both_counts(name, tmp_path):
    folder = straight(tmp_path / "run", tiny())
    first = (folder / name).read_bytes().splitlines(keepends=True)[0]
    (folder / name).write_bytes(first)
    said = refusal(folder, tiny())
    assert said.startswith(
        f"{folder / name} has 1 rounds, {CHECKPOINT} 3: the folder was changed by hand"
    )
    assert (folder / name).read_bytes() == first


@pytest.mark.parametrize("rounds", [2, 3])
def test_rounds_are_not_dropped_because_the_checkpoint_is_lost(rounds, tmp_path):
    folder = straight(tmp_path / "run", tiny(), rounds)
    (folder / CHECKPOINT).unlink()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    said = refusal(folder, tiny())
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
    assert refusal(folder, tiny()).startswith(f"cannot read {folder / METRICS}: ")


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


# --- data that have changed ---


@pytest.mark.parametrize("what", ["pixel", "label", "order"])
def test_a_run_is_not_resumed_with_other_data(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = load_dataset("digits")
    x, y = digits.x[:300].copy(), digits.y[:300].copy()
    np.savez("mine.npz", x=x, y=y)
    folder = straight(Path("run"), tiny("digits-fas", "data.name=npz:mine.npz"), 2)
    before = bits(folder)
    if what == "pixel":
        x[:, 0, 0, 0] += 1
    elif what == "label":
        y[:] = (y + 1) % 10
    else:
        x, y = x[::-1], y[::-1]
    np.savez("other.npz", x=x, y=y)
    Path("mine.npz").rename("kept.npz")
    Path("other.npz").rename("mine.npz")
    result = cli("run", "--resume", "--out", "run")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: the data are not those run was made with; resume with the same file or start a new"
        " run\n",
    )
    assert bits(folder) == before
    Path("kept.npz").rename("mine.npz")
    assert runs.is_finished(resumed(folder))


# --- a checkpoint that does not fit the experiment ---


def change_checkpoint(folder: Path, change: Callable[[FederationState], Any]) -> None:
    path = folder / CHECKPOINT
    state = runs.from_bytes(path.read_bytes())
    path.write_bytes(runs.to_bytes(change(state) or state))


def weights(state: FederationState) -> dict[str, Any]:
    return state.server.students["mlp"]


def of_a_client(state: FederationState) -> dict[str, Any]:
    return next(memory["model"] for memory in state.memories.values())


def posted(state: FederationState) -> dict[str, Any]:
    return next(iter(state.server.memory["downlink"]["posted"].values()))


def nested(depth: int) -> dict[str, Any]:
    return {"x": nested(depth - 1) if depth else np.ones(1)}


CHANGES = {
    "no tensors": (
        lambda s: replace(s, server=Server({}, {}), memories={}),
        "it has no model, the experiment mlp",
    ),
    "a tensor lost": (lambda s: weights(s).pop("1.bias") is None, "model mlp lacks 1.bias"),
    "a tensor too many": (
        lambda s: weights(s).update(more=torch.zeros(1)),
        "model mlp should not have more",
    ),
    "another shape": (
        lambda s: weights(s).update({"1.bias": torch.zeros(63)}),
        "1.bias of model mlp is float32 (63,), not float32 (64,)",
    ),
    "another type": (
        lambda s: weights(s).update({"1.bias": torch.zeros(64, dtype=torch.float64)}),
        "1.bias of model mlp is float64 (64,), not float32 (64,)",
    ),
    "a tree for a tensor": (
        lambda s: weights(s).update({"1.bias": {"more": torch.zeros(1)}}),
        "1.bias of model mlp is no tensor, not float32 (64,)",
    ),
    "a client's model of another type": (
        lambda s: of_a_client(s).update({"1.bias": torch.zeros(64, dtype=torch.int64)}),
        "1.bias of the model of client ",
    ),
    "a client that is not there": (
        lambda s: s.memories.update({5: {"last": np.ones(1)}}),
        "it has a client 5 of 4",
    ),
    "a client of its own kind": (
        lambda s: s.memories[min(s.memories)].update(model=np.ones(3)),
        "the memory of client ",
    ),
    "more rounds than asked for": (lambda s: replace(s, round=4), "it has 4 rounds, the config 3"),
    "an accuracy of a client that is not there": (
        lambda s: s.reported_accuracies.update({5: 0.5}),
        "it has a client 5 of 4",
    ),
    "trees in trees": (
        lambda s: s.server.memory.update(deep=nested(30)),
        "its memories are nested too deeply",
    ),
    "posted labels lost": (
        lambda s: s.server.memory["downlink"].pop("posted") and None,
        "KeyError",
    ),
    "an index beyond the public set": (
        lambda s: posted(s).update(index=posted(s)["index"] + 2**40),
        "",
    ),
    "a negative index": (lambda s: posted(s).update(index=posted(s)["index"] - 91), ""),
    "fewer probabilities": (lambda s: posted(s).update(probs=posted(s)["probs"][:, :3]), ""),
}


@pytest.mark.parametrize("change, reason", CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_that_does_not_fit_is_named_and_nothing_is_run(
    change, reason, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = straight(Path("run"), tiny("digits-fas-soft-down"), 2)
    change_checkpoint(folder, change)
    before = bits(folder)
    result = cli("run", "--resume", "--out", "run")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: cannot read run/{CHECKPOINT}: {reason}")
    assert result.stderr.count("\n") == 1
    assert bits(folder) == before


# --- killed during set-up ---


@pytest.mark.parametrize("left", [[LOCK], [LOCK, ENVIRONMENT], [LOCK, ENVIRONMENT, DATA, CLIENTS]])
def test_a_folder_killed_during_set_up_says_which_command_to_give(left, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    for name in [*left, ".half.tmp"]:
        Path("run", name).write_text("")
    result = cli("run", "--resume", "--out", "run")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: run was killed while it was being set up; run the same command without --resume\n"
    )
    start = ["run", "digits-fas", *KINDS["digits-fas"], "rounds=3", "--out", "run"]
    assert cli(*start).exit_code == 0
    assert bits(Path("run")) == bits(straight(Path("whole"), tiny()))


def test_data_that_cannot_be_read_are_named_on_resume(tmp_path):
    for content in ("null", "[1", "[" * 100_000):
        folder = straight(tmp_path / str(len(content)), tiny(), 1)
        (folder / DATA).write_text(content)
        assert refusal(folder, tiny()).startswith(f"cannot read {folder / DATA}: ")
