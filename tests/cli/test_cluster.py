"""`fedsift cluster`: what it says and prints. engines/spread/test_on_ray.py has a real one."""

import pytest

from fedsift.engines.spread import cluster
from tests.helpers.cli import done
from tests.helpers.json_shapes import read_printed


@pytest.fixture
def asked(monkeypatch):
    """What was asked of a Ray that is only said to run."""
    found = []
    address = "127.0.0.1:6379"
    monkeypatch.setattr(cluster, "start", lambda *words: found.append(words) or address)
    monkeypatch.setattr(cluster, "stop", lambda: address)
    return found


def test_up_and_down_say_where_ray_runs_and_how_to_use_it(asked):
    told = done("cluster", "up", "--cores", "3", "--memory", "0.25").stdout.splitlines()
    assert told[0].startswith("Ray runs at 127.0.0.1:6379.")
    assert told[1] == "  fedsift run digits-fas --engine ray --address 127.0.0.1:6379"
    assert asked == [(3, 0.25)]
    assert done("cluster", "down").stdout == "ended Ray at 127.0.0.1:6379\n"


def test_up_and_down_print_the_address_as_json(asked):
    started = done("cluster", "up", "--json")
    assert read_printed("cluster up", started.stdout) == {"address": "127.0.0.1:6379"}
    assert (started.stderr, len(asked)) == ("", 1)
    ended = done("cluster", "down", "--json").stdout
    assert read_printed("cluster down", ended) == {"address": "127.0.0.1:6379"}
