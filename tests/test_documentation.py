"""The pages that a newcomer reads: short, and their examples run as they stand."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsift import data
from tests.helpers.cli import done

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")  # the first line of a block that belongs into a file
COMMAND = re.compile(r"^    fedsift (run .*)$", re.MULTILINE)
SHORT = ["rounds=1", "local.epochs=1", "distill.epochs=1", "--quiet"]  # the last value counts


def run_examples(page: Path, folder: Path) -> int:
    """Run the Python blocks of a page in their order; write those that name a file into it.

    Returns how many there were.
    """
    names: dict[str, object] = {"__name__": "example"}
    blocks = BLOCK.findall(page.read_text())
    for block in blocks:
        if named := FILE.match(block):
            with open(folder / named.group(1), "a") as file:
                file.write(block)
        else:
            exec(compile(block, str(page), "exec"), names)
    return len(blocks)


def test_the_readme_has_at_most_700_words():
    assert len((ROOT / "README.md").read_text().split()) <= 700


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget_modules(tmp_path)
    data._load_once.cache_clear()


def forget_modules(folder: Path) -> None:
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "least"),
    [("README", 1), ("docs/your-own", 10), ("docs/any-client", 2), ("docs/your-own-data", 7)],
)
def test_the_python_examples_run(page, least, folder):
    assert run_examples(ROOT / f"{page}.md", folder) >= least
    for file in folder.glob("*.py"):
        compile(file.read_text(), str(file), "exec")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [("your-own", 12), ("any-client", 2), ("your-own-data", 8)]
)
def test_the_commands_of_a_guide_run(name, least, folder):
    page = ROOT / f"docs/{name}.md"
    run_examples(page, folder)
    forget_modules(folder)  # the page imports one before all of it is written
    commands = [shlex.split(words) for words in COMMAND.findall(page.read_text())]
    assert len(commands) >= least
    for number, words in enumerate(commands):
        done(*words, *SHORT, "--out", f"run-{number}")
        assert len((folder / f"run-{number}" / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_the_page_on_results_runs_from_top_to_bottom(folder):
    page = (ROOT / "docs/results-out.md").read_text()
    names: dict[str, object] = {"__name__": "example"}
    steps = re.findall(r"^    fedsift [^\n]*$|^```python\n.*?^```$", page, re.DOTALL | re.MULTILINE)
    assert len(steps) >= 6
    for step in steps:
        if block := BLOCK.fullmatch(step):
            exec(compile(block[1], "results-out.md", "exec"), names)
        else:
            words = shlex.split(step)[1:]
            done(*words, *(SHORT if words[0] == "run" else []))
