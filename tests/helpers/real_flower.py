"""A federation of processes on loopback beside the same experiment in simulation."""

import shlex
import time
from dataclasses import replace

from fedsift import config, runs
from fedsift.engines import choose_engine
from fedsift.federation import FederationState
from fedsift.flower import project
from fedsift.types import KeepsSecret

TINY = "data.private=60 data.public=30 local.epochs=1 distill.epochs=1 device=cpu budget=6"
PATIENCE = 240  # seconds; slow machines are slow


def until(happened):
    end = time.monotonic() + PATIENCE
    while not (found := happened()):
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.2)
    return found


def simulated(app, folder, overrides, monkeypatch, secret=None):
    """With the secret that a real server drew, where it needs one."""
    monkeypatch.syspath_prepend(str(app))
    run = runs.begin_run(
        folder, config.read_experiment(str(app / project.EXPERIMENT), shlex.split(overrides))
    )
    if secret is not None:
        algorithm = run.federation.algorithm
        assert isinstance(algorithm, KeepsSecret)
        run.state = replace(run.state, server=algorithm.set_secret(run.state.server, secret))
    for _ in runs.Group.of([run]).run_or_raise(choose_engine()[0]):
        pass
    return run.state


def server_bits(state):
    return runs.to_bytes(FederationState(0, state.server))


def checkpoint(folder, rounds):
    """The last state, once it is there."""
    until(lambda: runs.rounds_played(folder) == rounds)
    return runs.from_bytes((folder / runs.CHECKPOINT).read_bytes())
