"""Errors of the user: one line each, and nothing is written."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from fedsift import sweeps
from tests.helpers.cli import FAS, complaint, done, everything, fedsift, program
from tests.helpers.runs import straight, tiny


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["digits-faz"],
            "unknown preset 'digits-faz'; did you mean 'digits-fas'? (fedsift ls presets)",
        ),
        (["nonsense!"], "unknown preset 'nonsense!'"),
        (["digits-fas", "alpah=0.1"], "unknown key 'alpah'; did you mean 'alpha'?"),
        (["digits-fas", "local.lrr=0.1"], "unknown key 'local.lrr'; did you mean 'local.lr'?"),
        (
            ["digits-fas", "sampler=low-entropi"],
            "unknown sampler 'low-entropi'; did you mean 'low-entropy'?",
        ),
        (["digits-fas", "model=resnet9"], "unknown model 'resnet9'; did you mean 'resnet8'?"),
        (["digits-fas", "aggregator=men"], "unknown aggregator 'men'; did you mean 'mean'?"),
        (["digits-fas", "codec=float61"], "unknown codec 'float61'; did you mean 'float16'?"),
        (
            ["digits-fas", "algorithm=fedavgg"],
            "unknown algorithm 'fedavgg'; did you mean 'fedavg'?",
        ),
        (["digits-fas", "data.name=digit"], "unknown dataset 'digit'; did you mean 'digits'?"),
        (
            ["digits-fas", "partition.kind=dirichlett"],
            "unknown partition 'dirichlett'; did you mean 'dirichlet'?",
        ),
        (
            ["digits-fas", "local.optimizer=adan"],
            "local.optimizer must be one of adam, adamw, sgd, not 'adan'",
        ),
        (
            ["digits-fas", "--engine", "sequentail"],
            "unknown engine 'sequentail'; did you mean 'sequential'?",
        ),
        (
            ["digits-fas", "--device", "gpu"],
            "device: input should be 'auto', 'cpu' or 'cuda' (got 'gpu')",
        ),
        (["digits-fas", "budget=501"], "budget 501 is larger than the public set (500 samples)"),
        (["digits-fas", "clients=801"], "801 clients but only 800 private samples"),
        (["digits-fas", "cohort=21"], "a cohort of 21 cannot be drawn from 20 clients"),
        (["digits-fas", "alpha=0"], "partition.alpha: input should be greater than 0 (got 0)"),
        (["digits-fas", "alpha=-1"], "partition.alpha: input should be greater than 0 (got -1)"),
        (["digits-fas", "alpha=abc"], "partition.alpha: input should be a valid number"),
        (["digits-fas", "alpha=nan"], "partition.alpha: input should be a finite number (got nan)"),
        (["digits-fas", "alpha=inf"], "partition.alpha: input should be a finite number (got inf)"),
        (["digits-fas", "rounds=0"], "rounds: input should be greater than 0 (got 0)"),
        (["digits-fas", "seed=-1"], "seed: input should be greater than or equal to 0 (got -1)"),
        (
            ["digits-fas", "data.private=5000"],
            "5500 samples asked for (private 5000 + public 500), 1797 there",
        ),
        (["digits-fas", "data.name=npz:mine.npz"], "no such file: mine.npz"),
        (
            ["digits-fas", "data=digits"],
            "data is a section with keys name, private, public, public_from, test, validation,",
        ),
        (["digits-fas", "model=mlp(depth=2)"], "model 'mlp(depth=2)'"),
        (["digits-fas", "model=mlp(width=wide)"], "width"),
        (
            ["digits-fas", "model=nosuch:net"],
            "model 'nosuch:net': no module 'nosuch' in the current folder",
        ),
        (["digits-fas", "aggregator=era(-1)"], "era needs a temperature above 0, not -1"),
        (["digits-fas", "sampler=mixed(2)"], "sampler 'mixed' takes no values"),
        (
            ["digits-fas", "clients.models={cnn = 3}"],
            "models are given to 3 clients, but there are 20",
        ),
        (
            ["digits-fedavg", "clients.models={cnn = 3, mlp = 17}"],
            "all clients need one model, not cnn, mlp",
        ),
        (["digits-fas", "alpha"], "cannot read 'alpha'; an override is key=value"),
        (["alpha=0.1"], "the first argument is a preset or a TOML file, not 'alpha=0.1'"),
        (["missing.toml"], "error: no such file: missing.toml\n"),
        (["digits-fas", "--alpha", "0.1"], "--alpha is not an option but a key; write alpha=0.1\n"),
        (["digits-fas", "--local.lr=0.1"], "write local.lr=0.1\n"),
        (["digits-fas", "--seed", "--quiet"], "write seed=VALUE\n"),
        ([], "name a preset or a TOML file (fedsift ls presets)"),
        (["--resume"], "--resume and --out"),
        (["digits-fas", "--resume"], "--resume needs --out"),
        (["--resume", "--out", "nowhere"], "nowhere is not a run folder: it has no config.toml"),
    ],
    ids=lambda part: " ".join(part) or "no arguments" if isinstance(part, list) else "",
)
def test_a_mistake_is_named_in_one_line_and_nothing_is_made(words, said):
    assert said in complaint("run", *words)
    assert list(Path().iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_no_reason_to_take_another():
    assert "device cuda was asked for, but torch finds no CUDA device here" in complaint(
        "run", "digits-fas", "--device", "cuda"
    )
    assert list(Path().iterdir()) == []


@pytest.mark.slow
def test_a_mistake_in_a_process_of_its_own_looks_the_same():
    result = program("run", "digits-fas", "sampler=low-entropi")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "error: unknown sampler 'low-entropi'; did you mean 'low-entropy'? (fedsift ls samplers)\n"
    )


def test_broken_toml_is_named_with_its_place():
    Path("mine.toml").write_text("rounds = 3\nseed = = 1\n")
    said = complaint("run", "mine.toml")
    assert "mine.toml is not valid TOML" in said and "line 2" in said
    assert list(Path().iterdir()) == [Path("mine.toml")]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"colour = 'red'\n", b"[data]\nprivat = 3\n"])
def test_a_toml_file_with_something_else_in_it_is_a_mistake(content):
    Path("mine.toml").write_bytes(content)
    said = complaint("run", "mine.toml")
    assert "mine.toml" in said or "unknown key" in said
    assert list(Path().iterdir()) == [Path("mine.toml")]


def test_a_folder_that_exists_is_not_overwritten():
    straight(Path("fas"), tiny(), 2)
    before = everything()
    assert complaint("run", *FAS, "rounds=3", "--out", "fas") == (
        "error: run folder fas exists; add --resume to resume it, or choose another --out\n"
    )
    assert everything() == before


def test_a_resume_with_another_config_names_the_key_and_both_values():
    straight(Path("fas"), tiny(), 2)
    before = everything()
    said = complaint("run", *FAS, "rounds=3", "alpha=0.25", "--resume", "--out", "fas")
    assert "partition.alpha is 1.0 there, 0.25 here" in said and said.count(" there, ") == 1
    assert everything() == before


@pytest.mark.parametrize("words", [["show"], ["compare"], ["plot", "-o", "x.png"]])
def test_a_folder_that_is_no_run_cannot_be_looked_at(words):
    Path("thesis").mkdir()
    Path("thesis/thesis.tex").write_text("mine")
    for folder in ("thesis", "nowhere"):
        assert (
            complaint(*words, folder)
            == f"error: {folder} is not a run folder: it has no config.toml\n"
        )
    assert everything() == {"thesis/thesis.tex": b"mine"}


@pytest.mark.parametrize("words", [["compare"], ["plot", "-o", "x.png"]])
def test_a_run_without_a_finished_round_does_not_keep_others_from_being_looked_at(words):
    straight(Path("diverged"), tiny(), 0)
    straight(Path("fas"), tiny())
    result = done(*words, "diverged", "fas")
    assert result.stderr == "note: diverged has no finished round and is left out\n"
    assert "digits-fas" in result.stdout if words == ["compare"] else Path("x.png").is_file()
    straight(Path("too"), tiny(), 0)
    result = fedsift(*words, "diverged", "too")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[2] == "error: none of these runs has a finished round"


@pytest.mark.parametrize("words", [["show"], ["compare"], ["plot", "-o", "x.png"]])
def test_a_run_without_a_finished_round_cannot_be_looked_at_yet(words):
    straight(Path("fas"), tiny(), 0)
    assert "has no finished round yet; resume it with: fedsift run --resume --out fas" in complaint(
        *words, "fas"
    )


@pytest.mark.parametrize(
    "name", ["clients.json", "environment.json", "ledger.jsonl", "config.toml"]
)
def test_a_damaged_run_is_named_not_traced(name):
    straight(Path("fas"), tiny(rounds=1))
    Path("fas", name).write_text("{\n")
    assert "fas" in complaint("show", "fas")


def test_an_error_that_is_no_mistake_of_the_user_is_not_hidden(monkeypatch):
    monkeypatch.setattr(sweeps, "read", Mock(side_effect=ValueError("a bug")))
    assert str(fedsift("run", "digits-fas").exception) == "a bug"


# --- errors in code of the user's own ---

OWN = "import numpy as np\n\n\ndef pick(*given):\n    return {}\n"


@pytest.mark.parametrize(
    "fault, said",
    [("1 / 0", "ZeroDivisionError: division by zero"), ("np.zeros(3).reshape(2)", "ValueError: ")],
)
def test_an_error_in_own_code_is_one_line_with_file_and_line(monkeypatch, fault, said):
    file = Path("failing.py")
    file.write_text(OWN.format(fault))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    result = fedsift("run", *FAS, "sampler=failing:pick", "--quiet", "--out", "out")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error in {file.absolute()}, line 5: {said}")
    assert result.stderr.count("\n") == 1
    failed = json.loads(Path("out/failed.json").read_text())
    assert "failing.py" in "".join(failed["traceback"])
    monkeypatch.setenv("FEDSIFT_TRACEBACK", "1")
    again = fedsift("run", "--resume", "--out", "out")
    assert type(again.exception).__name__ == said.partition(":")[0]
