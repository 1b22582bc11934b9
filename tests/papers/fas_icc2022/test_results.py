"""The committed reports are still read, and their Markdown is rendered to the same bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedsift.papers import PAPERS
from fedsift.papers.fas_icc2022 import PAPER
from fedsift.reproduction import reports, tables
from fedsift.reproduction.plans import Plan
from tests.helpers.cli import done

RESULTS = Path(__file__).parents[3] / "results" / PAPER.name
NOT_REPORTS = {"cifar10-ours/exploration"}  # notes on recipes that were tried, made by no item
NO_PAPERS = {"privacy"}  # made by `fedsift audit`
FILES = sorted(str(path.relative_to(RESULTS).with_suffix("")) for path in RESULTS.glob("*/*.json"))


def read(name: str) -> dict[str, Any]:
    folder, item = (RESULTS / name).parent, Path(name).name
    setting, recipe = folder.name.split("-")
    return reports.read_report(Plan(PAPER, setting, recipe, 3), item, folder)


def test_every_report_of_the_repository_is_here():
    assert len(FILES) == 24 and set(FILES) > NOT_REPORTS
    assert {path.name for path in RESULTS.parent.iterdir()} <= {*PAPERS, *NO_PAPERS}


@pytest.mark.parametrize("name", [name for name in FILES if name not in NOT_REPORTS])
def test_a_committed_report_reads_and_renders_to_the_committed_text(name):
    report = read(name)
    assert report == json.loads((RESULTS / f"{name}.json").read_text())
    item = Path(name).name
    render = PAPER.extras[item].markdown if item in PAPER.extras else reports.markdown
    assert render(report).encode() == (RESULTS / f"{name}.md").read_bytes()


@pytest.mark.parametrize("folder", sorted({name.split("/")[0] for name in FILES}))
def test_the_command_shows_all_committed_reports_of_a_folder(folder):
    """With the numbers of the files, digit for digit, and without a change to them."""
    setting, recipe = folder.split("-")
    items = [Path(name).name for name in FILES if name.startswith(f"{folder}/")]
    items = [item for item in items if f"{folder}/{item}" not in NOT_REPORTS]
    before = {path: path.read_bytes() for path in (RESULTS / folder).iterdir()}
    words = ["reproduce", PAPER.name, *items, "--recipe", recipe, "--report"]
    words += ["--quick"] if setting == PAPER.quick else []
    words += ["--out", str(RESULTS / folder)]
    assert json.loads(done(*words, "--json").stdout) == [read(f"{folder}/{i}") for i in items]
    text = done(*words).stdout
    for report in (read(f"{folder}/{item}") for item in items):
        for cell in report.get("cells", []):
            assert tables.format_accuracy(cell["accuracy"], cell["sd"]) in text
    assert {path: path.read_bytes() for path in (RESULTS / folder).iterdir()} == before
