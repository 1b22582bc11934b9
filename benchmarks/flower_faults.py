"""Faults on a real Flower federation of four nodes on loopback: what was seen, how it ends.

    python benchmarks/flower_faults.py                        # all of them
    python benchmarks/flower_faults.py serverapp superlink

The federation is that of docs/deploy.md: TLS, a database, nginx, admitted nodes, and a run that
`fedsift flower submit --supervise` watches. Each fault comes in the middle of the second round.

serverapp, superlink  kill -9. The SuperLink is started again after 10 s.
proxy                 kill -9 of nginx and its worker; started again after 10 s.
node, half            kill -9 of one or two nodes; started again after the round.
disk                  the server's disk is full: run folder, database and logs. Room after 30 s.
node-disk             the disk of a node is full: its memory and Flower's files. Room after the
                      round was tried once; `minimum` is all four, so nobody goes missing.

A full disk is a small tmpfs, so these two need root. The end of a run is compared with a
simulation, bit for bit. Logs are printed, then a table.
"""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from front_door import FrontDoor, kill_group, wait_until

from fedsift import config, runs
from fedsift.engines import choose_engine
from fedsift.federation import FederationState
from fedsift.flower import project

# CFD: codes relative to the last message both ways, and a model at every node. So all that a
# fault could lose would change the bits of the end.
WORK = (
    "data.private=60 data.public=30 local.epochs=1 distill.epochs=1 device=cpu model=mlp "
    "algorithm=cfd budget=20 clients=4 cohort=4 rounds=4"
)
DOWN = 10  # seconds until a program is started again


class Trial:
    """One federation, and a run on it for each fault."""

    def __init__(self, here, site):
        self.here, self.site, self.supervisor = here, site, None

    def submit(self, name, *options):
        """As the operator does. Returns the run folder, once a round is saved and one begun."""
        folder = self.site.server / "runs" / name
        words = ["submit", str(self.here / "app"), *WORK.split(), "--out", str(folder)]
        words += ["--certs", str(self.site.table.parent), "--supervise", *options]
        program = [sys.executable, "-m", "fedsift", "flower", *words]
        self.supervisor = self.site.deployment._start(f"submit-{name}", *program)
        self.wait_for(folder, 1)
        time.sleep(3)
        return folder

    def wait_for(self, folder, rounds):
        wait_until(lambda: runs.rounds_played(folder) >= rounds, f"round {rounds} of {folder.name}")

    def wait_for_line(self, folder, text):
        log = folder / "server.log"
        wait_until(lambda: text in log.read_text(), f"{text!r} in the log of {folder.name}")

    def find(self, name):
        """Processes of this federation with this name."""
        for pid in self.site.deployment.alive():
            with contextlib.suppress(OSError):
                if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    yield pid


def lose_serverapp(trial, folder):
    for pid in trial.find("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)


def lose_superlink(trial, folder):
    link = trial.site.deployment.running["superlink"]
    link.kill()
    link.wait(60)
    time.sleep(DOWN)
    trial.site.start_link()


def lose_proxy(trial, folder):
    kill_group(trial.site.nginx)
    time.sleep(DOWN)
    trial.site.start_proxy()


def lose_nodes(trial, folder, lost):
    for client in lost:
        kill_group(trial.site.nodes[client])
    trial.wait_for(folder, 2)
    for client in lost:
        trial.site.start_node(client)


def fill_server(trial, folder):
    with fill(trial.site.server):
        time.sleep(30)


def fill_node(trial, folder):
    with fill(trial.site.places[3]):
        trial.wait_for_line(folder, "has 3 replies, the minimum is 4")


FAULTS = {
    "serverapp": lose_serverapp,
    "superlink": lose_superlink,
    "proxy": lose_proxy,
    "node": lambda trial, folder: lose_nodes(trial, folder, [3]),
    "half": lambda trial, folder: lose_nodes(trial, folder, [2, 3]),
    "disk": fill_server,
    "node-disk": fill_node,
}
OPTIONS = {"node-disk": ("--run-config", "minimum=4")}


@contextlib.contextmanager
def fill(place):
    """No room on the disk of a folder, for as long as this lasts."""
    with open(place / "filler", "wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))
    yield
    (place / "filler").unlink()


@contextlib.contextmanager
def small_disk(place, size, wanted):
    place.mkdir()
    if not wanted:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def server_bits(folder):
    state = runs.from_bytes((folder / runs.CHECKPOINT).read_bytes())
    return runs.to_bytes(FederationState(0, state.server))


def simulate(here):
    sys.path.insert(0, str(here / "app"))
    experiment = config.read_experiment(str(here / "app" / project.EXPERIMENT), shlex.split(WORK))
    run = runs.begin_run(here / "simulated", experiment)
    for _ in runs.Group.of([run]).run_or_raise(choose_engine()[0]):
        pass
    return server_bits(run.folder)


def try_fault(trial, name, expected):
    """A row of the table; what everybody said is printed."""
    logs = {log: len(trial.site.read_log(log)) for log in ("superlink", "proxy", "node-3")}
    folder = trial.submit(name, *OPTIONS.get(name, ()))
    begun = time.monotonic()
    FAULTS[name](trial, folder)
    trial.wait_for(folder, 2)
    closed = time.monotonic() - begun
    trial.wait_for(folder, 4)
    trial.supervisor.wait(60)
    print(f"\n=== {name}: server.log ===\n{(folder / 'server.log').read_text()}")
    print(f"=== {name}: the supervisor ===\n{trial.site.read_log(f'submit-{name}')}")
    for log, before in logs.items():
        print(f"=== {name}: {log} ===\n{trial.site.read_log(log)[before:][-6000:]}", flush=True)
    missing = {row.round: sorted(row.missing) for row in runs.load_run(folder).ledger}
    missing = {round: clients for round, clients in missing.items() if clients}
    same = "yes" if server_bits(folder) == expected else "no"
    return f"{name:<10} {closed:>12.0f} {same:>10}   {missing or 'nobody'}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FAULTS))
    faults = parser.parse_args().faults or list(FAULTS)
    if unknown := set(faults) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(unknown)}")
    rows = [f"{'fault':<10} {'round 2 saved':>12} {'bit-equal':>9}   missing, by round"]
    disks = "disk" in faults or "node-disk" in faults
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        here = Path(temporary)
        project.create(here / "app")
        expected = simulate(here)
        stack.enter_context(small_disk(here / "server", "48m", disks))
        stack.enter_context(small_disk(here / "node-3", "16m", disks))
        trial = Trial(here, stack.enter_context(FrontDoor(here, 4)))
        for name in faults:
            rows.append(try_fault(trial, name, expected))
    print("\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
