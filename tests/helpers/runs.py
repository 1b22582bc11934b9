"""Tiny runs: how to make, stop, kill and compare them."""

import errno
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from fedsift import config, runs
from fedsift.config import Experiment
from fedsift.engines import choose_engine
from fedsift.runs import CHECKPOINT, CLIENTS, CONFIG, LEDGER, METRICS
from fedsift.types import UserError

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


def file_names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def lines(path: Path) -> list[Any]:
    """The whole lines of a .jsonl file, which need not be there."""
    return (
        [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.is_file() else []
    )


def rounds_in(folder: Path) -> int:
    return len(lines(folder / METRICS))


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


def cli(*words: str) -> Any:
    """In this process, but as if in one of its own."""
    return CliRunner().invoke(app, list(words))


def refusal(folder: Path, experiment: Experiment, resume: bool = True) -> str:
    """What is said when such a run cannot begin."""
    with pytest.raises(UserError) as caught:
        runs.begin_run(folder, experiment, resume=resume)
    return str(caught.value)


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
    return not any(name.endswith(".tmp") for name in file_names(folder))
