"""Runs of every kind that a report can show, small."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fedsift import config
from fedsift.data import DATASETS, make_dataset
from tests.helpers import fake_flower
from tests.helpers.cli import done
from tests.helpers.data_files import images
from tests.helpers.runs import TINY, straight, tiny


def play_demo(home: Path) -> list[Path]:
    done("demo", "--out", str(home), "--seeds", "1", "--rounds", "1", "--quiet")
    return [home]


def play_photographs(home: Path) -> list[Path]:
    """Two samplers, two seeds: a sweep on what CIFAR-10 would be if its pixels were noise."""
    x, y = images(200), np.arange(200) % 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "cifar10", lambda: make_dataset(x, y))
        for sampler, seed in product(("none", "mixed"), range(2)):
            words = ("data.name=cifar10", f"sampler={sampler}", f"seed={seed}")
            straight(home / f"{sampler}-{seed}", tiny("digits-fas", *words, rounds=2))
    return [home]


def play_texts(home: Path) -> list[Path]:
    words = "clients=3 cohort=3 data.private=60 data.public=30 budget=6 rounds=2 device=cpu"
    return [straight(home / "texts", config.read_experiment("text-fas", words.split()))]


def play_on_flower(home: Path) -> list[Path]:
    """On a grid in this process; one client does not answer."""
    task = fake_flower.a_task(home / "app")
    grid, how = fake_flower.federation(task, fake_flower.overrides("fas", 2), 4, home / "run")
    grid.nodes[7].meddle = lambda message, reply: None
    fake_flower.play(task, grid, how)
    return [home / "run"]


def play_a_paper(home: Path) -> list[Path]:
    few = (*TINY, "model=mlp", "budget=6", "rounds=1")
    done("reproduce", "fas-icc2022", "table1", "--quick", "--seeds", "1", *few, "--out", str(home))
    return [home]


def play_a_thousand(home: Path) -> list[Path]:
    words = ("clients=1000", "cohort=20", "data.private=1000", "name=crowd")
    return [straight(home / "crowd", tiny("digits-fas", *words, rounds=1))]


KINDS = {
    "demo": (play_demo, "images", 4),
    "photographs": (play_photographs, "images", 2),
    "texts": (play_texts, "texts", 1),
    "flower": (play_on_flower, "images", 1),
    "paper": (play_a_paper, "images", 12),
    "thousand": (play_a_thousand, "images", 1),
}
