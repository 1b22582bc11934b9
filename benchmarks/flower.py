"""What Flower costs beside local simulation: seconds a round and bytes beyond the payload, for the
same messages.

    python benchmarks/flower.py                      8 SuperNodes on loopback
    python benchmarks/flower.py --simulation         50 nodes in Flower's simulation
                                                     (needs flwr[simulation])

Both play the same experiment as `fedsift run`, and the final state of the server is checked to be
the same bits. The first round, in which processes start and nodes introduce themselves, is told
apart from the others.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from fedsift import config, runs
from fedsift.engines import choose_engine
from fedsift.federation import FederationState
from fedsift.flower import local_deployment, project, superlink

WORK = [
    "data.private=1000",
    "data.public=300",
    "local.epochs=2",
    "distill.epochs=2",
    "device=cpu",
    "model=cnn",
]


def local_simulation(experiment, folder):
    run = runs.begin_run(folder, experiment)
    engine, _ = choose_engine(experiment.engine, experiment.device)
    for _ in runs.Group.of([run]).run_or_raise(engine):
        pass


def on_flower(folder, out, home, settings, nodes, simulation):
    how = {
        "overrides": " ".join(settings),
        "folder": str(out),
        "poll": 0.2,
        "wait": 60.0 + 10 * nodes,
    }
    with local_deployment.Deployment(home, simulation=simulation) as deployment:
        for client in range(0 if simulation else nodes):
            deployment.node({"partition-id": client, "memory": str(home / "memory")})
        run = deployment.submit(folder, how, nodes)
        rounds = config.read_experiment(str(folder / project.EXPERIMENT), settings).rounds
        for _ in superlink.follow(deployment, run, out, 0, rounds):
            pass


def timing(folder):
    return [json.loads(line) for line in (folder / runs.TIMING).read_text().splitlines()]


def spread(values):
    return {
        "median": round(median(values), 3),
        "low": round(min(values), 3),
        "high": round(max(values), 3),
    }


def measured(folder, messages):
    rows = timing(folder)
    result = {
        "first_round_s": rows[0]["seconds"],
        "round_s": spread([row["seconds"] for row in rows[1:]]),
    }
    if "overhead_up" in rows[1]:
        extra = [row["overhead_up"] + row["overhead_down"] for row in rows[1:]]
        result["overhead_bytes_a_message"] = round(median(extra) / (2 * messages))
    return result


def server_bits(folder):
    state = runs.from_bytes((folder / runs.CHECKPOINT).read_bytes())
    return runs.to_bytes(FederationState(0, state.server))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulation", action="store_true")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    nodes = arguments.nodes or (50 if arguments.simulation else 8)
    settings = [*WORK, f"clients={nodes}", f"cohort={nodes}", f"rounds={arguments.rounds}"]
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        project.create(here / "app")
        on_flower(
            here / "app", here / "flower", here / "home", settings, nodes, arguments.simulation
        )
        experiment = config.read_experiment(str(here / "app" / project.EXPERIMENT), settings)
        local_simulation(experiment, here / "local")
        if server_bits(here / "flower") != server_bits(here / "local"):
            sys.exit("the two runs differ")
        result = {
            "nodes": nodes,
            "engine": "Flower simulation" if arguments.simulation else "SuperNodes on loopback",
            "flower": measured(here / "flower", nodes),
            "local_simulation": measured(here / "local", nodes),
            "same_bits": True,
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
