"""`fedsift cluster`, and the address of one. engines/spread/test_on_ray.py has a real one."""

import pytest

from fedsift.cli.options import name_engine
from fedsift.engines.spread import cluster
from fedsift.registry import parse_spec
from fedsift.types import UserError
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


@pytest.mark.parametrize(
    ("engine", "others"),
    [
        *((None, {}), ("ray", {}), ("ray()", {}), ("ray(gpus=0.5)", {"gpus": 0.5})),
        (" ray ( gpus=0.5 , memory=2 ) ", {"gpus": 0.5, "memory": 2}),
    ],
)
@pytest.mark.parametrize("address", ["10.0.0.1:6379", "ray://10.0.0.1:10001"])
def test_an_address_stands_beside_what_else_ray_is_told(engine, others, address):
    told = name_engine(engine, address) or ""
    assert parse_spec(told) == ("ray", [], others | {"address": address})


def test_without_an_address_an_engine_is_as_it_was_named():
    assert name_engine(None, None) is None and name_engine("batched", None) == "batched"


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("batched", "--address is for --engine ray, not for batched"),
        ("rays(gpus=1)", "--address is for --engine ray, not for rays"),
        ("ray(address=10.0.0.1:1)", "has an address of its own; leave --address out"),
        ("ray(gpus=1", "cannot read"),
    ],
)
def test_an_address_that_fits_no_engine_is_refused(engine, why):
    with pytest.raises(UserError, match=why):
        name_engine(engine, ADDRESS)
