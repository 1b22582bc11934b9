"""The operator's walk: the commands of docs/deploy.md, word for word, from nothing to a table."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from fedsift import runs
from fedsift.flower import processes
from fedsift.flower.local_deployment import free_port
from fedsift.flower.superlink import SuperLink
from tests.helpers import front_door
from tests.helpers.pages import read_walk

pytestmark = [pytest.mark.flower, front_door.needs_nginx]

STAY = ("flower-superlink", "nginx", "flower-supernode")  # commands that do not end
TINY = "data.private=60 data.public=30 local.epochs=1 distill.epochs=1 device=cpu budget=6 rounds=2"
PATIENCE = 240  # seconds; slow machines are slow


class Machine:
    """A folder that stands for a machine; what it starts is stopped at the end."""

    def __init__(self, folder, mark, changes):
        self.folder, self.changes = folder, changes
        self.started: list[subprocess.Popen[str]] = []
        folder.mkdir()
        self.changes["/opt/fedsift/bin"] = str(Path(sys.executable).parent)
        self.environment = os.environ | {"PATH": front_door.PATH, processes.MARK: mark}
        self.environment |= {"FLWR_HOME": str(folder / "flwr")}
        shell = " && ".join([*read_walk()[0], "env -0"])  # what every terminal has
        self.environment |= dict(pair.split("=", 1) for pair in self.run(shell).split("\0") if pair)

    def run(self, command):
        for old, new in self.changes.items():
            command = command.replace(old, new)
        with open(self.folder / "log", "a") as log:
            how: Any = {"cwd": self.folder, "env": self.environment, "stderr": log, "text": True}
            if command.startswith(STAY):
                words = ["sh", "-c", f"exec {command}"]
                process = subprocess.Popen(words, stdout=log, start_new_session=True, **how)
                self.started.append(process)
                return ""
            how |= {"stdout": subprocess.PIPE, "timeout": PATIENCE}
            done = subprocess.run(command, shell=True, **how)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{self.log()}"
        return done.stdout

    def log(self):
        return (self.folder / "log").read_text()


@pytest.fixture
def new_machine(tmp_path):
    mark, made = uuid.uuid4().hex, []

    def make(name, changes):
        made.append(Machine(tmp_path / name, mark, changes))
        return made[-1]

    yield make
    for machine in made:
        for process in machine.started:
            process.terminate()  # nginx rubs out its environment, and the mark with it
    processes.end_marked(mark)
    for machine in made:
        for process in machine.started:
            process.wait(PATIENCE)


def until_there(machine, address):
    """Wait for the server as its operator does: until it answers."""
    link = SuperLink(address, machine.folder, machine.folder / "certs" / "ca.crt")
    end = time.monotonic() + PATIENCE
    while not link.is_healthy():
        assert time.monotonic() < end, machine.log()
        time.sleep(0.5)


def test_the_walk_of_the_page_ends_with_a_table(tmp_path, new_machine):
    link, door = str(free_port()), str(free_port())
    ports = {"server.example:8443": f"127.0.0.1:{door}", "--port 8000": f"--port {link}"}
    where = f"--listen 127.0.0.1:{door} --link 127.0.0.1:{link}"
    ports |= {"--host server.example": f"--host 127.0.0.1 {where}"}
    slow = {"--supervise": f"--supervise --run-config wait={PATIENCE:.1f}"}  # so are tests beside
    server = new_machine("server", ports | {"cohort=2": f"cohort=2 {TINY}"} | slow)
    nodes = []
    for number in range(2):
        own = {
            "partition-id=0": f"partition-id={number}",
            "/var/lib/fedsift": str(tmp_path / f"node-{number}"),
            "flower-supernode ": f"flower-supernode --port {free_port()} ",
        }
        nodes.append(new_machine(f"node-{number}", ports | own))
    steps = read_walk()
    assert [len(commands) for commands in steps.values()] == [2, 4, 1, 2, 3, 2]

    for command in steps[1]:
        server.run(command)
    until_there(server, f"127.0.0.1:{door}")
    for number, node in enumerate(nodes):
        for command in steps[2]:
            node.run(command)
        shutil.copy(node.folder / "node.key.pub", server.folder / f"node-{number}.key.pub")
        shutil.copy(server.folder / "certs" / "ca.crt", node.folder)
        shutil.copytree(server.folder / "app", node.folder / "app")
    for command in steps[3]:
        server.run(command)
    for node in nodes:
        said = [node.run(command) for command in steps[4]]
        levels = [line.split()[0] for line in said[1].splitlines()]
        assert set(levels) == {"ok"} and len(levels) == 12, said[1]
    table, shown = [server.run(command) for command in steps[5]]
    assert "test accuracy" in table and "2" in shown
    assert "more than 255 bytes" not in server.log()  # of nginx: then it would not limit nodes
    folder = server.folder / "runs" / "app"
    assert runs.rounds_played(folder) == 2
    assert [set(row.up) for row in runs.load_run(folder).ledger] == [{0, 1}] * 2
