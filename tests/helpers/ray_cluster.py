"""A run on three raylets of this machine, in a process of its own: Ray leaves files open.

python -m tests.helpers.ray_cluster FOLDER: one node is killed with -9 after the first round,
another joins after the second.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fedsift import config, runs
from fedsift.engines.router import Router
from fedsift.engines.spread.on_ray import ENVIRONMENT, ON_LOOPBACK, RayEngine

TINY = ["model=mlp", "clients=9", "cohort=9", "local.epochs=2", "distill.epochs=1"]
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
NODE |= {"node_ip_address": "127.0.0.1", "include_dashboard": False}
PATIENCE = 90.0  # seconds


def play(folder, engine, between):
    experiment = config.read_experiment("digits-fas", [*TINY, "rounds=5"])
    run = runs.begin_run(folder, experiment)
    for _, record in runs.Group.of([run]).run_or_raise(Router(engine)):
        between.get(record.round, lambda: None)()


def wait_until(what):
    end = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > end:
            sys.exit(f"waited too long for {what.__name__}")
        time.sleep(0.2)


def main(folder):
    os.environ.update(ENVIRONMENT | ON_LOOPBACK)  # read when Ray is imported
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=NODE)
    doomed, _ = (nodes.add_node(**NODE) for _ in range(2))
    engine = RayEngine("cpu", address=nodes.address)
    crew: Any = engine.crew
    assert crew.count() == 3
    joined = []

    def homes():
        return {worker.node for worker in crew._ready}

    def is_dead():
        return doomed.node_id not in {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def kill():
        assert doomed.node_id in homes() and len(crew._ready) == 3
        os.kill(doomed.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        wait_until(is_dead)  # as Ray sees it; the engine is not told

    def join():
        assert doomed.node_id not in homes()  # it has noticed
        joined.append(nodes.add_node(**NODE).node_id)

    def welcome():
        """A worker takes seconds to start, and these rounds take tenths of a second."""
        wait_until(lambda: crew.workers(3) and joined[0] in homes())

    play(folder, engine, {0: kill, 1: join, 3: welcome})
    print("used", joined[0] in homes(), "lost", doomed.node_id not in homes())
    engine.close()
    ray.shutdown()
    nodes.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
