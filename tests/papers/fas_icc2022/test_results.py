"""The committed reports are still read, and their Markdown is rendered to the same bytes."""

import json
from pathlib import Path

import pytest

from fedsift.papers.fas_icc2022 import PAPER
from fedsift.reproduction import reports
from fedsift.reproduction.plans import Plan

RESULTS = Path(__file__).parents[3] / "results" / PAPER.name
NOT_REPORTS = {"cifar10-ours/exploration"}  # notes on recipes that were tried, made by no item
FILES = sorted(str(path.relative_to(RESULTS).with_suffix("")) for path in RESULTS.glob("*/*.json"))


def read(name: str) -> dict[str, object]:
    folder, item = (RESULTS / name).parent, Path(name).name
    setting, recipe = folder.name.split("-")
    return reports.read_report(Plan(PAPER, setting, recipe, 3), item, folder)


def test_every_report_of_the_repository_is_here():
    assert len(FILES) == 24 and set(FILES) > NOT_REPORTS
    others = [path for path in RESULTS.parent.iterdir() if path != RESULTS]
    assert others == []


@pytest.mark.parametrize("name", [name for name in FILES if name not in NOT_REPORTS])
def test_a_committed_report_reads_and_renders_to_the_committed_text(name):
    report = read(name)
    assert report == json.loads((RESULTS / f"{name}.json").read_text())
    item = Path(name).name
    render = PAPER.extras[item].markdown if item in PAPER.extras else reports.markdown
    assert render(report).encode() == (RESULTS / f"{name}.md").read_bytes()
