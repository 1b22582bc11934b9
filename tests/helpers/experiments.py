"""Experiments of the preset digits-fas with overrides, and what is said of wrong ones."""

from typing import Any

import pytest

from fedsift import config
from fedsift.config import Experiment
from fedsift.types import UserError


def read(*overrides: str) -> Experiment:
    return config.read_experiment("digits-fas", overrides)


def value(experiment: Experiment, path: str) -> Any:
    return config.flat(experiment.model_dump())[path]


def complaint(*overrides: str, start: bool = False) -> str:
    """What is said of these overrides, at the latest when the federation is built (or starts)."""
    with pytest.raises(UserError) as caught:
        federation = config.build_federation(read(*overrides))
        if start:
            federation.start()
    return str(caught.value)
