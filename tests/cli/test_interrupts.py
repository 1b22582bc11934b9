"""Ctrl-C at any moment, and readers that go away."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from fedsift import runs
from tests.helpers.cli import FAS, by_shell, fedsift, interrupted
from tests.helpers.runs import PROGRAM, bits, rounds_in, straight, tiny
from tests.helpers.tiers import slow_but


@pytest.mark.slow
def test_ctrl_c_prints_the_command_that_goes_on_to_the_same_bits(tmp_path):
    folder = Path("stopped")
    result = interrupted(
        ["run", *FAS, "rounds=40", "--out", "stopped"], lambda: rounds_in(folder) >= 2
    )
    assert (result.returncode, result.stdout) == (130, "")
    assert "Traceback" not in result.stderr
    assert result.stderr.endswith(
        "interrupted; every finished round is saved. Resume with:\n  fedsift run "
        "--resume --out stopped\n"
    )
    assert 2 <= rounds_in(folder) < 40
    assert by_shell(result.stderr.splitlines()[-1]).returncode == 0
    assert bits(folder) == bits(straight(tmp_path / "whole", tiny(rounds=40)))


@pytest.mark.slow
def test_ctrl_c_while_a_run_is_set_up_leaves_no_traceback():
    result = interrupted(["run", *FAS, "--out", "stopped"], Path("stopped").exists)
    assert (result.returncode, result.stdout) == (130, "")
    assert "interrupted" in result.stderr and "Traceback" not in result.stderr


def test_the_command_a_stopped_demo_prints_can_be_pasted_into_a_shell(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs.Group, "run", stop)
    result = fedsift("demo", "--out", "my demo", "--seeds", "1", "--rounds", "2")
    assert result.exit_code == 130
    command = ["fedsift", "demo", "--out", "my demo", "--seeds", "1", "--rounds", "2"]
    assert shlex.split(result.stderr.splitlines()[-1]) == command


@pytest.mark.parametrize("words", slow_but([["ls"], ["show", "fas"]], ["ls"]))
def test_a_reader_that_goes_away_is_no_error(words):
    """As in `fedsift ls | head -1`."""
    straight(Path("fas"), tiny())
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        result = subprocess.run([*PROGRAM, *words], stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert result.stderr == ""


def test_ctrl_c_before_the_first_round_says_how_to_go_on_once_there_is_a_folder(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsift.cli.run.describe_models", interrupted)
    result = fedsift("run", "digits-fas", "rounds=1", "--out", "mine")
    assert result.exit_code == 130
    assert result.stderr.endswith(
        "interrupted; no round is finished yet. Resume with:\n  fedsift run --resume --out mine\n"
    )
