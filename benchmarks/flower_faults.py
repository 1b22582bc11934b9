"""Faults on a real Flower federation of four nodes on loopback: what the log says, how it ends.

    python benchmarks/flower_faults.py serverapp node half

serverapp: kill -9 of the ServerApp in a round, then the project is submitted again. The end is
compared with a simulation, bit for bit.
node, half: kill -9 of one or two of the four nodes in a round; they are started again later.
"""

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

from fedsift import config, runs
from fedsift.engines import choose_engine
from fedsift.federation import FederationState
from fedsift.flower import local_deployment, project

WORK = (
    "data.private=60 data.public=30 local.epochs=1 distill.epochs=1 device=cpu model=mlp budget=6 "
    "clients=4 cohort=4"
)
PATIENCE = 600


class Trial:
    """A deployment with four nodes, and runs on it."""

    def __init__(self, here, deployment):
        self.here, self.deployment = here, deployment
        self.nodes = {client: self.start(client) for client in range(4)}

    def start(self, client):
        memory = str(self.here / "home" / "memory")
        return self.deployment.node({"partition-id": client, "memory": memory})

    def kill(self, client):
        os.killpg(self.nodes[client].pid, signal.SIGKILL)

    def submit(self, name, overrides):
        how = {"overrides": overrides, "folder": str(self.here / name), "wait": 120.0, "poll": 0.2}
        self.deployment.submit(self.here / "app", how)
        return self.here / name

    def kill_server(self):
        for pid in self.deployment.alive():
            if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def wait_for(folder, rounds):
    until = time.monotonic() + PATIENCE
    while runs.rounds_played(folder) < rounds:
        if time.monotonic() > until:
            sys.exit(f"{folder} has not come to round {rounds}")
        time.sleep(0.2)


def server_bits(folder):
    state = runs.from_bytes((folder / runs.CHECKPOINT).read_bytes())
    return runs.to_bytes(FederationState(0, state.server))


def simulate(here, overrides):
    sys.path.insert(0, str(here / "app"))
    experiment = config.read_experiment(
        str(here / "app" / project.EXPERIMENT), shlex.split(overrides)
    )
    run = runs.begin_run(here / "simulated", experiment)
    for _ in runs.Group.of([run]).run_or_raise(choose_engine()[0]):
        pass
    return server_bits(run.folder)


def lose_server(trial):
    overrides = f"{WORK} rounds=3 algorithm=cfd budget=20"
    folder = trial.submit("serverapp", overrides)
    wait_for(folder, 1)
    time.sleep(3)
    trial.kill_server()
    trial.submit("serverapp", overrides)
    wait_for(folder, 3)
    return {"bit_equal": server_bits(folder) == simulate(trial.here, overrides)}


def lose_nodes(trial, name, lost):
    folder = trial.submit(name, f"{WORK} rounds=6 algorithm=fas")
    wait_for(folder, 1)
    time.sleep(2)
    begun = time.monotonic()
    for client in lost:
        trial.kill(client)
    wait_for(folder, 2)
    closed = time.monotonic() - begun
    for client in lost:
        trial.nodes[client] = trial.start(client)
    wait_for(folder, 6)
    return {"round_closed_after_s": round(closed, 1)}


FAULTS = {
    "serverapp": lose_server,
    "node": lambda trial: lose_nodes(trial, "node", [3]),
    "half": lambda trial: lose_nodes(trial, "half", [2, 3]),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("faults", nargs="+", choices=FAULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        project.create(here / "app")
        with local_deployment.Deployment(here / "home") as deployment:
            trial = Trial(here, deployment)
            for name in arguments.faults:
                result = {"fault": name} | FAULTS[name](trial)
                history = runs.load_run(here / name)
                result["missing"] = [row.missing for row in history.ledger]
                print(json.dumps(result, indent=1))
                print((here / name / "server.log").read_text())


if __name__ == "__main__":
    main()
