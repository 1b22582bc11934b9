"""`--json`: every command has it, and prints what docs/json.md says."""

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedsift.cli.json_output import make_plain
from tests.helpers.cli import FAS, done, list_commands
from tests.helpers.json_shapes import find_faults, read_commands, read_printed, read_shapes


def test_every_command_has_it_and_is_on_the_page():
    commands = dict(list_commands())
    assert set(read_commands()) == set(commands)
    without = [
        name
        for name, one in commands.items()
        if not any("--json" in option.opts for option in one.params)
    ]
    assert without == []


FIRST = {  # what the commands below need
    "run": [*FAS, "rounds=2", "--out", "one"],
    "flower new": ["project"],
    "flower certs": ["certificates"],
}
COMMANDS = {
    "run": [*FAS, "rounds=1", "sweep.seed=[0,1]", "--out", "sweep"],
    "show": ["one"],
    "compare": ["one", "--target", "0.99"],
    "export": ["one", "-o", "model.safetensors"],
    "predict": ["one", "x.npy", "-o", "said.csv"],
    "plot": ["one", "-o", "picture.svg"],
    "report": ["one", "-o", "page.html"],
    "new": ["digits-fas", "mine.toml"],
    "ls": [],
    "data ls": [],
    "advise": ["--bytes", "1500"],
    "reproduce": [],
    "theory": ["--dimension", "1000", "--trials", "2"],
    "audit": [*FAS, "rounds=1", "--seeds", "1"],
    "flower units": ["project"],
    "flower key": ["node.key"],
    "cluster down": [],
    "flower proxy": ["certificates"],
}
ELSEWHERE = {  # commands that need more, and the tests that hold what they print against the page
    "bench engines": "test_bench.py",
    "bench scale": "test_bench.py",
    "cluster up": "cli/test_cluster.py",
    "data get": "data/test_download.py",
    "demo": "cli/test_demo.py",
    "flower admit": "flower/test_proxy.py",
    "flower check": "flower/test_node_check.py",
    "flower nodes": "flower/test_proxy.py",
    "flower revoke": "flower/test_proxy.py",
    "flower submit": "flower/test_supervisor.py",
    "flower up": "flower/test_projects.py",
    "watch": "cli/test_watch.py",
}


def test_what_every_command_prints_is_held_against_the_page():
    held = {*FIRST, *COMMANDS, *ELSEWHERE}
    assert held == {name for name, _ in list_commands()}
    for command, file in ELSEWHERE.items():
        text = (Path(__file__).parents[1] / file).read_text()
        assert f'read_printed("{command}", ' in text, (command, file)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with a run, a project and certificates, and what the commands printed."""
    home = tmp_path_factory.mktemp("json")
    with contextlib.chdir(home):
        np.save("x.npy", np.zeros((2, 1, 8, 8), np.float32))
        return home, {
            name: done(*name.split(), *words, "--json").stdout for name, words in FIRST.items()
        }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_the_page_says(command, made, monkeypatch):
    monkeypatch.chdir(made[0])
    read_printed(command, done(*command.split(), *COMMANDS[command], "--json").stdout)


@pytest.mark.parametrize("command", FIRST)
def test_a_first_command_prints_what_the_page_says(command, made):
    read_printed(command, made[1][command])


def test_a_fault_is_found():
    wrong = {"run": "one", "rounds": -1, "seeds": 3}
    faults = find_faults(wrong, "run")
    assert "it.rounds is -1, and no count" in faults
    assert "it lacks accuracy" in faults
    assert "it has seeds, of which the page says nothing" in faults
    assert find_faults([1, None], "list of count") == ["it[1] is None, and no count"]
    assert find_faults(None, "number or null") == []


def test_a_document_that_is_not_as_the_page_says_is_refused():
    assert read_printed("flower revoke", '{"revoked": 3}\n') == {"revoked": 3}
    for text in ('{"revoked": -3}', '{"revoked": 3}\n{}', '{"revoked": 3, "\u00e9": 0}', "{}"):
        with pytest.raises((AssertionError, ValueError)):
            read_printed("flower revoke", text)


def test_a_shape_or_a_field_that_stands_twice_is_refused():
    shape = "### one\n\n| `a` | text | |\n"
    assert read_shapes(shape + shape.replace("one", "two")) == {"one": {"a": "text"}} | {
        "two": {"a": "text"}
    }
    with pytest.raises(AssertionError, match="one stands twice"):
        read_shapes(shape + shape)
    with pytest.raises(AssertionError, match="a stands twice"):
        read_shapes(shape + "| `a` | count | |\n")


def test_what_json_has_no_word_for_becomes_null_or_a_text():
    found = make_plain(
        {"a": math.nan, 3: (math.inf, 1.5), "path": Path("x/y"), "half": "a\ud800b", "np": [1]}
    )
    assert found == {"a": None, "3": [None, 1.5], "path": "x/y", "half": "a?b", "np": [1]}
    assert json.loads(json.dumps(make_plain(np.float64("nan")))) is None


def test_ls_has_options_with_types_defaults_and_meanings():
    parts = {(one["kind"], one["name"]): one for one in json.loads(done("ls", "--json").stdout)}
    (share,) = parts["aggregators", "trimmed-mean"]["options"]
    assert (share["name"], share["type"], share["default"]) == ("share", "float", 0.2)
    budget = parts["algorithms", "fas"]["options"][0]
    assert budget["required"] and budget["about"] == "soft labels a client uploads per round"
    assert [one["name"] for one in parts["models", "resnet8"]["options"]] == ["norm", "width"]
    spread = parts["samplers", "own-classes"]["options"][2]
    assert (spread["name"], spread["default"]) == ("spread", None)  # infinity
    assert parts["samplers", "mixed"]["options"] == []
    assert parts["presets", "digits-fas"]["about"]
    one_kind = json.loads(done("ls", "graphs", "--json").stdout)
    assert {part["kind"] for part in one_kind} == {"graphs"}
