"""`fedsift cluster`: what it says and prints. engines/spread/test_on_ray.py has a real one."""

import pytest

from fedsift.engines.spread import cluster
from tests.helpers.cli import done
from tests.helpers.json_shapes import read_printed

ADDRESS = "127.0.0.1:6379"


@pytest.fixture
def asked(monkeypatch):
    """What was asked of a Ray that is only said to run."""
    found = []

    def start(cores, memory):
        found.append((cores, memory))
        return ADDRESS

    monkeypatch.setattr(cluster, "start", start)
    monkeypatch.setattr(cluster, "stop", lambda: ADDRESS)
    return found


def test_up_and_down_say_where_ray_runs_and_how_to_use_it(asked):
    told = done("cluster", "up", "--cores", "3", "--memory", "0.25").stdout.splitlines()
    assert told[0].startswith(f"Ray runs at {ADDRESS}.")
    assert told[1] == f"  fedsift run digits-fas --engine ray --address {ADDRESS}"
    assert asked == [(3, 0.25)]
    assert done("cluster", "down").stdout == f"ended Ray at {ADDRESS}\n"


def test_up_and_down_print_the_address_as_json(asked):
    started = done("cluster", "up", "--json")
    assert read_printed("cluster up", started.stdout) == {"address": ADDRESS}
    assert (started.stderr, len(asked)) == ("", 1)
    ended = done("cluster", "down", "--json").stdout
    assert read_printed("cluster down", ended) == {"address": ADDRESS}
