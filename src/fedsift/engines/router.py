"""Every job goes to the engine for its kind of model, so that a federation may mix them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fedsift.engines.estimators import EstimatorEngine
from fedsift.types import Engine, Model, Work


class Router:
    """`networks` does the jobs of networks; those of other models go to an engine of their own."""

    def __init__(self, networks: Engine) -> None:
        self.networks = networks

    @property
    def lanes(self) -> int:
        """Into how many parts a round of many runs is split (see `fedsift.runs.rounds`)."""
        return getattr(self.networks, "lanes", 1)

    def run(self, jobs: Sequence[Work]) -> list[Any]:
        """The answers, in the order of the jobs."""
        ours = [i for i, job in enumerate(jobs) if job.model.is_network]
        if len(ours) == len(jobs):
            return self.networks.run(jobs)
        others = [i for i, job in enumerate(jobs) if not job.model.is_network]
        answers = dict(zip(others, self.others.run([jobs[i] for i in others]), strict=True))
        if ours:
            answers |= zip(ours, self.networks.run([jobs[i] for i in ours]), strict=True)
        return [answers[i] for i in range(len(jobs))]

    def describe(self, model: Model) -> str:
        """How models like this are run, and why."""
        return (self.networks if model.is_network else self.others).describe(model)

    @cached_property
    def others(self) -> EstimatorEngine:
        return EstimatorEngine()
