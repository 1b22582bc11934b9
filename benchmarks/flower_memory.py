"""Memory of every process of a real Flower federation on loopback, round by round.

    python benchmarks/flower_memory.py --nodes 4 --rounds 100 --seconds 1500

The federation is that of docs/deploy.md: TLS, a database, nginx, admitted nodes. The work is tiny,
so that rounds are short: what is looked for is growth. Processes that live for one message (a
node's ClientApp) are left out. The table has the resident memory in MiB after some rounds, and the
growth per round over the second half.
"""

import argparse
import json
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from front_door import FrontDoor

from fedsift import runs
from fedsift.flower import project

WORK = [
    "data.private=60",
    "data.public=30",
    "local.epochs=1",
    "distill.epochs=1",
    "device=cpu",
    "model=mlp",
    "budget=6",
]
LASTING = ("flower-superlink", "flwr-serverapp", "flower-superexec", "flower-supernode", "nginx")
ROUNDS = (10, 25, 50, 75, 100)  # after which the table has a column


def resident(pid):
    """MiB, and the name of what runs."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if command[0].startswith("nginx: "):  # its title
        command = ["nginx"]
    name = next((part for word in command for part in LASTING if word.endswith(part)), None)
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return name, kib / 1024


def look(deployment):
    found = {}
    for pid in deployment.alive():
        with suppress(OSError, StopIteration):
            name, size = resident(pid)
            if name:
                found[f"{name} {pid}"] = size
    return found


def watch(deployment, folder, rounds, seconds):
    """What is there after each round."""
    until, seen = time.monotonic() + seconds, []
    while len(seen) < rounds and time.monotonic() < until:
        time.sleep(0.5)
        if runs.rounds_played(folder) > len(seen):
            seen += [look(deployment)] * (runs.rounds_played(folder) - len(seen))
    return seen


def slope(values):
    """Least squares, per round."""
    n = len(values)
    middle, mean = (n - 1) / 2, sum(values) / n
    above = sum((i - middle) * (value - mean) for i, value in enumerate(values))
    return above / max(1e-9, sum((i - middle) ** 2 for i in range(n)))


def growth(seen):
    rows = []
    for process in sorted(set.intersection(*(set(found) for found in seen[1:]))):
        sizes = [found[process] for found in seen[1:]]
        after = {number: round(seen[number - 1][process], 1) for number in columns(len(seen))}
        grown = round(slope(sizes[len(sizes) // 2 :]), 3)
        rows.append({"process": process.split(" ")[0], "after": after, "per_round": grown})
    return rows


def columns(rounds):
    return [number for number in ROUNDS if number < rounds] + [rounds]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1500.0, help="stop after this time")
    arguments = parser.parse_args()
    nodes = arguments.nodes
    work = [*WORK, f"clients={nodes}", f"cohort={nodes}", f"rounds={arguments.rounds}"]
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        project.create(here / "app")
        with FrontDoor(here, nodes) as site:
            site.submit(here / "app", here / "run", " ".join(work))
            seen = watch(site.deployment, here / "run", arguments.rounds, arguments.seconds)
            seconds = runs.load_run(here / "run").seconds
    print(json.dumps({"rounds": len(seen), "seconds": seconds, "memory": growth(seen)}, indent=1))


if __name__ == "__main__":
    main()
