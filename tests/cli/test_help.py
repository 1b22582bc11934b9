"""The version and the help of the program and of each verb."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedsift import __version__, cli
from tests.helpers.cli import done, fedsift, list_commands, program

VERBS = [
    "demo",
    "run",
    "ls",
    "new",
    "show",
    "compare",
    "plot",
    "report",
    "export",
    "predict",
    "advise",
    "reproduce",
    "audit",
    "theory",
    "watch",
    "data",
    "flower",
    "bench",
    "cluster",
]


def test_the_version_is_the_packages():
    result = program("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"fedsift {__version__}\n", "")


def test_help_names_every_verb_and_needs_neither_torch_nor_numpy():
    look = (
        "import sys; from fedsift.cli import app; app(['--help'], standalone_mode=False); "
        "print(sorted({'torch', 'numpy', 'pydantic', 'matplotlib'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    *help, heavy = result.stdout.splitlines()
    assert heavy == "[]"
    assert [found[1] for line in help if (found := re.match(r"│ ([a-z]+)  ", line))] == VERBS


@pytest.mark.parametrize(
    "verb, words",
    {
        "demo": ["--out", "--seeds", "--rounds", "--quiet"],
        "run": [
            "--out",
            "--engine",
            "--device",
            "--seeds",
            "--resume",
            "--quiet",
            "--json",
            "key=value",
        ],
        "ls": ["KIND"],
        "new": ["PRESET", "FILE"],
        "show": ["RUN", "--json"],
        "compare": ["FOLDERS", "--against", "--costs", "--json"],
        "plot": ["FOLDERS", "--output"],
        "reproduce": [
            "ITEM",
            "key=value",
            "--quick",
            "--recipe",
            "--seeds",
            "--out",
            "--report",
            "--only",
            "--seconds",
            "--slim",
            "--engine",
            "--json",
        ],
        "audit": ["SOURCE", "key=value", "--seeds", "--output", "--json"],
        "advise": ["--bytes", "--clients", "--classes", "--skew", "--alpha", "--models", "--json"],
    }.items(),
)
def test_the_help_of_a_verb_names_all_it_takes(verb, words):
    text = done(verb, "--help").stdout
    assert f"Usage: root {verb}" in text
    assert [word for word in words if word not in text] == []


def test_help_says_of_every_argument_and_option_what_it_means():
    without = [
        (name, option.name)
        for name, command in list_commands()
        for option in command.params
        if not (option.hidden or option.help)
    ]
    assert without == []


def test_no_word_of_a_help_text_is_taken_for_a_colour(monkeypatch):
    """As what stands in square brackets would be: sweep.sampler=[none,mixed]."""
    monkeypatch.setenv("COLUMNS", "120")
    for name, command in list_commands():
        shown = done(*name.split(), "--help").stdout
        written = " ".join([command.help, *(one.help for one in command.params if not one.hidden)])
        words = written.replace("\\[", "[").split()
        assert [word for word in words if word not in shown] == [], name


def test_without_a_verb_the_help_is_shown():
    result = fedsift()
    assert all(f"│ {verb} " in result.stdout + result.stderr for verb in VERBS)


def test_the_module_of_the_program_only_joins_the_verbs():
    assert len(Path(cli.__file__).read_text().splitlines()) <= 65
